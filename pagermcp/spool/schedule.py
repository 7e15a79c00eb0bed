"""scheduled/: pages that wait for their time, in one directory for all mailboxes so that `ls` shows what comes next."""

import datetime
import os
import re
import threading
import time
from typing import NamedTuple

from pagermcp import files
from pagermcp.spool.agenda import Agenda, Entry
from pagermcp.spool.clock import Clock
from pagermcp.spool.page import MTIME_GRAIN_NS, PageName

_NAME = re.compile(r"([0-9]{16})-([0-9a-f-]{36})-([0-9.]+\.json)", re.ASCII)


class Due(NamedTuple):
    """What a file name in scheduled/ says: when, in microseconds since 1970, which page is to wait in whose mailbox."""

    micros: int
    number: str
    page: PageName

    @classmethod
    def parse(cls, file: str) -> "Due | None":
        match = _NAME.fullmatch(file)
        page = PageName.parse(match[3]) if match else None
        return cls(int(match[1]), match[2], page) if match and page else None

    @classmethod
    def within(cls, seconds: float, number: str, page: PageName) -> "Due":
        return cls(int((time.time() + seconds) * 1e6), number, page)

    @property
    def at(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.micros / 1e6, datetime.UTC)

    @property
    def file(self) -> str:
        return f"{self.micros:016d}-{self.number}-{self.page.file}"


class Schedule:
    """What this process knows of scheduled/. Safe between threads. Raises OSError."""

    def __init__(self, path: str, agenda: Agenda, clock: Clock) -> None:
        self._path, self._agenda, self._clock = path, agenda, clock
        self._known: dict[str, set[Due]] = {}
        self._lock = threading.Lock()
        self._seen = -1
        self.refresh()

    def refresh(self) -> None:
        """Take in what others have scheduled or taken away."""
        mtime = os.stat(self._path).st_mtime_ns
        if mtime == self._seen:
            return
        with self._lock:
            known = {due for dues in self._known.values() for due in dues}
        present = set(filter(None, map(Due.parse, files.names(self._path))))
        for due in known - present:
            self.drop(due)
        for due in present - known:
            self.add(due, due.micros / 1e6 - self._clock.now().timestamp())
        self._seen = mtime if abs(time.time_ns() - mtime) > MTIME_GRAIN_NS else -1

    def add(self, due: Due, seconds: float) -> None:
        """It is in the directory, and comes due in so many seconds."""
        with self._lock:
            self._known.setdefault(due.number, set()).add(due)
        self._agenda.put(Entry("due", due.number, due.file), seconds)

    def drop(self, due: Due) -> None:
        """It is no longer there."""
        self._agenda.drop(Entry("due", due.number, due.file))
        with self._lock:
            mine = self._known.get(due.number, set())
            mine.discard(due)
            if not mine:
                self._known.pop(due.number, None)

    def of(self, number: str) -> list[Due]:
        """What is scheduled for a mailbox, next one first."""
        with self._lock:
            return sorted(self._known.get(number, ()))

    def count(self, number: str) -> int:
        return len(self._known.get(number, ()))
