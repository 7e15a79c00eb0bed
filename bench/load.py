"""The load generator: one thread, one selector, keep-alive connections with one request at a time each.

Times are taken when the last byte of an answer has been read. What a relay can't do is raised as `Cannot`, with why.
"""

import collections
import json
import math
import random
import re
import resource
import selectors
import socket
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

NOBODYS = json.dumps({"nonce": 0, "status": "success", "message": "x" * 100}).encode()
PATIENCE = 20.0  # seconds until a connection, an answer or a page counts as never coming
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_NONCE = re.compile(rb'"nonce": ?([0-9]+)')
_CODE = re.compile(rb'"code": ?"([a-z_]+)"')


class Cannot(Exception):
    """The relay can't do what is measured. The message says why."""


class Loop:
    """Calls connections that can be read."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.connections: set[Connection] = set()

    def turn(self, seconds: float) -> None:
        for key, _ in self.selector.select(seconds):
            key.data()

    def run(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self.turn(left)

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        end = time.perf_counter() + seconds
        while not condition():
            if time.perf_counter() > end:
                raise Cannot(f"{what} within {seconds:.0f} s")
            self.turn(0.1)

    def close(self) -> None:
        for connection in list(self.connections):
            connection.close()
        self.selector.close()


class Connection:
    """A connection to the relay, made again when the relay has closed it."""

    def __init__(self, loop: Loop, port: int) -> None:
        self._loop = loop
        self._port = port
        self._socket: socket.socket | None = None
        self._answer = b""
        self._then: Callable[[int, bytes, float], None] | None = None

    def ask(self, request: bytes, then: Callable[[int, bytes, float], None]) -> None:
        """Send a request; later `then(status, answer, time)`. Status 0 is a connection that was closed instead."""
        if self._socket is None:
            try:
                self._socket = socket.create_connection(("127.0.0.1", self._port), PATIENCE)
            except OSError as error:
                raise Cannot(f"no connection: {error.strerror or error}") from None
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # ends by a reset: otherwise thousands of old connections would hold on to their ports
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._loop.selector.register(self._socket, selectors.EVENT_READ, self._readable)
            self._loop.connections.add(self)
        self._then = then
        try:
            self._socket.sendall(request)
        except OSError:
            self._end(0)

    def close(self) -> None:
        if self._socket is not None:
            self._loop.selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
            self._loop.connections.discard(self)

    def _readable(self) -> None:
        if self._socket is None:  # closed by what came before it in the same turn
            return
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._end(0)
            return
        self._answer += data
        head, separator, body = self._answer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = _LENGTH.search(head)
        if len(body) >= int(length[1]) if length else body.endswith(b"\r\n0\r\n\r\n"):  # else in chunks
            self._end(int(head[9:12]), _CLOSE.search(head) is not None)

    def _end(self, status: int, close: bool = True) -> None:
        now = time.perf_counter()
        answer, self._answer, then, self._then = self._answer, b"", self._then, None
        if close:
            self.close()
        if then is not None:
            then(status, answer, now)


class Load:
    """Waiters and posters at one relay."""

    def __init__(self, port: int) -> None:
        self.loop = Loop()
        self.keys: list[str] = []
        self.accepted = 0
        self.seconds = 0.0  # how long the last `page` took
        self.busy = 0.0  # the part of it for which this process itself was running
        self._port = port
        self._nonce = 0
        self._arrivals: dict[int, Callable[[float], None]] = {}

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()

    def add_waiters(self, count: int) -> None:
        """Let more requests wait, each at a mailbox of its own, for ever again. Raises Cannot when one is refused."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit < len(self.keys) + count + 100:
            raise Cannot(f"only {limit} file descriptors: raise the hard limit (ulimit -Hn)")
        for number in range(count):
            key = str(uuid.uuid4())
            self.keys.append(key)
            self.wait(key)
            if number % 50 == 49:
                self.loop.run(0.02)  # 2,500 a second: no relay's queue of new connections runs over

    def wait(self, key: str) -> None:
        connection = Connection(self.loop, self._port)
        request = f"GET /mailboxes/{key}/wait HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

        def page(status: int, answer: bytes, now: float) -> None:
            if status != 200:
                raise Cannot(f"a wait was refused: {_why(status, answer)}")
            nonce = _NONCE.search(answer)
            connection.ask(request, page)
            if nonce and (arrived := self._arrivals.pop(int(nonce[1]), None)):
                arrived(now)

        connection.ask(request, page)

    def expect(self, arrived: Callable[[float], None]) -> bytes:
        """A payload that nobody else has, and what is called when a waiter has it."""
        self._nonce += 1
        self._arrivals[self._nonce] = arrived
        return json.dumps({"nonce": self._nonce, "status": "success", "message": "x" * 100}).encode()

    def post(self, connection: Connection, key: str, payload: bytes, accepted: Callable[[float], None]) -> None:
        """Send a page. Raises Cannot, out of the loop, when the answer is not 202."""

        def answered(status: int, answer: bytes, now: float) -> None:
            if status != 202:
                raise Cannot(f"a post was refused: {_why(status, answer)}")
            self.accepted += 1
            accepted(now)

        head = f"POST /notify HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        connection.ask(head.encode() + payload, answered)

    def page(self, keys: list[str], posters: int, seconds: float | None = None, wakes: bool = True) -> list[float]:
        """Page these mailboxes in an order by chance, `posters` at a time: each once, or in turn for so many seconds.

        Returns how long each took from the post's start: until its 202, and when it `wakes` until its waiter has the
        last byte. A poster goes on when both are there, so a mailbox has one page at a time."""
        times: list[float] = []
        free = collections.deque(random.sample(keys, len(keys)))
        started, cpu = time.perf_counter(), time.process_time()
        end = math.inf if seconds is None else started + seconds
        running = 0

        def again(connection: Connection) -> None:
            nonlocal running
            began = time.perf_counter()
            if began > end or not free:
                return
            running += 1
            key, missing = free.popleft(), 1 + wakes

            def there(now: float, timed: bool) -> None:
                nonlocal running, missing
                if timed and now <= end:
                    times.append(now - began)
                missing -= 1
                if not missing:
                    running -= 1
                    if seconds is not None:
                        free.append(key)
                    again(connection)

            payload = self.expect(lambda now: there(now, True)) if wakes else NOBODYS
            self.post(connection, key, payload, lambda now: there(now, not wakes))

        connections = [Connection(self.loop, self._port) for _ in range(min(posters, len(keys)))]
        for connection in connections:
            again(connection)
        self.loop.until(lambda: not running, "not every page came", PATIENCE + (seconds or len(keys) / 50))
        self.seconds = time.perf_counter() - started
        self.busy = (time.process_time() - cpu) / self.seconds
        for connection in connections:
            connection.close()
        return times


def _why(status: int, answer: bytes) -> str:
    code = _CODE.search(answer)
    return f"{status} {code[1].decode() if code else ''}".strip() if status else "the connection was closed"
