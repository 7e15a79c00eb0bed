"""The relay under systemd: what it says, the sockets that it is given, its units, and what installs them.

systemd itself is not run here. A socket plays its part, and systemd-analyze reads the units."""

import collections
import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import REPOSITORY, Relay, clean_environment, new_key, until

from pagermcp.server.notify import Notifier, Pulse

UNITS = REPOSITORY / "systemd"
WORKERS = pytest.mark.parametrize("workers", [1, 2])


class Manager:
    """A socket in place of systemd's, and all that it was told."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.at: Callable[[str], None] = lambda said: None
        """Called at once with what is said."""
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while said := self._socket.recv(4096).decode():
            self.at(said)
            self.heard.append(said)

    @property
    def pings(self) -> int:
        return self.heard.count("WATCHDOG=1")

    @property
    def rest(self) -> list[str]:
        """What it was told besides."""
        return [said for said in self.heard if said != "WATCHDOG=1"]

    def hears_more(self, pings: int = 3) -> None:
        """Wait for so many more pings."""
        before = self.pings
        until(lambda: self.pings >= before + pings, 30)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.address.replace("@", "\0", 1))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(prefix="pagermcp-") as folder:  # pytest's own names may be too long for a socket
        manager = Manager(f"{folder}/notify")
        yield manager
        manager.close()


@pytest.fixture
def abstract() -> Iterator[Manager]:
    manager = Manager(f"@pagermcp-{new_key()}")
    yield manager
    manager.close()


# What it says


@WORKERS
@pytest.mark.parametrize("kind", ["manager", "abstract"])
def test_it_is_ready_when_it_answers_and_stopping_when_it_is_told_to_stop(
    start_relay: Callable[..., Relay], request: pytest.FixtureRequest, kind: str, workers: int
) -> None:
    manager: Manager = request.getfixturevalue(kind)
    answers: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def at(said: str) -> None:
        if said == "READY=1":
            answers.append(requests.get(f"http://127.0.0.1:{port}/healthz", timeout=30).status_code)

    manager.at = at
    relay = start_relay(NOTIFY_SOCKET=manager.address, PORT=port, PAGERMCP_WORKERS=workers)
    until(lambda: answers == [200])
    assert manager.heard == ["READY=1"]  # no watchdog was asked for
    assert relay.stop() == 0
    until(lambda: manager.heard == ["READY=1", "STOPPING=1"])
    assert "Traceback" not in relay.log.read_text()


HELD_UP_AT_START = """
import os, threading
from pagermcp.spool import Spool
recover = Spool.recover
def slow(spool, *arguments):
    while os.path.exists(os.environ["HELD"]):
        threading.Event().wait(0.01)
    recover(spool, *arguments)
Spool.recover = slow
"""


def test_it_is_not_ready_while_it_still_looks_after_its_spool(
    start_relay: Callable[..., Relay], manager: Manager, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    starting = threading.Thread(
        target=lambda: start_relay(NOTIFY_SOCKET=manager.address, prelude=HELD_UP_AT_START, HELD=held)
    )
    starting.start()
    until((tmp_path / "spool" / "FORMAT").exists, 30)
    threading.Event().wait(0.5)
    assert manager.heard == []
    held.unlink()
    starting.join()
    until(lambda: manager.heard == ["READY=1"])


@WORKERS
def test_one_that_cannot_start_is_never_ready(
    start_relay: Callable[..., Relay], manager: Manager, tmp_path: Path, workers: int
) -> None:
    relay = start_relay()
    error = error_of(tmp_path, PORT=relay.port, NOTIFY_SOCKET=manager.address, PAGERMCP_WORKERS=workers)
    assert error.startswith(f"Error: port {relay.port} is in use")
    assert manager.heard == []


@WORKERS
def test_the_watchdog_hears_from_it_while_the_disk_is_full_and_watching_is_off(
    start_relay: Callable[..., Relay], manager: Manager, key: str, workers: int
) -> None:
    relay = start_relay(
        NOTIFY_SOCKET=manager.address,
        WATCHDOG_USEC=3_000_000,
        PAGERMCP_WORKERS=workers,
        PAGERMCP_MIN_FREE_BYTES=1 << 60,
        PAGERMCP_WATCH="off",
    )
    assert relay.notify(key).status_code == 507
    began = time.monotonic()
    manager.hears_more(4)
    assert time.monotonic() - began > 2.5  # one a second, not more
    assert relay.notify(key).status_code == 507
    relay.stop()
    assert manager.rest == ["READY=1", "STOPPING=1"]


HELD_UP = """
import os, resource, threading
from pagermcp.server.loop import Loop
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
turn = Loop.turn
def held():  # all are, or the one with that process id
    try:
        with open(os.environ["HELD"]) as file:
            return file.read() in ("", str(os.getpid()))
    except OSError:
        return False
