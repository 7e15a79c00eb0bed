"""The spool: the directory that holds every mailbox, opened once a process.

It is made, checked and mended here; what happens to pages is in `mailbox.py`.
"""

import contextlib
import errno
import logging
import math
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator

from filelock import BaseFileLock, FileLock, Timeout

from pagermcp import files, turn
from pagermcp.commit import Steps
from pagermcp.spool.agenda import Agenda, Entry
from pagermcp.spool.clock import Clock
from pagermcp.spool.mailbox import Mailbox
from pagermcp.spool.page import PageName
from pagermcp.spool.room import OPEN_ROOM, Room
from pagermcp.spool.runs import come_due
from pagermcp.spool.schedule import Due, Schedule

FORMAT = "pagermcp spool 1"
GUIDE = f"""{FORMAT}

new/<number>/<id>.json                   waiting; one directory a mailbox
leased/<number>/<id>.json                handed to a reader and not acknowledged; mtime is when that lease runs out
scheduled/<due>-<number>-<id>.json       not due yet: delayed pages, and what is paged unless a run reports in time
archive/<YYYY-MM-DD>/<number>/<id>.json  acknowledged that day (UTC); <id>.expired.json came too late for its reader,
                                         <id>.replaced.json was replaced by a newer one before it was read,
                                         <id>.cleared.json was cleared out of its room
dead/<YYYY-MM-DD>/<number>/<id>.json     was no page, or handed out five times in vain; <id>.why says it
keys/<number>/<sha256>.json              idempotency keys of the last 24 hours, with the page each one brought
runs/<number>/<sha256>.json              runs that are to report again, with the file in scheduled/ that says until when
read/<number>                            mtime is when the mailbox was last read
rooms/<number>/                          a room: agents/<name>.json, and cleared, the last message that was cleared away
tmp/                                     being written
relay.lock, janitor.lock                 held by the relay, and by the process that tidies up; janitor.last: when it did

An id is the time of arrival in microseconds since 1970. <id>.2.json is the second attempt to hand a page out. <due> is
a time as well.
A JSON file moved into new/<number>/ is a page: mv page.json new/<number>/
Look with ls and cat. Pages may be removed with rm; the relay minds neither.
"""

DIRECTORIES = ("new", "leased", "scheduled", "archive", "dead", "keys", "runs", "read", "rooms", "tmp")
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_ADOPTED = "adopt-"
_ADOPTED_NAME = re.compile(rf"{_ADOPTED}(?:([0-9a-f])-)?([0-9a-f-]{{36}})-(.+)", re.ASCII)
LEFT_OVER_SECONDS = 600
_RETRY_SECONDS = 60.0
_LOCKS = 256
_ALONE_PATIENCE_SECONDS = 3.0
_COUNT_SECONDS = 1.0
_COUNT_TIMES = 100  # counting mailboxes takes at most a hundredth of the time
_MANY = 10_000
MAY_BE_THERE = {"README.md", "lost+found", *DIRECTORIES}  # in a folder that is to become a spool

log = logging.getLogger(__name__)


class SpoolRefused(Exception):
    """The folder can't serve as a spool. The message is one line: what, where, and how to mend it."""


class SpoolFull(Exception):
    """There is too little room on the disk to accept a page. The message says how much."""


class Busy(Exception):
    """Others take too long with the same mailbox. Nothing was delivered."""

    def __str__(self) -> str:
        return "others were busy with the same mailbox for too long"


