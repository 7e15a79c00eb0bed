"""What is to happen when: leases that run out, pages that come due or expire.

In monotonic time, so setting the clock makes nothing early or late. It is only in memory: on the disk everything has
its own times, for the processes that come after.
"""

import heapq
import math
import threading
import time
from typing import Literal, NamedTuple


class Entry(NamedTuple):
    """Something that happens to one file of a mailbox."""

    what: Literal["lease", "due", "expiry"]
    number: str
    file: str


class Agenda:
    """Entries by their monotonic time. Safe between threads."""

    def __init__(self) -> None:
        self._times: dict[Entry, float] = {}
        self._heap: list[tuple[float, Entry]] = []  # with what was put off or dropped since
        self._sooner = threading.Condition()
        self._interrupted = False

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._times

    def __len__(self) -> int:
        return len(self._times)

    def put(self, entry: Entry, seconds: float) -> None:
        """Let it happen in so many seconds, and not when it was to happen until now."""
        at = time.monotonic() + seconds
        with self._sooner:
            self._times[entry] = at
            heapq.heappush(self._heap, (at, entry))
            if len(self._heap) > 2 * len(self._times) + 100:
                self._heap = [(at, entry) for entry, at in self._times.items()]
                heapq.heapify(self._heap)
            if self._heap[0][0] >= at:
                self._sooner.notify_all()

    def drop(self, entry: Entry) -> None:
        with self._sooner:
            self._times.pop(entry, None)

    def take_due(self) -> list[Entry]:
        """Those whose time has come, earliest first. They are off the agenda then."""
        due = []
        with self._sooner:
            while self._heap and self._heap[0][0] <= time.monotonic():
                at, entry = heapq.heappop(self._heap)
                if self._times.get(entry) == at:
                    del self._times[entry]
                    due.append(entry)
        return due

    def wait(self, until: float) -> None:
        """Until something is due, the monotonic time `until` has come, or `interrupt`."""
        with self._sooner:
            while not self._interrupted:
                left = min(until, self._heap[0][0] if self._heap else math.inf) - time.monotonic()
                if left <= 0:
                    return
                self._sooner.wait(left)

    def interrupt(self) -> None:
        """End every `wait`, for good."""
        with self._sooner:
            self._interrupted = True
            self._sooner.notify_all()