def held_up(*arguments):
    while held():
        open(os.environ["HELD"] + " now", "w").close()
        threading.Event().wait(0.01)
    turn(*arguments)
Loop.turn = held_up
"""


def test_the_watchdog_hears_nothing_while_the_main_loop_is_held_up(
    start_relay: Callable[..., Relay], manager: Manager, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    start_relay(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC=900_000, prelude=HELD_UP, HELD=held)
    manager.hears_more()
    held.touch()
    until((tmp_path / "held now").exists)
    threading.Event().wait(0.1)  # for what was said before
    before = manager.pings
    threading.Event().wait(1.5)
    assert manager.pings == before
    held.unlink()
    manager.hears_more()


def test_where_its_threads_were_is_in_the_log_when_the_watchdog_ends_it(
    start_relay: Callable[..., Relay], manager: Manager, tmp_path: Path
) -> None:
    watched = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": 30_000_000}
    relay = start_relay(prelude=HELD_UP, HELD=tmp_path / "held", **watched)
    (tmp_path / "held").touch()
    until((tmp_path / "held now").exists)
    assert relay.stop(signal.SIGABRT) == -signal.SIGABRT
    assert re.search(r"Fatal Python error: Aborted(?s:.*) in held_up\n", relay.log.read_text())


def children(relay: Relay) -> list[int]:
    pid = relay.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_worker_whose_loop_is_held_up_is_ended_and_started_again_and_systemd_need_not_know(
    start_relay: Callable[..., Relay], manager: Manager, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    watched = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": 3_000_000}
    relay = start_relay(prelude=HELD_UP, HELD=held, PAGERMCP_WORKERS=2, **watched)
    first, second = children(relay)
    (tmp_path / "pid").write_text(str(second))
    (tmp_path / "pid").rename(held)
    until(lambda: len(children(relay)) == 2 and second not in children(relay), 40)
    assert first in children(relay)
    log = relay.log.read_text()
    assert "worker 1 has not turned for 3 s and is ended\n" in log
    assert re.search(r"Fatal Python error: Aborted(?s:.*) in held_up\n", log)
    assert "worker 1 was ended by signal 6 and is started again\n" in log
    manager.hears_more()
    assert relay.stop() == 0
    assert manager.rest == ["READY=1", "STOPPING=1"]


def test_a_worker_that_is_not_even_ended_by_that_is_killed(start_relay: Callable[..., Relay], manager: Manager) -> None:
    relay = start_relay(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC=2_000_000, PAGERMCP_WORKERS=2)
    stopped = children(relay)[0]
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: len(children(relay)) == 2 and stopped not in children(relay), 40)
    assert "worker 0 was ended by signal 9 and is started again\n" in relay.log.read_text()


def test_when_it_is_the_parent_who_was_held_up_its_workers_live_on(
    start_relay: Callable[..., Relay], manager: Manager
) -> None:
    relay = start_relay(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC=2_000_000, PAGERMCP_WORKERS=2)
    workers = children(relay)
    for one in (relay.process.pid, *workers):  # as a machine does that sleeps
        os.kill(one, signal.SIGSTOP)
    threading.Event().wait(0.2)
    before = manager.pings
    threading.Event().wait(3)
    assert manager.pings == before
    os.kill(relay.process.pid, signal.SIGCONT)
    threading.Event().wait(0.2)
    for one in workers:
        os.kill(one, signal.SIGCONT)
    manager.hears_more()
    assert children(relay) == workers
    assert "is ended" not in relay.log.read_text()


def test_a_manager_who_does_not_listen_or_makes_no_sense_is_a_line_in_the_log(
    start_relay: Callable[..., Relay], key: str, tmp_path: Path
) -> None:
    relay = start_relay(NOTIFY_SOCKET=tmp_path / "nobody", WATCHDOG_USEC="soon")
    assert relay.notify(key).status_code == 202
    assert relay.stop() == 0
    told = [line.partition("WARNING pagermcp: ")[2] for line in relay.log.read_text().splitlines() if "WARN" in line]
    assert told == [
        "WATCHDOG_USEC='soon' is no number of microseconds; there is no watchdog",
        "NOTIFY_SOCKET can't be told READY=1: No such file or directory",
        "NOTIFY_SOCKET can't be told STOPPING=1: No such file or directory",
    ]


def close(notifier: Notifier) -> None:
    """A relay has its one to the end."""
    if notifier._socket:
        notifier._socket.close()


def watchdog_seconds(environment: dict[str, str]) -> float:
    notifier = Notifier(environment)
    close(notifier)
    return notifier.watchdog_seconds


def test_a_manager_who_does_not_read_holds_up_nobody() -> None:
    with tempfile.TemporaryDirectory(prefix="pagermcp-") as folder, contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        deaf.bind(f"{folder}/notify")
        notifier = Notifier({"NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "3000000"})
        stack.callback(close, notifier)
        began = time.monotonic()
        for _ in range(2000):  # more than fit
            notifier.alive()
        assert time.monotonic() - began < 2
        assert deaf.recv(100) == b"WATCHDOG=1"


def test_what_is_said_is_said_by_the_process_that_was_asked_and_by_none_that_it_runs() -> None:
    asked = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": str(os.getpid()), "OTHER": "1"}
    assert watchdog_seconds(asked) == 6
    assert asked == {"OTHER": "1"}
    for never in (
        {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": str(os.getppid())},
        {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_PID": str(os.getpid())},
        {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "6000000"},
        {},
    ):
        assert watchdog_seconds(dict(never)) == math.inf, never


def test_a_pulse_beats_three_times_in_its_time_however_often_the_loop_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now, beats = 1000.0, []
    monkeypatch.setattr("pagermcp.server.notify.time.monotonic", lambda: now)
    pulse = Pulse(lambda: beats.append(now), 30)
    never = Pulse(lambda: beats.append(-1), math.inf)
    for _ in range(300):
        assert pulse.due_in() <= 10
        assert never.due_in() == math.inf
        pulse.beat()
        never.beat()
        now += 0.25
    assert beats == [1000, 1010, 1020, 1030, 1040, 1050, 1060, 1070]


# Sockets that it is given

HAND_OVER = """
import fcntl, os, sys
given = [int(one) for one in sys.argv[1].split(",")]
above = [fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in given]  # out of the way of what they become
for n, one in enumerate(above):
    os.dup2(one, 3 + n, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(given)), LISTEN_FDNAMES="pagermcp.socket")
