"""Several processes that serve one spool on one port: what is promised holds between them; one that dies is replaced.

A session stays at the worker that has its connection, so tests choose whom they ask."""

import collections
import concurrent.futures
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import REPOSITORY, Relay, clean_environment, new_key, number, until
from test_clock_steps import HOUR, MOVABLE_CLOCK, Clock
from test_kill import POSTERS, READERS, Load, places
from test_serve import run

from pagermcp import files
from pagermcp.settings import Settings
from pagermcp.spool import Janitor, Spool, SpoolFull
from pagermcp.spool.mailbox import KNOWN_SECONDS
from pagermcp.spool.page import WORKERS

WORKERS_HERE = 3
AT_ONCE = 0.7  # seconds; the sweep would be 1 s late on average, and the tests repeat


class Worker(requests.Session):
    """A session at one worker."""

    def __init__(self, relay: Relay, worker: int) -> None:
        super().__init__()
        self.url = relay.url
        until(lambda: self._is_at(worker), 30)

    def _is_at(self, worker: int) -> bool:
        try:
            return (
                bool(self.get(f"{self.url}/healthz", timeout=5).json()["worker"] == worker) or self.close() is not None
            )
        except requests.ConnectionError:  # to one that is just going
            return False

    def call(self, key: str, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {key}", **options.pop("headers", {})}
        return self.request(method, self.url + path, headers=headers, **{"timeout": 60, **options})

    def notify(self, key: str, **headers: str) -> str:
        """The id of a page."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.call(key, "POST", "/notify", data="hello", headers=named)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def lease(self, key: str, query: str) -> list[dict[str, Any]]:
        answer = self.call(key, "GET", f"/wait?{query}")
        assert answer.status_code == 200, answer.text
        pages: list[dict[str, Any]] = answer.json()["pages"]
        return pages

    def waiters(self, key: str) -> int:
        """How many wait at this worker: a report without a body tells, and brings no page."""
        return int(self.call(key, "POST", "/notify", data="", headers={"Pager-Run": "test"}).json()["waiters"])


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("workers")
    relay = Relay(folder / "spool", folder / "log", PAGERMCP_WORKERS=WORKERS_HERE)
    yield relay
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


@pytest.fixture
def own(start_relay: Callable[..., Relay]) -> Callable[..., Relay]:
    """Start a relay for a test that is rough with it."""
    return lambda **settings: start_relay(**{"PAGERMCP_WORKERS": WORKERS_HERE, **settings})


@pytest.fixture
def others() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(32) as threads:
        yield threads


def pids(relay: Relay) -> list[int]:
    """The processes of the workers, in the order in which they were started."""
    parent = relay.process.pid
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def start_leasing(worker: Worker, key: str, query: str, others: concurrent.futures.ThreadPoolExecutor) -> Any:
    """A wait at this worker, which it knows of when this returns."""
    before = worker.waiters(key)
    number = int(worker.get(f"{worker.url}/healthz").json()["worker"])
    waiting = others.submit(worker.lease, key, query)
    asks = Worker(_Url(worker.url), number)  # type: ignore[arg-type]
    until(lambda: asks.waiters(key) > before)
    return waiting


class _Url:
    def __init__(self, url: str) -> None:
        self.url = url


# One relay of several processes


def test_it_greets_once_when_all_listen(own: Callable[..., Relay]) -> None:
    relay = own()
    assert re.fullmatch(r"PagerMCP \S+ on http://127\.0\.0\.1:\d+, spool /.*/spool, 3 workers\n", relay.greeting)
    assert len(pids(relay)) == 3
    assert "\nThreads:\t1\n" in Path(f"/proc/{relay.process.pid}/status").read_text()  # so that it can always fork
    assert {Worker(relay, n).get(f"{relay.url}/healthz").json()["worker"] for n in range(3)} == {0, 1, 2}


def test_one_worker_is_one_process(own: Callable[..., Relay]) -> None:
    relay = own(PAGERMCP_WORKERS=1)
    assert pids(relay) == []
    assert "worker" not in relay.get("/healthz").json()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_all_of_them_and_their_waits(own: Callable[..., Relay], how: signal.Signals) -> None:
    relay = own()
    waiting = [relay.start_waiting(new_key()) for _ in range(12)]
    workers = pids(relay)
    began = time.monotonic()
    assert relay.stop(how) == 0
    assert time.monotonic() - began < 3
    assert all(map(ended, workers))
    assert {one.result(5).json()["error"]["code"] for one in waiting} == {"stopping"}
    assert "Traceback" not in relay.log.read_text()


def test_a_worker_that_does_not_stop_is_killed_and_the_exit_code_is_0(own: Callable[..., Relay]) -> None:
    relay = own()
    os.kill(pids(relay)[1], signal.SIGSTOP)
    assert relay.stop() == 0
    assert "worker 1 does not stop and is killed" in relay.log.read_text()


def test_a_killed_worker_is_replaced_the_others_serve_on_and_nothing_accepted_is_lost(
    own: Callable[..., Relay], key: str, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    relay = own()
    accepted: list[str] = []
    over = threading.Event()

    def post(worker: Worker) -> bool:
        """Until it can't any more; whether that was wanted."""
        while not over.is_set():
            try:
                accepted.append(worker.notify(new_key()))
            except requests.ConnectionError:
                return False
        return True

    posting = [others.submit(post, Worker(relay, n)) for n in (0, 0, 1, 1, 2, 2)]
    until(lambda: len({int(id) % WORKERS for id in accepted}) == 3)
    killed = pids(relay)[1]
    os.kill(killed, signal.SIGKILL)
    again = Worker(relay, 1)
    assert int(again.notify(key)) % WORKERS == 1
    over.set()
    went_on = [one.result(10) for one in posting]
    assert went_on[:2] + went_on[4:] == [True] * 4  # those cut between two posts have connected again, or not
    assert len(pids(relay)) == 3
    assert killed not in pids(relay)
    assert {path.stem for path in relay.spool.glob("new/*/*.json")} >= set(accepted)
    assert relay.log.read_text().count("worker 1 was ended by signal 9 and is started again\n") == 1


def test_when_the_parent_is_killed_its_workers_end_and_another_relay_takes_over(
    own: Callable[..., Relay], key: str
) -> None:
    relay = own()
    ids = [relay.notify(key).json()["id"] for _ in range(5)]
    workers = pids(relay)
    os.kill(workers[0], signal.SIGSTOP)  # this one would like to end, but can't yet
    relay.stop(signal.SIGKILL)
    until(lambda: ended(workers[1]) and ended(workers[2]))
    refused = run("serve", PORT=0, DATA_DIR=relay.spool)
    assert (refused.returncode, "another relay serves" in refused.stderr) == (1, True)
    os.kill(workers[0], signal.SIGCONT)
    until(lambda: ended(workers[0]))
    again = own(PORT=relay.port)
    assert again.port == relay.port
    assert [page["id"] for page in again.lease(key, "lease=60&max=9&timeout=0")] == ids
    assert "Traceback" not in relay.log.read_text()


def test_a_second_relay_on_the_spool_or_the_port_is_refused_in_one_line(relay: Relay, tmp_path: Path) -> None:
    for workers in (1, 2):
        failed = run("serve", PORT=0, DATA_DIR=relay.spool, PAGERMCP_WORKERS=workers)
        assert failed.returncode == 1
        assert failed.stderr.startswith(f"Error: another relay serves {relay.spool}: ")
        failed = run("serve", PORT=relay.port, DATA_DIR=tmp_path / "other", PAGERMCP_WORKERS=workers)
        assert failed.returncode == 1
        assert re.fullmatch(rf"Error: port {relay.port} is in use: PORT=\d+ pagermcp serve\n", failed.stderr)


def test_it_serves_at_every_address_of_a_name_on_one_port(own: Callable[..., Relay], key: str) -> None:
    relay = own(HOST="localhost")
    for family, kind, _, _, (host, *_) in socket.getaddrinfo("localhost", relay.port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind) as connection:
            connection.connect((host, relay.port))
    assert relay.notify(key).status_code == 202
    refused = run("serve", HOST="256.0.0.1", PORT=0, PAGERMCP_WORKERS=2, DATA_DIR=relay.spool.parent / "other")
    assert refused.stderr == "Error: HOST='256.0.0.1': not an address of this machine\n"


@pytest.mark.parametrize("value", ["0", "17", "two", "1.5"])
def test_a_wrong_number_of_workers_is_one_line(value: str) -> None:
    failed = run("serve", "--workers", value)
    message = f"PAGERMCP_WORKERS={value!r}: must be a whole number, from 1 to {WORKERS}"
    assert (failed.returncode, failed.stderr) == (2, f"Error: {message}\n")
    assert Settings.read({"PAGERMCP_WORKERS": str(WORKERS)}).workers == WORKERS


BROKEN = """
import os
from pagermcp.waking import Sweep
start = Sweep.start
def broken(sweep):
    if os.path.exists(os.environ["BROKEN"]) and sweep._spool.worker == 1:
        raise OSError(24, "Too many open files", "inotify")
    start(sweep)
Sweep.start = broken
"""


def error_of(prelude: str, **settings: object) -> str:
    """What a relay says that runs this code first and can't start."""
    command = [sys.executable, "-c", f"{prelude}\nfrom pagermcp.cli import main\nmain()"]
    environment = clean_environment(PORT=0, PAGERMCP_WORKERS=WORKERS_HERE, **settings)
    failed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, cwd=REPOSITORY)
    assert failed.returncode == 1
    return failed.stderr


