"""Run a relay until it is told to stop: waitress, with what it lacks.

Ours are the limits, errors in the relay's own form, a log without keys, noticing at once that a client went or that a
write failed, and a stop that ends waits and loses nothing.
"""

import contextlib
import errno
import http
import logging
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from waitress import wasyncore
from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import BaseWSGIServer, create_server
from waitress.task import ErrorTask, WSGITask

import pagermcp
from pagermcp.address import redact
from pagermcp.server.shared import Port, held
from pagermcp.server.workers import WorkerFailed, Workers
from pagermcp.settings import Settings
from pagermcp.spool import Janitor, Spool, SpoolRefused
from pagermcp.spool.clock import Clock
from pagermcp.spool.room import OPEN_ROOM
from pagermcp.waking import Sweep, Switchboard, make_watcher
from pagermcp.web import create_app
from pagermcp.web.errors import error_body
from pagermcp.web.services import Services

MAX_WAITS = 500
MAX_WRITES = 32
_OTHER_THREADS = 2  # for all that neither waits nor writes, such as /healthz
_OWN_DESCRIPTORS = 24  # standard streams, listeners, trigger, locks, inotify; and a few for looking into folders
_FEWEST_DESCRIPTORS = 48
_STOP_SECONDS = 2.0
_BODY_SLACK = 1 << 20  # bodies up to this much over the limit are read, so that the 413 can say their size
_HEADER_BYTES = 16384
_DEAD_PEER_SECONDS = 30
_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_LINGER_SECONDS = 2.0
_FORGET_BYTES = 1 << 18

log = logging.getLogger("pagermcp")


class ServeFailed(Exception):
    """The relay could not start. The message is one line: what, where, and how to mend it."""


def serve(settings: Settings, command: str) -> None:
    """Serve until SIGTERM or SIGINT. `command` is how the user called us, for hints. Raises ServeFailed."""
    _configure_log()
    spool = _spool(settings)
    try:
        with held(spool.path("relay.lock"), spool.file_mode) as ours:
            if not ours:
                hint = "stop it, or name another folder with DATA_DIR"
                raise ServeFailed(f"another relay serves {spool.root}: {hint}")
            spool.recover()
            if settings.room == "open":
                spool.room(OPEN_ROOM).make()
            if settings.workers == 1:
                _serve(settings, spool, command, lambda url: _greet(url, spool))
            else:
                _serve_by_workers(settings, spool, command)
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
            room_hours=settings.room_ttl_hours,
            worker=worker,
            clock=clock,
        )
    except SpoolRefused as error:
        raise ServeFailed(str(error)) from error


def _in_one_line(spool: Spool, error: OSError) -> str:
    return f"{error.filename or spool.root}: {error.strerror or error}"


def _greet(url: str, spool: Spool, more: str = "") -> None:
    print(f"PagerMCP {pagermcp.__version__} on {url}, spool {spool.root}{more}", flush=True)  # noqa: T201


def _serve_by_workers(settings: Settings, spool: Spool, command: str) -> None:
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ServeFailed("this system can't share a port between processes (no SO_REUSEPORT): PAGERMCP_WORKERS=1")
    try:
        port = Port(f"{_bracketed(settings.host)}:{settings.port}")
    except (OSError, ValueError) as error:
        raise ServeFailed(_why_not_listening(settings, command, error)) from error

    def work(worker: int, follows: bool, listens: Callable[[], None]) -> str | None:
        try:
            own = _spool(settings, worker, spool.clock)
            if follows:
                own.recover(worker)
            _serve(settings, own, command, lambda url: listens(), port.sockets(), follows)
        except ServeFailed as error:
            return str(error)
        except OSError as error:
            return _in_one_line(spool, error)
        return None

    url = f"http://{_bracketed(settings.host)}:{port.number}"
    try:
        workers = Workers(settings.workers, work)
        workers.run(lambda: _greet(url, spool, f", {settings.workers} workers"), spool.clock.check)
    except WorkerFailed as error:
        raise ServeFailed(str(error)) from error


