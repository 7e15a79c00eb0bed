"""Clients of the seed work unchanged: stand-ins written from its description, run as they are."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Relay, new_key, require, until

CLIENTS = Path(__file__).parent / "clients"
COMMANDS = {
    "fetch in node": lambda: [require("node", "nodejs"), CLIENTS / "fetch_loop.mjs"],
    "urllib in Python": lambda: [sys.executable, CLIENTS / "urllib_loop.py"],
    "curl in a shell": lambda: [require("sh", "dash"), CLIENTS / "curl_loop.sh"],
}


def start(client: str, relay: Relay, key: str, count: int) -> "subprocess.Popen[str]":
    command = [*COMMANDS[client](), relay.url, key, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize("client", COMMANDS)
def test_a_loop_gets_every_page_once_in_order_also_across_a_restart(
    start_relay: Callable[..., Relay], client: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    relay = start_relay(PORT=port)
    key = new_key()
    with start(client, relay, key, 9) as process:
        try:
            until(relay.new(key).is_dir)
            sent = [relay.notify(key, json={"n": n}).json()["id"] for n in range(3)]
            until(lambda: len(relay.archived(key)) == 3)
            sent += [relay.notify(key, json={"n": n}).json()["id"] for n in range(3, 6)]
            assert relay.stop() == 0
            again = start_relay(relay.spool, PORT=port)
            sent += [again.notify(key, json={"n": n}).json()["id"] for n in range(6, 9)]
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    pages = [json.loads(line) for line in output.splitlines()]
    assert [page["id"] for page in pages] == sent
    assert [page["n"] for page in pages] == list(range(9))
