"""A connection and the request on it, as waitress has them, with what waitress lacks.

A request that waits is parked: its body has yielded a waiter, its thread goes back to the pool, and the task is kept
until the waiter is woken, by a ring, by its time, or because the client went. Then a thread goes on with the same body.
Exactly one thread has a task at any time: the one that armed the waiter lets go of it, and what wakes it does so once.

Besides: errors in the relay's own form, an answer in one piece, noticing at once that a client went or that a write
failed, and not hanging up on one who is still sending.
"""

import contextlib
import functools
import http
import logging
import math
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from waitress.channel import ClientDisconnected, HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.task import ErrorTask, WSGITask
from waitress.utilities import build_http_date

from pagermcp.commit import Commit
from pagermcp.measures import MEASURES, Refusal
from pagermcp.waking import Waiter
from pagermcp.waking.waiter import BEAT, next_beat
from pagermcp.web.errors import error_body

if TYPE_CHECKING:
    from pagermcp.server.listener import Listener

BODY_SLACK = 7 << 16
"""Bodies up to this many bytes over the limit are read, so that the 413 can say their size. With the default limit that
is half a megabyte, beyond which waitress puts a body into a file: many that stop half-way would take all descriptors.
"""

_HANGUP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_LINGER_SECONDS = 2.0
_FORGET_BYTES = 1 << 18
_MOST_BEHIND = 1 << 16  # bytes of a body that comes while another request is under way, perhaps for ever
_FEWEST_BYTES = 15_000  # of a request, between two looks at it, which are 30 s apart
_RETRY_SECONDS = 5
_BEAT_AS_CHUNK = b"%x\r\n%s\r\n" % (len(BEAT), BEAT)
_WAITRESS_KNOWS = {"date", "server", "connection"}
_NOBODY = Waiter()  # in place of one, for a request that no event wakes

log = logging.getLogger(__name__)


_RLock: Any = type(threading.RLock())


class _OutbufLock(_RLock):
    """In place of waitress's condition, which takes a kilobyte. Nobody waits for it: see `write_soon`."""

    def notify(self) -> None:
        pass


class Parked(BaseException):
    """The request waits. No Exception, since waitress would answer it by a 500."""

    def __init__(self, task: "Task", waits_for: Waiter | Commit[Any]) -> None:
        self.task, self.waits_for = task, waits_for


