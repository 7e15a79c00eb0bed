"""Connections to a relay byte by byte: for clients that pipeline, stall, half-close or reset, and for crowds."""

import contextlib
import dataclasses
import json
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from conftest import Relay

_WIDE = 1 << 18


@dataclasses.dataclass(frozen=True)
class Answer:
    """A whole answer; header names are in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        return self.status, self.json()["error"]["code"]


class Ended(Exception):
    """The connection ended before the answer did. Holds what had come."""


class Raw:
    """One connection, closed when it is left as a context. `came` is what was received and is in no answer yet."""

    def __init__(self, relay: Relay, buffer: int | None = None) -> None:
        """buffer: bytes that the system receives ahead of us, few for a slow reader."""
        self.came = bytearray()
        self.came_at = 0.0  # monotonic time of the last bytes, or of the end
        self.asked_at = 0.0
        self.ended = self.was_reset = False
        self.socket = socket.socket()
        self.socket.settimeout(60)
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        try:
            self.socket.connect(("127.0.0.1", relay.port))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, method: str, path: str, key: str = "", body: bytes | None = None, **options: str) -> None:
        """Send a request. `key` goes into the Authorization header; for `options` see `request`."""
        self.asked_at = time.monotonic()
        self.send(request(method, path, key, body, **options))

    def wait(self, key: str) -> None:
        """Send an endless wait for a page."""
        self.ask("GET", f"/mailboxes/{key}/wait")

    def notify(self, address: str, page: bytes = b"hello") -> str:
        """Page somebody, who accepts; the page's id."""
        self.ask("POST", "/notify", address, page)
        answer = self.answer()
        assert answer.status == 202, answer
        return str(answer.json()["id"])

    def receive(self) -> bytes:
        """What comes next; empty at the end."""
        try:
            data = self.socket.recv(_WIDE)
        except ConnectionError:
            self.was_reset = True
            data = b""
        self.came_at = time.monotonic()
        self.came += data
        self.ended = self.ended or not data
        return data

    def whole(self) -> Answer | None:
        """The answer that has come, without receiving any more; it is left where it is."""
        found = _parsed(self.came, self.ended)
        return found and found[0]

    def answer(self) -> Answer:
        """The next answer, received to its last byte. Raises Ended."""
        while (found := _parsed(self.came, self.ended)) is None:
            if self.ended:
                raise Ended(bytes(self.came))
            self.receive()
        answer, length = found
        del self.came[:length]
        return answer

    def rest(self) -> bytes:
        """All that comes until the end."""
        while self.receive():
            pass
        return bytes(self.came)

    def half_close(self) -> None:
        with contextlib.suppress(OSError):  # the relay was faster
            self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def go(self, how: str) -> None:
        """Leave as it is said: close, reset, or half-close, and the latter stays until the relay has closed too."""
        {"close": self.close, "reset": self.reset, "half-close": self.half_close}[how]()


HOWS = ("close", "reset", "half-close")


def request(
    method: str, path: str, key: str = "", body: bytes | None = None, version: str = "1.1", **headers: str
) -> bytes:
    """The bytes of a request. headers: with _ for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if key:
        named["Authorization"] = f"Bearer {key}"
    if body is not None:
        named["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/{version}", "Host: x", *[f"{name}: {value}" for name, value in named.items()]]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


@contextlib.contextmanager
def many(relay: Relay, count: int) -> Iterator[list[Raw]]:
    """So many connections, which are closed in the end. The test is skipped where a process can't have them."""
    allow_descriptors(count + 200)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Raw(relay)) for _ in range(count)]


def allow_descriptors(count: int) -> None:
    """Let this process and its children have so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count:
        return
    if hard < count:
        pytest.skip(f"it takes {count} descriptors and there may be {hard}: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def receive_until(done: Callable[[Raw], Any], raws: Collection[Raw], seconds: float = 30) -> None:
    """Receive on all of these until each is done, or has ended. Fails when they are not in time."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        left = {raw for raw in raws if not raw.ended and not done(raw)}
        for raw in left:
            selector.register(raw, selectors.EVENT_READ)
        while left:
            ready = selector.select(until - time.monotonic())
            assert ready or time.monotonic() < until, f"{len(left)} of {len(raws)} have no answer"
            for key, _ in ready:
                raw = key.fileobj
                assert isinstance(raw, Raw)
                if not raw.receive() or done(raw):
                    left.discard(raw)
                    selector.unregister(raw)


def answers(raws: Collection[Raw], seconds: float = 30) -> list[Answer]:
    """The next answer on each of these. Raises Ended."""
    receive_until(Raw.whole, raws, seconds)
    return [raw.answer() for raw in raws]


def _parsed(data: bytearray, ended: bool) -> tuple[Answer, int] | None:
    """The first answer in the data, and how long it is; None when it is not whole."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = data[:end].decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status, begin = int(first.split()[1]), end + 4
    if headers.get("transfer-encoding") == "chunked":
        return _unchunked(data, begin, status, headers)
    if "content-length" in headers:
        end = begin + int(headers["content-length"])
        whole = len(data) >= end
    else:
        end, whole = len(data), ended
    return (Answer(status, headers, bytes(data[begin:end])), end) if whole else None


def _unchunked(data: bytearray, begin: int, status: int, headers: dict[str, str]) -> tuple[Answer, int] | None:
    body = b""
    while True:
        end = data.find(b"\r\n", begin)
        if end < 0:
            return None
        length, begin = int(data[begin:end], 16), end + 2
        if len(data) < begin + length + 2:
            return None
        body, begin = body + bytes(data[begin : begin + length]), begin + length + 2
        if not length:
            return Answer(status, headers, body), begin