def _serve(
    settings: Settings,
    spool: Spool,
    command: str,
    listens: Callable[[str], None],
    sockets: Sequence[socket.socket] = (),
    follows: bool = False,
) -> None:
    """Serve in this process. listens: called with the URL; sockets, follows: of a worker, what it is to listen on, and
    whether another one has died before it."""
    switchboard = Switchboard()
    watcher = make_watcher(settings.watch, spool, switchboard)
    janitor = Janitor(
        spool,
        switchboard.ring,
        switchboard.waiting,
        mailbox_days=settings.mailbox_ttl_days,
        message_days=settings.message_ttl_days,
        archive_days=settings.archive_ttl_days,
        inherits=follows,
    )
    relay = Services(
        settings,
        spool,
        switchboard,
        watcher,
        janitor,
        waits=threading.BoundedSemaphore(MAX_WAITS),
        writes=threading.BoundedSemaphore(MAX_WRITES),
    )
    server = Server(create_app(relay), settings, command, sockets)
    server.stop_on_signals()
    sweep = Sweep(spool, switchboard, watcher)
    sweep.start()
    janitor.start()
    listens(server.url)
    server.run(switchboard.drain)
    janitor.stop()
    sweep.stop()
    watcher.stop()


class Server:
    """Waitress, listening: where the settings say, or on these sockets. Raises ServeFailed when it can't."""

    def __init__(
        self, app: Callable[..., Any], settings: Settings, command: str, sockets: Sequence[socket.socket] = ()
    ) -> None:
        self._sockets: dict[int, Any] = {}
        self._stopping = False
        try:
            server = create_server(
                app,
                map=self._sockets,
                **({"sockets": sockets} if sockets else {"listen": f"{_bracketed(settings.host)}:{settings.port}"}),
                threads=MAX_WAITS + MAX_WRITES + _OTHER_THREADS,
                connection_limit=_connection_limit(),
                asyncore_use_poll=True,  # select() ends the server at descriptor 1024
                channel_request_lookahead=1,  # so that a client who goes while it waits is noticed
                max_request_body_size=settings.max_message_bytes + _BODY_SLACK,
                max_request_header_size=_HEADER_BYTES,
                log_socket_errors=False,  # clients that go are no news
                ident="PagerMCP",
            )
        except (OSError, ValueError) as error:
            raise ServeFailed(_why_not_listening(settings, command, error)) from error
        self._dispatcher = server.task_dispatcher
        self._listeners = [one for one in self._sockets.values() if isinstance(one, BaseWSGIServer)]
        for listener in self._listeners:
            listener.channel_class = Channel
            listener.adj.socket_options = [*listener.adj.socket_options, *_keepalive_options()]
        port = self._listeners[0].effective_port
        self.url = f"http://{_bracketed(settings.host)}:{port}"

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end `run`, also when they come before it."""

        def on_signal(number: int, frame: object) -> None:
            if not self._stopping:  # nothing here that takes a lock: this interrupts the main thread anywhere
                self._stopping = True
                self._listeners[0].pull_trigger()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)

    def run(self, drain: Callable[[], None]) -> None:
        """Serve until a signal, then end the waits by `drain` and let what is under way finish."""
        while not self._stopping:
            self._turn(1.0)
        for listener in self._listeners:
            listener.accepting = False
            listener.del_channel()
            listener.socket.close()
        drain()
        deadline = time.monotonic() + _STOP_SECONDS
        while self._busy() and time.monotonic() < deadline:
            self._turn(0.1)
        self._dispatcher.shutdown(timeout=0.2)
        wasyncore.close_all(self._sockets)

    def _turn(self, timeout: float) -> None:
        wasyncore.loop(timeout=timeout, use_poll=True, map=self._sockets, count=1)

    def _busy(self) -> bool:
        return any(
            channel.requests or channel.total_outbufs_len
            for channel in self._sockets.values()
            if isinstance(channel, Channel)
        )


class JsonErrorTask(ErrorTask):
    """Waitress's own errors (bad request, too large, fault) in the relay's form."""

    def execute(self) -> None:
        error = self.request.error
        code, message = error.reason.lower().replace(" ", "_"), error.body
        hint = "the request is not as HTTP wants it"
        if error.code == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            limit = self.channel.adj.max_request_body_size - _BODY_SLACK
            code, message, hint = "too_large", f"the body is far larger than the limit of {limit} bytes", "send less"
        elif error.code == http.HTTPStatus.INTERNAL_SERVER_ERROR:
            code, hint = "internal", "the relay's log says more"
        body = error_body(code, message, hint)
        self.status = f"{error.code} {error.reason}"
        self.response_headers += [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
        self.set_close_on_finish()
        self.content_length = len(body)
        self.channel.lingers = True
        self.write(body)


class Task(WSGITask):
    """Says when a write failed, and when all is written, and makes a cut answer look cut."""

    def get_environment(self) -> dict[str, Any]:
        environment: dict[str, Any] = super().get_environment()
        environment["pagermcp.wait_flushed"] = self.channel.wait_flushed
        return environment

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.channel.will_close:  # a failed flush only marks the channel; the page must not count as taken
            raise ClientDisconnected

    def execute(self) -> None:
        try:
            super().execute()
        except ConnectionAbortedError:
            connection = self.channel.socket  # None once the main thread has closed it
            if self.wrote_header and not self.chunked_response and self.content_length is None and connection:
                # HTTP/1.0 knows no chunks: an ordinary close would be a complete, blank answer, so reset
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise


class Parser(HTTPRequestParser):
    """Refuses what Python can't make sense of, such as a URI with half an IPv6 address; waitress would just fail."""

    path = "a request that could not be read"  # what waitress logs when such a client goes before it has its error

    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except ValueError:
            raise ParsingError("the request line or a header makes no sense") from None