def test_without_a_way_to_share_a_port_one_line_says_so(tmp_path: Path) -> None:
    said = error_of("import socket; del socket.SO_REUSEPORT", DATA_DIR=tmp_path / "spool")
    assert said == "Error: this system can't share a port between processes (no SO_REUSEPORT): PAGERMCP_WORKERS=1\n"


def test_a_worker_that_cannot_even_start_stops_the_relay_with_its_reason(
    own: Callable[..., Relay], tmp_path: Path
) -> None:
    (tmp_path / "broken").touch()
    said = error_of(BROKEN, BROKEN=tmp_path / "broken", DATA_DIR=tmp_path / "spool")
    assert said == "Error: inotify: Too many open files\n"
    assert own().stop() == 0  # so that nothing of it is left, which would have the spool


def test_a_worker_that_dies_again_and_again_is_started_ever_more_rarely(
    own: Callable[..., Relay], tmp_path: Path
) -> None:
    relay = own(prelude=BROKEN, BROKEN=tmp_path / "broken")
    (tmp_path / "broken").touch()
    os.kill(pids(relay)[1], signal.SIGKILL)
    until(lambda: "started again in 1 s" in relay.log.read_text())
    assert re.findall(r"worker 1 (.*) and is started again(.*)", relay.log.read_text()) == [
        ("was ended by signal 9", ""),
        ("ended with 1", " in 0.5 s: inotify: Too many open files"),
        ("ended with 1", " in 1 s: inotify: Too many open files"),
    ]
    assert relay.get("/healthz").status_code == 200
    (tmp_path / "broken").unlink()
    Worker(relay, 1)


