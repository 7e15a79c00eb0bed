"""One mailbox: its pages, in the directories of the spool, and the moves between them.

A page comes in by `link` into new/, is claimed by one `rename` into leased/ (the arbiter among all claimers, in any
process), and leaves by one `rename` to archive/, to dead/ or back to new/ with the next attempt in its name.
"""

import contextlib
import dataclasses
import datetime
import errno
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pagermcp import files
from pagermcp.address import redact
from pagermcp.commit import Steps, at_once
from pagermcp.measures import MEASURES, Outcome
from pagermcp.spool.agenda import Entry
from pagermcp.spool.page import (
    MTIME_GRAIN_NS,
    WORKERS,
    BadPage,
    Page,
    PageName,
    moment,
    now,
    page_line,
    payload_text,
    read_page,
    timestamp,
    to_json,
)
from pagermcp.spool.schedule import Due
from pagermcp.spool.tally import Tally

if TYPE_CHECKING:
    from pagermcp.spool.spool import Spool

SETTLED_SECONDS = 2.0
"""A file that a shell brought is complete when it was closed, or was left alone for this long."""

MAX_ATTEMPTS = 5
"""A page that was handed out this often is dead: something about it keeps its readers from acknowledging."""

LONGEST_LEASE = 12 * 3600.0

KNOWN_SECONDS = 1800.0
"""How long a process may rely on a mailbox's folder to be the one into which it has delivered: the janitor, who may be
in another process, removes none into which somebody delivered in twice this time."""

_FUTURE_MICROSECONDS = 86_400_000_000  # an id further ahead than a day is not ours
_NO_ROOM_LEASE = 60.0  # for a page that can't be buried, until it is tried again
_NOTE_READ_SECONDS = 10.0
_LINK_TRIES = 5
_NONE: frozenset[str] = frozenset()
_ID = re.compile(r"[0-9]{16}", re.ASCII)

log = logging.getLogger(__name__)

T = TypeVar("T")


class MailboxFull(Exception):
    """As many pages wait here as may. Nothing was delivered and nothing dropped."""


class DeliveredMaybe(Exception):
    """The page could not be made durable, but a reader had taken it before it could be withdrawn."""


