"""Clients that take for ever to ask, or to read: they are told so, or cut, and who is only slow is served.

It takes a minute until the relay has had enough of them, so they all do it at once, and the tests look at what came."""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
import raw
from conftest import Relay, new_key
from raw import Raw
from test_parking import fill
from test_refusals import refusals
from test_status import TOKEN

SECONDS = 70
HEAD = raw.request("GET", "/version", Cookie="x" * 200)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SLOW = ["a head a byte a second", "a body a byte a second", "half a head", "no body", "no body after 100"]


class Slow:
    """Two clients of each kind at a relay, and how they fare."""

    def __init__(self, relay: Relay) -> None:
        self.relay, self.key = relay, new_key()
        self.taken, self.kept = new_key(), new_key()
        for key in (self.taken, self.kept):
            fill(relay, key, 100)
        self.clients = {name: [Raw(relay), Raw(relay)] for name in (*SLOW, "steady", "idle", "behind a wait")}
        self.deaf = [Raw(relay, buffer=4096) for _ in range(2)]

    def run(self) -> None:
        post = f"POST /notify HTTP/1.1\r\nHost: x\r\nAuthorization: {self.key}\r\nContent-Length: 60000\r\n".encode()
        began = {
            "a body a byte a second": post + b"\r\n",
            "half a head": HEAD[:100],
            "no body": post + b"\r\n",
            "no body after 100": post + b"Expect: 100-continue\r\n\r\n",
            "steady": post + b"\r\n",
            "idle": raw.request("GET", "/version"),
            "behind a wait": raw.request("GET", "/wait?timeout=300", new_key()) + HEAD[:100],
        }
        for name, data in began.items():
            for one in self.clients[name]:
                one.send(data)
        self.deaf[0].ask("GET", f"/mailboxes/{self.kept}/messages")
        self.deaf[1].ask("GET", "/wait?max=100&timeout=5", self.taken)
        pace = {"a head a byte a second": 1, "a body a byte a second": 1, "steady": 1000}
        pause, until = threading.Event(), time.monotonic() + SECONDS
        for n in range(SECONDS):
            for name, count in pace.items():
                data = HEAD[n : n + 1] if "head" in name else b"x" * count
                for one in self.clients[name]:
                    if name != "steady" or n < 60:
                        with contextlib.suppress(OSError):  # it has been told
                            one.send(data)
            pause.wait(until - SECONDS + n + 1 - time.monotonic())


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    folder = tmp_path_factory.mktemp("slow")
    relay = Relay(folder / "spool", folder / "log", MAX_MESSAGES_PER_MAILBOX=1000, PAGERMCP_OPERATOR_TOKEN=TOKEN)
    clients = Slow(relay)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(clients.run).result(2 * SECONDS)
    yield clients
    for one in [*clients.deaf, *(one for pair in clients.clients.values() for one in pair)]:
        one.close()
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


@pytest.mark.parametrize("kind", SLOW)
def test_one_who_takes_for_ever_to_ask_is_told_so_and_closed(slow: Slow, kind: str) -> None:
    for one in slow.clients[kind]:
        if kind == "no body after 100":
            raw.receive_until(lambda one: one.came.startswith(CONTINUE), [one])
            del one.came[: len(CONTINUE)]
        answer = one.answer()
        assert answer.error == (408, "too_slow")
        assert set(answer.json()["error"]) == {"code", "message", "hint"}
        assert one.rest() == b""
    assert refusals(slow.relay)["too_slow"] == 2 * len(SLOW)


def test_one_who_sends_slowly_and_steadily_is_served(slow: Slow) -> None:
    assert [one.answer().status for one in slow.clients["steady"]] == [202, 202]


def test_one_who_has_asked_and_may_ask_again_is_left_alone(slow: Slow) -> None:
    for one in slow.clients["idle"]:
        assert one.answer().status == 200
        one.ask("GET", "/version")
        assert one.answer().status == 200


def test_one_who_waits_is_left_alone_with_half_a_request_behind_it(slow: Slow) -> None:
    for one in slow.clients["behind a wait"]:
        assert one.receive()  # the spaces that come meanwhile
        assert not one.ended


def test_one_who_never_reads_is_cut_and_pages_that_he_was_to_take_wait_again(slow: Slow) -> None:
    for one in slow.deaf:
        assert len(one.rest()) < 100 * 60_000
    assert len(slow.relay.lease(slow.taken, "max=100&lease=60")) == 100
