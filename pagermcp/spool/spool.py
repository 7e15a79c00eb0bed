"""The spool: the directory that holds every mailbox, opened once a process.

It is made, checked and mended here; what happens to pages is in `mailbox.py`.
"""

import contextlib
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable

from pagermcp.spool import files
from pagermcp.spool.mailbox import Mailbox
from pagermcp.spool.page import PageName

FORMAT = "pagermcp spool 1"
GUIDE = f"""{FORMAT}

new/<number>/<id>.json                   waiting; one directory a mailbox
leased/<number>/<id>.json                being handed to a reader; mtime is when that lease runs out
archive/<YYYY-MM-DD>/<number>/<id>.json  taken by a reader that day (UTC); <id>.expired.json came too late for it
dead/<YYYY-MM-DD>/<number>/<id>.json     was no page, or handed out five times in vain; <id>.why says it
tmp/                                     being written
relay.lock, janitor.lock                 held by the relay, and by the process that tidies up; janitor.last: when it did

An id is the time of arrival in microseconds since 1970. <id>.2.json is the second attempt to hand a page out.
A JSON file moved into new/<number>/ is a page: mv page.json new/<number>/
Look with ls and cat. Pages may be removed with rm; the relay minds neither.
"""

_DIRECTORIES = ("new", "leased", "archive", "dead", "tmp")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_ADOPTED = "adopt-"
_ADOPTED_NAME = re.compile(rf"{_ADOPTED}([0-9a-f-]{{36}})-(.+)", re.ASCII)
_LEFT_OVER_SECONDS = 600
_MIN_FREE_INODES = 1000
_RETRY_SECONDS = 60.0
_MAY_BE_THERE = {"README.md", "lost+found", *_DIRECTORIES}  # in a folder that is to become a spool

log = logging.getLogger(__name__)


class SpoolRefused(Exception):
    """The folder can't serve as a spool. The message is one line: what, where, and how to mend it."""


class SpoolFull(Exception):
    """There is too little room on the disk to accept a page. The message says how much."""


