"""Requests that wait have no thread: thousands of them wait on a few, and none is lost, forgotten or answered twice.

The heartbeats take 20 s, so they are waited for while the other tests run."""

import concurrent.futures
import contextlib
import json
import random
import re
import shutil
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import raw
from conftest import Relay, new_key, number, until
from raw import Ended, Raw

FEW_THREADS = 40
SLOW_DISK = """
import os, threading
from pagermcp import aio
aio.fsync = lambda files: None  # so that they are synced one by one
fsync, pause = os.fsync, threading.Event()
os.fsync = lambda file: (pause.wait(0.1), fsync(file))[1]
"""

SLOW_TO_RETURN = """
import random, time
from waitress.channel import HTTPChannel
service = HTTPChannel.service
def slow_to_return(channel):
    service(channel)
    time.sleep(random.random() * 0.02)
HTTPChannel.service = slow_to_return
"""


def notified(relay: Relay, keys: Sequence[str]) -> list[str]:
    """Page each of these, over one connection; the pages' ids."""
    with Raw(relay) as sender:
        return [sender.notify(key) for key in keys]


def all_wait(relay: Relay, key: str, waiters: list[Raw], path: str = "/wait?timeout=60") -> None:
    """Let these wait at one mailbox, in this order; once this returns the relay knows of all."""
    for waiter in waiters:
        waiter.ask("GET", path, key)
    until(lambda: relay.waiters(key) == len(waiters))


def taken(answer: raw.Answer) -> list[str]:
    """The ids of the pages in an answer of `GET /wait`."""
    assert answer.status == 200, answer
    return [page["id"] for page in answer.json()["pages"]]


# Heartbeats: begun by the first test of this file that runs, and looked at by the last


class Heartbeats:
    """Waits that get a space after 20 s, of which `left` are for a stop, half of them in HTTP/1.0; and one who reads
    only then. They have a relay of their own."""

    def __init__(self, relay: Relay, waiters: list[Raw], left: list[Raw], slow: Raw) -> None:
        self.relay, self.waiters, self.left, self.slow = relay, waiters, left, slow
        self.keys = {waiter: new_key() for waiter in waiters}
        self.slow_key = new_key()
        fill(relay, self.slow_key, 100)
        slow.ask("GET", "/wait?max=100&timeout=5", self.slow_key)
        slow.receive()
        for n, (waiter, key) in enumerate(self.keys.items()):
            waiter.ask("GET", f"/mailboxes/{key}/wait" if n % 16 else "/wait?timeout=100", key)
        for n, waiter in enumerate(left):
            waiter.ask("GET", f"/mailboxes/{new_key()}/wait", version="1.0" if n % 2 else "1.1")
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._done = self._thread.submit(self._receive)

    def _receive(self) -> None:
        def has_space(waiter: Raw) -> bool:
            return waiter.came.endswith((b"\r\n\r\n1\r\n \r\n", b"\r\n\r\n "))

        raw.receive_until(has_space, [*self.waiters, *self.left], 60)
        self.threads = self.relay.threads()
        self.left_for_others = self.relay.lease(self.slow_key)
        self.slow_answer = self.slow.answer()

    def ended(self) -> "Heartbeats":
        """This, when all of it has happened."""
        self._done.result(60)
        self._thread.shutdown()
        return self


def fill(relay: Relay, key: str, count: int, size: int = 60_000) -> None:
    """So many large pages wait, as if they had been sent."""
    folder = relay.spool.parent / number(key)
    folder.mkdir(mode=0o700)
    first = time.time_ns() // 1000 - 10**9
    for n in range(count):
        page = {"created_at": "2026-01-01T00:00:00Z", "payload": {"n": n, "text": "x" * size}}
        (folder / f"{first + 16 * n}.json").write_text(json.dumps(page))
    folder.rename(relay.new(key))


@pytest.fixture(scope="module", autouse=True)
def heartbeats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heartbeats]:
    folder = tmp_path_factory.mktemp("heartbeats")
    relay = Relay(folder / "spool", folder / "log", MAX_MESSAGES_PER_MAILBOX=1000)
    with raw.many(relay, 340) as waiters, Raw(relay, buffer=4096) as slow:
        beats = Heartbeats(relay, waiters[:320], waiters[320:], slow)
        yield beats
        beats.ended()
    assert relay.stop() == 0  # again, which changes nothing
    assert "Traceback" not in relay.log.read_text()