os.execv(sys.argv[2], sys.argv[2:])
"""


def handing_over(*sockets: socket.socket) -> dict[str, Any]:
    """For `Relay`: start it as systemd does, with these."""
    descriptors = [one.fileno() for one in sockets]
    given = ",".join(map(str, descriptors))
    return {"prefix": [sys.executable, "-c", HAND_OVER, given], "inherits": descriptors}


def error_of(tmp_path: Path, sockets: Sequence[socket.socket] = (), **settings: object) -> str:
    """What a relay says that can't start."""
    start = handing_over(*sockets) if sockets else {"prefix": [], "inherits": []}
    failed = subprocess.run(
        [*start["prefix"], sys.executable, "-m", "pagermcp", "serve"],
        env=clean_environment(**{"DATA_DIR": tmp_path / "other", "PORT": 0, **settings}),
        pass_fds=start["inherits"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=REPOSITORY,
    )
    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1, failed.stderr
    return failed.stderr


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as server:
        yield server


@WORKERS
def test_it_listens_at_the_sockets_it_is_given_whatever_host_and_port_say(
    start_relay: Callable[..., Relay], listening: socket.socket, key: str, workers: int
) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as another:
        start = handing_over(listening, another)
        relay = start_relay(**start, PAGERMCP_WORKERS=workers, HOST="256.0.0.1", PORT=listening.getsockname()[1])
        assert relay.url.strip() == f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert relay.notify(key).status_code == 202
        at_the_other = f"http://[::1]:{another.getsockname()[1]}/mailboxes/{key}/messages"
        assert len(requests.get(at_the_other, timeout=30).json()["messages"]) == 1
        assert relay.stop() == 0
        assert "Traceback" not in relay.log.read_text()


def test_it_greets_with_the_address_of_a_socket_for_every_network(start_relay: Callable[..., Relay]) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as every:
        relay = start_relay(**handing_over(every))
        assert relay.url == f"http://[::]:{every.getsockname()[1]}"
        assert requests.get(f"http://127.0.0.1:{every.getsockname()[1]}/healthz", timeout=30).status_code == 200


class Posts:
    """Clients that post, each page by a new connection, until this is left."""

    def __init__(self, port: int, clients: int = 6) -> None:
        self.accepted: list[str] = []
        self.refused: list[object] = []
        self._url = f"http://127.0.0.1:{port}/notify"
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._post) for _ in range(clients)]

    def _post(self) -> None:
        headers = {"Authorization": f"Bearer {new_key()}", "Connection": "close"}
        while not self._over.is_set():
            try:
                answer = requests.post(self._url, b"hello", headers=headers, timeout=60)
            except requests.RequestException as error:
                self.refused.append(error)
            else:
                where = self.accepted if answer.status_code == 202 else self.refused
                where.append(answer.json()["id"] if answer.status_code == 202 else answer.text)

    def __enter__(self) -> "Posts":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@WORKERS
