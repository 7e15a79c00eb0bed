"""The event loop: asks only what has changed, so that ten thousand idle connections cost nothing.

Waitress's own asks every connection whether it may be read or written, each time that anything happens: with 8,000 of
them that was 63 posts/s where asking only the changed ones did 600 (notes/spool.md).
"""

import collections
import heapq
import logging
import math
import select
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from waitress import wasyncore

log = logging.getLogger("pagermcp")

_NOTHING = -1
_LONGEST_TURN_SECONDS = 1.0  # for what goes by the time of day in waitress
_STALE_DEADLINES = 100
_MET_AT_ONCE = 100  # deadlines, which may all be at the same time; after them events have their turn
_AT_ONCE = nullcontext()

if hasattr(select, "epoll"):
    _make_poller: Callable[[], "select.epoll | select.poll"] = select.epoll
    _UNIT, _FORGETS_CLOSED = 1, True
    READ, WRITE, FAILED = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR
    HALF_CLOSED = select.EPOLLRDHUP
else:
    _make_poller = select.poll
    _UNIT, _FORGETS_CLOSED = 1000, False  # its timeout is in milliseconds
    READ, WRITE, FAILED = select.POLLIN, select.POLLOUT, select.POLLHUP | select.POLLERR | select.POLLNVAL
    HALF_CLOSED = getattr(select, "POLLRDHUP", 0)


class Socket(Protocol):
    """What the loop needs of a dispatcher of waitress."""

    _fileno: int | None
    accepting: bool
    asked: int  # the events that the system was asked for; ours

    def readable(self) -> bool: ...

    def writable(self) -> bool: ...

    def handle_close(self) -> None: ...


class Connected(Socket, Protocol):
    """And of a connection. deadline: the monotonic time at which `handle_deadline` is called; math.inf for never."""

    deadline: float

    def wants_to_know_of_half_close(self) -> bool: ...

    def handle_write(self) -> None: ...

    def handle_deadline(self) -> None: ...


def _wanted(socket: Socket) -> int:
    if socket.readable():
        wanted = READ
    elif getattr(socket, "wants_to_know_of_half_close", bool)():
        wanted = HALF_CLOSED
    else:
        wanted = 0
    return wanted | (WRITE if not socket.accepting and socket.writable() else 0)


