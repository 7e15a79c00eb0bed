"""SIGTERM: every wait ends, what was accepted is there, nobody takes a blank answer for one, and it takes no 3 s."""

import concurrent.futures
import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable

import pytest
import raw
from conftest import Relay, new_key, until
from raw import Answer, Ended, Raw
from test_parking import fill

STOP_SECONDS = 3.0
ALLOWANCE_SECONDS = 2.0  # for a machine that does other things, too

STUCK_DISK = """
import os, threading
from pagermcp import aio
from pagermcp.spool import Janitor
aio.fsync = lambda files: None  # so that they are synced one by one
fsync, stop, pause = os.fsync, Janitor.stop, threading.Event()
os.fsync = lambda file: (pause.wait(1.5), fsync(file))[1]
Janitor.stop = lambda janitor: (stop(janitor), pause.wait(4))[0]  # the process lives on for as long
"""


def stops(relay: Relay, how: signal.Signals = signal.SIGTERM) -> None:
    """Tell the relay to stop, and see that it does, in time."""
    began = time.monotonic()
    assert relay.stop(how) == 0
    assert time.monotonic() - began < STOP_SECONDS + ALLOWANCE_SECONDS
    assert "Traceback" not in relay.log.read_text()


def end(waiter: Raw) -> Answer | None:
    """The one answer that a client gets in the end; None when it was cut, and can see that."""
    waiter.rest()
    answer = waiter.whole()
    if answer is None:
        assert not waiter.came or waiter.was_reset or re.search(rb"chunked|Content-Length", waiter.came)
        return None
    assert waiter.answer() == answer
    assert not waiter.came
    return answer


class Posting:
    """Clients that post to these addresses until the relay goes; `accepted` has the address and id of each page."""

    def __init__(self, relay: Relay, addresses: list[str], clients: int = 16) -> None:
        self._relay, self._addresses = relay, addresses
        self.accepted: list[tuple[str, str]] = []
        self.refused: list[tuple[int, str]] = []
        self._next = iter(range(10**9))
        self._threads = [threading.Thread(target=self._post) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _post(self) -> None:
        with contextlib.suppress(Ended, OSError):
            while True:
                with Raw(self._relay) as sender:
                    for n in self._next:
                        address = self._addresses[n % len(self._addresses)]
                        sender.ask("POST", "/notify", address, b"under way")
                        answer = sender.answer()
                        if answer.status != 202:
                            self.refused.append(answer.error)
                            break
                        self.accepted.append((address, answer.json()["id"]))

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)


def test_a_thousand_waits_end_and_what_was_accepted_just_then_is_there(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=100_000)
    keys = [new_key() for _ in range(1000)]
    with raw.many(relay, len(keys)) as waiters:
        for n, (waiter, key) in enumerate(zip(waiters, keys, strict=True)):
            waiter.ask("GET", "/wait?timeout=300&max=9" if n % 3 else f"/mailboxes/{key}/wait", key)
        until(lambda: len(list((relay.spool / "new").iterdir())) == len(keys), 30)
        paged = [*keys[:500:5], *[new_key() for _ in range(100)]]  # some of them wait, others don't
        posting = Posting(relay, paged)
        until(lambda: len(posting.accepted) > 50)
        stops(relay)
        ends = [end(waiter) for waiter in waiters]
    posting.join()
    assert set(posting.refused) <= {(503, "stopping"), (503, "busy")}
    stopped = [answer for answer in ends if answer and answer.status == 503]
    assert len(stopped) > 500  # a request that had not been read yet may be cut
    assert all(answer.error == (503, "stopping") and int(answer.headers["retry-after"]) > 0 for answer in stopped)
    handed_over = {page for answer in ends if answer and answer.status == 200 for page in pages_of(answer)}
    assert all(answer.status in (200, 503) for answer in ends if answer)
    for address, id in posting.accepted:
        waits = (relay.new(address) / f"{id}.json").is_file()
        was_taken = f"{id}.json" in [path.name for path in relay.archived(address)]
        assert (waits, was_taken) == ((False, True) if id in handed_over else (True, False)), (address, id)
    assert list(relay.spool.glob("leased/*/*.json")) == []


def pages_of(answer: Answer) -> list[str]:
    """The ids of the pages that came; it is no answer of a wait that has not any."""
    found = answer.json()
    ids = [page["id"] for page in found["pages"]] if "pages" in found else [found["id"]]
    assert ids
    return ids


