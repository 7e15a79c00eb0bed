"""The relay under systemd: what it says, the sockets that it is given, its units, and what installs them.

systemd itself is not run here. A socket plays its part, and its tools read the units."""

import collections
import configparser
import math
import os
import re
import shutil
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
from conftest import NOBODY, REPOSITORY, Relay, as_root, clean_environment, new_key, number, require, until

from pagermcp.server.activation import NotListening, handed_over
from pagermcp.server.notify import READY, STOPPING, TURNS, Notifier

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
    def turns(self) -> int:
        return self.heard.count(TURNS)

    @property
    def rest(self) -> list[str]:
        """What it was told besides."""
        return [said for said in self.heard if said != TURNS]

    def hears_more(self, turns: int = 3) -> None:
        """Wait until it has heard of the loop so often again."""
        before = self.turns
        until(lambda: self.turns >= before + turns, 30)

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.address.replace("@", "\0", 1))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name is short enough for sockets, as those of pytest may not be."""
    with tempfile.TemporaryDirectory(prefix="pagermcp-") as folder:
        yield Path(folder)


@pytest.fixture
def manager(short_path: Path) -> Iterator[Manager]:
    manager = Manager(f"{short_path}/notify")
    yield manager
    manager.close()


@pytest.fixture
def abstract() -> Iterator[Manager]:
    manager = Manager(f"@pagermcp-{new_key()}")
    yield manager
    manager.close()


# What it says


@pytest.mark.parametrize(("kind", "workers"), [("manager", 1), ("manager", 2), ("abstract", 1)])
def test_it_is_ready_when_it_answers_and_stopping_when_it_is_told_to_stop(
    start_relay: Callable[..., Relay], request: pytest.FixtureRequest, kind: str, workers: int
) -> None:
    manager: Manager = request.getfixturevalue(kind)
    answers: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def at(said: str) -> None:
        if said == READY:
            answers.append(requests.get(f"http://127.0.0.1:{port}/healthz", timeout=30).status_code)

    manager.at = at
    relay = start_relay(NOTIFY_SOCKET=manager.address, PORT=port, PAGERMCP_WORKERS=workers)
    until(lambda: answers == [200])
    assert relay.stop() == 0
    until(lambda: manager.heard == [READY, STOPPING])  # no watchdog was asked for
    assert "Traceback" not in relay.log.read_text()


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
    assert manager.rest == [READY, STOPPING]


HELD_UP = """
import os, threading
from pagermcp.server.loop import Loop
turn = Loop.turn
def held():
    try:
        with open(os.environ["HELD"]) as file:
            return file.read() == str(os.getpid())
    except OSError:
        return False
def held_up(*arguments):
    while held():
        open(os.environ["HELD"] + " now", "w").close()
        threading.Event().wait(0.01)
    turn(*arguments)
Loop.turn = held_up
"""


def children(relay: Relay) -> list[int]:
    pid = relay.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@WORKERS
def test_the_watchdog_hears_nothing_while_a_main_loop_is_held_up(
    start_relay: Callable[..., Relay], manager: Manager, tmp_path: Path, workers: int
) -> None:
    held = tmp_path / "held"
    asked = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": 900_000, "PAGERMCP_WORKERS": workers}
    relay = start_relay(prelude=HELD_UP, HELD=held, **asked)
    manager.hears_more()
    (tmp_path / "pid").write_text(str(children(relay)[1] if workers == 2 else relay.process.pid))
    (tmp_path / "pid").rename(held)
    until((tmp_path / "held now").exists)
    threading.Event().wait(0.5)  # for what was said before
    before = manager.turns
    threading.Event().wait(1.5)
    assert manager.turns == before
    held.unlink()
    manager.hears_more()


def test_the_watchdog_hears_on_when_a_worker_has_ended_and_is_replaced(
    start_relay: Callable[..., Relay], manager: Manager
) -> None:
    relay = start_relay(NOTIFY_SOCKET=manager.address, WATCHDOG_USEC=3_000_000, PAGERMCP_WORKERS=2)
    ended = children(relay)[0]
    os.kill(ended, signal.SIGKILL)
    until(lambda: len(children(relay)) == 2 and ended not in children(relay))
    manager.hears_more()
    assert manager.rest == [READY]


def test_a_manager_who_is_not_there_is_a_line_in_the_log(
    start_relay: Callable[..., Relay], key: str, tmp_path: Path
) -> None:
    relay = start_relay(NOTIFY_SOCKET=tmp_path / "nobody")
    assert relay.notify(key).status_code == 202
    assert relay.stop() == 0
    told = [line.partition("WARNING pagermcp: ")[2] for line in relay.log.read_text().splitlines() if "WARN" in line]
    assert told == [
        "NOTIFY_SOCKET can't be told READY=1: No such file or directory",
        "NOTIFY_SOCKET can't be told STOPPING=1: No such file or directory",
    ]


def test_a_manager_who_does_not_read_holds_the_loop_up_for_a_second_only(
    short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(f"{short_path}/notify")
        notifier = Notifier({"NOTIFY_SOCKET": f"{short_path}/notify"})
        while not caplog.messages:
            began = time.monotonic()
            notifier.tell(TURNS)
        assert 0.9 < time.monotonic() - began < 10
        assert caplog.messages == ["NOTIFY_SOCKET can't be told WATCHDOG=1: timed out"]
        assert notifier._socket
        notifier._socket.close()  # a relay has it to the end


@pytest.mark.parametrize(
    ("environment", "every"),
    [
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": str(os.getpid())}, 2),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "6000000"}, 2),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": str(os.getppid())}, math.inf),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_PID": str(os.getpid())}, math.inf),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "0"}, math.inf),
        ({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"}, math.inf),
        ({"WATCHDOG_USEC": "6000000"}, math.inf),
        ({}, math.inf),
    ],
)
def test_it_speaks_thrice_in_the_time_that_its_own_process_is_asked_for(
    environment: dict[str, str], every: float
) -> None:
    assert Notifier(environment).every == every


# Sockets that it is given

HAND_OVER = """
import fcntl, os, sys
given = [int(one) for one in sys.argv[1].split(",")]
above = [fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in given]  # out of the way of what they become
for n, one in enumerate(above):
    os.dup2(one, 3 + n, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(given)))
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

    def go_on(self, pages: int = 100) -> None:
        """Wait until so many more were accepted."""
        enough = len(self.accepted) + pages
        until(lambda: len(self.accepted) >= enough, 60)

    def __enter__(self) -> "Posts":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