# Many


def test_1500_wait_on_a_few_threads_and_everything_else_is_quick(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay()
    keys = [new_key() for _ in range(1500)]
    with raw.many(relay, len(keys)) as waiters:
        for waiter, key in zip(waiters, keys, strict=True):
            waiter.wait(key)
        until(lambda: len(list((relay.spool / "new").iterdir())) == len(keys), 30)
        until(lambda: relay.threads() < FEW_THREADS)
        other, took = new_key(), []
        for _ in range(20):
            began = time.monotonic()
            id = relay.notify(other).json()["id"]
            assert relay.get("/healthz").status_code == 200
            assert relay.receipt(other, id)["state"] == "waiting"
            took.append((time.monotonic() - began) / 3)
        assert statistics.median(took) < 0.2, took
        ids = notified(relay, keys)
        answers = raw.answers(waiters)
        assert relay.threads() < FEW_THREADS
    assert [(answer.status, answer.json()["id"]) for answer in answers] == [(200, id) for id in ids]
    until(lambda: all(len(relay.archived(key)) == 1 for key in keys[::50]))
    assert "Traceback" not in relay.log.read_text()


def test_of_200_waiters_at_one_mailbox_each_gets_one_page_of_a_burst(relay: Relay, key: str) -> None:
    with raw.many(relay, 200) as waiters:
        all_wait(relay, key, waiters)
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            sent = [id for part in threads.map(notified, [relay] * 4, [[key] * 50] * 4) for id in part]
        came = [taken(answer) for answer in raw.answers(waiters)]
    assert sorted(id for ids in came for id in ids) == sorted(sent)
    assert relay.waiters(key) == 0


def test_who_has_waited_longest_gets_the_next_page(relay: Relay, key: str) -> None:
    with raw.many(relay, 20) as waiters:
        for n, waiter in enumerate(waiters):
            waiter.wait(key)
            until(lambda n=n: relay.waiters(key) == n + 1)
        for waiter in waiters:
            (id,) = notified(relay, [key])
            assert waiter.answer().json()["id"] == id


def test_200_readers_of_a_room_are_all_woken_by_one_message(relay: Relay, key: str) -> None:
    with raw.many(relay, 200) as readers, Raw(relay) as speaker:

        def say(text: str) -> Any:
            speaker.ask("POST", "/api/messages", key, json.dumps({"from": "desktop", "body": text}).encode())
            return speaker.answer().json()["id"]

        first = say("first")
        for n, reader in enumerate(readers):
            reader.ask("GET", f"/api/messages?for=reader{n}&since={first}&wait=60", key)

        def listening() -> int:
            speaker.ask("GET", "/api/agents", key)
            return sum(agent["listening"] for agent in speaker.answer().json()["agents"])

        until(lambda: listening() == len(readers), 30)
        threads = relay.threads()
        second = say("second")
        heard = [answer.json()["messages"] for answer in raw.answers(readers)]
        assert [[message["id"] for message in messages] for messages in heard] == [[second]] * len(readers)
        assert listening() == 0
    assert threads < FEW_THREADS


# Clients that go


@pytest.mark.parametrize("how", raw.HOWS)
def test_those_who_went_take_no_page_and_leave_nothing_behind(relay: Relay, key: str, how: str) -> None:
    relay.get("/version")
    baseline = relay.descriptors()
    with raw.many(relay, 60) as gone, Raw(relay) as last:
        all_wait(relay, key, [*gone, last])
        for one in gone:
            one.go(how)
        (id,) = notified(relay, [key])  # though they came first
        assert taken(last.answer()) == [id]
        until(lambda: relay.waiters(key) == 0)
        if how == "half-close":
            for one in gone:
                assert not one.rest() or one.answer().error == (408, "client_gone")
    until(lambda: relay.descriptors() <= baseline)


@pytest.mark.parametrize("how", raw.HOWS)
def test_one_who_goes_with_requests_behind_his_wait_is_noticed(relay: Relay, key: str, how: str) -> None:
    relay.get("/version")
    baseline = relay.descriptors()
    with Raw(relay) as gone:
        all_wait(relay, key, [gone])
        gone.send(raw.request("GET", "/version") + raw.request("POST", "/notify", new_key(), b"hi") + b"GET /he")
        gone.go(how)
        until(lambda: relay.waiters(key) == 0)
    until(lambda: relay.descriptors() <= baseline)
    with Raw(relay) as next:
        all_wait(relay, key, [next])
        (id,) = notified(relay, [key])
        assert taken(next.answer()) == [id]


@pytest.mark.parametrize("how", raw.HOWS)
def test_a_page_whose_sender_goes_while_it_is_made_durable_wakes_its_reader(
    start_relay: Callable[..., Relay], key: str, how: str
) -> None:
    relay = start_relay(prelude=SLOW_DISK)
    with Raw(relay) as reader, Raw(relay) as sender:
        all_wait(relay, key, [reader])
        sender.ask("POST", "/notify", key, b"hello")
        until(lambda: list((relay.spool / "new" / number(key)).iterdir()))  # it is linked, and its folder is not synced
        sender.go(how)
        assert len(taken(reader.answer())) == 1
    until(lambda: relay.archived(key))


def test_who_stays_among_many_who_go_at_once_gets_a_page(relay: Relay, key: str) -> None:
    with raw.many(relay, 120) as waiters:
        all_wait(relay, key, waiters)
        for n, waiter in enumerate(waiters):
            if n % 4:
                waiter.go(raw.HOWS[n % 4 - 1])
        sent = notified(relay, [key] * 30)
        came = [id for answer in raw.answers(waiters[::4]) for id in taken(answer)]
        assert sorted(came) == sorted(sent)
        until(lambda: relay.waiters(key) == 0)


def test_clients_who_go_before_they_are_told_to_continue_are_no_harm(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(prelude="import sys; sys.setswitchinterval(1e-6)")
    behind = raw.request("POST", "/notify", new_key(), b"never", Expect="100-continue")[:-5]
    over = time.monotonic() + 3

    def go(dice: random.Random) -> None:
        pause = threading.Event()
        while time.monotonic() < over:
            with Raw(relay) as client:
                client.send(raw.request("GET", "/version") * 2 + behind)
                pause.wait(dice.random() * 0.004)
                client.reset()

    with concurrent.futures.ThreadPoolExecutor(10) as threads:
        for going in [threads.submit(go, random.Random(n)) for n in range(10)]:
            going.result()
    assert relay.get("/version").status_code == 200
    assert re.findall("Traceback|ERROR.*", relay.log.read_text()) == []


def test_one_behind_a_wait_is_told_to_continue_after_it(relay: Relay, key: str) -> None:
    behind = raw.request("POST", "/notify", key, b"hello", Expect="100-continue")
    with Raw(relay) as client:
        client.send(raw.request("GET", "/wait?timeout=60", key) + behind[:-5])
        until(lambda: relay.waiters(key) == 1)
        (id,) = notified(relay, [key])
        assert taken(client.answer()) == [id]
        while not client.came.endswith(b"\r\n\r\n"):
            client.receive()
        assert client.came == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.came.clear()
        client.send(behind[-5:])
        assert client.answer().status == 202


# One connection


def test_what_is_behind_a_wait_on_its_connection_is_answered_after_it(relay: Relay, key: str) -> None:
    other = new_key()
    with Raw(relay) as client:
        client.send(
            raw.request("GET", f"/mailboxes/{key}/wait")
            + raw.request("POST", "/notify", other, b"behind a wait")
            + raw.request("GET", "/version")
        )
        until(lambda: relay.waiters(key) == 1)
        (id,) = notified(relay, [key])
        wait, post, version = client.answer(), client.answer(), client.answer()
    assert (wait.status, wait.json()["id"]) == (200, id)
    assert (post.status, post.json()["waiters"]) == (202, 0)
    assert (version.status, list(version.json())) == (200, ["version", "build"])


def test_a_request_that_comes_in_pieces_behind_a_wait_is_answered_after_it(relay: Relay, key: str) -> None:
    behind = raw.request("POST", "/notify", key, b"in two pieces")
    with Raw(relay) as client:
        all_wait(relay, key, [client])
        client.send(behind[:-5])
        (id,) = notified(relay, [key])
        assert taken(client.answer()) == [id]
        client.send(behind[-5:])
        assert client.answer().status == 202


def test_two_waits_on_one_connection_get_a_page_each_in_order(relay: Relay, key: str) -> None:
    with Raw(relay) as client:
        client.send(raw.request("GET", "/wait", key) * 2)
        until(lambda: relay.waiters(key) == 1)
        for _ in range(2):
            (id,) = notified(relay, [key])
            assert taken(client.answer()) == [id]
        client.send(raw.request("GET", "/wait?timeout=0.2", key) * 3)
        assert [taken(client.answer()) for _ in range(3)] == [[], [], []]


def test_a_thread_that_is_done_with_a_wait_leaves_the_next_one_on_the_connection_alone(
    start_relay: Callable[..., Relay], key: str
) -> None:
    relay = start_relay(prelude=SLOW_TO_RETURN)
    for _ in range(10):
        with raw.many(relay, 10) as clients:
            for client in clients:
                client.send(raw.request("GET", "/wait?timeout=0.02", key) * 3)
            for _ in range(3):
                assert [taken(answer) for answer in raw.answers(clients)] == [[]] * 10
    assert relay.waiters(key) == 0
    assert "Traceback" not in relay.log.read_text()


def test_fifty_waits_one_after_another_on_one_connection(relay: Relay, key: str) -> None:
    with Raw(relay) as client, Raw(relay) as sender:
        for n in range(50):
            client.ask("GET", "/wait?timeout=60" if n % 2 else f"/mailboxes/{key}/wait", key)
            if n % 3:
                until(lambda: relay.waiters(key) == 1)
            id = sender.notify(key)
            answer = client.answer()
            assert (taken(answer) if n % 2 else [answer.json()["id"]]) == [id]
            client.ask("GET", "/wait?timeout=0.01", key)
            assert taken(client.answer()) == []


def test_a_client_of_http_1_0_waits_and_gets_its_page(relay: Relay, key: str) -> None:
    with Raw(relay) as client:
        client.ask("GET", f"/mailboxes/{key}/wait", version="1.0")
        until(lambda: relay.waiters(key) == 1)
        (id,) = notified(relay, [key])
        client.rest()
        answer = client.answer()
    assert (answer.status, answer.json()["id"]) == (200, id)
    assert len(answer.body) == int(answer.headers["content-length"])


@pytest.mark.parametrize("path", ["/wait", "/mailboxes/{key}/wait"])
def test_head_does_not_wait(relay: Relay, key: str, path: str) -> None:
    with Raw(relay) as client:
        client.ask("HEAD", path.format(key=key), key, Connection="close")
        assert client.rest().startswith(b"HTTP/1.1 405 ")
    assert relay.waiters(key) == 0


def test_a_body_is_not_kept_while_its_request_waits(start_relay: Callable[..., Relay], key: str) -> None:
    relay = start_relay(MAX_MESSAGE_BYTES=1 << 20)
    relay.get("/version")
    baseline = relay.descriptors()
    with raw.many(relay, 20) as waiters:
        for one in waiters:  # more than waitress keeps in memory, so in a file
            one.ask("GET", "/wait?timeout=60", key, b"x" * 600_000)
        until(lambda: relay.waiters(key) == 20)
        until(lambda: relay.descriptors() <= baseline + 20)
        ids = notified(relay, [key] * 20)
        assert sorted(id for answer in raw.answers(waiters) for id in taken(answer)) == ids
        waiters[0].ask("GET", "/version")
        assert waiters[0].answer().status == 200


def test_a_body_that_would_take_a_file_is_refused_before_it_has_come(relay: Relay, key: str) -> None:
    with raw.many(relay, 20) as stalled:
        for one in stalled:
            one.send(raw.request("POST", "/notify", key, b"x" * 600_000)[:300_000])
        assert [answer.error for answer in raw.answers(stalled, 10)] == [(413, "too_large")] * 20


def test_of_a_body_behind_a_wait_little_is_read_until_the_wait_is_over(
    start_relay: Callable[..., Relay], key: str
) -> None:
    relay = start_relay(MAX_MESSAGE_BYTES=1 << 20)
    relay.get("/version")
    baseline = relay.descriptors()
    with raw.many(relay, 10) as waiters, concurrent.futures.ThreadPoolExecutor(10) as senders:
        for one in waiters:
            one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        all_wait(relay, key, waiters)
        large = raw.request(
            "POST", "/notify", new_key(), b"x" * 1_000_000
        )  # to another: the waiters would take them, too
        sent = [senders.submit(one.send, large) for one in waiters]
        assert not concurrent.futures.wait(sent, timeout=1).done
        assert relay.descriptors() <= baseline + 10
        ids = notified(relay, [key] * 10)
        assert sorted(id for answer in raw.answers(waiters) for id in taken(answer)) == ids
        assert [answer.status for answer in raw.answers(waiters)] == [202] * 10


def test_what_a_wait_acknowledges_first_it_does_not_acknowledge_again(relay: Relay, key: str) -> None:
    notified(relay, [key])
    handle = relay.lease(key)[0]["handle"]
    with Raw(relay) as client:
        all_wait(relay, key, [client], f"/wait?timeout=60&ack={handle}")
        (page,) = relay.archived(key)
        page.unlink()  # so that it would be no_such_page
        (id,) = notified(relay, [key])
        assert taken(client.answer()) == [id]


# Deadlines


def test_300_waits_end_when_their_time_is_over(relay: Relay) -> None:
    with raw.many(relay, 300) as waiters:
        timeouts = {waiter: random.randint(20, 100) / 100 for waiter in waiters}
        keys = [new_key() for _ in range(10)]
        for n, waiter in enumerate(waiters):
            waiter.ask("GET", f"/wait?timeout={timeouts[waiter]}", keys[n % 10])
        assert [taken(answer) for answer in raw.answers(waiters)] == [[]] * 300
        late = sorted(waiter.came_at - waiter.asked_at - timeouts[waiter] for waiter in waiters)
    assert late[0] >= 0
    assert late[280] < 0.5
    assert late[-1] < 3
    assert [relay.waiters(key) for key in keys] == [0] * 10


def test_a_deadline_is_kept_while_every_thread_is_busy_with_a_slow_disk(start_relay: Callable[..., Relay]) -> None:
    relay = start_relay(prelude=SLOW_DISK)
    stop = threading.Event()
    key = new_key()

    def post() -> int:
        posted = 0
        with Raw(relay) as sender:
            while not stop.is_set():
                sender.ask("POST", "/notify", new_key(), b"slow")
                posted += sender.answer().status == 202
        return posted

    with raw.many(relay, 30) as waiters, concurrent.futures.ThreadPoolExecutor(16) as threads:
        try:
            all_wait(relay, key, waiters[:10], "/wait?timeout=4")
            posting = [threads.submit(post) for _ in range(16)]
            for waiter in waiters[10:]:
                waiter.ask("GET", "/wait?timeout=1", new_key())
            assert [taken(answer) for answer in raw.answers(waiters)] == [[]] * 30
        finally:
            stop.set()
        assert sum(one.result(30) for one in posting) > 16
        late = [one.came_at - one.asked_at - (1 if n >= 10 else 4) for n, one in enumerate(waiters)]
    assert min(late) >= 0
    assert max(late) < 2.5, sorted(late)


def test_deadlines_that_pass_while_the_relay_is_stopped_are_met_when_it_goes_on(relay: Relay, key: str) -> None:
    with raw.many(relay, 50) as waiters, Raw(relay) as paged, Raw(relay) as sender:
        other = new_key()
        all_wait(relay, other, [paged])
        all_wait(relay, key, waiters, "/wait?timeout=2")
        relay.process.send_signal(signal.SIGSTOP)
        try:
            sender.ask("POST", "/notify", other, b"while it is stopped")
            waiters[0].go("close")
            waiters[1].go("reset")
            threading.Event().wait(2)
        finally:
            relay.process.send_signal(signal.SIGCONT)
        began = time.monotonic()
        assert [taken(answer) for answer in raw.answers(waiters[2:])] == [[]] * 48
        assert taken(paged.answer()) == [sender.answer().json()["id"]]
        assert time.monotonic() - began < 3
    until(lambda: relay.waiters(key) == 0)


class Race:
    """Readers whose time is over just when a page comes, and clients who go just then."""

    def __init__(self, relay: Relay, key: str, seconds: float) -> None:
        self.relay, self.key = relay, key
        self.until = time.monotonic() + seconds
        self.sent: list[str] = []
        self.received: list[str] = []
        self.empty = self.gone = 0
        self.pause = threading.Event()

    def run(self) -> None:
        actors = [self.post] * 3 + [self.read] * 6 + [self.go] * 4 + [self.half_close] * 2
        with concurrent.futures.ThreadPoolExecutor(len(actors)) as threads:
            for acting in [threads.submit(actor, random.Random(n)) for n, actor in enumerate(actors)]:
                acting.result(60)

    def post(self, dice: random.Random) -> None:
        with Raw(self.relay) as sender:
            while time.monotonic() < self.until:
                self.sent.append(sender.notify(self.key))
                self.pause.wait(dice.random() * 0.03)

    def read(self, dice: random.Random) -> None:
        with Raw(self.relay) as reader:
            while time.monotonic() < self.until:
                reader.ask("GET", "/wait?timeout=0.05", self.key)
                self.take(reader.answer())

    def take(self, answer: raw.Answer) -> None:
        ids = taken(answer)
        self.received += ids
        self.empty += not ids

    def go(self, dice: random.Random) -> None:
        """He may be gone before he sees a page that was written to him; so he leases it, and it can be given back."""
        while time.monotonic() < self.until:
            with Raw(self.relay) as gone:
                gone.ask("GET", f"/wait?timeout={dice.choice(['0.05', '30'])}&lease=60", self.key)
                self.pause.wait(dice.random() * 0.06)
                gone.go(dice.choice(["close", "reset"]))
                self.gone += 1

    def half_close(self, dice: random.Random) -> None:
        """He sees all that was written to him."""
        while time.monotonic() < self.until:
            with Raw(self.relay) as half:
                half.ask("GET", "/wait?timeout=0.1", self.key)
                self.pause.wait(dice.random() * 0.15)
                half.half_close()
                half.rest()
                answer = half.whole()
                if answer and answer.status == 200:
                    self.take(answer)
                else:
                    assert answer is None or answer.error == (408, "client_gone")
                    self.gone += 1


def test_pages_that_come_as_a_wait_ends_or_its_client_goes_are_delivered_once(
    start_relay: Callable[..., Relay], key: str
) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=100_000)
    race = Race(relay, key, 3)
    race.run()
    until(lambda: relay.waiters(key) == 0)
    assert min(len(race.sent), race.empty, race.gone, len(race.received)) > 20
    leased = relay.with_key(key, "GET", "/pages?state=leased&since=0&limit=1000").json()["pages"]
    for handles in [[page["handle"] for page in leased[n : n + 100]] for n in range(0, len(leased), 100)]:
        assert relay.with_key(key, "POST", "/release", json={"ids": handles}).status_code == 200
    with Raw(relay) as rest:
        while race.received[-1:] != ["no more"]:
            rest.ask("GET", "/wait?timeout=0&max=100", key)
            race.received += taken(rest.answer()) or ["no more"]
    assert len(leased) < len(race.sent) / 2
    assert sorted(race.received[:-1]) == sorted(race.sent)
    until(lambda: len(relay.archived(key)) == len(race.sent))
    assert "Traceback" not in relay.log.read_text()


# Slow clients


def test_twenty_who_take_much_and_do_not_read_stop_nobody_and_nothing_is_lost(
    start_relay: Callable[..., Relay],
) -> None:
    relay = start_relay(MAX_MESSAGES_PER_MAILBOX=1000)
    keys = [new_key() for _ in range(20)]
    for key in keys:
        fill(relay, key, 100)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(Raw(relay, buffer=4096)) for _ in keys]
        for one, key in zip(slow, keys, strict=True):
            one.ask("GET", "/wait?max=100&timeout=5", key)
        for one in slow:
            one.socket.recv(1, 2)  # MSG_PEEK: it has begun
        assert others_are_served(relay) < FEW_THREADS
        assert [len(list(relay.new(key).iterdir())) for key in keys] == [0] * 20
        for one in slow[:10]:
            one.close()
        until(lambda: all(len(list(relay.new(key).iterdir())) == 100 for key in keys[:10]))
        for answer in raw.answers(slow[10:], 60):
            assert [page["payload"]["n"] for page in answer.json()["pages"]] == list(range(100))
    until(lambda: all(len(relay.archived(key)) == 100 for key in keys[10:]))
    assert [relay.archived(key) for key in keys[:10]] == [[]] * 10
    assert len(relay.lease(keys[0], "max=100")) == 100
    assert "Traceback" not in relay.log.read_text()