class Spool:
    """A spool directory, made when it is missing. Raises SpoolRefused.

    max_messages: pages in one mailbox; max_message_bytes: of a body; min_free_bytes, min_free_inodes: kept free on the
    disk; max_mailboxes: there may be, 0 for no limit; room_hours: how long a room's messages are active;
    worker: 0 to 15, different in each process on one spool; clock: one that watches for longer than this process lives;
    beside: only look into one that is there, which a relay may be serving; nothing is made by opening it.
    """

    def __init__(
        self,
        root: str,
        *,
        max_messages: int = 128,
        max_message_bytes: int = 65536,
        min_free_bytes: int = 0,
        min_free_inodes: int = 1000,
        max_mailboxes: int = 0,
        room_hours: float = 24,
        worker: int = 0,
        clock: Clock | None = None,
        beside: bool = False,
    ) -> None:
        self.root = os.path.realpath(root)
        self.max_messages = max_messages
        self.max_message_bytes = max_message_bytes
        self.max_page_bytes = 6 * max_message_bytes + 4096  # a text of control characters takes six bytes for each
        self.worker = worker
        self.pressed = threading.Event()  # the disk gets full: the janitor should look
        self.make_room: Callable[[], None] = lambda: None  # what the janitor does about it
        self.waiting: Callable[[str], int] = lambda number: 0  # who waits for a number
        self.ring: Callable[[str], None] = lambda number: None  # wakes who does: a page waits
        self.clock = clock or Clock()
        self.agenda = Agenda()
        self._min_free_bytes, self._min_free_inodes = min_free_bytes, min_free_inodes
        self._max_mailboxes = max_mailboxes
        self._count, self._count_again_at = 0, -math.inf
        self.room_hours = room_hours
        self._mailboxes: dict[str, Mailbox] = {}
        self._mailboxes_synced = -math.inf  # monotonic: when the latest sync of new/ began
        self._rooms: dict[str, Room] = {}
        self._forget_beyond = _MANY
        self._lock = threading.Lock()
        self._alone = [threading.Lock() for _ in range(_LOCKS)]
        self._beside = beside
        self.tells_changes_apart = self.nameless_drafts = False
        try:
            if beside:
                self._open_beside()
            else:
                self._open()
            self.schedule = Schedule(self.path("scheduled"), self.agenda, self.clock)
        except OSError as error:
            raise SpoolRefused(self.explain(error)) from error

    def path(self, *parts: str) -> str:
        """The absolute path of something in the spool."""
        return "/".join((self.root, *parts))

    def mailbox(self, number: str) -> Mailbox:
        """The mailbox of a number, mended at first contact; its directory may not be there yet. Raises OSError."""
        mailbox = self._mailboxes.get(number)
        if mailbox is None:
            if len(self._mailboxes) > self._forget_beyond:  # of strangers, perhaps, who ask for what is not there
                self.forget_removed()
                self._forget_beyond = 2 * len(self._mailboxes) + _MANY
            with self._lock:
                mailbox = self._mailboxes.get(number) or Mailbox(self, number)
                self._mailboxes[number] = mailbox
        return mailbox

    def room(self, number: str) -> Room:
        """The room of a number; the mailbox may not be one (`Room.exists`). Raises OSError."""
        mailbox = self.mailbox(number)
        with self._lock:
            room = self._rooms.get(number)
            if room is None or room.mailbox is not mailbox:
                room = self._rooms[number] = Room(self, mailbox)
            return room

    def is_room(self, number: str) -> bool:
        return number == OPEN_ROOM or files.is_directory(self.path("rooms", number))

    def has_place(self) -> bool:
        """Whether there may be one more mailbox, which is counted. What others make is seen at the next count."""
        if not self._max_mailboxes:
            return True
        began = time.monotonic()
        if began >= self._count_again_at:
            self._count_again_at = began + _COUNT_SECONDS  # at once, so that no other thread counts, too
            self._count = len(files.names(self.path("new")))
            took = time.monotonic() - began
            self._count_again_at = began + max(_COUNT_SECONDS, _COUNT_TIMES * took)
        self._count += 1
        return self._count <= self._max_mailboxes

    def forget_removed(self) -> None:
        """Drop what is remembered of mailboxes that are not there (any more); the next use is a first contact again.

        Who waits has the mailbox in his hands, so it stays the one."""
        for number in list(self._mailboxes):
            if not self.waiting(number) and not os.path.lexists(self.path("new", number)):
                self._mailboxes.pop(number, None)
                self._rooms.pop(number, None)

    def temporary(self, adopted: tuple[str, str] | None = None) -> str:
        """A new path in tmp/, which begins with the worker; for a file taken from a mailbox (number, name), one from
        which it can be put back."""
        token = f"{self.worker:x}{secrets.token_hex(8)[1:]}"
        if adopted is None:
            return self.path("tmp", token)
        number, name = adopted
        return self.path("tmp", f"{_ADOPTED}{self.worker:x}-{number}-{name if PageName.parse(name) else token}")

    def draft(self, content: bytes) -> files.Draft:
        """A page's file, not in any mailbox yet. Raises OSError."""
        path = self.path("tmp") + "/" if self.nameless_drafts else self.temporary()
        return files.Draft(path, content, self.file_mode, self.nameless_drafts)

    def mailboxes_synced(self, since: float) -> Steps[None]:
        """Make durable that those mailboxes are there which were there at this monotonic time. Raises OSError."""
        if self._mailboxes_synced <= since:
            began = time.monotonic()
            yield from files.directory_synced(self.path("new"))
            self._mailboxes_synced = began

    def days(self) -> list[str]:
        """The day folders of archive/ and dead/, latest first."""
        names = {*files.names(self.path("archive")), *files.names(self.path("dead"))}
        return sorted(filter(DAY.fullmatch, names), reverse=True)

    def check_room(self) -> None:
        """Raises SpoolFull when a page must be refused, and OSError when the disk does not answer."""
        if self.shortage(2):
            self.pressed.set()
            if self.shortage(1):
                self.make_room()
                if problem := self.shortage(1):
                    raise SpoolFull(problem)

    def shortage(self, times: int) -> str | None:
        """What the disk has too little of, to keep free `times` what is kept free; None when there is enough."""
        disk = os.statvfs(self.root)
        free = disk.f_bavail * disk.f_frsize
        if free < times * (self._min_free_bytes + self.max_page_bytes):
            return f"{free} bytes are free on the spool's disk and {self._min_free_bytes} are kept free"
        if disk.f_files and disk.f_favail < times * self._min_free_inodes:  # btrfs counts no inodes
            return f"{disk.f_favail} inodes are free on the spool's disk and {self._min_free_inodes} are kept free"
        return None

    def probe(self) -> None:
        """Write, sync, link, read and remove a file, as a page would be. Raises OSError."""
        written, linked = self.temporary(), self.temporary()
        content = written.encode()
        try:
            files.write(written, content, self.file_mode)
            files.link(written, linked)
            files.sync_directory(self.path("tmp"))
            if files.read(linked, len(content) + 1)[0] != content:
                raise OSError(f"what was written to {written} reads back differently")
        finally:
            with contextlib.suppress(OSError):  # then the error that brought us here says it better
                files.remove(linked)
                files.remove(written)

    @contextlib.contextmanager
    def alone(self, number: str, patience: float = _ALONE_PATIENCE_SECONDS) -> Iterator[None]:
        """Keep out all others, here and in other processes, who want to be alone with this mailbox: for several steps.

        Raises Busy when that takes too long, and OSError."""
        shard = int(number[-2:], 16)  # a lock file a mailbox could never be removed again without a race
        until = time.monotonic() + patience
        with turn.waiting():
            if not self._alone[shard].acquire(timeout=patience):
                raise Busy
        try:
            lock = self.lock(f"{shard:02x}", poll_seconds=0.001)
            try:
                with turn.waiting():
                    lock.acquire(timeout=max(0, until - time.monotonic()))
            except Timeout:
                raise Busy from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._alone[shard].release()

    def lock(self, name: str, poll_seconds: float) -> BaseFileLock:
        """A lock between processes. Raises FileNotFoundError when the spool has gone."""
        os.stat(self.path("FORMAT"))  # for a lock file FileLock makes all folders, also where a disk is not mounted now
        path = self.path("keys", f".lock-{name}")
        return FileLock(path, poll_interval=poll_seconds, mode=self.file_mode, fallback_to_soft=False)

    def come_due(self) -> set[str]:
        """Do what the agenda says; the numbers of the mailboxes in which pages wait by that."""
        numbers = set()
        for entry in self.agenda.take_due():
            try:
                if self._come_due(entry):
                    numbers.add(entry.number)
            except Exception as error:  # it is tried again; meanwhile it must not hold up the others
                known = isinstance(error, OSError | Busy)
                log.warning("%s: the time of %s has come, but: %s", entry.number, entry.file, error, exc_info=not known)
                self.agenda.put(entry, 1 if isinstance(error, Busy) else _RETRY_SECONDS)
        return numbers

    def _come_due(self, entry: Entry) -> bool:
        mailbox = self.mailbox(entry.number)
        if entry.what == "expiry":
            mailbox.expire_at_once(entry.file.removesuffix(".json"))
            return False
        if entry.what == "lease":
            name = PageName.parse(entry.file)
            return name is not None and mailbox.return_lease(name)
        due = Due.parse(entry.file)
        return due is not None and come_due(self, mailbox, due)

    def recover(self, worker: int | None = None) -> None:
        """Clear tmp/ of what an unclean stop left: all of it, which is only for who serves the spool alone, or what the
        worker with this number left, who is no more. Raises OSError."""
        whose = None if worker is None else f"{worker:x}"
        for name in files.names(self.path("tmp")):
            path = self.path("tmp", name)
            adopted = _ADOPTED_NAME.fullmatch(name)
            try:
                if whose:
                    done_with = whose == (adopted[1] if adopted else name[0])
                else:
                    done_with = adopted is not None or self._is_left_over(path)
                if done_with:
                    self.clear(name)
            except OSError as error:  # not ours, then; it must not keep the relay from starting
                log.warning("%s is left alone: %s", path, error.strerror)

    def clear(self, name: str) -> None:
        """Put a file in tmp/ back to where a shell brought it, or else remove it. Raises OSError."""
        path = self.path("tmp", name)
        if adopted := _ADOPTED_NAME.fullmatch(name):
            files.put_back(path, self.path("new", adopted[2], adopted[3]), self.directory_mode)
        else:
            files.remove(path)

    def _is_left_over(self, path: str) -> bool:
        return abs(time.time() - os.stat(path, follow_symlinks=False).st_mtime) > LEFT_OVER_SECONDS

    @property
    def unreadable(self) -> int:
        """Files in mailboxes that can be no pages and are left alone, as last seen."""
        return sum(len(mailbox.unreadable) for mailbox in list(self._mailboxes.values()))

    def _open(self) -> None:
        os.makedirs(self.root, 0o700, exist_ok=True)
        current = self._read_format()
        status = os.stat(self.root)
        others = status.st_mode & stat.S_ISVTX and status.st_uid != os.geteuid()  # as in an image, for any user
        if current is None and status.st_mode & 0o007 and not others:
            os.chmod(self.root, 0o700)  # a new spool is for its owner; who widens it later is followed
        self._follow_mode()
        for name in DIRECTORIES:
            files.make_directory(self.path(name), self.directory_mode)
            if os.stat(self.path(name)).st_dev != os.stat(self.root).st_dev:
                raise SpoolRefused(f"{self.path(name)} is on another disk; a page can't be moved there in one step")
        if current != GUIDE:
            files.write_over(self.path("FORMAT"), self.temporary(), GUIDE.encode(), self.file_mode)
        files.sync_directory(self.root)
        try:
            self.probe()
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EINVAL, errno.EMLINK):
                reason = f"{self.root} can't hold pages: {error.strerror}; it needs hard links and fsync"
                raise SpoolRefused(f"{reason}: name a folder on another disk with DATA_DIR") from error
            raise
        self.tells_changes_apart = files.tells_changes_apart(self.path("tmp"))
        self.nameless_drafts = files.drafts_need_no_name(self.path("tmp"))

    def _open_beside(self) -> None:
        if self._read_format() is None:
            raise SpoolRefused(f"{self.root} is no spool (it has no FORMAT): name another folder with DATA_DIR")
        for path in map(self.path, DIRECTORIES):
            if os.path.islink(path) or not os.path.isdir(path):
                raise SpoolRefused(f"{path} is no folder: a relay makes what is missing when it starts")
        self._follow_mode()

    def _follow_mode(self) -> None:
        mode = os.stat(self.root).st_mode
        group = 0 if mode & stat.S_ISVTX else mode & 0o070  # a folder for all, in which only we may touch what is ours
        self.directory_mode = 0o700 | group
        self.file_mode = 0o600 | group & 0o040

    def _read_format(self) -> str | None:
        try:
            content = files.read(self.path("FORMAT"), 65536)[0].decode(errors="replace")
        except FileNotFoundError:
            strangers = [name for name in files.names(self.root) if name not in MAY_BE_THERE]
            if strangers:
                raise SpoolRefused(
                    f"{self.root} is no spool (it has no FORMAT) and not empty (there is {strangers[0]}): "
                    "name another folder with DATA_DIR"
                ) from None
            return None
        if content.split("\n", 1)[0] != FORMAT:
            raise SpoolRefused(
                f"{self.path('FORMAT')} is not {FORMAT!r}: this spool is of another version; serve it with that one"
            )
        return content

    def explain(self, error: OSError) -> str:
        """One line for the operator: what failed, where, and how to mend it."""
        reason = f"{error.filename or self.root}: {error.strerror or error}"
        try:
            owner = os.stat(self.root).st_uid
        except OSError:
            return f"the spool {self.root} is gone: put it back, and restart the relay"
        if not os.path.exists(self.path("FORMAT")) and isinstance(error, FileNotFoundError):
            return f"what was in the spool {self.root} is gone: put it back, and restart the relay"
        if isinstance(error, PermissionError):
            if self._beside:
                return f"{reason}: run this as root, or as uid {owner}, to whom the spool belongs"
            user = os.geteuid()
            return f"{reason} (it belongs to uid {owner}, the relay runs as {user}): chown -R {user} {self.root}"
        if error.errno == errno.EROFS:
            return f"{reason} (it belongs to uid {owner}): mount {self.root} for writing"
        if error.errno in files.DISK_FULL:
            return f"{reason}: make room there"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return f"{reason}: let the relay have more, with ulimit -n or LimitNOFILE="
        return reason
