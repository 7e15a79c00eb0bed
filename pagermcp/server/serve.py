"""Run a relay until it is told to stop: its limits, its log without keys, and a stop that loses nothing."""

import contextlib
import dataclasses
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from waitress.adjustments import Adjustments

import pagermcp
from pagermcp import files
from pagermcp.measures import MEASURES
from pagermcp.origins import Origins
from pagermcp.server.activation import NotListening, handed_over
from pagermcp.server.channel import BODY_SLACK, Channel
from pagermcp.server.listener import Limit, listen
from pagermcp.server.log import configure
from pagermcp.server.notify import READY, STOPPING, TURNS, Notifier
from pagermcp.server.pool import PATIENCE_SECONDS, Last, Pool
from pagermcp.server.shared import Port, held
from pagermcp.server.workers import WorkerFailed, Workers
from pagermcp.settings import Settings
from pagermcp.spool import Janitor, Spool, SpoolRefused
from pagermcp.spool.clock import Clock
from pagermcp.spool.room import OPEN_ROOM
from pagermcp.waking import Sweep, Switchboard, make_watcher
from pagermcp.web import create_app
from pagermcp.web.services import Services

THREADS = 8
MAX_CONNECTIONS = 12_000
_FILES_OF_A_REQUEST = 3
_FILES_OF_A_COMMIT = 2
_MOST_COMMITS = 128
_OWN_DESCRIPTORS = 24  # standard streams, listeners, trigger, locks, inotify; and a few for looking into folders
_FEWEST_DESCRIPTORS = 48
_STOP_SECONDS = 2.0
_FIRST_WORDS_SECONDS = 0.5  # from a client who has just connected
_COLLECT_AFTER = 50_000, 20, 100
"""Of Python's garbage collector. By default it goes through everything that ten thousand waiters keep for every few
hundred of them that move: more than a third of what a relay with 6,000 did (py-spy). Few objects of ours need it."""
_HEADER_BYTES = 16384
_IN_MEMORY = {"tmpfs", "ramfs"}
_OVER_A_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "lustre", "afs", "gfs2", "ocfs2"}
_DEAD_PEER_SECONDS = 30

log = logging.getLogger("pagermcp")


class ServeFailed(Exception):
    """The relay could not start. The message is one line: what, where, and how to mend it."""


def serve(settings: Settings, command: str) -> None:
    """Serve until SIGTERM or SIGINT. `command` is how the user called us, for hints. Raises ServeFailed."""
    configure(settings.log)
    notifier = Notifier(os.environ)
    try:
        sockets = handed_over(os.environ)
    except NotListening as error:
        raise ServeFailed(str(error)) from error
    if sockets:  # then systemd has decided, and what we say of it should be right
        host, port = sockets[0].getsockname()[:2]
        settings = dataclasses.replace(settings, host=host, port=port)
    spool = _spool(settings)
    try:
        with held(spool.path("relay.lock"), spool.file_mode) as ours:
            if not ours:
                hint = "stop it, or name another folder with DATA_DIR"
                raise ServeFailed(f"another relay serves {spool.root}: {hint}")
            _caution(spool.root, files.file_system(spool.root))
            spool.recover()
            if settings.room == "open":
                spool.room(OPEN_ROOM).make()
            if settings.workers == 1:
                _serve(settings, spool, command, lambda url: _greet(url, spool), notifier.tell, notifier.every, sockets)
            else:
                _serve_by_workers(settings, spool, command, notifier, sockets)
            log.info("stopped")
    except OSError as error:
        raise ServeFailed(_in_one_line(spool, error)) from error


def _spool(settings: Settings, worker: int = 0, clock: Clock | None = None) -> Spool:
    try:
        return Spool(
            settings.data_dir,
            max_messages=settings.max_messages_per_mailbox,
            max_message_bytes=settings.max_message_bytes,
            min_free_bytes=settings.min_free_bytes,
            min_free_inodes=settings.min_free_inodes,
            max_mailboxes=settings.max_mailboxes,
            room_hours=settings.room_ttl_hours,
            worker=worker,
            clock=clock,
        )
    except SpoolRefused as error:
        raise ServeFailed(str(error)) from error


def _caution(root: str, kind: str) -> None:
    if kind in _IN_MEMORY:
        log.warning("%s is in memory (%s): its pages are gone after a restart of the machine; DATA_DIR", root, kind)
    elif kind in _OVER_A_NETWORK or kind.startswith("fuse."):
        what = "only one machine may serve it, and pages are as durable as its server makes them; docs/operate.md"
        log.warning("%s is on a network or shared file system (%s): %s", root, kind, what)


