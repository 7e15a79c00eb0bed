"""A relay that may have few descriptors, and what those get who are more than it may serve."""

import collections
import concurrent.futures
import contextlib
import json
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import raw
from conftest import Relay, clean_environment, new_key, require, until
from raw import Raw

DOZEN = range(8, 25)


def with_descriptors(limit: int, which: str = "") -> list[str]:
    """which: -S for the soft limit alone."""
    return ["sh", "-c", f'ulimit {which} -n {limit}; exec "$@"', "sh"]


def warnings(relay: Relay) -> list[str]:
    return [line for line in relay.log.read_text().splitlines() if "WARNING" in line or "ERROR" in line]


def connections_at_most(relay: Relay) -> int:
    """What the relay says about that, in its only warning, with the remedy."""
    (line,) = warnings(relay)
    said = re.search(r"(\d+) connections at most, for want of file descriptors: ulimit -n", line)
    assert said, line
    return int(said[1])


# Few descriptors


def test_with_64_descriptors_it_says_so_and_loses_nothing(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(prefix=with_descriptors(64), MAX_MESSAGES_PER_MAILBOX=1000)
    keys = [new_key() for _ in range(40)]

    def post(key: str) -> list[int]:
        """Until they are accepted: whoever is refused is told when to come again."""
        statuses: list[int] = []
        for n in range(5):
            while statuses[-1:] != [202] or statuses.count(202) <= n:
                answer = relay.notify(key, str(n), headers={"Idempotency-Key": f"{n}", "Connection": "close"})
                statuses.append(answer.status_code)
                if answer.status_code != 202:
                    assert answer.json()["error"]["code"] in ("too_many_connections", "busy")
                    assert int(answer.headers["Retry-After"]) > 0
                    threading.Event().wait(0.05)
        return statuses

    with concurrent.futures.ThreadPoolExecutor(len(keys)) as threads:
        statuses = collections.Counter(status for statuses in threads.map(post, keys) for status in statuses)
    assert statuses[202] == 200
    assert set(statuses) <= {202, 503}
    assert all(len(relay.lease(key, "max=9&lease=60")) == 5 for key in keys)
    assert relay.stop() == 0
    assert connections_at_most(relay) in DOZEN


def test_posts_that_wait_for_the_disk_leave_descriptors_for_others(start_relay: Callable[..., Relay], key: str) -> None:
    """Each has two files open; 200 at a time would need 400."""
    relay = start_relay(prefix=with_descriptors(320), MAX_MESSAGES_PER_MAILBOX=1000)
    with raw.many(relay, 200) as clients:
        for client in clients:
            client.ask("POST", "/notify", key, b"hello")
        assert {answer.status for answer in raw.answers(clients)} == {202}
    assert len(relay.lease(key, "max=100&lease=60")) == 100


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


def test_it_raises_its_soft_limit_to_the_hard_one(start_relay: Callable[..., Relay]) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    relay = start_relay(prefix=with_descriptors(100, "-S"))
    assert relay.descriptor_limits() == (hard, hard)


def test_a_hard_limit_too_low_for_its_connections_is_one_warning_and_as_many_as_there_can_be(
    start_relay: Callable[..., Relay],
) -> None:
    relay = start_relay(prefix=with_descriptors(4000))
    assert relay.descriptor_limits() == (4000, 4000)
    assert 3000 < connections_at_most(relay) < 4000


def test_with_enough_descriptors_it_warns_of_nothing(start_relay: Callable[..., Relay]) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 16384:
        pytest.skip(f"it takes 16384 descriptors and there may be {hard}: ulimit -Hn")
    assert warnings(start_relay()) == []


# More connections than there may be


@pytest.fixture
def full(start_relay: Callable[..., Relay]) -> Iterator[tuple[Relay, list[Raw]]]:
    """A relay with all the connections that it may have, which are in use."""
    relay = start_relay(prefix=with_descriptors(64))
    with contextlib.ExitStack() as stack:
        inside: list[Raw] = []
        while len(inside) < 60:
            one = stack.enter_context(Raw(relay))
            one.socket.settimeout(10)
            one.ask("GET", "/version")
            if one.answer().status != 200:
                break
            inside.append(one)
        most = connections_at_most(relay)
        assert most - 3 <= len(inside) <= most
        yield relay, inside
    assert "Traceback" not in relay.log.read_text()


def assert_turned_away(answer: raw.Answer) -> None:
    assert answer.error == (503, "too_many_connections")
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()["error"]) == {"code", "message", "hint"}


@pytest.mark.parametrize("body", [None, b"hello", b"x" * 60_000])
def test_one_connection_too_many_is_told_so_and_closed(full: tuple[Relay, list[Raw]], body: bytes | None) -> None:
    relay, _ = full
    key = new_key()
    for _ in range(30):
        with Raw(relay) as outside:
            with contextlib.suppress(ConnectionError):  # it may be told before it has sent all
                outside.ask("POST" if body else "GET", "/notify" if body else "/healthz", key, body)
            assert_turned_away(outside.answer())
            assert outside.rest() == b""
            assert not outside.was_reset
    assert not relay.new(key).exists()


def test_one_that_sends_late_or_nothing_is_told_so_as_well(full: tuple[Relay, list[Raw]]) -> None:
    relay, _ = full
    with Raw(relay) as silent, Raw(relay) as late:
        threading.Event().wait(0.3)
        with contextlib.suppress(ConnectionError):
            late.ask("GET", "/healthz")
        assert_turned_away(late.answer())
        assert_turned_away(silent.answer())
        assert silent.rest() == b""


@pytest.mark.parametrize("size", [5, 60_000])
def test_curl_prints_why_it_was_turned_away(full: tuple[Relay, list[Raw]], size: int, tmp_path: Path) -> None:
    relay, _ = full
    (tmp_path / "body").write_bytes(b"x" * size)
    command = [require("curl", "curl"), "-sS", "-i", "--data-binary", f"@{tmp_path / 'body'}"]
    for _ in range(10):
        run = subprocess.run(
            [*command, "-H", f"Authorization: {new_key()}", f"{relay.url}/notify"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (run.returncode, run.stderr) == (0, "")
        head, _, body = run.stdout.rpartition("\n\n")
        assert head.splitlines()[0].startswith("HTTP/1.1 503 ")
        assert "\nretry-after: " in head.lower()
        assert json.loads(body)["error"]["code"] == "too_many_connections"


def test_those_inside_are_served_meanwhile_and_when_they_go_others_come_in(full: tuple[Relay, list[Raw]]) -> None:
    relay, inside = full
    key = new_key()
    inside[0].wait(key)
    with Raw(relay) as outside:
        outside.ask("GET", "/healthz")
        assert_turned_away(outside.answer())
        id = inside[1].notify(key)
        answer = inside[0].answer()
        assert (answer.status, answer.json()["id"]) == (200, id)
    for one in inside[:3]:
        one.close()
    assert until(lambda: relay.notify(key).status_code == 202)


def test_more_connections_than_it_may_have_are_turned_away_and_cost_no_cpu(full: tuple[Relay, list[Raw]]) -> None:
    relay, _ = full
    with raw.many(relay, 40) as outside:
        for answer in raw.answers(outside):
            assert_turned_away(answer)
        before = relay.cpu_seconds()
        threading.Event().wait(2)  # they stay, although they were told to go
        assert relay.cpu_seconds() - before < 0.5
        raw.receive_until(lambda one: one.ended, outside)
