"""The janitor: moves by age what nobody took, removes what is older than it may get, and makes room on a full disk.

One process has it, whoever holds the lock. Waiting pages go to the archive, never away; only whole day folders of
archive/ and dead/ are deleted, and only folders of mailboxes that are empty.
"""

import contextlib
import datetime
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable

from filelock import FileLock, Timeout

from pagermcp.spool import files
from pagermcp.spool.clock import Clock
from pagermcp.spool.page import PageName, now
from pagermcp.spool.spool import Spool

PASS_SECONDS = 60.0
_HOUR = 3600.0
_DAY = 86400.0
_RELIEF_SECONDS = 5.0  # at most this often a pass because of a full disk

log = logging.getLogger(__name__)


class Janitor:
    """Tidies a spool, in a thread of its own from `start` until `stop`.

    ring: called with a number for which a page waits again; mailbox_days, message_days, archive_days: how old an empty
    mailbox, a waiting page, and a day folder may get; 0 for ever."""

    def __init__(
        self,
        spool: Spool,
        ring: Callable[[str], None],
        *,
        mailbox_days: float = 30,
        message_days: float = 7,
        archive_days: float = 30,
    ) -> None:
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)
        self._spool = spool
        self._ring = ring
        self._mailbox_days, self._message_days, self._archive_days = mailbox_days, message_days, archive_days
        self._lock = FileLock(
            spool.path("janitor.lock"),
            timeout=0,
            mode=spool.file_mode,
            thread_local=False,  # it may be taken by `start` and is released by the thread
            fallback_to_soft=False,
        )
        self._last = spool.path("janitor.last")
        self._clock: Clock | None = None  # only with the lock
        self._relief = threading.Lock()
        self._stopped = threading.Event()
        self._walked_at = 0.0  # wall time at which the last walk through all mailboxes began
        self._walk_due = self._deletion_due = 0.0  # monotonic
        self._oldest: dict[str, int] = {}  # the oldest id in each mailbox that had pages at the last walk

    @property
    def state(self) -> str:
        """ "ok", or in words what is not done and why."""
        if self._clock is None:
            return "another process does it"
        return self._clock.problem or "ok"

    def start(self) -> None:
        """Take the lock if it is free, and begin. Raises OSError."""
        self._take_office()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.tidy()
            except Exception:  # whatever it was may be over next time, and then the janitor must still be here
                log.exception("the janitor's pass failed")
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
        if self._clock is None and not self._take_office():
            return
        assert self._clock is not None
        self._clock.check()
        if self._clock.may_age:
            self._return_leases()
            if time.monotonic() >= self._walk_due:
                self._walk()
                self._walk_due = time.monotonic() + _HOUR
        if self._clock.may_delete and time.monotonic() >= self._deletion_due:
            self._delete_days()
            self._deletion_due = time.monotonic() + _DAY
        self.make_room()
        if self._clock.may_delete:
            os.utime(self._last)  # not before: a restart must not shorten the time in which nothing is deleted

    def make_room(self) -> None:
        """On a disk that gets full delete the oldest days, until there is twice the room that is kept free.

        Today's folders stay: who looks for what has just happened must find it."""
        with self._relief:
            days = [day for day in self._spool.days() if day < f"{now():%Y-%m-%d}"]
            while days and self._clock is not None and self._clock.may_delete and self._spool.shortage(2):
                self._delete(days.pop())

    def _take_office(self) -> bool:
        if not os.path.exists(self._spool.path("FORMAT")):  # the spool is gone, and a lock must not make its folder
            return False
        try:
            self._lock.acquire()
        except Timeout:
            return False
        last_pass = None
        with contextlib.suppress(FileNotFoundError):
            last_pass = os.stat(self._last).st_mtime
        if last_pass is None:
            os.close(os.open(self._last, os.O_WRONLY | os.O_CREAT | files.NOT_FOLLOWED, self._spool.file_mode))
        self._clock = Clock(last_pass)
        self._spool.make_room = self.make_room
        if self._clock.problem:
            log.warning("%s", self._clock.problem)
        return True

    def _return_leases(self) -> None:
        """Let pages wait again whose lease ran out under a process that is no more; its own each process returns."""
        for number in files.names(self._spool.path("leased")):
            leased = files.names(self._spool.path("leased", number))
            for name in filter(None, map(PageName.parse, leased)):
                if (number, name) not in self._spool.leases:
                    mailbox = self._spool.mailbox(number)
                    with contextlib.suppress(FileNotFoundError):
                        if mailbox.lease_left(name) <= 0 and mailbox.return_lease(name):
                            self._ring(number)
            if not leased:
                self._remove_idle(self._spool.path("leased", number), PASS_SECONDS)

    def _walk(self) -> None:
        """Go through all mailboxes: pages too old go to the archive, empty mailboxes too old go away.

        A folder whose mtime is from before the last walk is as it was then, and is not listed again."""
        began, oldest = time.time(), self._oldest
        unchanged_since = self._walked_at - 1
        self._oldest = {}
        for number in files.names(self._spool.path("new")):
            path = self._spool.path("new", number)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if os.stat(path).st_mtime >= unchanged_since:
                    ids = [int(name.id) for name in map(PageName.parse, files.names(path)) if name]
                    if ids:
                        self._oldest[number] = min(ids)
                elif number in oldest:
                    self._oldest[number] = oldest[number]
                if number in self._oldest:
                    self._expire(number)
                else:
                    self._remove_mailbox(number)
        self._walked_at = began

    def _expire(self, number: str) -> None:
        if not self._message_days:
            return
        limit = now() - datetime.timedelta(days=self._message_days)
        if self._oldest[number] < limit.timestamp() * 1e6:
            self._spool.mailbox(number).expire_before(limit)

    def _remove_mailbox(self, number: str) -> None:
        if self._mailbox_days and self._remove_idle(self._spool.path("new", number), self._mailbox_days * _DAY):
            with contextlib.suppress(OSError):
                os.rmdir(self._spool.path("leased", number))
            self._spool.forget(number)

    def _remove_idle(self, path: str, seconds: float) -> bool:
        """Remove a folder that did not change for so long, if it is empty. Who needs it makes it again."""
        try:
            if time.time() - os.stat(path).st_mtime < seconds:
                return False
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
            try:
                shutil.rmtree(self._spool.path(state, day))
                log.info("deleted %s/%s", state, day)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s/%s could not be deleted: %s", state, day, error)