class JsonErrorTask(ErrorTask):
    """Waitress's own errors (bad request, too large, fault) in the relay's form."""

    def execute(self) -> None:
        error = self.request.error
        code, message = error.reason.lower().replace(" ", "_"), error.body
        hint = "the request is not as HTTP wants it"
        if error.code == http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            limit = self.channel.adj.max_request_body_size - BODY_SLACK
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
    """One request and its answer, which may be parked on the way."""

    channel: "Channel"
    wrote_header: bool
    _body: Any = None  # what the application gave, from then until it is closed
    _steps: Iterator[bytes | Waiter | Commit[Any]]

    def __init__(self, channel: "Channel", request: HTTPRequestParser) -> None:
        super().__init__(channel, request)
        self.close_on_finish = False  # set in the same order by all, attributes take a kilobyte less

    def execute(self) -> None:
        """Begin, or go on. Raises Parked."""
        try:
            if self._body is None:
                self._body = self.channel.server.application(self.get_environment(), self.start_response)
                self._steps = iter(self._body)
                self.environ = None
            for step in self._steps:
                if isinstance(step, Waiter | Commit):
                    raise Parked(self, step)
                if step:
                    self.write(step)
            self.close_body()
            if self.content_length not in (None, self.content_bytes_written) and self.request.command != "HEAD":
                self.set_close_on_finish()  # or else the client would wait for the rest
        except Parked:
            raise
        except ConnectionAbortedError:
            self.close_body()
            self._cut()
            raise
        except BaseException:
            self.close_body()
            raise

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: object = None
    ) -> Callable[[bytes], None]:
        """As PEP 3333 has it."""
        self.complete = True
        self.status, self.response_headers = status, list(headers)
        self.content_length = None
        for name, value in headers:
            if name.lower() == "content-length":
                self.content_length = int(value)
        if self.channel.server.draining:
            self.set_close_on_finish()
        return self.write

    def get_environment(self) -> dict[str, Any]:
        environment: dict[str, Any] = super().get_environment()
        environment["pagermcp.connection"] = self.channel
        del environment["wsgi.file_wrapper"]  # which `execute` would have to know
        return environment

    def build_response_header(self) -> bytes:
        """As waitress does it; most answers are simple, and get theirs in a fifth of the time."""
        simple = self.version == "1.1" and self.has_body and not self.close_on_finish and self.content_length != 0
        given = {name.lower() for name, _ in self.response_headers}
        if not simple or "CONNECTION" in self.request.headers or not given.isdisjoint(_WAITRESS_KNOWS):
            self.start_time = time.time()  # which the Date is, and a request may have waited since then
            return bytes(super().build_response_header())
        now = int(time.time())
        if self.content_length is None:
            self.chunked_response = self.close_on_finish = True
            return _head_of_chunks(self.status, tuple(self.response_headers), now)
        return _head(self.status, self.response_headers, now)

    def write(self, data: bytes) -> None:
        if self.complete and not self.wrote_header:
            self.channel.head = self.build_response_header()  # goes out in one piece with what comes first
            self.wrote_header = True
            self.response_headers = []
        super().write(data)
        if self.channel.head:
            self.channel.write_soon(b"")
        if self.channel.will_close:  # a failed flush only marks the channel; the page must not count as taken
            raise ClientDisconnected

    def beat(self, waiter: Waiter) -> None:
        """Give a sign of life; the first one begins the answer."""
        waiter.begin()
        if self.chunked_response:
            self.channel.write_soon(_BEAT_AS_CHUNK)
        else:
            self.write(BEAT)

    def close_body(self) -> None:
        """Be done with the body; what is still in it is not written."""
        body, self._body, self._steps = self._body, (), iter(())
        if hasattr(body, "close"):
            body.close()

    def _cut(self) -> None:
        """Make a cut answer look cut."""
        connection = self.channel.socket  # None once the main thread has closed it
        if self.wrote_header and not self.chunked_response and self.content_length is None and connection:
            # HTTP/1.0 knows no chunks: an ordinary close would be a complete, blank answer, so reset
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _head(status: str, headers: Iterable[tuple[str, str]], now: int) -> bytes:
    lines = f"HTTP/1.1 {status}", *map(": ".join, headers), _server_and_date(now)
    return "\r\n".join(lines).encode("latin-1")


@functools.lru_cache(maxsize=8)  # many waits that begin their answers have the same
def _head_of_chunks(status: str, headers: tuple[tuple[str, str], ...], now: int) -> bytes:
    return _head(status, (*headers, ("Connection", "close"), ("Transfer-Encoding", "chunked")), now)


@functools.lru_cache(maxsize=1)
def _server_and_date(now: int) -> str:
    return f"Server: PagerMCP\r\nDate: {build_http_date(now)}\r\n\r\n"


class Parser(HTTPRequestParser):
    """Refuses what Python can't make sense of, such as a URI with half an IPv6 address; waitress would just fail."""

    seen: int | None = None  # how many bytes had come when somebody looked
    path = "a request that could not be read"  # what waitress logs when such a client goes before it has its error

    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except ValueError:
            raise ParsingError("the request line or a header makes no sense") from None
        if self.body_rcv is None:  # waitress would let it go on, and then wait for a body that never comes
            self.expect_continue = False