def others_are_served(relay: Relay) -> int:
    """Posts and waits of others go on, and quickly; how many threads the relay has meanwhile."""
    key = new_key()
    with raw.many(relay, 20) as waiters:
        all_wait(relay, key, waiters)
        began = time.monotonic()
        sent = notified(relay, [key] * 20)
        assert sorted(id for answer in raw.answers(waiters) for id in taken(answer)) == sent
        assert relay.get("/healthz").status_code == 200
        assert time.monotonic() - began < 5
        return relay.threads()


def test_one_who_takes_long_to_read_does_not_keep_a_page_from_who_waits_behind_him(relay: Relay) -> None:
    for _ in range(5):
        key = new_key()
        fill(relay, key, 100)
        with Raw(relay, buffer=4096) as slow, Raw(relay) as other, Raw(relay) as sender:
            slow.ask("GET", "/wait?max=100", key)
            slow.receive()
            other.ask("GET", "/wait?timeout=60", key)
            threading.Event().wait(0.3)  # it waits by then; to ask would be a ring
            began = time.monotonic()
            id = sender.notify(key)
            assert taken(other.answer()) == [id]
            assert time.monotonic() - began < 0.25  # and not with the next sweep


@pytest.mark.parametrize("missing", ["headers", "body"])
def test_forty_who_stall_in_the_middle_of_their_request_stop_nobody(relay: Relay, key: str, missing: str) -> None:
    whole = raw.request("POST", "/notify", key, b"at last")
    cut = 30 if missing == "headers" else len(whole) - 3
    with raw.many(relay, 40) as stalled:
        for one in stalled:
            one.send(whole[:cut])
        others_are_served(relay)
        assert not list(relay.spool.glob(f"new/{number(key)}/*.json"))
        for one in stalled[10:]:
            one.send(whole[cut:])
        assert [answer.status for answer in raw.answers(stalled[10:])] == [202] * 30
    assert len(relay.lease(key, "max=100")) == 30