@WORKERS
def test_a_restart_under_a_flow_of_posts_refuses_no_connection_and_loses_no_page(
    start_relay: Callable[..., Relay], listening: socket.socket, tmp_path: Path, workers: int
) -> None:
    settings = {"PAGERMCP_WORKERS": workers, "MAX_MESSAGES_PER_MAILBOX": 100_000, **handing_over(listening)}
    relay = start_relay(**settings)
    with Posts(listening.getsockname()[1]) as posts:
        for _ in range(3):
            posts.go_on()
            assert relay.stop() == 0
            relay = start_relay(**settings)
        posts.go_on()
    assert posts.refused == []
    on_disk = collections.Counter(path.stem for path in (tmp_path / "spool").glob("new/*/*.json"))
    assert on_disk == collections.Counter(posts.accepted)
    assert "Traceback" not in relay.log.read_text()


HELD_UP_IN_POSTS = """
import sys, threading
from pagermcp.spool.mailbox import Mailbox
delivering = Mailbox.delivering
def slow(*arguments, **options):
    print("a post is held up", file=sys.stderr, flush=True)
    threading.Event().wait(1.5)
    return delivering(*arguments, **options)
Mailbox.delivering = slow
"""


def test_while_it_stops_what_comes_at_its_socket_costs_no_cpu_and_is_left_for_the_next(
    start_relay: Callable[..., Relay], listening: socket.socket, key: str
) -> None:
    """The socket stays open elsewhere, and so epoll would tell of it again and again."""
    start = handing_over(listening)
    relay = start_relay(**start, prelude=HELD_UP_IN_POSTS)
    with relay.connect() as slow:
        slow.sendall(b"POST /notify HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nAuthorization: " + key.encode())
        slow.sendall(b"\r\n\r\nhello")
        until(lambda: "a post is held up" in relay.log.read_text())
        relay.process.send_signal(signal.SIGTERM)
        with relay.connect() as next_one:
            next_one.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            before = relay.cpu_seconds()
            assert slow.recv(100).startswith(b"HTTP/1.1 202")
            assert relay.cpu_seconds() - before < 0.5
            assert relay.stop() == 0
            start_relay(**start)
            assert next_one.recv(100).startswith(b"HTTP/1.1 200")


def test_sockets_for_another_process_are_none_of_its_business(
    start_relay: Callable[..., Relay], listening: socket.socket
) -> None:
    relay = start_relay(LISTEN_PID=os.getpid(), LISTEN_FDS=1, inherits=[listening.fileno()])
    assert relay.port != listening.getsockname()[1]


