"""The janitor: moves by age what nobody took, removes what is older than it may get, and makes room on a full disk.

One process has it, whoever holds the lock. Waiting pages go to the archive, never away; only whole day folders of
archive/ and dead/ are deleted, and only folders of mailboxes that are empty.
"""

import datetime
import logging
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable

from filelock import FileLock, Timeout

from pagermcp import files
from pagermcp.measures import MEASURES
from pagermcp.spool.agenda import Entry
from pagermcp.spool.mailbox import KNOWN_SECONDS
from pagermcp.spool.page import PageName, now
from pagermcp.spool.runs import forget_run
from pagermcp.spool.sending import KEY_HOURS
from pagermcp.spool.spool import Busy, Spool

PASS_SECONDS = 60.0
_LATE_SECONDS = 5 * PASS_SECONDS
_NUMBER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_HOUR = 3600.0
_DAY = 86400.0
_RUN_DAYS = 60  # twice the longest time in which a run may have to report
_RELIEF_SECONDS = 5.0  # at most this often a pass because of a full disk

log = logging.getLogger(__name__)


class Janitor:
    """Tidies a spool, in a thread of its own from `start` until `stop`.

    ring: called with a number for which a page waits again; waiting: says how many wait for a number; mailbox_days,
    message_days, archive_days: how old an empty mailbox, a waiting page, and a day folder may get; 0 for ever;
    inherits: another process has just died, of whose leases nobody else may know."""

    def __init__(
        self,
        spool: Spool,
        ring: Callable[[str], None],
        waiting: Callable[[str], int],
        *,
        mailbox_days: float = 30,
        message_days: float = 7,
        archive_days: float = 30,
        inherits: bool = False,
    ) -> None:
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)
        self._spool = spool
        self._ring, self._waiting = ring, waiting
        self._mailbox_days, self._message_days, self._archive_days = mailbox_days, message_days, archive_days
        self._lock = FileLock(
            spool.path("janitor.lock"),
            timeout=0,
            mode=spool.file_mode,
            thread_local=False,  # it may be taken by `start` and is released by the thread
            fallback_to_soft=False,
        )
        self._last = spool.path("janitor.last")
        self._inherits = inherits
        self._in_office = False  # has the lock
        self._failed = ""  # why the last pass did not come to its end
        self._vacant: dict[str, float] = {}  # folders in leased/ with nothing in them, and their mtime
        self._left_alone: set[str] = set()  # mailboxes that could not be tidied, of which it was said
        self._relief = threading.Lock()
        spool.make_room = self.make_room
        spool.waiting, spool.ring = waiting, ring
        self._stopped = threading.Event()
        self._walked_at = self._walk_offset = 0.0  # wall time of the last walk, and its difference to the monotonic
        self._walk_due = self._deletion_due = self._forget_due = 0.0  # monotonic
        self._oldest: dict[str, int] = {}  # the oldest id in each mailbox that had pages at the last walk

    @property
    def state(self) -> str:
        """ "ok", or in words what is not done and why."""
        if self._failed:
            return f"the last pass failed: {self._failed}"
        if not self._in_office:
            ago = self._passed_ago()
            return "another process does it" + (f", and did {ago:.0f} s ago" if ago > _LATE_SECONDS else "")
        return self._spool.clock.problem or "ok"

    def start(self) -> None:
        """Take the lock if it is free, and begin. Raises OSError."""
        self._take_office()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.perf_counter()
            try:
                self.tidy()
                self._failed = ""
            except Exception as error:  # it may be over next time, and then the janitor must still be here
                self._failed = str(error)
                log.exception("the janitor's pass failed")
            MEASURES.observe("janitor", time.perf_counter() - began)
            self._stopped.wait(_RELIEF_SECONDS)
            self._spool.pressed.clear()
            if not self._stopped.is_set():  # asked after the clear, which may have taken the stop's own ring
                self._spool.pressed.wait(PASS_SECONDS - _RELIEF_SECONDS)
        self._lock.release()

    def stop(self) -> None:
        self._stopped.set()
        self._spool.pressed.set()
        self._thread.join(1)

    def tidy(self) -> None:
        """One pass, if this process is the janitor's. Raises OSError."""
        if not os.path.exists(self._spool.path("FORMAT")):  # it is gone, as requests are told
            return
        self._spool.schedule.refresh()
        self._spool.clock.check()
        if self._inherits and self._spool.clock.may_age:
            self._for_each("leased", self._return_leases)
            self._inherits = False
        if self._in_office or self._take_office():
            self._tidy_all()
        if time.monotonic() >= self._forget_due:
            self._spool.forget_removed()
            self._vacant.clear()
            self._forget_due = time.monotonic() + _HOUR

    def _tidy_all(self) -> None:
        """What one process does for all."""
        clock = self._spool.clock
        if clock.may_age:
            self._for_each("leased", self._return_leases)
            self._for_each("rooms", lambda number: self._spool.room(number).tidy())
            if time.monotonic() >= self._walk_due:
                self._walk()
                if clock.may_delete:
                    self._forget_senders()
                self._walk_due = time.monotonic() + _HOUR
        if clock.may_delete and time.monotonic() >= self._deletion_due:
            self._delete_days()
            self._deletion_due = time.monotonic() + _DAY
        self.make_room()
        if clock.may_delete:  # not before: a restart must not shorten the time in which nothing is deleted
            self._note_pass()

    def make_room(self) -> None:
        """On a disk that gets full delete the oldest days, until there is twice the room that is kept free.

        Any process may have to, but not while the janitor's may not. Today's folders stay: who looks for what has just
        happened must find it."""
        if not self._spool.shortage(2):  # asked first: a spool that goes just now must not be begun anew by a lock
            return
        with self._relief, self._spool.lock("relief", poll_seconds=0.01):
            self._spool.clock.check()
            days = [day for day in self._spool.days() if day < f"{now():%Y-%m-%d}"]
            allowed = self._spool.clock.may_delete and (self._in_office or self._passed_ago() < _LATE_SECONDS)
            while days and allowed and self._spool.shortage(2):
                self._delete(days.pop())

    def _passed_ago(self) -> float:
        """Seconds since a process came to the end of a pass."""
        try:
            return time.time() - os.stat(self._last).st_mtime
        except OSError:
            return math.inf

    def _take_office(self) -> bool:
        if not os.path.exists(self._spool.path("FORMAT")):  # the spool is gone, and a lock must not make its folder
            return False
        try:
            self._lock.acquire()
        except Timeout:
            return False
        try:
            self._spool.clock.was_absent_since(os.stat(self._last).st_mtime)
        except FileNotFoundError:
            self._note_pass()
        self._in_office = True
        if self._spool.clock.problem:
            log.warning("%s", self._spool.clock.problem)
        return True

    def _note_pass(self) -> None:
        files.touch(self._last, self._spool.file_mode)

    def _for_each(self, state: str, act: Callable[[str], None]) -> None:
        """Do something for every folder in new/ or leased/; one for which it fails must not keep the others from it."""
        for number in filter(_NUMBER.fullmatch, files.names(self._spool.path(state))):
            try:
                act(number)
            except FileNotFoundError:
                continue  # it went meanwhile
            except (OSError, Busy) as error:
                if number not in self._left_alone:
                    log.warning("%s could not be tidied: %s", number, error)
                self._left_alone.add(number)

    def _return_leases(self, number: str) -> None:
        """Let pages wait again whose lease ran out under a process that is no more; its own each process returns."""
        path = self._spool.path("leased", number)
        mtime = os.stat(path).st_mtime
        waits = self._waiting(number)
        if waits and self._vacant.get(number) == mtime:
            return
        leased = files.names(path)
        if waits and not leased and time.time() - mtime > 1:  # or else it may change once more without showing it
            self._vacant[number] = mtime
        for name in filter(None, map(PageName.parse, leased)):
            known = Entry("lease", number, name.file) in self._spool.agenda
            if not known and self._spool.mailbox(number).return_strange_lease(name):
                self._ring(number)
        if not leased and not waits and not files.names(self._spool.path("new", number)):
            self._remove_empty(path, os.stat(path).st_mtime + PASS_SECONDS)

    def _forget_senders(self) -> None:
        """Remove old idempotency keys, runs that were given up long ago, and read marks of mailboxes that have gone."""

        def old(folder: str, days: float) -> list[str]:
            paths = [f"{folder}/{name}" for name in files.names(folder)]
            return [path for path in paths if time.time() - os.stat(path).st_mtime > days * _DAY]

        def forget_keys(number: str) -> None:
            folder = self._spool.path("keys", number)
            for path in old(folder, KEY_HOURS / 24):
                files.remove(path)
            self._remove_empty(folder, 0)

        def forget_runs(number: str) -> None:
            folder = self._spool.path("runs", number)
            for path in old(folder, _RUN_DAYS):
                forget_run(self._spool, number, path)
            self._remove_empty(folder, 0)

        self._for_each("keys", forget_keys)
        self._for_each("runs", forget_runs)
        for number in files.names(self._spool.path("read")):
            if not os.path.lexists(self._spool.path("new", number)):
                files.remove(self._spool.path("read", number))

    def _walk(self) -> None:
        """Go through all mailboxes: pages too old go to the archive, empty mailboxes too old go away.

        A folder whose mtime is from before the last walk is as it was then, and is not listed again; unless the clock
        was set meanwhile, as its difference to the monotonic one shows: then an mtime says nothing."""
        began = time.time()
        offset = began - time.monotonic()
        unchanged_since = self._walked_at - 1 if abs(offset - self._walk_offset) < 1 else -math.inf
        ages = self._message_days and self._spool.clock.may_delete  # or else somebody may still come for them
        too_old = began - self._message_days * _DAY if ages else -math.inf
        oldest: dict[str, int] = {}
        rooms = set(files.names(self._spool.path("rooms")))

        def look(number: str) -> None:
            if number in rooms:  # which know themselves what is too old
                return
            path = self._spool.path("new", number)
            mtime = os.stat(path).st_mtime
            if mtime >= unchanged_since:
                ids = [int(name.id) for name in map(PageName.parse, files.names(path)) if name]
                if ids:
                    oldest[number] = min(ids)
            elif number in self._oldest:
                oldest[number] = self._oldest[number]
            if number not in oldest:
                self._remove_mailbox(number, path, mtime)
            elif oldest[number] < too_old * 1e6:
                limit = datetime.datetime.fromtimestamp(too_old, datetime.UTC)
                self._spool.mailbox(number).expire_waiting(limit)

        self._for_each("new", look)
        self._walked_at, self._walk_offset, self._oldest = began, offset, oldest

    def _remove_mailbox(self, number: str, path: str, mtime: float) -> None:
        idle = self._mailbox_days and not self._waiting(number)
        if idle and self._remove_empty(path, mtime + max(self._mailbox_days * _DAY, 2 * KNOWN_SECONDS)):
            self._remove_empty(self._spool.path("leased", number), 0)

    def _remove_empty(self, path: str, after: float) -> bool:
        """Remove a folder after that wall time, if it is empty. Who needs it makes it again."""
        if time.time() < after or not self._spool.clock.may_delete:
            return False
        try:
            os.rmdir(path)
        except OSError:
            return False
        return True

    def _delete_days(self) -> None:
        if self._archive_days:
            limit = f"{now() - datetime.timedelta(days=self._archive_days):%Y-%m-%d}"
            for day in self._spool.days():
                if day < limit:
                    self._delete(day)

    def _delete(self, day: str) -> None:
        for state in ("archive", "dead"):
            folder = self._spool.path(state, day)
            within = [] if os.path.islink(folder) else files.names(folder)  # a link is refused below
            rooms = [number for number in within if self._spool.is_room(number)]  # they keep everything
            try:
                for number in set(within) - set(rooms) if rooms else ():
                    shutil.rmtree(f"{folder}/{number}")
                if not rooms:
                    shutil.rmtree(folder)
                log.info("deleted %s/%s", state, day)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s/%s could not be deleted: %s", state, day, error)