class Loop:
    """Waits for events of the dispatchers in `sockets` (by descriptor), and calls them. Runs in one thread; `changed`,
    `call_at` and `interrupt` are for all."""

    def __init__(
        self,
        sockets: dict[int, Socket],
        pull_trigger: Callable[[], None],
        turn: AbstractContextManager[None] = _AT_ONCE,
    ) -> None:
        """pull_trigger: makes one of the sockets readable, from any thread, and from a signal handler; turn: in which
        events are handled."""
        self._sockets, self._pull_trigger, self._turn = sockets, pull_trigger, turn
        self._poller = _make_poller()
        self._always = list(sockets.values())  # the listeners and their triggers; these are asked in every turn
        self._changed: collections.deque[Connected] = collections.deque()
        self._pulled = False
        self._deadlines: list[float] = []  # a heap
        self._due: dict[float, list[Connected]] = {}  # by deadline; some may have another one by now
        self._noted = 0  # how many there are in it
        self._lock = threading.Lock()

    def interrupt(self) -> None:
        """End the turn. It takes no lock, so a signal handler may call it."""
        self._pull_trigger()

    def changed(self, connection: Connected) -> None:
        """Ask this connection again what it wants."""
        self._changed.append(connection)
        if not self._pulled:
            self._pulled = True
            self._pull_trigger()

    def is_up_to_date(self, connection: Connected) -> bool:
        """Whether the system is asked for what this connection wants."""
        return connection.asked == _wanted(connection)

    def call_at(self, connection: Connected, deadline: float) -> None:
        """Have its `handle_deadline` called then, and not at the time set before."""
        with self._lock:
            known, connection.deadline = connection.deadline == deadline, deadline
            if known or deadline == math.inf:  # one who is woken for nothing waits on until the same time
                return
            first = deadline < self._next_deadline()
            self._note(connection)
            if self._noted > 2 * len(self._sockets) + _STALE_DEADLINES:
                before, self._deadlines, self._due, self._noted = self._due, [], {}, 0
                for current in {one: None for at, all in before.items() for one in all if one.deadline == at}:
                    self._note(current)
        if first and deadline < time.monotonic() + _LONGEST_TURN_SECONDS:
            self._pull_trigger()

    def _note(self, connection: Connected) -> None:
        at = connection.deadline
        if at in self._due:  # as for signs of life, which come together
            self._due[at].append(connection)
        else:
            self._due[at] = [connection]
            heapq.heappush(self._deadlines, at)
        self._noted += 1

    def forget(self, socket: Socket) -> None:
        """Ask no more for this one, before it is closed. While other processes have it, too (systemd, other workers),
        epoll would go on to tell of it, by a descriptor that is none any more."""
        if socket._fileno is not None and getattr(socket, "asked", _NOTHING) != _NOTHING:
            self._poller.unregister(socket._fileno)

    def turn(self, longest: float = _LONGEST_TURN_SECONDS) -> None:
        """Wait for events for so many seconds at most, and handle them."""
        for socket in self._always:
            self._ask(socket)
        longest = max(0, min(longest, _LONGEST_TURN_SECONDS, self._next_deadline() - time.monotonic()))
        events = self._poller.poll(math.ceil(longest * 1000) / 1000 * _UNIT)
        with self._turn:
            self._handle_all(events)

    def _handle_all(self, events: list[tuple[int, int]]) -> None:
        listening = []
        for descriptor, event in events:
            ready = self._sockets.get(descriptor)
            if ready is None:
                if not _FORGETS_CLOSED:
                    self._poller.unregister(descriptor)
            elif ready.accepting:
                listening.append((ready, event))
            else:
                self._handle(ready, event)
        for ready, event in listening:  # last: a new connection may have the descriptor of one just closed, whose
            self._handle(ready, event)  # events it must not get
        self._pulled = False
        for _ in range(len(self._changed)):
            connection = self._changed.popleft()
            if connection._fileno is not None and connection.writable():
                wasyncore.write(connection)
            self._ask(connection)
        self._meet_deadlines()

    def _handle(self, socket: Socket, event: int) -> None:
        if event & READ:
            wasyncore.read(socket)
        elif event & (FAILED | HALF_CLOSED):
            socket.handle_close()
        if event & WRITE and socket._fileno is not None:
            wasyncore.write(socket)
        self._ask(socket)

    def _ask(self, socket: Socket) -> None:
        """Ask the system for what this one wants, unless it is asked already."""
        while (descriptor := socket._fileno) is not None and self._sockets.get(descriptor) is socket:
            wanted, asked = _wanted(socket), getattr(socket, "asked", _NOTHING)
            if asked == wanted:
                return
            try:
                if asked == _NOTHING:
                    self._poller.register(descriptor, wanted)
                else:
                    self._poller.modify(descriptor, wanted)
            except OSError as error:  # no memory, or as many watches as may be: one connection less, and not all
                log.warning("a connection could not be watched: %s", error.strerror)
                socket.handle_close()
                return
            socket.asked = wanted  # and once more: a thread may have changed what it wants, and have seen the old

    def _next_deadline(self) -> float:
        deadlines = self._deadlines  # only the loop's thread takes one out
        return deadlines[0] if deadlines else math.inf

    def _meet_deadlines(self) -> None:
        now = time.monotonic()
        left = _MET_AT_ONCE
        while left and self._next_deadline() <= now:
            with self._lock:
                if self._next_deadline() > now:  # the one seen before was out of date, and has been swept out
                    return
                deadline = self._deadlines[0]
                all_due = self._due[deadline]
                due, all_due[:left] = all_due[:left], []
                if not all_due:
                    heapq.heappop(self._deadlines)
                    del self._due[deadline]
                self._noted -= len(due)
            left -= len(due)
            for connection in due:
                self._meet(connection, deadline)

    def _meet(self, connection: Connected, deadline: float) -> None:
        with self._lock:
            if connection.deadline != deadline:
                return
            connection.deadline = math.inf
        if connection._fileno is not None:
            try:
                connection.handle_deadline()
            except Exception:  # a fault of one connection, as in waitress: it must not end the relay
                log.exception("a deadline could not be met")
                connection.handle_close()