def test_what_is_no_listening_socket_is_one_line(tmp_path: Path, listening: socket.socket, short_path: Path) -> None:
    no_listener = "Error: descriptor 3, of LISTEN_FDS, does not listen for TCP: ListenStream=HOST:PORT\n"
    with socket.socket(socket.AF_UNIX) as local:
        local.bind(f"{short_path}/socket")
        local.listen()
        assert error_of(tmp_path, [local]) == no_listener
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        assert error_of(tmp_path, [datagrams]) == no_listener
    with socket.socket() as deaf:
        assert error_of(tmp_path, [listening, deaf]) == no_listener.replace("3", "4")
    with open(f"{short_path}/file", "w") as file:
        no_socket = "Error: descriptor 3, of LISTEN_FDS, is no socket: Socket operation on non-socket\n"
        assert error_of(tmp_path, [file]) == no_socket  # type: ignore[list-item]
    with pytest.raises(NotListening, match="LISTEN_FDS='one': must be a whole number"):
        handed_over({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "one"})


# What its group sees


@as_root
def test_members_of_its_group_look_with_ls_and_cat_and_nobody_else_does(
    start_relay: Callable[..., Relay], shared_folder: Path, key: str
) -> None:
    """As the unit has it: StateDirectoryMode=0750 and UMask=0027."""
    spool = shared_folder / "spool"
    spool.mkdir(0o750)
    os.chown(spool, NOBODY, NOBODY)
    relay = start_relay(spool, user=NOBODY, prefix=["sh", "-c", 'umask 027; exec "$@"', "sh"])
    id = relay.notify(key).json()["id"]
    page = f"{spool}/new/{number(key)}/{id}.json"
    look = f"ls {spool}/new/{number(key)} && cat {page}"
    somebody = [require("setpriv", "util-linux"), "--reuid=12345", "--regid=12345"]
    member = [*somebody, f"--groups={NOBODY}"]
    seen = output_of(*member, "sh", "-c", look)
    assert seen.startswith(f"{id}.json\n")
    assert '"payload":{"message":"hello"}' in seen
    assert "Permission denied" in output_of(*member, "rm", "-f", page, code=1)
    assert "Permission denied" in output_of(*somebody, "--clear-groups", "ls", spool, code=2)


# Its units


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A copy of all, whose program is there, which systemd-analyze wants."""
    folder = tmp_path / "units"
    shutil.copytree(UNITS, folder)
    for unit in folder.glob("*.service"):
        text = unit.read_text()
        assert "ExecStart=/opt/pagermcp/bin/pagermcp " in text
        unit.write_text(text.replace("/opt/pagermcp/bin/pagermcp", shutil.which("true") or ""))
    return folder


def output_of(*command: str | Path, code: int = 0, **environment: object) -> str:
    """What it writes, to both."""
    ran = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_environment(**environment)
    )
    assert ran.returncode == code, ran.stdout
    return ran.stdout


def test_systemd_finds_no_fault_in_the_units(units: Path, tmp_path: Path) -> None:
    analyze = require("systemd-analyze", "systemd")
    assert output_of(analyze, "verify", units / "pagermcp.service", units / "pagermcp.socket") == ""
    (units / "pagermcp-listen@.service").rename(units / "pagermcp-listen@desktop.service")
    user = {"XDG_RUNTIME_DIR": tmp_path, "HOME": tmp_path}
    assert output_of(analyze, "verify", "--user", units / "pagermcp-listen@desktop.service", **user) == ""


def test_the_service_is_as_shut_in_as_it_was_meant_to_be(units: Path) -> None:
    analyze = require("systemd-analyze", "systemd")
    output_of(analyze, "security", "--offline=true", "--threshold=13", units / "pagermcp.service")
    (units / "pagermcp.service").write_text("[Service]\nExecStart=/bin/true\n")
    output_of(analyze, "security", "--offline=true", "--threshold=13", units / "pagermcp.service", code=1)


@as_root
def test_there_are_a_user_a_folder_for_pages_and_one_for_settings(tmp_path: Path) -> None:
    for kind in ("sysusers", "tmpfiles"):
        (tmp_path / f"etc/{kind}.d").mkdir(parents=True)
        shutil.copy(UNITS / f"pagermcp.{kind}.conf", tmp_path / f"etc/{kind}.d/pagermcp.conf")
    output_of(require("systemd-sysusers", "systemd"), f"--root={tmp_path}")
    fields = (tmp_path / "etc/passwd").read_text().split("pagermcp:", 1)[1].splitlines()[0].split(":")
    user, group = int(fields[1]), int(fields[2])
    assert fields[3:] == ["PagerMCP relay", "/var/lib/pagermcp", "/usr/sbin/nologin"]
    output_of(require("systemd-tmpfiles", "systemd"), "--create", f"--root={tmp_path}")
    for path, owner in (("var/lib/pagermcp", user), ("etc/pagermcp", 0)):
        made = (tmp_path / path).stat()
        assert (made.st_mode & 0o777, made.st_uid, made.st_gid) == (0o750, owner, group)


def test_the_quadlet_keeps_pages_where_the_image_has_them_and_publishes_its_port_here_only() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.read(UNITS / "pagermcp.container")
    image = (REPOSITORY / "Dockerfile").read_text()
    volume, port = re.search(r"^VOLUME (\S+)$", image, re.MULTILINE), re.search(r"^EXPOSE (\d+)$", image, re.MULTILINE)
    assert volume
    assert port
    assert unit["Container"]["Volume"] == f"pagermcp:{volume[1]}"
    assert unit["Container"]["PublishPort"] == f"127.0.0.1:8080:{port[1]}"


# What installs them

INSTALL = UNITS / "install.sh"
OURS = [
    "pagermcp.service",
    "pagermcp.socket",
    "pagermcp-listen@.service",
    "pagermcp.sysusers.conf",
    "pagermcp.tmpfiles.conf",
]
INSTALLED = [
    "etc/systemd/system/pagermcp.service",
    "etc/systemd/system/pagermcp.socket",
    "etc/systemd/user/pagermcp-listen@.service",
    "etc/sysusers.d/pagermcp.conf",
    "etc/tmpfiles.d/pagermcp.conf",
]


def files_in(root: Path) -> list[str]:
    """Without those of the venv."""
    every = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return sorted(path for path in every if not path.startswith("opt/"))


def python(folder: Path, prefix: str = "/usr") -> Path:
    """One that is installed there, as far as it is asked."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncase $* in *base_prefix*) echo {prefix} ;; esac\n")
    path.chmod(0o755)
    return path


