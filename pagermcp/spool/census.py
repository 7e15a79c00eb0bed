"""A census: how many mailboxes there are, and pages in each state, by looking at all of the spool.

With 100,000 mailboxes that takes seconds, so it is done by a thread that works a fifth of the time, when somebody asks
and the last census is no longer fresh; its result is for all processes. Days of the archive that are over are counted
once, as long as nothing goes from their folder.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from pagermcp import files, turn
from pagermcp.measures import MEASURES
from pagermcp.spool.page import PageName
from pagermcp.spool.room import OPEN_ROOM
from pagermcp.spool.spool import Spool

_FRESH_SECONDS = 5.0
_FRESH_TIMES = 10  # a census that took long stays fresh for so many times as long
_LONGEST_SECONDS = 180.0
_WORK_SECONDS, _REST_SECONDS = 0.002, 0.008

log = logging.getLogger(__name__)


class Count(NamedTuple):
    """What a census has found. as_of: wall time of its end, and seconds: how long it took; whole: False when the time
    was over before all was counted, so there may be more; oldest: the id of the waiting page that is first, or 0, and
    the first eight digits of its mailbox; archived: rooms' messages, too."""

    as_of: float = 0
    seconds: float = 0
    whole: float = False
    mailboxes: float = 0
    rooms: float = 0
    waiting: float = 0
    leased: float = 0
    scheduled: float = 0
    archived: float = 0
    dead: float = 0
    oldest: float = 0
    oldest_in: float = 0

    @property
    def is_fresh(self) -> bool:
        return 0 <= time.time() - self.as_of < max(_FRESH_SECONDS, _FRESH_TIMES * self.seconds)


class Census:
    """Of one spool, by at most one thread at a time."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._over: dict[str, tuple[int, int]] = {}  # day folders: their mtime, and the pages in them

    def latest(self, patience: float) -> Count:
        """The latest count, after waiting so many seconds at most for a fresh one; its `as_of` is 0 at first."""
        with self._lock:
            thread = self._thread
            if not Count(*MEASURES.noted[: len(Count._fields)]).is_fresh and not (thread and thread.is_alive()):
                thread = self._thread = threading.Thread(target=self._run, name="census", daemon=True)
                thread.start()
        if thread:
            with turn.waiting():
                thread.join(patience)
        return Count(*MEASURES.noted[: len(Count._fields)])

    def _run(self) -> None:
        try:
            MEASURES.note(self.take())
        except OSError as error:  # the spool has gone; health says it
            log.warning("no census: %s", error)

    def take(self) -> Count:
        """Count. Raises OSError."""
        began = time.monotonic()
        pace = _Pace(began + _LONGEST_SECONDS)
        rooms = {*files.names(self._spool.path("rooms")), OPEN_ROOM}
        found = dict.fromkeys(Count._fields, 0.0)
        oldest, box = "", ""
        with contextlib.suppress(_TimeOver):
            for number in pace.names(self._spool.path("new")):
                if number in rooms:
                    found["rooms"] += 1
                    continue
                found["mailboxes"] += 1
                pages = _pages(self._spool.path("new", number))
                found["waiting"] += len(pages)
                if pages and (not oldest or min(pages) < oldest):
                    oldest, box = min(pages), number
            for number in pace.names(self._spool.path("leased")):
                found["leased"] += len(_pages(self._spool.path("leased", number)))
            found["scheduled"] = sum(name.endswith(".json") for name in pace.names(self._spool.path("scheduled")))
            for state, name in (("dead", "dead"), ("archive", "archived")):
                for day in self._spool.days():
                    found[name] += self._in_day(self._spool.path(state, day), pace)
            found["whole"] = True
        if oldest:
            found |= {"oldest": int(oldest[:16]), "oldest_in": int(box[:8], 16)}
        return Count(**found | {"as_of": time.time(), "seconds": time.monotonic() - began})

    def _in_day(self, folder: str, pace: "_Pace") -> int:
        try:
            mtime = os.stat(folder).st_mtime_ns
        except FileNotFoundError:
            return 0
        if folder in self._over and self._over[folder][0] == mtime:
            return self._over[folder][1]
        count = sum(len(_pages(f"{folder}/{number}", ended=True)) for number in pace.names(folder))
        if os.path.basename(folder) < time.strftime("%Y-%m-%d", time.gmtime(time.time() - 60)):
            self._over[folder] = mtime, count
        return count


class _TimeOver(Exception):
    pass


class _Pace:
    """Works for two milliseconds and rests for eight, so that the relay's own threads have theirs."""

    def __init__(self, until: float) -> None:
        self._until, self._since = until, time.monotonic()
        self._rest = threading.Event()

    def names(self, path: str) -> Iterator[str]:
        """Those in a folder, one by one. Raises _TimeOver, OSError."""
        try:
            entries = os.scandir(path)
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    yield entry.name
                if time.monotonic() - self._since > _WORK_SECONDS:
                    self._rest.wait(_REST_SECONDS)
                    self._since = time.monotonic()
                    if self._since > self._until:
                        raise _TimeOver


def _pages(folder: str, ended: bool = False) -> list[str]:
    names = files.names(folder)
    return [name for name in names if (name.endswith(".json") if ended else PageName.parse(name))]
