"""What a relay counts of itself, in memory that all its processes share.

It is one anonymous mapping, made when this module is loaded and so before workers are forked, with a slot for each of
them. A worker writes only its own, and whoever is asked adds them all up; one that follows a dead worker goes on in the
same slot, so nothing that was counted goes back, and there are no files that somebody would have to clear away. (Those
of prometheus-client's own multiprocess mode stay behind for every process that ever was.)
"""

import bisect
import mmap
import threading
import time
from collections.abc import Sequence
from typing import Literal, get_args

Outcome = Literal["accepted", "duplicate", "refused", "acknowledged", "expired", "replaced", "cleared", "dead"]
"""What has become of pages. accepted: wait for readers, however they came; duplicate, refused: of posts."""
Refusal = Literal[
    "mailbox_full",
    "too_many_posts",
    "too_many_new_mailboxes",
    "too_many_mailboxes",
    "too_many_waits",
    "too_many_connections",
    "too_slow",
    "not_listed",
    "disk_full",
]
"""Codes of errors by which a limit shows; requests and connections, not only posts."""
Event = Literal[Outcome, Refusal, "lease_run_out", "watcher_restart"]
Level = Literal["waiters", "watching"]
"""What goes up and down in each worker. watching: an index of `WATCHING`."""
Duration = Literal["fsync", "wake", "janitor"]
"""fsync: of a file or folder; wake: from the link of a page, while its reader waited, until the system has the answer;
janitor: a pass."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)
DURATIONS: tuple[Duration, ...] = get_args(Duration)
WATCHING = ("ok", "degraded", "off")
BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2, 10, 60)
"""Upper bounds of the buckets of durations, in seconds."""
MINUTES = 60
SLOTS = 16

_LEVELS: tuple[Level, ...] = get_args(Level)
_NAMES = (*_LEVELS, *get_args(Event))
_AT = {name: place for place, name in enumerate(_NAMES)}
_WIDTH = len(BOUNDS) + 2  # a count for each bucket and beyond, and the sum
_FIRST = {name: len(_NAMES) + _WIDTH * place for place, name in enumerate(DURATIONS)}
_MINUTES_AT = len(_NAMES) + _WIDTH * len(DURATIONS)  # two each: which minute it is, and the pages in it
_SIZE = _MINUTES_AT + 2 * MINUTES
_COMMON = 16


class Measures:
    """Numbers in shared memory. Safe between threads, and between processes that were forked from its maker."""

    def __init__(self) -> None:
        self.since = time.time()
        self._all = memoryview(mmap.mmap(-1, (SLOTS * _SIZE + _COMMON) * 8)).cast("d")
        self.begin(0)

    def begin(self, worker: int) -> None:
        """This process is that worker, whose predecessor is no more: go on with its counts, but not with its levels."""
        self._lock = threading.Lock()  # held for a few assignments; each worker has its own
        self._own = self._all[worker * _SIZE : (worker + 1) * _SIZE]
        for level in _LEVELS:
            self._own[_AT[level]] = 0

    def count(self, event: Event, times: int = 1) -> None:
        with self._lock:
            self._own[_AT[event]] += times

    def page_came(self) -> None:
        """Count a page as accepted, now."""
        minute = time.monotonic() // 60
        at = _MINUTES_AT + 2 * int(minute % MINUTES)
        with self._lock:
            self._own[_AT["accepted"]] += 1
            if self._own[at] != minute:
                self._own[at], self._own[at + 1] = minute, 0
            self._own[at + 1] += 1

    def move(self, level: Level, by: int) -> None:
        with self._lock:
            self._own[_AT[level]] += by

    def put(self, level: Level, value: int) -> None:
        self._own[_AT[level]] = value

    def observe(self, duration: Duration, seconds: float) -> None:
        first = _FIRST[duration]
        with self._lock:
            self._own[first + bisect.bisect_left(BOUNDS, seconds)] += 1
            self._own[first + _WIDTH - 1] += seconds

    # For who asks

    def total(self, name: Event | Level) -> int:
        return sum(self.each(name))

    def each(self, name: Event | Level, workers: int = SLOTS) -> list[int]:
        return [int(value) for value in self._all[_AT[name] : workers * _SIZE : _SIZE]]

    def durations(self, name: Duration) -> tuple[list[int], float]:
        """How many were in each bucket (by `BOUNDS`, and beyond), and the sum in seconds."""
        places = range(_FIRST[name], _FIRST[name] + _WIDTH)
        *counts, seconds = (sum(self._all[place : SLOTS * _SIZE : _SIZE]) for place in places)
        return [int(count) for count in counts], seconds

    def pages_per_minute(self) -> list[int]:
        """Pages accepted in each of the last minutes, the one that goes on last."""
        now = int(time.monotonic() // 60)
        minutes = [0] * MINUTES
        for slot in range(SLOTS):
            ring = self._all[slot * _SIZE + _MINUTES_AT : (slot + 1) * _SIZE]
            for at in range(0, 2 * MINUTES, 2):
                ago = now - int(ring[at])
                if 0 <= ago < MINUTES:
                    minutes[MINUTES - 1 - ago] += int(ring[at + 1])
        return minutes

    @property
    def noted(self) -> list[float]:
        """Up to 16 numbers that one process has noted for all, the first of them last; before that they are 0."""
        return list(self._all[-_COMMON:])

    def note(self, numbers: Sequence[float]) -> None:
        for place, value in reversed(list(enumerate(numbers))):  # whoever looks at when it was finds the rest there
            self._all[SLOTS * _SIZE + place] = value


MEASURES = Measures()
"""Those of this relay: counted where things happen, without being handed through everything above."""
