"""A relay that may have few descriptors."""

import collections
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from conftest import Relay, clean_environment, new_key, until


def with_descriptors(limit: int) -> list[str]:
    return ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh"]


def test_with_64_descriptors_it_says_so_and_loses_nothing(start_relay: Callable[..., Relay], tmp_path: Path) -> None:
    relay = start_relay(prefix=with_descriptors(64), MAX_MESSAGES_PER_MAILBOX=1000)
    keys = [new_key() for _ in range(40)]
    statuses: list[int] = []

    def post(key: str) -> None:
        for n in range(5):
            headers = {"Idempotency-Key": f"{n}", "Connection": "close"}
            statuses.append(relay.notify(key, str(n), headers=headers).status_code)

    threads = [threading.Thread(target=post, args=[key]) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert collections.Counter(statuses) == {202: 200}
    assert all(len(relay.lease(key, "max=9&lease=60")) == 5 for key in keys)
    assert relay.stop() == 0
    (line,) = [line for line in relay.log.read_text().splitlines() if "WARNING" in line or "ERROR" in line]
    assert "13 connections at most, for want of file descriptors: ulimit -n" in line


def test_more_connections_than_it_may_have_wait_and_cost_no_cpu(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(prefix=with_descriptors(64))
    connections = [relay.connect() for _ in range(40)]
    before = cpu_seconds(relay)
    threading.Event().wait(2)
    assert cpu_seconds(relay) - before < 0.5
    for connection in connections:
        connection.close()
    assert until(lambda: relay.notify(key).status_code == 202)


def cpu_seconds(relay: Relay) -> float:
    fields = Path(f"/proc/{relay.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_with_too_few_to_work_it_does_not_start(tmp_path: Path) -> None:
    run = subprocess.run(
        [*with_descriptors(40), sys.executable, "-m", "pagermcp"],
        env=clean_environment(DATA_DIR=tmp_path / "spool", PORT=0),
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert run.returncode == 1
    assert run.stderr == "Error: 40 file descriptors are too few: ulimit -n 1024, or LimitNOFILE=1024 in systemd\n"