class Channel(HTTPChannel):
    """A connection that knows whether its client is still there, and does not hang up on one who is still sending.

    To close a socket with unread bytes resets it, and then the client may never see the error that was written. So
    after an error the rest is read and forgotten, for a moment."""

    parser_class = Parser
    task_class = Task
    error_task_class = JsonErrorTask
    close_when_flushed: bool
    will_close: bool
    lingers = False
    _lingers_until = 0.0
    _lost = False

    def handle_write(self) -> None:
        if self.lingers and self.close_when_flushed and not self.will_close:
            self._flush_exception(self._flush_some)
            if not self.total_outbufs_len and self.connected:
                self.close_when_flushed = False
                self._lingers_until = time.monotonic() + _LINGER_SECONDS
                with contextlib.suppress(OSError):  # then the client has gone, and the next read says so
                    self.socket.shutdown(socket.SHUT_WR)
        else:
            super().handle_write()

    def writable(self) -> bool:
        if self._lingers_until and time.monotonic() > self._lingers_until:
            self.will_close = True
            self.lingers = False
        return bool(super().writable())

    def handle_read(self) -> None:
        if self._lingers_until:
            self.recv(_FORGET_BYTES)  # which closes at the end
        else:
            super().handle_read()

    def check_client_disconnected(self) -> bool:
        """True when the client closed, also when the main loop has not come round to notice."""
        if not self.connected:
            return True
        poll = select.poll()
        try:
            poll.register(self.socket, _HANGUP)  # seen also behind requests that are not read yet
        except (OSError, ValueError, TypeError):  # closed just now, and then the socket may be None
            return True
        return bool(poll.poll(0))

    def wait_flushed(self, seconds: float) -> bool | None:
        """True when all that was written is with the system, False when it can't be, None when it takes longer."""
        until = time.monotonic() + seconds
        with self.outbuf_lock:
            while self.total_outbufs_len and self.connected and not self.will_close:
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self.outbuf_lock.wait(left)
            return not self._lost and not self.total_outbufs_len

    def handle_close(self) -> None:
        with self.outbuf_lock:  # a client who has all of an answer may be the one who closes, and that is no loss
            self._lost = self._lost or bool(self.total_outbufs_len)
            super().handle_close()


class RedactingFormatter(logging.Formatter):
    """No key in any log line, whoever wrote it: waitress and Flask name paths in theirs."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _configure_log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    log.setLevel(logging.INFO)
    logging.getLogger("waitress").setLevel(logging.ERROR)  # it warns of every burst, again and again


def _raise_descriptor_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has no real hard limit and refuses its own answer
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < _FEWEST_DESCRIPTORS:
        raise ServeFailed(f"{limit} file descriptors are too few: ulimit -n 1024, or LimitNOFILE=1024 in systemd")
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _connection_limit() -> int:
    """How many connections there may be, so that descriptors are left for files; more wait in the system's queue.

    Without such a limit waitress would ask again and again for a connection for which it has no descriptor."""
    wanted = 2 * MAX_WAITS + 100
    left = _raise_descriptor_limit() - _OWN_DESCRIPTORS
    if left >= wanted + 2 * MAX_WRITES:
        return wanted
    limit = max(left - 2 * MAX_WRITES, left // 3)  # a request that writes has its connection and two files
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