def test_a_dry_run_shows_each_step_and_takes_none(tmp_path: Path) -> None:
    root = tmp_path / "root"
    steps = output_of(INSTALL, "--dry-run", PYTHON=python(tmp_path), DESTDIR=root).splitlines()
    assert steps[0] == f"{tmp_path}/python -m venv {root}/opt/pagermcp"
    assert steps[2:] == [f"install -D -m 0644 {UNITS}/{a} {root}/{b}" for a, b in zip(OURS, INSTALLED, strict=True)]
    assert not root.exists()
    live = output_of(INSTALL, "--dry-run", PYTHON=python(tmp_path)).splitlines()
    assert live[0] == f"{tmp_path}/python -m venv /opt/pagermcp"
    assert [step for step in live if step.startswith("systemctl ")] == [
        "systemctl daemon-reload",
        "systemctl enable pagermcp.socket pagermcp.service",
        "systemctl start pagermcp.socket",
        "systemctl restart pagermcp.service",
        "systemctl --no-pager --lines 0 status pagermcp.service",
    ]


@pytest.mark.timeout(600)
def test_it_installs_into_a_tree_and_removes_all_but_pages_and_settings(tmp_path: Path) -> None:
    if not os.environ.get("PAGERMCP_STRICT"):
        pytest.skip("it takes the dependencies from the network, so it is run where PAGERMCP_STRICT is set")
    root = tmp_path / "root"
    for _ in ("install", "upgrade"):
        output_of(INSTALL, DESTDIR=root, PYTHON="/usr/bin/python3")
        assert files_in(root) == sorted(INSTALLED)
    assert "serve" in output_of(root / "opt/pagermcp/bin/pagermcp", "--help")
    kept = [root / "var/lib/pagermcp/FORMAT", root / "etc/pagermcp/relay.env"]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.touch()
    assert f"rm -r {root}/opt/pagermcp\n" in output_of(INSTALL, "--uninstall", "--dry-run", DESTDIR=root)
    assert len(files_in(root)) == len(INSTALLED) + 2
    output_of(INSTALL, "--uninstall", DESTDIR=root)
    assert [root / path for path in files_in(root)] == sorted(kept)
    assert not (root / "opt/pagermcp").exists()


def test_what_keeps_it_from_installing_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "opt/pagermcp").mkdir(parents=True)
    said = output_of(INSTALL, code=1, PYTHON=python(tmp_path), DESTDIR=tmp_path)
    assert said == f"{tmp_path}/opt/pagermcp is there and is no venv: move it away\n"
    said = output_of(INSTALL, "--dry-run", code=1, PYTHON="/bin/false")
    assert said == f"/bin/false is not Python 3.11 or newer. Name one: PYTHON=/path/to/python3 {INSTALL}\n"
    said = output_of(INSTALL, "--dry-run", code=1, PYTHON=python(tmp_path, "/home/me/.pyenv"))
    assert said.startswith(f"{tmp_path}/python is in /home/me/.pyenv, where the service can't look: PYTHON=")
    assert output_of(INSTALL, "--no-such", code=2).startswith("systemd/install.sh [--dry-run]")