class Mailbox:
    """The pages of one number. Made by `Spool.mailbox`, which gives one object a number; safe between threads."""

    def __init__(self, spool: "Spool", number: str) -> None:
        self.number = number
        self.unreadable = _NONE  # files in new/ that can't be pages and can't be moved on, at the last look
        self.settles_at = math.inf  # monotonic time at which a file that may still be written to can be taken
        self._spool = spool
        self._new = spool.path("new", number)
        self._leased = spool.path("leased", number)
        self._tally = Tally(self._new, self._leased, spool.tells_changes_apart)
        self._noted_read = -math.inf
        self._last_read: datetime.datetime | None = None
        self._expiring: dict[str, float] = {}  # when pages expire that have not ended, in monotonic time
        self._lock = threading.Lock()
        self._lease_marks: dict[str, int] = {}  # mtimes of leased files as this process set or saw them
        self._writing = 0  # deliveries that hold a place but are not in new/ yet
        self._named_by_events = _NONE  # foreign files that watching saw closed or moved in
        self._reported = _NONE  # what was logged as unreadable
        self._seen = (0, 0)  # mtime of new/ and time, both in ns, at the last look for pages to take
        self._made_at = -math.inf  # monotonic: this process made its folder then, and nothing was delivered since
        self._durable_until = -math.inf  # monotonic: so long its folder surely has its name
        self._newest = 0
        self._newest = self._recover()

    # Delivering

    def deliver(
        self, payload: str, *, id: str | None = None, frees: int = 0, bounded: bool = True, **extra: object
    ) -> str:
        """Write a page durably and show it to readers; its id. `payload` is JSON that `parse_payload` accepts.

        id: one that `next_id` gave, and that is nowhere yet; frees: how many places will be free by this page; bounded:
        whether the limit counts; extra: what to note beside the payload. Raises MailboxFull, SpoolFull, DeliveredMaybe,
        and OSError when it could not be written (and is not there)."""
        return at_once(self.delivering(payload, id=id, frees=frees, bounded=bounded, **extra))[0]

    def delivering(
        self, payload: str, *, id: str | None = None, frees: int = 0, bounded: bool = True, **extra: object
    ) -> Steps[tuple[str, int]]:
        """`deliver` in steps: the id, and how many pages waited as soon as this one did."""
        self._take_place(frees, bounded)
        name, waiting = yield from self._write(payload, extra, lambda draft: self._link(draft, id), self._synced)
        if "expires_at" in extra:
            self.note_expiry(name.id, extra["expires_at"])
            self._forget_ended(name.id)  # a reader may have been faster
        return name.id, waiting

    def schedule(self, payload: str, seconds: float, *, id: str | None = None, frees: int = 0, **extra: object) -> Due:
        """Write a page durably that is to wait for readers in so many seconds. Otherwise as `deliver`."""
        self._take_place(frees)
        due = Due.within(seconds, self.number, PageName(id or self.next_id(), 1))
        extra["due_at"] = timestamp(due.at)

        def link(draft: files.Draft) -> Due:
            draft.link(self._spool.path("scheduled", due.file))
            return due

        def synced(due: Due) -> Steps[None]:
            try:
                yield from files.directory_synced(self._spool.path("scheduled"))
            except OSError as error:
                self._take_back(self._spool.path("scheduled", due.file), error)

        at_once(self._write(payload, extra, link, synced))
        self._spool.schedule.add(due, seconds)
        return due

    def next_id(self) -> str:
        """An id for a page that is to be delivered."""
        with self._lock:
            return self._next_id()

    def ids_after(self, *ids: int) -> None:
        """Give out only ids that are higher than these."""
        with self._lock:
            self._newest = max(self._newest, *ids)

    def _take_place(self, frees: int = 0, bounded: bool = True) -> None:
        self._spool.check_room()
        if not bounded:
            with self._lock:
                self._writing += 1
        elif not self._has_place(frees):
            self.expire_waiting()
            if not self._has_place(frees):
                raise MailboxFull

    def _has_place(self, frees: int) -> bool:
        with self._lock:
            self._tally.look()
            if self._is_full(frees):
                self._tally.count()  # there may be fewer than remembered
                if self._is_full(frees):
                    return False
            self._writing += 1
            return True

    def _is_full(self, frees: int) -> bool:
        known = self._tally.waiting + self._tally.leased + self._spool.schedule.count(self.number)
        return known + self._writing - frees >= self._spool.max_messages

    def _write(
        self,
        payload: str,
        extra: dict[str, object],
        link: Callable[[files.Draft], T],
        synced: Callable[[T], Steps[None]],
    ) -> Steps[T]:
        """Write a page for which there is a place, and show it by `link`, which is made durable by `synced`."""
        draft = None
        try:
            draft = self._spool.draft(page_line(payload, now(), **extra))
            yield draft.descriptor
        except BaseException:
            with self._lock:
                self._writing -= 1
            self._discard(draft)
            raise
        try:
            with self._lock:  # ids rise in the order in which pages appear, so both happen under the lock
                self._writing -= 1
                linked = link(draft)
            yield from synced(linked)
        finally:
            self._discard(draft)
        return linked

    def _discard(self, draft: files.Draft | None) -> None:
        with contextlib.suppress(OSError):  # the page is delivered, or it is not: tmp/ is cleared later
            if draft:
                draft.discard()

    def _link(self, draft: files.Draft, id: str | None) -> tuple[PageName, int]:
        for attempt in range(_LINK_TRIES):
            name = PageName(id or self._next_id(), 1)
            try:
                if not self._tally.can_lease:  # while there is room: what waits must be takeable
                    self._make(self._leased)
                    self._tally.can_lease = True
                unchanged = self._tally.unchanged()
                draft.link(f"{self._new}/{name.file}")
                self._tally.add(unchanged)
                return name, self._tally.waiting
            except FileExistsError:
                continue
            except FileNotFoundError:
                if attempt + 1 == _LINK_TRIES:
                    raise
                self.make()  # or somebody else just has
        raise FileExistsError(errno.EEXIST, "ids ahead of the clock are all taken", self._new)

    def _synced(self, linked: tuple[PageName, int]) -> Steps[None]:
        name, _ = linked
        try:
            yield from files.directory_synced(self._new)
            yield from self._folder_synced()
            MEASURES.page_came()
        except OSError as error:
            self._take_back(f"{self._new}/{name.file}", error)

    def _folder_synced(self) -> Steps[None]:
        """Make the folder's own name durable, unless that was done. One sync does for all folders made before it."""
        now = time.monotonic()
        if now < self._durable_until:
            return
        known_at = self._made_at if now - self._made_at < KNOWN_SECONDS else now
        yield from self._spool.mailboxes_synced(known_at)
        self._made_at, self._durable_until = -math.inf, known_at + KNOWN_SECONDS

    def _take_back(self, path: str, error: OSError) -> None:
        """Remove a page again that could not be made durable, and raise the error, or DeliveredMaybe."""
        try:
            if files.remove(path):
                raise error
        except OSError as second:
            if second is error:
                raise
        raise DeliveredMaybe from error

    def _next_id(self) -> str:
        after = max(time.time_ns() // 1000, self._newest + 1)
        self._newest = after + (self._spool.worker - after) % WORKERS  # two workers never pick the same one
        return f"{self._newest:016d}"

    @property
    def exists(self) -> bool:
        return files.is_directory(self._new)

    def make(self) -> bool:
        """Make the mailbox; False when it exists. Raises OSError.

        When the spool is gone, that too: it may be on a disk that will be back, so nothing is begun in its place."""
        if self.exists or not self._make(self._new):  # asking costs far less than a mkdir that fails
            return False
        self._made_at, self._durable_until = time.monotonic(), -math.inf
        return True

    def _make(self, folder: str) -> bool:
        try:
            return files.make_directory(folder, self._mode)
        except FileNotFoundError:
            if not os.path.exists(self._spool.path("FORMAT")):
                raise
            files.make_directory(os.path.dirname(folder), self._mode)
            return files.make_directory(folder, self._mode)

    # Reading

    def size(self) -> int:
        """Pages that count towards the mailbox's limit: waiting, leased and scheduled."""
        return self.queued() + len(files.names(self._leased)) + self._spool.schedule.count(self.number)

    def queued(self) -> int:
        """Pages that wait for a reader."""
        return len(files.names(self._new))

    def waiting(self) -> list[Page]:
        """All waiting pages, oldest first; takes nothing. Raises OSError."""
        pages = []
        for name in self.look():
            page, _ = self._read(name)
            if page is not None and not self._expired(page):
                pages.append(page)
        return pages

    @property
    def _read_mark(self) -> str:
        return self._spool.path("read", self.number)

    @property
    def last_read(self) -> datetime.datetime | None:
        """When somebody with the key last looked, or waited, if ever. What other processes saw of it, and what this one
        saw before it was started, is known to ten seconds."""
        try:
            noted = datetime.datetime.fromtimestamp(os.stat(self._read_mark).st_mtime, datetime.UTC)
        except OSError:
            return self._last_read
        return max(noted, self._last_read or noted)

    def note_read(self) -> None:
        """Somebody with the key looks, or waits."""
        self._last_read = now()
        if time.monotonic() - self._noted_read < _NOTE_READ_SECONDS or not self.exists:
            return  # a mailbox that is only asked for leaves nothing on the disk
        self._noted_read = time.monotonic()
        with contextlib.suppress(OSError):  # on a full disk one must still be able to read
            files.touch(self._read_mark, self._spool.file_mode)

    def claim(self, lease_seconds: float, max_age: float = math.inf) -> Page | None:
        """Take the page whose turn it is into leased/ for `lease_seconds`; None when nothing waits. Raises OSError.

        Pages older than `max_age` seconds go to the archive. A page's turn is by the time since when it waits, so one
        that comes back again and again keeps nobody else from being read."""
        try:
            seen = os.stat(self._new).st_mtime_ns
        except FileNotFoundError:
            return None
        self._seen = (seen, time.time_ns())
        for name in sorted(self.look(), key=self._waits_since):
            page, reason = self._read(name)
            if page and (self._expired(page) or int(self._spool.clock.age(page.since)) > max_age):
                self.expire(name)
            elif reason is None or not self._claim(name):
                continue
            elif page is None:
                self._bury(name, reason)
            else:
                self.lease(name, lease_seconds)
                return dataclasses.replace(page, lease_ends=now() + datetime.timedelta(seconds=lease_seconds))
        return None

    def _claim(self, name: PageName) -> bool:
        self._spool.agenda.drop(Entry("expiry", self.number, f"{name.id}.json"))
        with self._lock:
            unchanged = self._tally.unchanged()
            claimed = files.move(f"{self._new}/{name.file}", self._at("leased", name), self._mode)
            if claimed:
                self._tally.take(unchanged)
            return claimed

    def _waits_since(self, name: PageName) -> int:
        if name.attempt > 1:
            with contextlib.suppress(FileNotFoundError):
                returned_at = os.stat(f"{self._new}/{name.file}", follow_symlinks=False).st_mtime_ns
                return min(returned_at, time.time_ns()) // 1000
        return int(name.id)

    def _expired(self, page: Page) -> bool:
        if page.id in self._expiring:
            return time.monotonic() >= self._expiring[page.id]
        return "expires_at" in page.extra and self._spool.clock.now() >= moment(page.extra["expires_at"])

    def changed(self) -> bool:
        """True when a waiter should look again: new/ is not as it was at the last claim, or may not be."""
        try:
            mtime = os.stat(self._new).st_mtime_ns
        except OSError:
            return True
        seen, looked_at = self._seen
        too_soon = not self._spool.tells_changes_apart and abs(looked_at - mtime) < MTIME_GRAIN_NS
        return self.settles_at < math.inf or mtime != seen or too_soon

    def saw_closed(self, name: str) -> None:
        """Watching saw that a file in new/ was closed or moved in: it is complete."""
        if PageName.parse(name) is None:
            with self._lock:
                known = self._named_by_events
                self._named_by_events = (known if len(known) < 1000 else _NONE) | {
                    name
                }  # some went before anybody looked

    def look(self) -> list[PageName]:
        """The names of waiting pages, oldest first, after taking in what a shell brought."""
        self.settles_at = math.inf
        self.unreadable = _NONE
        pages = []
        adopted = False
        present = files.names(self._new)
        self._reported = self._reported.intersection(present) or _NONE
        for file in present:
            name = PageName.parse(file)
            if name is not None and self._is_ours(name.id, f"{self._new}/{file}"):
                pages.append(name)
            elif self._adopt(file):
                adopted = True
        if adopted:
            return self.look()
        if pages:  # those of other workers may be ahead of the clock, when it was set back
            self.ids_after(int(max(pages).id))
        return sorted(pages)

    def _read(self, name: PageName) -> tuple[Page | None, str | None]:
        """The page with that name, or the reason why its file is none; neither when it is not ours to take."""
        try:
            content, status = files.read(f"{self._new}/{name.file}", self._spool.max_page_bytes + 1)
        except FileNotFoundError:
            return None, None
        except OSError as error:
            self._leave(name.file, error)
            return None, None
        if status.st_uid != os.geteuid():
            if self._adopt(name.file):
                self.settles_at = 0  # it has another name now, so look again
            return None, None
        try:
            if len(content) > self._spool.max_page_bytes:
                raise BadPage(f"larger than {self._spool.max_page_bytes} bytes")
            return read_page(name, content), ""
        except BadPage as error:
            if not self._settled(status):  # somebody is still copying it here
                return None, None
            return None, str(error)

    # Moving on

    def acknowledge(self, name: PageName) -> bool:
        """Move a leased page to today's archive; False when it is not leased any more."""
        archived = self._archive(self._at("leased", name), name, "acknowledged")
        self._forget_lease(name)
        return archived

    def acknowledge_waiting(self, name: PageName) -> bool:
        """Move a page that nobody has taken to today's archive; False when it does not wait (any more)."""
        return self._archive(self._at("new", name), name, "acknowledged")

    def expire(self, name: PageName) -> bool:
        """Move a page that waits for too long to today's archive as expired; False when it does not wait any more."""
        return self._archive(self._at("new", name), name, "expired")

    def archive_cleared(self, name: PageName) -> bool:
        """Move a room's message that was cleared to today's archive; False when it is gone."""
        return self._archive(self._at("new", name), name, "cleared")

    def replace(self, page: PageName | Due) -> bool:
        """Move a waiting or scheduled page, for which there is a newer one, to the archive; False when it is gone."""
        if isinstance(page, Due):
            self._spool.schedule.drop(page)
            if self._archive(self._spool.path("scheduled", page.file), page.page, "replaced"):
                return True
            page = page.page  # it has come due just now
        return self._archive(self._at("new", page), page, "replaced")

    def bury(self, path: str, name: PageName, reason: str) -> bool:
        """Move a file that is no page from any place to dead/, with the reason beside it; False when it is gone."""
        if not files.stamp(path, time.time_ns()):
            return False
        dead = self._at("dead", name)
        self._explain(dead, reason)
        buried = files.move(path, dead, self._mode)
        MEASURES.count("dead", buried)
        return buried

    def withdraw(self, name: PageName) -> bool:
        """Let a leased page wait again that was not handed out after all; False when it is not leased any more."""
        return self._stamp(name) and self._leave_leased(name, self._at("new", name))

    def release(self, name: PageName, delay: float = 0) -> bool:
        """Let a leased page wait again, as the next attempt and after `delay` seconds; False when it is not leased.

        One that was handed out often enough is dead instead."""
        if name.attempt >= MAX_ATTEMPTS:
            return self._bury(name, f"handed out {name.attempt} times and never acknowledged")
        if delay <= 0:
            return self._stamp(name) and self._leave_leased(name, self._at("new", name.next()))
        due = Due.within(delay, self.number, name.next())
        released = self._leave_leased(name, self._spool.path("scheduled", due.file))
        if released:
            self._spool.schedule.add(due, delay)
        return released

    def return_lease(self, name: PageName) -> bool:
        """End a lease that ran out, unless it was lengthened just now: True when the page waits again."""
        with self._lock:
            if Entry("lease", self.number, name.file) in self._spool.agenda:
                return False
            if self._mtime(name) != self._lease_marks.pop(name.file, None) and self._await_end(name):
                return False  # another process lengthened it
            released = self.release(name)
            MEASURES.count("lease_run_out", released)
            return released and name.attempt < MAX_ATTEMPTS

    def return_strange_lease(self, name: PageName) -> bool:
        """The same for a lease of which this process does not know yet. One that goes on is returned in time."""
        return not self._await_end(name) and self.return_lease(name)

    def come_due(self, due: Due) -> bool:
        """Let a scheduled page wait for readers; False when it is not scheduled any more. Raises OSError."""
        source = self._spool.path("scheduled", due.file)
        moved = files.stamp(source, time.time_ns()) and files.move(source, self._at("new", due.page), self._mode)
        self._spool.schedule.drop(due)
        if moved and due.page.attempt == 1:
            MEASURES.page_came()
        return moved

    def expire_waiting(self, before: datetime.datetime | None = None) -> None:
        """Move waiting pages that have expired, or that wait since before some time, to the archive. Raises OSError."""
        for name in self.look():
            page, _ = self._read(name)
            if page and (self._expired(page) or (before and self._waited_since(page) < before)):
                self.expire(name)

    def expire_at_once(self, id: str) -> None:
        """Move the page with this id to the archive as expired, if it is waiting."""
        for name in filter(None, map(PageName.parse, files.names(self._new))):
            if name.id == id:
                self.expire(name)
        self._forget_ended(id)

    def note_expiry(self, id: str, expires_at: object = None) -> None:
        """Let the page expire in time, if it is still waiting then, or waits again. Once noted it stays so, also when
        the clock is set."""
        if id not in self._expiring and isinstance(expires_at, str):
            self._expiring[id] = time.monotonic() + (moment(expires_at) - now()).total_seconds()
        if id in self._expiring:
            left = self._expiring[id] - time.monotonic()
            self._spool.agenda.put(Entry("expiry", self.number, f"{id}.json"), left)

    def _forget_ended(self, id: str) -> None:
        """Forget when a page expires that is not here any more."""
        here = files.names(self._new) + files.names(self._leased)
        if not any(file.startswith(id) for file in here):
            self._expiring.pop(id, None)
            self._spool.agenda.drop(Entry("expiry", self.number, f"{id}.json"))

    def lease(self, name: PageName, seconds: float) -> bool:
        """Let the lease of a leased page run out in so many seconds from now; False when it is not leased any more."""
        with self._lock:  # so that it is not returned just now
            leased = self._stamp(name, seconds)
            if leased:
                self._spool.agenda.put(Entry("lease", self.number, name.file), seconds)
            return leased

    def _waited_since(self, page: Page) -> datetime.datetime:
        if "due_at" not in page.extra:
            return page.created_at
        with contextlib.suppress(FileNotFoundError):  # it may have come late, when the relay did not run in time
            came = os.stat(self._at("new", page.name), follow_symlinks=False).st_mtime
            return max(page.since, datetime.datetime.fromtimestamp(came, datetime.UTC))
        return page.since

    def _await_end(self, name: PageName) -> bool:
        """Note when the lease of a page ends, as its file says; False when it has ended."""
        try:
            status = os.stat(self._at("leased", name), follow_symlinks=False)  # once, since it may change meanwhile
        except FileNotFoundError:
            return False
        ends = max(status.st_mtime, status.st_ctime + SETTLED_SECONDS)  # claimed, but the lease not written yet
        left = min(ends - self._spool.clock.now().timestamp(), LONGEST_LEASE)
        if left > 0:
            self._lease_marks[name.file] = status.st_mtime_ns
            self._spool.agenda.put(Entry("lease", self.number, name.file), left)
        return left > 0

    def _mtime(self, name: PageName) -> int:
        with contextlib.suppress(FileNotFoundError):
            return os.stat(self._at("leased", name), follow_symlinks=False).st_mtime_ns
        return 0

    def _stamp(self, name: PageName, seconds: float = 0) -> bool:
        """Set a leased page's mtime: when its lease ends, since when it waits again, or when it was archived."""
        mark = time.time_ns() + int(seconds * 1e9)
        self._lease_marks[name.file] = mark
        if files.stamp(self._at("leased", name), mark):
            return True
        self._lease_marks.pop(name.file, None)
        return False

    def _leave_leased(self, name: PageName, target: str) -> bool:
        moved = files.move(self._at("leased", name), target, self._mode)
        self._forget_lease(name)
        if target.startswith(self._new):
            self.note_expiry(name.id)
        else:
            self._expiring.pop(name.id, None)
        return moved

    def _forget_lease(self, name: PageName) -> None:
        self._spool.agenda.drop(Entry("lease", self.number, name.file))
        self._lease_marks.pop(name.file, None)

    def _archive(self, path: str, name: PageName, outcome: Outcome) -> bool:
        """Move a page from any place to today's archive, by one rename; False when it is not there any more."""
        ending = ".json" if outcome == "acknowledged" else f".{outcome}.json"
        target = self._at("archive", name).removesuffix(".json") + ending
        try:
            archived = files.stamp(path, time.time_ns()) and files.move(path, target, self._mode)
        except OSError as error:
            if error.errno not in files.DISK_FULL:
                raise
            log.warning("%s: %s is deleted, since there is no room to archive it", self.number, name.handle)
            archived = files.remove(path)
        if archived:
            MEASURES.count(outcome)
            self._expiring.pop(name.id, None)
            self._spool.agenda.drop(Entry("expiry", self.number, f"{name.id}.json"))
        return archived

    def _bury(self, name: PageName, reason: str) -> bool:
        if not self._stamp(name):
            self._forget_lease(name)
            return False
        target = self._at("dead", name)
        self._explain(target, reason)
        try:
            buried = self._leave_leased(name, target)
            MEASURES.count("dead", buried)
            return buried
        except OSError as error:
            if error.errno not in files.DISK_FULL:
                raise
            self._stamp(name, _NO_ROOM_LEASE)
            self._spool.agenda.put(Entry("lease", self.number, name.file), _NO_ROOM_LEASE)
            return False

    def _explain(self, dead: str, reason: str) -> None:
        """Write the reason beside the place where a dead page will be; before it is, so that none is without."""
        log.warning("%s: to dead/: %s", self.number, reason)
        try:
            for folder in (os.path.dirname(os.path.dirname(dead)), os.path.dirname(dead)):
                files.make_directory(folder, self._mode)
            why = f"{redact(reason)}\n".encode(errors="backslashreplace")
            files.write(dead.removesuffix(".json") + ".why", why, self._spool.file_mode)
        except OSError as error:  # what matters is that the file is out of the way
            log.warning("%s: the reason could not be written beside it: %s", self.number, error)

    def _at(self, state: str, name: PageName) -> str:
        if state in ("archive", "dead"):
            return self._spool.path(state, _day_of(time.time()), self.number, name.file)
        return self._spool.path(state, self.number, name.file)

    @property
    def _mode(self) -> int:
        return self._spool.directory_mode

    # Files that a shell brought

    def _adopt(self, file: str) -> bool:
        """Deliver a file that is not named as a page of ours; True when new/ changed by it.

        It is taken by a rename into tmp/, so only one process does it, and put back if that process ends on the way."""
        path = f"{self._new}/{file}"
        try:
            _, status = files.read(path, 0)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._leave(file, error)
            return False
        if file not in self._named_by_events and not self._settled(status):
            return False
        with self._lock:
            self._named_by_events -= {file}
        taken = self._spool.temporary(adopted=(self.number, file))
        try:
            return files.move(path, taken, self._mode) and self._deliver_taken(file, taken)
        except OSError as error:
            self._leave(file, error)
            if os.path.lexists(taken):
                files.put_back(taken, path, self._mode)
            return False

    def _deliver_taken(self, file: str, taken: str) -> bool:
        content, _ = files.read(taken, self._spool.max_page_bytes + 1)
        try:
            payload = self._foreign_payload(file, content)
        except BadPage as error:
            self.bury(taken, PageName(self.next_id(), 1), f"{file}: {error}")
            return True
        with self._lock:
            self._writing += 1  # it had its place in new/ already, so it is not refused for want of one
        with contextlib.suppress(DeliveredMaybe):  # then a reader has it, and putting the file back would double it
            at_once(self._write(payload, {}, lambda draft: self._link(draft, None), self._synced))
        files.remove(taken)
        self._spool.ring(self.number)  # who looks may only look, and a taker may have looked while it was in tmp/
        return True

    def _foreign_payload(self, file: str, content: bytes) -> str:
        if _ID.match(file):  # named like a page: a copy of one, and what counts is in it
            with contextlib.suppress(BadPage):
                return to_json(read_page(PageName(file[:16], 1), content).payload).decode()
        if len(content) > self._spool.max_message_bytes:
            raise BadPage(f"larger than {self._spool.max_message_bytes} bytes")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadPage(f"not UTF-8 at byte {error.start}") from None
        return payload_text(text)[0]

    def _leave(self, file: str, error: OSError) -> None:
        if file not in self._reported:
            log.warning("%s: %s in new/ is left alone: %s", self.number, file, error.strerror or error)
        self._reported |= {file}
        self.unreadable |= {file}

    def _settled(self, status: os.stat_result) -> bool:
        """Nobody wrote to the file lately; if somebody did, the time to look again is noted.

        An mtime far ahead was set by hand, at the end of a copy."""
        left = SETTLED_SECONDS - abs(time.time() - status.st_mtime)
        if left > 0:
            self.settles_at = min(self.settles_at, time.monotonic() + left)
        return left <= 0

    # Recovery, at first contact

    def _recover(self) -> int:
        """Mend what an unclean stop left, and return the newest id known (0 when there is none)."""
        if os.path.islink(self._new):
            raise OSError(errno.ELOOP, "a mailbox is a symbolic link, which the spool does not follow", self._new)
        here = [
            (state, name)
            for state, directory in (("new", self._new), ("leased", self._leased))
            for file in files.names(directory)
            if (name := PageName.parse(file)) and self._is_ours(name.id, f"{directory}/{file}")
        ]
        latest = {
            name.id: (state, name) for state, name in sorted(here, key=lambda page: (page[1].attempt, page[0] != "new"))
        }
        finished, newest = self._finished(min(latest, default=None))
        for state, name in here:
            path = self._at(state, name)
            later = finished.get(name.id) or self._at(*latest[name.id])
            if later != path and files.same(path, later):  # two names of one file; a copy is another page
                log.warning("%s: %s was there twice after an unclean stop; the later state stays", self.number, name.id)
                files.remove(path)
                continue
            with contextlib.suppress(OSError, BadPage):  # which is found out when it is read
                page = read_page(name, files.read(path, self._spool.max_page_bytes)[0])
                self.note_expiry(name.id, page.extra.get("expires_at"))
            if state == "leased":
                self.return_strange_lease(name)
        ids = [newest, *(int(id) for id in latest)]
        for due in self._spool.schedule.of(self.number):
            path = self._spool.path("scheduled", due.file)
            there = latest.get(due.page.id)
            moved_to = finished.get(due.page.id) or (self._at(*there) if there else None)
            if moved_to and files.same(path, moved_to):
                files.remove(path)
                self._spool.schedule.drop(due)
            elif self._is_ours(due.page.id, path):
                ids.append(int(due.page.id))
        return max(ids)

    def _finished(self, oldest: str | None) -> tuple[dict[str, str], int]:
        """The files in archive/ and dead/ of the days since `oldest`, by id, and the newest id there."""
        since = _day_of(int(oldest) / 1e6) if oldest else "9999"
        finished: dict[str, str] = {}
        for day in self._spool.days():
            if day < since and finished:
                break
            for state in ("archive", "dead"):
                folder = self._spool.path(state, day, self.number)
                finished |= {
                    file[:16]: f"{folder}/{file}"
                    for file in files.names(folder)
                    if _ID.match(file) and not file.endswith(".why")
                }
        return finished, max((int(id) for id, path in finished.items() if self._is_ours(id, path)), default=0)

    def _is_ours(self, id: str, path: str) -> bool:
        """Whether a file's id may be one that a relay gave out: it is not far ahead of the clock; or the clock went
        back, and it is not far ahead of the newest one known here, or of when the file was written."""
        if int(id) <= max(time.time_ns() // 1000, self._newest) + _FUTURE_MICROSECONDS:
            return True
        try:
            written = os.stat(path, follow_symlinks=False).st_mtime_ns // 1000
        except OSError:
            return False
        return int(id) <= written + _FUTURE_MICROSECONDS


def _day_of(seconds: float) -> str:
    """The name of a day's folders, by a time since 1970."""
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d}"