class Spool:
    """A spool directory, made when it is missing. Raises SpoolRefused.

    max_messages: pages in one mailbox; max_message_bytes: of a body; min_free_bytes: kept free on the disk;
    worker: 0 to 15, different in each process on one spool."""

    def __init__(
        self,
        root: str,
        *,
        max_messages: int = 128,
        max_message_bytes: int = 65536,
        min_free_bytes: int = 0,
        worker: int = 0,
    ) -> None:
        self.root = os.path.realpath(root)
        self.max_messages = max_messages
        self.max_message_bytes = max_message_bytes
        self.max_page_bytes = 6 * max_message_bytes + 1024  # a text of control characters takes six bytes for each
        self.worker = worker
        self.pressed = threading.Event()  # the disk gets full: the janitor should look
        self.make_room: Callable[[], None] = lambda: None  # what the janitor does about it, in the process that has him
        self.leases: dict[tuple[str, PageName], float] = {}  # given out or found by this process: monotonic end
        self._min_free_bytes = min_free_bytes
        self._mailboxes: dict[str, Mailbox] = {}
        self._lock = threading.Lock()
        try:
            self._open()
        except OSError as error:
            raise SpoolRefused(self._reason(error)) from error

    def path(self, *parts: str) -> str:
        """The absolute path of something in the spool."""
        return "/".join((self.root, *parts))

    def mailbox(self, number: str) -> Mailbox:
        """The mailbox of a number, mended at first contact; its directory may not be there yet. Raises OSError."""
        mailbox = self._mailboxes.get(number)
        if mailbox is None:
            with self._lock:
                mailbox = self._mailboxes.get(number) or Mailbox(self, number)
                self._mailboxes[number] = mailbox
        return mailbox

    def forget_removed(self, waiting: Callable[[str], int]) -> None:
        """Drop what is remembered of mailboxes that are not there (any more); the next use is a first contact again.

        waiting: says how many wait for a number. Those have the mailbox in their hands, so it stays the one."""
        for number in list(self._mailboxes):
            if not waiting(number) and not os.path.lexists(self.path("new", number)):
                self._mailboxes.pop(number, None)

    def temporary(self, adopted: tuple[str, str] | None = None) -> str:
        """A new path in tmp/; for a file taken from a mailbox (number, name), one from which it can be put back."""
        if adopted is None:
            return self.path("tmp", secrets.token_hex(8))
        number, name = adopted
        return self.path("tmp", _ADOPTED + number + "-" + (name if PageName.parse(name) else secrets.token_hex(8)))

    def days(self) -> list[str]:
        """The day folders of archive/ and dead/, latest first."""
        names = {*files.names(self.path("archive")), *files.names(self.path("dead"))}
        return sorted(filter(_DAY.fullmatch, names), reverse=True)

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
        if disk.f_files and disk.f_favail < times * _MIN_FREE_INODES:  # btrfs counts no inodes
            return f"{disk.f_favail} inodes are free on the spool's disk and {_MIN_FREE_INODES} are kept free"
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

    def return_run_out(self) -> set[str]:
        """Let pages whose lease ran out wait again; the numbers of their mailboxes."""
        numbers = set()
        for (number, name), end in list(self.leases.items()):
            if end <= time.monotonic():
                try:
                    if self.mailbox(number).return_lease(name):
                        numbers.add(number)
                except OSError as error:  # it is tried again; meanwhile it must not hold up the others
                    log.warning("%s: %s ran out but could not be returned: %s", number, name.handle, error)
                    self.leases[number, name] = time.monotonic() + _RETRY_SECONDS
        return numbers

    def recover(self) -> None:
        """Clear tmp/ of what an unclean stop left. Only for who serves the spool alone. Raises OSError."""
        for name in files.names(self.path("tmp")):
            path = self.path("tmp", name)
            try:
                if adopted := _ADOPTED_NAME.fullmatch(name):
                    files.put_back(path, self.path("new", *adopted.groups()), self.directory_mode)
                elif abs(time.time() - os.stat(path, follow_symlinks=False).st_mtime) > _LEFT_OVER_SECONDS:
                    files.remove(path)
            except OSError as error:  # not ours, then; it must not keep the relay from starting
                log.warning("%s is left alone: %s", path, error.strerror)

    @property
    def unreadable(self) -> int:
        """Files in mailboxes that can be no pages and are left alone, as last seen."""
        return sum(len(mailbox.unreadable) for mailbox in list(self._mailboxes.values()))

    def _open(self) -> None:
        os.makedirs(self.root, 0o700, exist_ok=True)
        current = self._read_format()
        mode = os.stat(self.root).st_mode
        if current is None and mode & 0o007:
            mode = 0o700  # a new spool is for its owner; who widens it later is followed
            os.chmod(self.root, mode)
        self.directory_mode = 0o700 | mode & 0o070
        self.file_mode = 0o600 | mode & 0o040
        for name in _DIRECTORIES:
            files.make_directory(self.path(name), self.directory_mode)
            if os.stat(self.path(name)).st_dev != os.stat(self.root).st_dev:
                raise SpoolRefused(f"{self.path(name)} is on another disk; a page can't be moved there in one step")
        if current != GUIDE:
            temporary = self.temporary()
            files.write(temporary, GUIDE.encode(), self.file_mode)
            os.rename(temporary, self.path("FORMAT"))
        files.sync_directory(self.root)
        try:
            self.probe()
        except OSError as error:
            reason = f"{self.root} can't hold pages: {error.strerror or error}; it needs hard links and fsync"
            raise SpoolRefused(reason) from error

    def _read_format(self) -> str | None:
        try:
            content = files.read(self.path("FORMAT"), 65536)[0].decode(errors="replace")
        except FileNotFoundError:
            strangers = [name for name in files.names(self.root) if name not in _MAY_BE_THERE]
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

    def _reason(self, error: OSError) -> str:
        path = error.filename or self.root
        reason = f"{path}: {error.strerror or error}"
        if isinstance(error, PermissionError):
            with contextlib.suppress(OSError):
                owner = os.stat(self.root).st_uid
                reason += f" (it belongs to uid {owner}, the relay runs as {os.geteuid()}): "
                reason += f"chown -R {os.geteuid()} {self.root}"
        return reason
