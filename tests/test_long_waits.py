"""Waits that last longer than 20 s: heartbeats, then the page, or a cut; in both versions of HTTP.

All of them wait at the same time, on one relay, so that the file takes half a minute and not four."""

import json
import re
import signal
import time
from pathlib import Path

import pytest
from conftest import Relay, new_key, until
from test_existing_clients import COMMANDS, start

printed: dict[str, str] = {}  # by the clients of test_existing_clients
CHUNK = re.compile(rb"([0-9A-F]+)\r\n(.*?)\r\n", re.DOTALL)


class Conversation:
    """One raw connection that waits, and all bytes that came over it."""

    def __init__(self, relay: Relay, version: str) -> None:
        self.key = new_key()
        self.came = b""
        self.reset = False
        self._connection = relay.connect()
        self._connection.sendall(f"GET /mailboxes/{self.key}/wait HTTP/{version}\r\nHost: x\r\n\r\n".encode())

    def receive(self) -> bytes:
        """What comes next; empty at the end."""
        try:
            data = self._connection.recv(65536)
        except ConnectionResetError:
            self.reset = True
            data = b""
        self.came += data
        return data

    def receive_all(self) -> None:
        while self.receive():
            pass
        self._connection.close()

    @property
    def head(self) -> bytes:
        return self.came.partition(b"\r\n\r\n")[0]

    @property
    def body(self) -> bytes:
        return self.came.partition(b"\r\n\r\n")[2]


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Conversation]:
    """Waits that are paged after the first heartbeat, or after the second, or cut by a stop."""
    folder: Path = tmp_path_factory.mktemp("long")
    relay = Relay(folder / "spool", folder / "log")
    talks = {
        f"{name} {version}": Conversation(relay, version)
        for version in ("1.0", "1.1")
        for name in ("first", "second", "cut")
    }
    keys = {client: new_key() for client in COMMANDS}
    clients = {client: start(client, relay, key, 1) for client, key in keys.items()}
    began = time.monotonic()
    until(lambda: all(relay.new(key).is_dir() for key in keys.values()))
    for talk in talks.values():
        talk.receive()
    assert 19.5 < time.monotonic() - began < 30
    for version in ("1.0", "1.1"):
        relay.notify(talks[f"first {version}"].key, json={"message": "first"})
    for client, process in clients.items():
        relay.notify(keys[client], json={"message": f"for {client}"})
        with process:
            printed[client] = process.communicate(timeout=10)[0]
    for version in ("1.0", "1.1"):
        talks[f"first {version}"].receive_all()
        second = talks[f"second {version}"]
        while second.body.count(b" ") < 2:
            assert second.receive()
        relay.notify(second.key, json={"message": "second"})
        second.receive_all()
    relay.process.send_signal(signal.SIGTERM)  # and once more below, which changes nothing
    for version in ("1.0", "1.1"):
        talks[f"cut {version}"].receive_all()
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()
    return talks


def test_headers_and_a_first_space_come_after_twenty_seconds(talks: dict[str, Conversation]) -> None:
    for name in ("first 1.0", "first 1.1"):
        assert talks[name].head.startswith(b"HTTP/1." + name[-1:].encode() + b" 200 OK")
        assert b"X-Accel-Buffering: no" in talks[name].head
        assert b"Cache-Control: no-store" in talks[name].head
        assert b"Content-Length" not in talks[name].head
    assert b"Transfer-Encoding: chunked" in talks["first 1.1"].head
    assert b"Transfer-Encoding" not in talks["first 1.0"].head


@pytest.mark.parametrize(("name", "spaces"), [("first", 1), ("second", 2)])
def test_the_page_follows_the_spaces_and_ends_the_answer(
    talks: dict[str, Conversation], name: str, spaces: int
) -> None:
    unframed = talks[f"{name} 1.0"].body
    assert unframed.startswith(b" " * spaces + b'{"id":')
    assert unframed.endswith(f'"message":"{name}"}}\n'.encode())
    chunks = [chunk for _, chunk in CHUNK.findall(talks[f"{name} 1.1"].body)]
    assert chunks[:spaces] == [b" "] * spaces
    assert chunks[spaces].startswith(b'{"id":')
    assert talks[f"{name} 1.1"].body.endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("client", COMMANDS)
def test_existing_clients_do_not_mind_the_white_space(talks: dict[str, Conversation], client: str) -> None:
    assert json.loads(printed[client])["message"] == f"for {client}"


def test_a_stop_cuts_a_chunked_wait_without_the_final_chunk(talks: dict[str, Conversation]) -> None:
    body = talks["cut 1.1"].body
    assert body.startswith(b"1\r\n \r\n")
    assert b"0\r\n\r\n" not in body
    assert b"{" not in body


def test_a_stop_resets_an_unframed_wait_so_that_it_is_no_blank_answer(talks: dict[str, Conversation]) -> None:
    assert talks["cut 1.0"].body.strip() == b""
    assert talks["cut 1.0"].reset