class Channel(HTTPChannel):
    """A connection, which is also what a request may ask (`pagermcp.web.later.Connection`)."""

    server: "Listener"
    parser_class = Parser
    error_task_class = JsonErrorTask
    asked = -1  # see `loop`
    deadline = math.inf
    head = b""
    close_when_flushed: bool
    will_close: bool
    lingers = False
    _sending = False
    _lingers_until = 0.0
    _lost = False
    guest: str | None = None
    _parked: tuple[Task, Waiter] | None = None
    _flush_waiter: Waiter | None = None

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.outbuf_lock = _OutbufLock()

    # A request's way, in the threads of the pool

    def service(self) -> Commit[Any] | None:
        """Run the request, or go on with it; what it needs to have on the disk before it can."""
        before = self._parked  # read here, for as soon as it is answered another thread may have the next request
        commit = None
        try:
            super().service()
        except Parked as parked:
            if isinstance(parked.waits_for, Commit):
                commit = parked.waits_for
                commit.then = self.service
                self._parked = parked.task, _NOBODY
            else:
                self._park(parked.task, parked.waits_for)
        else:
            if before:
                self._end(before[0])
        if self.writable() or not self.server.loop.is_up_to_date(self):
            self.server.loop.changed(self)
        return commit

    def task_class(self, channel: "Channel", request: HTTPRequestParser) -> Task:  # a class, for waitress
        """The task for the request: the one that was parked, or else a new one."""
        parked, self._parked = self._parked, None
        return parked[0] if parked else Task(channel, request)

    def _end(self, task: Task) -> None:
        """Close the body of a task that was not run again, since the client went just before."""
        try:
            task.close_body()
        except Exception:
            log.exception("a wait whose client went could not be ended")

    def _park(self, task: Task, waiter: Waiter) -> None:
        headers = task.request.headers  # of which only this is needed for the answer
        task.request.headers = {name: headers[name] for name in ("CONNECTION",) if name in headers}
        task.request.close()  # its body has been read, if anybody wanted it: half a megabyte, and beyond that a file
        task.request.body_rcv = None
        self._parked = task, waiter
        self._arm(waiter)

    def _arm(self, waiter: Waiter) -> None:
        loop = self.server.loop
        loop.call_at(self, min(waiter.until, waiter.beat_at))
        if not waiter.arm(self._resume):
            self._resume()
        elif not self.connected or waiter.until <= time.monotonic():  # before there was something to wake
            waiter.wake()
        elif waiter.beat_at <= time.monotonic():
            loop.call_at(self, min(waiter.until, waiter.beat_at))

    def _resume(self) -> None:
        self.server.add_task(self)

    def write_soon(self, data: bytes) -> int:
        head, self.head = self.head, b""
        data = head + data
        self._sending = True
        try:
            with self.outbuf_lock:  # mostly the system takes all of it, and then waitress's buffers need not see it
                rest = data[self._send_first(data) :]
                if rest:
                    super().write_soon(rest)
        finally:
            self._sending = False
        if self.total_outbufs_len or self.will_close:
            self.server.loop.changed(self)
        return len(data)

    def _send_first(self, data: bytes) -> int:
        """Send as much as the system takes; how many bytes that is: 0 when others are to be sent before."""
        if not self.connected or self.total_outbufs_len:
            return 0
        try:
            sent: int = self.send(data, do_close=False)
        except OSError:  # which it meets again in waitress
            return 0
        self.last_activity = time.time()
        return sent

    def send_continue(self) -> None:
        """Of a thread, too, and so not by what waitress does, which closes the connection where the client has gone:
        that is for the main loop alone, which may ask the system about it at that moment."""
        self.request.expect_continue = self.request.completed = False
        self.sent_continue = True
        with contextlib.suppress(ClientDisconnected):
            self.write_soon(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _flush_some(self, do_close: bool = True) -> bool:
        with self.outbuf_lock:  # waitress takes none when there is no request, but then a thread may `send_continue`
            flushed: bool = super()._flush_some(do_close)
        return flushed

    def _flush_outbufs_below_high_watermark(self) -> None:
        """Waitress would block a thread here. There is no need: nothing more is read before all is written."""

    # What a request may ask

    def gone(self) -> bool:
        """True when the client closed, also when the main loop has not come round to notice."""
        if not self.connected:
            return True
        poll = select.poll()
        try:
            poll.register(self.socket, _HANGUP)  # seen also behind requests that are not read yet
        except (OSError, ValueError, TypeError):  # closed just now, and then the socket may be None
            return True
        return bool(poll.poll(0))

    def flushed(self, waiter: Waiter) -> bool | None:
        """Whether all that was written is with the system; see `Connection`."""
        with self.outbuf_lock:
            if self.total_outbufs_len and self.connected and not self.will_close:
                self._flush_waiter = waiter
                return None
            return not self._lost and not self.total_outbufs_len

    # Events, in the main thread

    def readable(self) -> bool:
        coming = self.request  # read once: a thread may ask this, too
        much = coming is not None and coming.body_bytes_received > _MOST_BEHIND and bool(self.requests)
        many = len(self.requests) > self.adj.channel_request_lookahead
        return not (much or many or self.writable())

    def writable(self) -> bool:
        """While a thread sends, it is that thread which says when something is left: a client may answer before it
        has even come to count what it sent."""
        return bool((self.total_outbufs_len and not self._sending) or self.will_close or self.close_when_flushed)

    def wants_to_know_of_half_close(self) -> bool:
        """While it is parked behind requests that are not read yet, and so can't see the end of what is sent."""
        return self._parked is not None and not self.total_outbufs_len

    def handle_deadline(self) -> None:
        if self._lingers_until:
            self.handle_close()
        parked = self._parked
        if not parked:
            return
        task, waiter = parked
        now = time.monotonic()
        if waiter.until <= now:
            waiter.wake()
        elif waiter.beat_at > now:  # it waits for something else by now
            self.server.loop.call_at(self, min(waiter.until, waiter.beat_at))
        elif waiter.disarm():  # nobody else goes on with the task meanwhile
            try:
                if not self.total_outbufs_len:  # or else it has something to read
                    with contextlib.suppress(ClientDisconnected):  # then the loop closes it
                        task.beat(waiter)
            finally:  # whatever ends the connection then, wakes it
                waiter.beat_at = next_beat()
                self._arm(waiter)

    def handle_write(self) -> None:
        if self.lingers and self.close_when_flushed and not self.will_close:
            self._flush_exception(self._flush_some)
            if not self.total_outbufs_len and self.connected:
                self.close_when_flushed = False
                self._lingers_until = time.monotonic() + _LINGER_SECONDS
                self.server.loop.call_at(self, self._lingers_until)
                with contextlib.suppress(OSError):  # then the client has gone, and the next read says so
                    self.socket.shutdown(socket.SHUT_WR)
        else:
            super().handle_write()
        if not self.total_outbufs_len:
            self._tell_flushed()

    def _tell_flushed(self) -> None:
        with self.outbuf_lock:
            waiter, self._flush_waiter = self._flush_waiter, None
        if waiter is not None:
            waiter.ring()

    def handle_read(self) -> None:
        if self._lingers_until:
            try:
                self.recv(_FORGET_BYTES)  # which closes at the end
            except OSError:  # such as a time-out, or no way to the client any more
                self.handle_close()
        else:
            super().handle_read()

    def handle_close(self) -> None:
        with self.outbuf_lock:  # a client who has all of an answer may be the one who closes, and that is no loss
            self._lost = self._lost or bool(self.total_outbufs_len)
            super().handle_close()
        self.deadline = math.inf
        self._tell_flushed()
        parked = self._parked
        if parked:
            parked[1].wake()  # a thread ends what another has begun

    def del_channel(self, map: Any = None) -> None:
        super().del_channel(map)
        guest, self.guest = self.guest, None
        self.server.limit.guests.leave(guest)

    def is_slow(self) -> bool:
        """Whether hardly any of a request has come since this was asked before. To be asked now and then."""
        request = self.request
        if request is None or self.requests:
            return False
        before, request.seen = request.seen, request.header_bytes_received + request.body_bytes_received
        return before is not None and bool(request.seen - before < _FEWEST_BYTES)

    def refuse(self, status: http.HTTPStatus, code: Refusal, message: str, hint: str) -> None:
        """Answer before a whole request is read, and close."""
        MEASURES.count(code)
        body = error_body(code, message, hint)
        head = f"HTTP/1.1 {status.value} {status.phrase}", "Connection: close", "Content-Type: application/json"
        more = f"Retry-After: {_RETRY_SECONDS}", f"Content-Length: {len(body)}", "", ""
        self.lingers = self.close_when_flushed = True
        self.write_soon("\r\n".join(head + more).encode() + body)