def _in_one_line(spool: Spool, error: OSError) -> str:
    return f"{error.filename or spool.root}: {error.strerror or error}"


def _greet(url: str, spool: Spool, more: str = "") -> None:
    print(f"PagerMCP {pagermcp.__version__} on {url}, spool {spool.root}{more}", flush=True)  # noqa: T201


def _serve_by_workers(
    settings: Settings, spool: Spool, command: str, notifier: Notifier, handed: Sequence[socket.socket]
) -> None:
    """handed: sockets from which all workers accept, each when it is free; otherwise each has its own."""
    if not handed and not hasattr(socket, "SO_REUSEPORT"):
        raise ServeFailed("this system can't share a port between processes (no SO_REUSEPORT): PAGERMCP_WORKERS=1")
    try:
        port = None if handed else Port(f"{_bracketed(settings.host)}:{settings.port}")
    except (OSError, ValueError) as error:
        raise ServeFailed(_why_not_listening(settings, command, error)) from error

    def work(worker: int, follows: bool, tell: Callable[[str], None]) -> str | None:
        MEASURES.begin(worker)
        try:
            own = _spool(settings, worker, spool.clock)
            if follows:
                own.recover(worker)
            sockets = port.sockets() if port else handed
            _serve(settings, own, command, lambda url: None, tell, notifier.every, sockets, follows)
        except ServeFailed as error:
            return str(error)
        except OSError as error:
            return _in_one_line(spool, error)
        return None

    url = f"http://{_bracketed(settings.host)}:{port.number if port else settings.port}"
    try:
        workers = Workers(settings.workers, work, notifier)
        workers.run(lambda: _greet(url, spool, f", {settings.workers} workers"), spool.clock.check)
    except WorkerFailed as error:
        raise ServeFailed(str(error)) from error


def _serve(
    settings: Settings,
    spool: Spool,
    command: str,
    listens: Callable[[str], None],
    tell: Callable[[str], None],
    every: float,
    sockets: Sequence[socket.socket],
    follows: bool = False,
) -> None:
    """Serve in this process. listens: called with the URL; tell, every: as in `Notifier`; sockets: what to listen on,
    if not where the settings say; follows: whether another worker has died before this one."""
    switchboard = Switchboard()
    watcher = make_watcher(settings.watch, spool, switchboard, alone=settings.workers == 1)
    janitor = Janitor(
        spool,
        switchboard.ring,
        switchboard.waiting,
        mailbox_days=settings.mailbox_ttl_days,
        message_days=settings.message_ttl_days,
        archive_days=settings.archive_ttl_days,
        inherits=follows,
    )
    try:
        services = Services(settings, spool, switchboard, watcher, janitor)
    except ValueError as error:  # it made sense when the settings were read, so it has changed since
        raise ServeFailed(f"PAGERMCP_NUMBERS_FILE={settings.numbers_file!r}: {error}") from None
    server = Server(create_app(services), settings, command, sockets)
    server.stop_on_signals()
    sweep = Sweep(spool, switchboard, watcher)
    sweep.start()
    janitor.start()
    gc.freeze()  # what is here now stays
    gc.set_threshold(*_COLLECT_AFTER)
    listens(server.url)
    tell(READY)
    server.run(switchboard.drain, tell, every)
    janitor.stop()
    sweep.stop()
    watcher.stop()