# The spool under a wait


def test_a_page_moved_into_a_folder_that_was_removed_under_a_wait_arrives(
    relay: Relay, key: str, tmp_path: Path
) -> None:
    (tmp_path / "page.json").write_text('{"message": "after all"}')
    with Raw(relay) as client:
        client.wait(key)
        until(relay.new(key).is_dir)
        until(lambda: relay.waiters(key) == 1)
        shutil.rmtree(relay.new(key))
        until(relay.new(key).is_dir)  # the wait makes it again
        (tmp_path / "page.json").rename(relay.new(key) / "page.json")
        assert client.answer().json()["message"] == "after all"


# The heartbeats that were begun above


def test_320_waits_all_have_a_space_after_twenty_seconds_and_then_their_page(heartbeats: Heartbeats) -> None:
    relay, waiters, keys = heartbeats.ended().relay, heartbeats.waiters, heartbeats.keys
    took = sorted(waiter.came_at - waiter.asked_at for waiter in waiters)
    assert took[0] > 19.5
    assert took[-1] < 27
    gone, paged = waiters[:150], waiters[150:]
    for n, waiter in enumerate(gone):
        waiter.go(raw.HOWS[n % 3])
    ids = notified(relay, [keys[waiter] for waiter in paged])
    for id, answer in zip(ids, raw.answers(paged), strict=True):
        page = answer.json()
        assert (answer.status, page["pages"][0]["id"] if "pages" in page else page["id"]) == (200, id)
    for waiter in gone[2::3]:  # those who half-closed
        with pytest.raises(Ended):
            waiter.answer()
    until(lambda: not any(relay.waiters(keys[waiter]) for waiter in gone[::5]))
    assert heartbeats.threads < FEW_THREADS


def test_one_who_takes_longer_to_read_than_a_handover_lasts_still_has_his_pages_alone(heartbeats: Heartbeats) -> None:
    assert heartbeats.ended().left_for_others == []
    assert [page["payload"]["n"] for page in heartbeats.slow_answer.json()["pages"]] == list(range(100))
    until(lambda: len(heartbeats.relay.archived(heartbeats.slow_key)) == 100)


def test_a_stop_cuts_those_who_have_had_a_space_so_that_it_is_no_blank_answer(heartbeats: Heartbeats) -> None:
    assert heartbeats.ended().relay.stop() == 0
    for n, waiter in enumerate(heartbeats.left):
        waiter.rest()
        space, body = b" " if n % 2 else b"1\r\n \r\n", waiter.came.partition(b"\r\n\r\n")[2]
        assert body == space * (len(body) // len(space)) != b""  # one, or two on a slow machine
        assert waiter.was_reset or not n % 2  # without chunks an ordinary end would be a whole answer