def test_a_restart_under_a_flow_of_posts_refuses_no_connection(
    start_relay: Callable[..., Relay], listening: socket.socket, tmp_path: Path, workers: int
) -> None:
    settings = {"PAGERMCP_WORKERS": workers, "MAX_MESSAGES_PER_MAILBOX": 100_000, **handing_over(listening)}
    relay = start_relay(**settings)
    with Posts(listening.getsockname()[1]) as posts:
        for _ in range(3):
            enough = len(posts.accepted) + 100
            until(lambda enough=enough: len(posts.accepted) >= enough, 60)
            assert relay.stop() == 0
            relay = start_relay(**settings)
        enough = len(posts.accepted) + 100
        until(lambda: len(posts.accepted) >= enough, 60)
    assert posts.refused == []
    on_disk = collections.Counter(path.stem for path in (tmp_path / "spool").glob("new/*/*.json"))
    assert on_disk == collections.Counter(posts.accepted)
    assert "Traceback" not in relay.log.read_text()


def test_while_it_stops_what_comes_at_its_socket_costs_no_cpu_and_is_left_for_the_next(
    start_relay: Callable[..., Relay], listening: socket.socket, key: str
) -> None:
    """The socket stays open elsewhere, and so epoll would tell of it again and again."""
    start = handing_over(listening)
    relay = start_relay(**start, prelude=HELD_UP_IN_POSTS)
    with relay.connect() as slow:
        slow.sendall(b"POST /notify HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nAuthorization: " + key.encode())
        slow.sendall(b"\r\n\r\nhello")
        until(lambda: relay.log.read_text().count("a post is held up"))
        relay.process.send_signal(signal.SIGTERM)
        with relay.connect() as next_one:
            next_one.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            before = relay.cpu_seconds()
            threading.Event().wait(1)
            assert relay.cpu_seconds() - before < 0.5
            assert slow.recv(100).startswith(b"HTTP/1.1 202")
            assert relay.stop() == 0
            start_relay(**start)
            assert next_one.recv(100).startswith(b"HTTP/1.1 200")


HELD_UP_IN_POSTS = """
import sys, threading
from pagermcp.spool.mailbox import Mailbox
deliver = Mailbox.deliver
def slow(*arguments, **options):
    print("a post is held up", file=sys.stderr, flush=True)
    threading.Event().wait(1.5)
    return deliver(*arguments, **options)
Mailbox.deliver = slow
"""


def test_sockets_for_another_process_are_none_of_its_business(
    start_relay: Callable[..., Relay], listening: socket.socket
) -> None:
    relay = start_relay(LISTEN_PID=os.getpid(), LISTEN_FDS=1, inherits=[listening.fileno()])
    assert relay.port != listening.getsockname()[1]


def test_what_is_no_listening_socket_is_one_line(tmp_path: Path, listening: socket.socket) -> None:
    no_listener = "Error: descriptor 3, of LISTEN_FDS, does not listen for TCP: ListenStream=HOST:PORT\n"
    with tempfile.TemporaryDirectory(prefix="pagermcp-") as folder:
        with socket.socket(socket.AF_UNIX) as local:
            local.bind(f"{folder}/socket")
            local.listen()
            assert error_of(tmp_path, [local]) == no_listener
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            assert error_of(tmp_path, [datagrams]) == no_listener
        with socket.socket() as deaf:
            assert error_of(tmp_path, [listening, deaf]) == no_listener.replace("3", "4")
        with open(f"{folder}/file", "w") as file:
            no_socket = "Error: descriptor 3, of LISTEN_FDS, is no socket: Socket operation on non-socket\n"
            assert error_of(tmp_path, [file]) == no_socket  # type: ignore[list-item]


def test_programs_that_it_runs_have_neither_its_sockets_nor_their_variables(listening: socket.socket) -> None:
    script = """
import os, socket, subprocess
from pagermcp.server.activation import handed_over
(given,) = handed_over(os.environ)
assert given.fileno() == 3 and not [name for name in os.environ if name.startswith("LISTEN_")]
assert handed_over(os.environ) == []
print(subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout)
"""
    start = handing_over(listening)
    command = [*start["prefix"], sys.executable, "-c", script]
    ran = subprocess.run(command, pass_fds=start["inherits"], capture_output=True, text=True, cwd=REPOSITORY)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert " 3 -> socket" not in ran.stdout