class Server:
    """Waitress, listening where the settings say, or on these sockets, with our loop and our threads.

    Raises ServeFailed when it can't."""

    def __init__(
        self, app: Callable[..., Any], settings: Settings, command: str, sockets: Sequence[socket.socket] = ()
    ) -> None:
        self._sockets: dict[int, Any] = {}
        self._stopping = False
        descriptors = _raise_descriptor_limit()
        commits = max(0, min(_MOST_COMMITS, descriptors // 16 - 4))
        self._pool = Pool(THREADS, commits)
        most = _connection_limit(descriptors - _FILES_OF_A_COMMIT * commits)
        origins = Origins(settings.trusted_proxy)
        limit = Limit(most, self._sockets, origins, settings.max_connections_per_address)
        try:
            adjustments = Adjustments(
                **({"sockets": sockets} if sockets else {"listen": f"{_bracketed(settings.host)}:{settings.port}"}),
                backlog=4096,
                send_bytes=1,  # an answer is sent by the thread that has it
                connection_limit=sys.maxsize,  # the listener has its own
                channel_request_lookahead=2,  # so that a client who goes, or asks on at once, is noticed
                max_request_body_size=settings.max_message_bytes + BODY_SLACK,
                max_request_header_size=_HEADER_BYTES,
                log_socket_errors=False,  # clients that go are no news
                clear_untrusted_proxy_headers=False,  # nobody reads them but `Origins`
                ident="PagerMCP",
            )
            adjustments.socket_options = [*adjustments.socket_options, *_keepalive_options()]
            self._listeners = listen(app, adjustments, self._pool, self._sockets, limit, Last(self._pool))
        except (OSError, ValueError) as error:
            raise ServeFailed(_why_not_listening(settings, command, error)) from error
        self._loop = self._listeners[0].loop
        self._pool.interrupt = self._loop.interrupt
        port = self._listeners[0].effective_port
        self.url = f"http://{_bracketed(settings.host)}:{port}"

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end `run`, also when they come before it."""

        def on_signal(number: int, frame: object) -> None:
            if not self._stopping:  # nothing here that takes a lock: this interrupts the main thread anywhere
                self._stopping = True
                self._loop.interrupt()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)

    def run(self, drain: Callable[[], None], tell: Callable[[str], None], every: float) -> None:
        """Serve until a signal, then end the waits by `drain` and let what is under way finish. tell, every: as in
        `Notifier`."""
        due = time.monotonic() + every
        while not self._stopping:
            self._loop.turn(PATIENCE_SECONDS if self._pool.look() else every)
            if time.monotonic() >= due:
                due = time.monotonic() + every
                tell(TURNS)
        tell(STOPPING)
        for listener in self._listeners:
            listener.draining = True
            listener.accepting = False
            self._loop.forget(listener)
            listener.del_channel()
            listener.socket.close()
        drain()
        deadline = time.monotonic() + _STOP_SECONDS
        while self._busy() and time.monotonic() < deadline:
            self._loop.turn(PATIENCE_SECONDS if self._pool.look() else 0.1)
        for channel in self._channels():
            channel.handle_close()  # who waits is woken by that, and gives back its pages
        self._pool.stop(_STOP_SECONDS / 4)
        # the triggers stay open: a thread that is still at it pulls one, and must not write to who has its number then

    def _busy(self) -> bool:
        return any(one.requests or one.total_outbufs_len or _has_just_come(one) for one in self._channels())

    def _channels(self) -> list[Channel]:
        return [channel for channel in list(self._sockets.values()) if isinstance(channel, Channel)]


def _has_just_come(channel: Channel) -> bool:
    """Its first request may be on its way: while systemd keeps our socket nobody is to notice that we restart."""
    silent = bool(channel.request is not None or channel.last_activity == channel.creation_time)
    return silent and abs(time.time() - channel.creation_time) < _FIRST_WORDS_SECONDS


def _raise_descriptor_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has no real hard limit and refuses its own answer
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < _FEWEST_DESCRIPTORS:
        raise ServeFailed(f"{limit} file descriptors are too few: ulimit -n 1024, or LimitNOFILE=1024 in systemd")
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _connection_limit(descriptors: int) -> int:
    """How many connections there may be, so that descriptors are left for files and for refusing more connections."""
    left = descriptors - _OWN_DESCRIPTORS - _FILES_OF_A_REQUEST * THREADS
    limit = max(left * 15 // 16 - 4, left // 2)  # see `Limit`
    if limit >= MAX_CONNECTIONS:
        return MAX_CONNECTIONS
    log.warning("%d connections at most, for want of file descriptors: ulimit -n, or LimitNOFILE= in systemd", limit)
    return limit


def _keepalive_options() -> list[tuple[int, int, int]]:
    """So that a client who vanished without a word is noticed within half a minute, waiting or being written to."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPIDLE", _DEAD_PEER_SECONDS // 2),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", _DEAD_PEER_SECONDS * 1000),
    ):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _why_not_listening(settings: Settings, command: str, error: Exception) -> str:
    if not isinstance(error, OSError):
        return f"HOST={settings.host!r}: not an address of this machine"
    if error.errno != errno.EADDRINUSE:
        return f"can't listen on {settings.host}:{settings.port}: {error.strerror}"
    return f"port {settings.port} is in use: PORT={_free_port(settings)} {command}"


def _free_port(settings: Settings) -> int:
    for port in range(settings.port + 1, min(settings.port + 100, 65536)):
        with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind((settings.host, port))
            except OSError:
                continue
            return port
    return 0