def test_readers_of_a_room_are_told(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay()
    with raw.many(relay, 100) as readers, Raw(relay) as speaker:
        speaker.ask("POST", "/api/messages", key, b'{"from": "desktop", "body": "hello"}')
        since = speaker.answer().json()["id"]
        for n, reader in enumerate(readers):
            reader.ask("GET", f"/api/messages?for=reader{n}&since={since}&wait=60", key)

        def listening() -> int:
            speaker.ask("GET", "/api/agents", key)
            return sum(agent["listening"] for agent in speaker.answer().json()["agents"])

        until(lambda: listening() == len(readers))
        stops(relay)
        assert [answer and answer.error for answer in map(end, readers)] == [(503, "stopping")] * len(readers)


@pytest.mark.parametrize("missing", ["headers", "body"])
def test_clients_that_stall_in_sending_hold_nothing_up(
    start_relay: Callable[..., Relay], key: str, missing: str
) -> None:
    relay = start_relay()
    whole = raw.request("POST", "/notify", key, b"never")
    with raw.many(relay, 40) as stalled, Raw(relay) as waiter:
        for one in stalled:
            one.send(whole[: 30 if missing == "headers" else -3])
        waiter.wait(key)
        until(lambda: relay.waiters(key) == 1)
        stops(relay)
        answer = end(waiter)
        assert answer
        assert answer.error == (503, "stopping")
        assert all(answer is None or answer.status >= 400 for answer in map(end, stalled))
    assert list(relay.spool.glob("*/*/*.json")) == []


def test_readers_who_do_not_read_hold_nothing_up_and_their_pages_wait_again(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1000)
    keys = [new_key() for _ in range(10)]
    for key in keys:
        fill(relay, key, 100)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(Raw(relay, buffer=4096)) for _ in keys]
        for one, key in zip(slow, keys, strict=True):
            one.ask("GET", "/wait?max=100", key)
        for one in slow:
            one.receive()
        stops(relay)
        assert [end(one) for one in slow] == [None] * len(slow)
    assert [relay.archived(key) for key in keys] == [[]] * len(keys)
    assert [len(list(relay.new(key).glob("*[0-9].json"))) for key in keys] == [100] * len(keys)
    assert list(relay.spool.glob("*/*/*.2.json")) == []  # it was no attempt


def test_a_reader_who_reads_while_it_stops_gets_all_and_has_taken_it(
    start_relay: Callable[..., Relay], key: str
) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1000)
    fill(relay, key, 100)
    with Raw(relay, buffer=65536) as reader:
        reader.ask("GET", "/wait?max=100", key, Connection="close")
        reader.receive()
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            stopped = thread.submit(stops, relay)
            until(lambda: refuses(relay))
            answer = reader.answer()
            stopped.result()
    assert [page["payload"]["n"] for page in answer.json()["pages"]] == list(range(100))
    assert len(relay.archived(key)) == 100


def refuses(relay: Relay) -> bool:
    try:
        Raw(relay).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_request_that_takes_longer_than_the_stop_is_no_fault(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(prelude=STUCK_DISK)
    with raw.many(relay, 4) as clients:
        for client in clients:
            client.ask("POST", "/notify", new_key(), b"on a disk that hangs")
        threading.Event().wait(0.3)
        assert relay.stop() == 0
    assert re.findall("Traceback|ERROR.*", relay.log.read_text()) == []


def test_while_it_stops_nobody_new_comes_in_and_a_second_signal_changes_nothing(
    start_relay: Callable[..., Relay], key: str
) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1000)
    fill(relay, key, 100)
    with Raw(relay, buffer=4096) as slow, Raw(relay) as waiter:
        other = new_key()
        waiter.wait(other)
        until(lambda: relay.waiters(other) == 1)
        slow.ask("GET", "/wait?max=100", key)
        slow.receive()
        began = time.monotonic()
        relay.process.send_signal(signal.SIGTERM)
        answer = end(waiter)
        assert answer
        assert answer.error == (503, "stopping")
        assert refuses(relay)
        assert relay.process.poll() is None  # because of who does not read
        for how in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            relay.process.send_signal(how)
        assert relay.process.wait(20) == 0
        assert time.monotonic() - began < STOP_SECONDS + ALLOWANCE_SECONDS
    assert relay.stop() == 0
    assert re.search(r"INFO pagermcp: stopped\n\Z", relay.log.read_text())
