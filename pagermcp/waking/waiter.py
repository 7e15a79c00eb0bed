"""A waiter: what goes on when it is rung, or at its time, and whoever waits by it meanwhile.

A response body that has nothing yet yields its waiter instead of bytes. Our server then takes the thread for others and
goes on with the body when the waiter is woken (`pagermcp.server.channel`); on any other one the thread is blocked
(`block`). Either way it is woken once for each time that it was armed, whatever comes at the same moment.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator

BEAT = b" "
BEAT_SECONDS = 20.0
"""A waiting answer that has begun gets one space so often: allowed before JSON, and it keeps proxies and NAT open."""

Head = tuple[str, tuple[tuple[str, str], ...]]
"""The status line and headers of an answer."""

_TOGETHER_SECONDS = 0.25

_GONE_CHECK_SECONDS = 1.0  # a thread that blocks can't be told that its client went; it has to ask


def next_beat(seconds: float = BEAT_SECONDS) -> float:
    """The monotonic time of a sign of life in so many seconds, or a moment later, together with those of others: ten
    thousand of them would wake the relay five hundred times a second, and each wake-up begins with cold caches."""
    return math.ceil((time.monotonic() + seconds) / _TOGETHER_SECONDS) * _TOGETHER_SECONDS


class Waiter:
    """One that waits at a mailbox, or for something else when it has no number. Safe between threads.

    taking: it takes pages, or else it reads by a cursor, and all who do are rung; name: who it is, in a room;
    until, beat_at: the monotonic times at which it is woken anyway, and at which it is time for a sign of life;
    head: what the first of these begins the answer with, by `start_response` of PEP 3333; None when it has begun."""

    __slots__ = ("_lock", "_resume", "beat_at", "head", "name", "number", "rung", "start_response", "taking", "until")

    def __init__(self, number: str = "", taking: bool = True, name: str | None = None) -> None:
        self.number, self.taking, self.name = number, taking, name
        self.rung = False
        self.until = self.beat_at = math.inf
        self.head: Head | None = None
        self.start_response: Callable[[str, list[tuple[str, str]]], object] | None = None
        self._lock = threading.Lock()
        self._resume: Callable[[], None] | None = None

    def about_to_look(self) -> None:
        """From here on a ring means: look once more."""
        self.rung = False

    def parked(self, until: float) -> "Waiter":
        """This waiter, to be yielded: go on when it is rung, or at the monotonic time `until`."""
        self.until = until
        return self

    def ring(self) -> bool:
        """Wake it, or keep it from being parked before it looks; False when it was rung already."""
        if not self.mark():
            return False
        self.wake()
        return True

    def mark(self) -> bool:
        """The first half of `ring`: the second is `wake`, for who has a lock that must not be held then."""
        with self._lock:
            before, self.rung = self.rung, True
        return not before

    def wake(self) -> None:
        """Go on now, if it is parked."""
        resume = self.disarm()
        if resume is not None:
            resume()

    def arm(self, resume: Callable[[], None]) -> bool:
        """Have `resume` called once, by the next ring or wake; False when it was rung since it was about to look."""
        with self._lock:
            if self.rung:
                return False
            self._resume = resume
            return True

    def disarm(self) -> Callable[[], None] | None:
        """What would be called, and then never is; None when nothing would."""
        with self._lock:
            resume, self._resume = self._resume, None
        return resume

    def begin(self) -> None:
        """Begin the answer, unless it has begun."""
        head, self.head = self.head, None
        if head is not None and self.start_response is not None:
            status, headers = head
            self.start_response(status, list(headers))

    def block(self, gone: Callable[[], bool]) -> Iterator[bytes]:
        """Wait in this thread: gives what is to be sent meanwhile. gone: asks whether the client went."""
        woken = threading.Event()
        if not self.arm(woken.set):
            return
        try:
            while (left := self.until - time.monotonic()) > 0:
                if woken.wait(min(left, _GONE_CHECK_SECONDS, max(0, self.beat_at - time.monotonic()))) or gone():
                    return
                if self.beat_at <= time.monotonic() < self.until:
                    self.begin()
                    self.beat_at += BEAT_SECONDS
                    yield BEAT
        finally:
            self.disarm()