# What is promised, between workers


def test_a_page_posted_to_one_worker_wakes_a_waiter_in_another_at_once(
    relay: Relay, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    for receiver in range(WORKERS_HERE):
        for sender in range(WORKERS_HERE):
            key = new_key()
            waiting = start_leasing(Worker(relay, receiver), key, "timeout=20", others)
            posts = Worker(relay, sender)
            began = time.monotonic()
            id = posts.notify(key)
            assert [page["id"] for page in waiting.result(10)] == [id]
            assert time.monotonic() - began < AT_ONCE
            assert int(id) % WORKERS == sender


def test_who_only_looks_may_ask_now_one_worker_and_now_another(
    relay: Relay, key: str, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    waiting = start_leasing(Worker(relay, 0), key, "timeout=20", others)
    told = [Worker(relay, n).call(key, "GET", "/mailbox").json() for n in range(WORKERS_HERE)]
    assert [one["waiters"] for one in told] == [1, 0, 0]
    assert len({one["mark"] for one in told}) == 1  # or else it would take each other worker's answer for a change
    Worker(relay, 1).notify(key)
    assert waiting.result(10)


def test_two_pages_wake_two_waiters_whoever_has_them(
    relay: Relay, key: str, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    waiting = [start_leasing(Worker(relay, n), key, "timeout=20", others) for n in (0, 0, 1, 1, 2, 2)]
    posts = Worker(relay, 0)
    ids = [posts.notify(key) for _ in range(6)]
    assert sorted(page["id"] for one in waiting for page in one.result(10)) == ids


def test_a_lease_may_be_acknowledged_and_lengthened_and_given_back_at_any_worker(relay: Relay, key: str) -> None:
    a, b, c = (Worker(relay, n) for n in range(WORKERS_HERE))
    ids = [a.notify(key) for _ in range(3)]
    leased = [page["handle"] for page in a.lease(key, "lease=1&max=3&timeout=0")]
    assert leased == ids
    assert b.call(key, "POST", "/ack", json={"ids": [ids[0]]}).json()["acknowledged"] == [ids[0]]
    assert c.call(key, "POST", "/extend", json={"ids": [ids[1]], "lease": 5}).status_code == 200
    assert b.call(key, "POST", "/release", json={"ids": [ids[2]]}).status_code == 200
    assert [page["handle"] for page in c.lease(key, "lease=60&max=3&timeout=2.5")] == [f"{ids[2]}.2"]
    assert [page["handle"] for page in a.lease(key, "lease=60&max=3&timeout=1.5")] == []  # 1 s would be over
    assert [page["handle"] for page in a.lease(key, "lease=60&max=3&timeout=20")] == [f"{ids[1]}.2"]
    assert a.call(key, "POST", "/ack", json={"ids": [f"{ids[1]}.2"]}).status_code == 200
    assert {relay.state(key, id) for id in ids[:2]} == {"acknowledged"}


def test_delayed_pages_leases_and_switches_come_once_and_in_time(
    relay: Relay, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    keys = [new_key() for _ in range(30)]
    a = [Worker(relay, n) for n in range(WORKERS_HERE)]
    expected: dict[str, list[tuple[str, str]]] = {}
    began = time.monotonic()
    for n, key in enumerate(keys):
        delayed = a[n % 3].notify(key, Pager_Delay="4")
        leased = a[(n + 1) % 3].notify(key)
        a[n % 3].notify(key, Pager_Run="r", Pager_Expect="4")
        assert len(a[n % 3].lease(key, "lease=4&max=2&timeout=0")) == 2
        expected[key] = [("hello", delayed), ("hello", f"{leased}.2"), ("lost", "")]
    until(lambda: time.monotonic() > began + 3.9)
    came: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)

    def read(worker: Worker, key: str) -> None:
        for page in worker.lease(key, "lease=60&max=9&timeout=8"):
            status = page["payload"].get("status", "hello")
            came[key].append((status, "" if status == "lost" else page["handle"]))

    for _ in range(4):
        list(others.map(lambda key: None if len(came[key]) > 3 else read(Worker(relay, 1), key), keys))
        if all(len(came[key]) >= 4 for key in keys):
            break
    for key in keys:
        reported = [one for one in came[key] if one[0] == "hello" and one not in expected[key]]
        assert len(reported) == 1  # the report of the run itself, whose lease ran out too
        assert reported[0][1].endswith(".2")
        assert sorted(one for one in came[key] if one not in reported) == sorted(expected[key])
    assert [relay.lease(key, "timeout=0&lease=60") for key in keys] == [[]] * len(keys)


def test_what_a_killed_worker_had_scheduled_and_leased_comes_in_time_and_once(
    own: Callable[..., Relay], key: str
) -> None:
    relay = own()
    a = Worker(relay, 1)
    leased = a.notify(key)
    a.lease(key, "lease=4&timeout=0")
    delayed = a.notify(key, Pager_Delay="4")
    lost = new_key()
    a.call(lost, "POST", "/notify", data="", headers={"Pager-Run": "r", "Pager-Expect": "4"})
    due = time.monotonic() + 4
    os.kill(pids(relay)[1], signal.SIGKILL)
    b = Worker(relay, 2)
    pages = b.lease(key, "lease=60&max=9&timeout=20")
    pages += b.lease(key, "lease=60&max=9&timeout=2") if len(pages) < 2 else []
    assert sorted(page["handle"] for page in pages) == sorted([f"{leased}.2", delayed])
    assert b.lease(lost, "lease=60&timeout=20")[0]["payload"]["status"] == "lost"
    assert time.monotonic() - due < 3
    assert b.lease(key, "lease=60&timeout=1") == b.lease(lost, "lease=60&timeout=1") == []


def test_a_run_that_reports_to_another_worker_is_not_lost(relay: Relay, key: str) -> None:
    a, b = Worker(relay, 0), Worker(relay, 1)
    for n in range(6):
        worker = (a, b)[n % 2]
        worker.call(key, "POST", "/notify", data="", headers={"Pager-Run": "r", "Pager-Expect": "2"})
        assert Worker(relay, 2).lease(key, "lease=60&timeout=0.7") == []
    b.call(key, "POST", "/notify", data="", headers={"Pager-Run": "r"})
    assert a.lease(key, "lease=60&timeout=3") == []
    assert list(relay.spool.glob(f"scheduled/*{number(key)}*")) == []


def test_replacing_and_idempotency_keys_hold_between_workers(
    relay: Relay, key: str, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    workers = [Worker(relay, n % 3) for n in range(9)]
    assert len(set(others.map(lambda worker: worker.notify(key, Idempotency_Key="once"), workers))) == 1
    list(others.map(lambda worker: worker.notify(key, Pager_Replace="r"), workers))
    workers[0].notify(key, Pager_Replace="r", Pager_Delay="1h")
    last = workers[1].notify(key, Pager_Replace="r")
    assert [page["id"] for page in workers[2].lease(key, "lease=60&max=9&timeout=0")][1:] == [last]
    assert list(relay.spool.glob(f"scheduled/*{number(key)}*")) == []


def test_the_limit_counts_what_other_workers_hold(own: Callable[..., Relay], key: str) -> None:
    relay = own(MAX_MESSAGES_PER_MAILBOX=6)
    a, b, c = (Worker(relay, n) for n in range(WORKERS_HERE))
    for _ in range(2):
        a.notify(key, Pager_Delay="1h")
        b.notify(key)
    c.lease(key, "lease=60&timeout=0")
    a.notify(key)
    until(lambda: c.call(key, "GET", "/pages?state=scheduled").json()["pages"])
    event = threading.Event()
    event.wait(2.5)  # the sweep of another worker is what tells it
    c.notify(key)
    refused = [worker.call(key, "POST", "/notify", data="x").status_code for worker in (a, b, c)]
    assert refused == [429, 429, 429]


def test_a_page_that_expires_is_delivered_by_no_worker(relay: Relay, key: str) -> None:
    a, b = Worker(relay, 0), Worker(relay, 1)
    assert b.lease(key, "timeout=0") == []
    id = a.notify(key, Pager_Expires="1")
    until(lambda: relay.archived(key), 5)
    assert b.lease(key, "timeout=0") == []
    assert relay.state(key, id) == "expired"


def test_cursors_in_a_room_skip_and_repeat_nothing(
    relay: Relay, key: str, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    posters, messages = 6, 15

    def post(n: int) -> None:
        worker = Worker(relay, n % 3)
        for one in range(messages):
            said = {"from": f"p{n}", "body": str(one)}
            assert worker.call(key, "POST", "/api/messages", json=said).status_code == 201

    def read(n: int) -> list[int]:
        worker, seen = Worker(relay, n % 3), [0]
        while len(seen) <= posters * messages:
            answer = worker.call(key, "GET", f"/api/messages?for=reader{n}&since={seen[-1]}&wait=20")
            new = [message["id"] for message in answer.json()["messages"]]
            assert new, f"{len(seen) - 1} came, and then nothing in 20 s"
            seen += new
        return seen[1:]

    Worker(relay, 0).call(key, "POST", "/api/agents", json={"name": "first"})
    reading = [others.submit(read, n) for n in range(6)]
    list(others.map(post, range(posters)))
    read_by = [one.result(60) for one in reading]
    assert len(set(read_by[0])) == posters * messages
    assert all(one == sorted(read_by[0]) for one in read_by)


def test_a_mailbox_that_is_removed_while_somebody_waits_at_another_worker_is_made_and_watched_again(
    relay: Relay, key: str, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    waiting = start_leasing(Worker(relay, 0), key, "timeout=20", others)
    relay.new(key).rmdir()  # as the janitor does, who knows of his own waiters only
    until(relay.new(key).is_dir)
    threading.Event().wait(0.1)  # it is watched just after it is made
    began = time.monotonic()
    id = Worker(relay, 1).notify(key)
    assert [page["id"] for page in waiting.result(10)] == [id]
    assert time.monotonic() - began < AT_ONCE


def test_one_worker_is_the_janitors_and_another_takes_over(own: Callable[..., Relay]) -> None:
    relay = own(prelude="import pagermcp.spool.janitor as j; j.PASS_SECONDS = 5.5")

    def retention() -> list[str]:
        said = [Worker(relay, n).get(f"{relay.url}/healthz").json()["retention"] for n in range(3)]
        return [name for name in said if name != "another process does it"]

    assert retention() == ["ok"]
    (who,) = [n for n in range(3) if Worker(relay, n).get(f"{relay.url}/healthz").json()["retention"] == "ok"]
    os.kill(pids(relay)[who], signal.SIGKILL)
    until(lambda: retention() == ["ok"], 20)


def test_a_file_moved_in_is_delivered_once(
    relay: Relay, key: str, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    workers = [Worker(relay, n % 3) for n in range(6)]
    waiting = [start_leasing(worker, key, "timeout=3&max=50", others) for worker in workers]
    for n in range(20):
        path = relay.spool / f"page-{n}"
        path.write_text(json.dumps({"n": n}))
        path.rename(relay.new(key) / f"page-{n}.json")
    came = [page["payload"]["n"] for one in waiting for page in one.result(10)]
    came += [page["payload"]["n"] for page in workers[0].lease(key, "timeout=3&max=50")]
    came += [page["payload"]["n"] for page in workers[1].lease(key, "timeout=1&max=50")]
    assert sorted(came) == list(range(20))


def test_under_load_no_page_is_lost_and_none_comes_twice_within_its_lease(
    relay: Relay, others: concurrent.futures.ThreadPoolExecutor
) -> None:
    keys = [new_key() for _ in range(4)]
    accepted: list[str] = []
    leased: list[str] = []
    posted = threading.Event()

    def post(n: int) -> None:
        worker = Worker(relay, n % 3)
        for one in range(60):
            box = keys[(n + one) % 4]
            answer = worker.call(box, "POST", "/notify", json={"n": n})
            assert answer.status_code == 202, answer.text
            accepted.append(f"{number(box)}/{answer.json()['id']}")

    def read(n: int) -> None:
        worker, key = Worker(relay, n % 3), keys[n % 4]
        while (pages := worker.lease(key, "lease=60&max=7&timeout=2")) or not posted.is_set():
            leased.extend(f"{number(key)}/{page['handle']}" for page in pages)
            if handles := [page["handle"] for page in pages]:
                done = Worker(relay, (n + 1) % 3) if n == 0 else worker
                assert done.call(key, "POST", "/ack", json={"ids": handles}).status_code == 200

    reading = [others.submit(read, n) for n in range(12)]
    try:
        list(others.map(post, range(8)))
    finally:
        posted.set()
    for one in reading:
        one.result(30)
    assert len({int(id[-16:]) % WORKERS for id in accepted}) == 3
    assert sorted(leased) == sorted(accepted)
    found = places(relay.spool)
    assert [id for id in accepted if len(found[id]) != 1] == []


class SteadyLoad(Load):
    """Clients that come again when they were cut off."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.over = threading.Event()

    def _until_it_goes(self, act: Callable[..., None], relay: Relay, n: int) -> None:
        def unless_over(*arguments: Any) -> None:
            if self.over.is_set():
                raise requests.ConnectionError
            act(*arguments)

        while not self.over.is_set():
            super()._until_it_goes(unless_over, relay, n)


def test_while_workers_are_killed_again_and_again_every_accepted_page_is_found_once(own: Callable[..., Relay]) -> None:
    at_once = "import pagermcp.server.workers as workers; workers._STEADY_SECONDS = 0"  # starts them again at once
    relay = own(MAX_MESSAGES_PER_MAILBOX=1_000_000, prelude=at_once)
    seed = random.randrange(1 << 32)
    load = SteadyLoad(seed)
    clients = [threading.Thread(target=load._until_it_goes, args=[load.post, relay, n]) for n in range(POSTERS)]
    clients += [threading.Thread(target=load._until_it_goes, args=[load.read, relay, n]) for n in range(READERS)]
    for client in clients:
        client.start()
    for _ in range(12):
        threading.Event().wait(load.random.uniform(0.2, 0.8))
        os.kill(load.random.choice(until(lambda: pids(relay))), signal.SIGKILL)
    load.over.set()
    for client in clients:
        client.join(60)
    assert relay.stop() == 0
    found = places(relay.spool)
    wrong = {id: found.get(id, []) for id in load.accepted if len(found.get(id, [])) != 1}
    assert not wrong, f"seed {seed}: {wrong}"
    assert load.came_after_their_end == []
    assert load.faults == []
    assert len(load.accepted) > 100
    contents = collections.Counter(
        payload["n"]
        for paths in found.values()
        if "n" in (payload := json.loads(paths[0].read_text())["payload"]) and "status" not in payload
    )
    assert [n for n, times in contents.items() if times > 1] == [], f"seed {seed}: one page became two"
    assert "Traceback" not in relay.log.read_text()


def test_setting_the_clock_makes_nothing_early_in_a_worker_that_is_started_then(
    own: Callable[..., Relay], key: str, tmp_path: Path
) -> None:
    clock = Clock(tmp_path / "clock")
    relay = own(prelude=MOVABLE_CLOCK, CLOCK=clock.path)
    a = Worker(relay, 0)
    leased = a.notify(key)
    a.lease(key, "lease=9&timeout=0")
    delayed = a.notify(key, Pager_Delay="9")
    due = time.monotonic() + 9
    clock.set(HOUR)
    os.kill(pids(relay)[1], signal.SIGKILL)
    b = Worker(relay, 1)
    assert b.lease(key, "lease=60&timeout=4") == []
    pages = b.lease(key, "lease=60&max=9&timeout=20")
    pages += b.lease(key, "lease=60&max=9&timeout=5") if len(pages) < 2 else []
    assert sorted(page["handle"] for page in pages) == sorted([f"{leased}.2", delayed])
    assert abs(time.monotonic() - due) < 3


# The spool of several processes


def test_what_a_dead_worker_was_taking_in_is_put_back_and_that_of_the_living_is_left(spool: Spool) -> None:
    box = number(new_key())
    dead, living = Spool(spool.root, worker=1), Spool(spool.root, worker=2)
    for one in (dead, living):
        Path(one.temporary((box, "page.json"))).write_text('{"n":1}')
        Path(one.temporary()).touch()
    kept = set(os.listdir(spool.path("tmp")))
    Spool(spool.root, worker=1).recover(1)
    left = set(os.listdir(spool.path("tmp")))
    assert left < kept
    assert sorted(name.removeprefix("adopt-")[0] for name in left) == ["2", "2"]
    assert len(os.listdir(spool.path("new", box))) == 1


def test_pages_of_others_stay_what_they_are_when_the_clock_goes_back_and_those_accepted_here_come_behind_them(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = spool.mailbox(number(new_key()))
    other = Spool(spool.root, worker=1).mailbox(mine.number)
    wall_ns = time.time_ns
    assert mine.waiting() == []  # met before
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + 30 * 24 * HOUR * 10**9)
    ids = [other.deliver("{}")]
    ahead = wall_ns() + 30 * 24 * HOUR * 10**9
    os.utime(spool.path("new", mine.number, f"{ids[0]}.json"), ns=(ahead, ahead))  # as the kernel, too, had the time
    assert [page.id for page in mine.waiting()] == ids
    monkeypatch.setattr(time, "time_ns", wall_ns)
    ids += [other.deliver("{}"), mine.deliver("{}"), other.deliver("{}")]
    assert [page.id for page in mine.waiting()] == [page.id for page in other.waiting()] == sorted(ids)
    assert mine.deliver("{}") > max(ids)


def test_a_folder_that_another_process_may_have_made_anew_is_made_durable_again(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = files.directory_synced
    monkeypatch.setattr(files, "directory_synced", lambda path: (synced.append(path), sync(path))[1])
    box = spool.mailbox(number(new_key()))
    box.deliver("{}")
    box.deliver("{}")
    assert synced.count(spool.path("new")) == 1
    passed = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: passed() + HOUR)
    box.deliver("{}")
    assert synced.count(spool.path("new")) == 2


def test_one_sync_makes_all_mailboxes_durable_that_were_made_before_it(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = files.directory_synced
    monkeypatch.setattr(files, "directory_synced", lambda path: (synced.append(path), sync(path))[1])
    first, second, late = (spool.mailbox(number(new_key())) for _ in range(3))
    first.make()
    second.make()
    first.deliver("{}")
    second.deliver("{}")
    assert synced.count(spool.path("new")) == 1
    late.make()
    late.deliver("{}")
    assert synced.count(spool.path("new")) == 2
    os.unlink(spool.path("new", first.number, os.listdir(spool.path("new", first.number))[0]))
    os.rmdir(spool.path("new", first.number))
    first.deliver("{}")  # into a folder that is made again
    assert synced.count(spool.path("new")) == 3
    Spool(spool.root, worker=1).mailbox(second.number).deliver("{}")  # which can't know what is durable
    assert synced.count(spool.path("new")) == 4


def test_a_mailbox_is_not_removed_within_the_time_in_which_others_rely_on_it(spool: Spool) -> None:
    boxes = [number(new_key()) for _ in range(2)]
    janitor = Janitor(spool, print, lambda number: 0, mailbox_days=1e-9)
    for box, idle in zip(boxes, (KNOWN_SECONDS, 2 * KNOWN_SECONDS + 1), strict=True):
        Spool(spool.root, worker=1).mailbox(box).make()
        os.utime(spool.path("new", box), (time.time() - idle,) * 2)
    janitor.tidy()
    janitor._lock.release()
    assert os.listdir(spool.path("new")) == boxes[:1]


def test_a_worker_that_is_not_the_janitors_makes_room_too_while_that_one_does_his_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "spool")
    spools = [Spool(root, worker=n, min_free_bytes=1000, max_message_bytes=100) for n in range(2)]
    janitor, other = (Janitor(spool, print, lambda number: 0) for spool in spools)
    janitor.tidy()
    other.tidy()
    day = Path(root, "archive", "2020-01-01", number(new_key()))
    full = {"f_bavail": 1000, "f_frsize": 1, "f_files": 0, "f_favail": 0}
    free = {**full, "f_bavail": 1 << 30}
    monkeypatch.setattr(os, "statvfs", lambda path: type("Statvfs", (), full if day.exists() else free))
    try:
        for long_ago in (3600, 0):
            os.utime(Path(root, "janitor.last"), (time.time() - long_ago,) * 2)
            day.mkdir(parents=True, exist_ok=True)
            if long_ago:
                with pytest.raises(SpoolFull):
                    spools[1].mailbox(number(new_key())).deliver("{}")
            else:
                spools[1].mailbox(number(new_key())).deliver("{}")
                assert not day.exists()
    finally:
        janitor._lock.release()
