"""What is wrong in a spool. Beside a relay pages move meanwhile, so only what several looks have found is told."""

import collections
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pagermcp import files
from pagermcp.operator.beside import ANY_SIZE, LOCK, is_number
from pagermcp.spool import BadPage, Spool
from pagermcp.spool.notes import read_note
from pagermcp.spool.page import PageName, read_page
from pagermcp.spool.schedule import Due
from pagermcp.spool.sending import KEY_HOURS
from pagermcp.spool.spool import _DAY, _DIRECTORIES, _LEFT_OVER_SECONDS, _LOCKS
from pagermcp.spool.whereabouts import _ENDED, find

SETTLED_SECONDS = 60.0
"""What the relay makes in several steps, or a shell copies here, is left alone for so long."""

_FORGOTTEN_SECONDS = (KEY_HOURS + 2) * 3600.0  # then a janitor would have removed a sender's keys
_LOOKS = 3
_PAUSE_SECONDS = 0.3
_TOP_FILES = {"FORMAT", "relay.lock", "janitor.lock", "janitor.last"}
_STATES = {"new": "waiting", "leased": "leased", "archive": "archived", "dead": "dead"}
_RANKS = {"scheduled": 0, "waiting": 1, "leased": 1, "archived": 2, "dead": 2}
_NOTES = {
    "keys": re.compile(r"[0-9a-f]{64}\.(json|pending)", re.ASCII),
    "runs": re.compile(r"[0-9a-f]{64}\.json", re.ASCII),
    "rooms": re.compile(r"cleared", re.ASCII),
    "agents": re.compile(r"[a-z0-9._-]{1,64}\.json", re.ASCII),
}
_STRAY = ("is nothing of a spool", "move it away")


class Finding(NamedTuple):
    """Something that is wrong. remedy: what to do; mend: what `repair` does, if it may; number: the mailbox's, if it is
    in one; other: a second file that it is about."""

    path: str
    what: str
    remedy: str
    mend: str = ""
    number: str = ""
    other: str = ""


class _File(NamedTuple):
    state: str
    name: PageName
    path: str
    status: os.stat_result

    @property
    def rank(self) -> tuple[int, int, bool]:
        """How late in a page's life it is; as the relay has it."""
        return _RANKS[self.state], self.name.attempt, self.state != "waiting"


class Examination:
    """One examination of a spool. mailboxes, pages: how many were looked at."""

    def __init__(self, spool: Spool) -> None:
        self.pages = 0
        self._spool = spool
        self._folders: dict[str, list[tuple[str, str]]] = {}  # what each mailbox has: (new, keys and so on, path)
        self._scheduled: dict[str, list[Due]] = {}
        self._outside: list[Finding] = []  # of mailboxes

    @property
    def mailboxes(self) -> int:
        return len(self._folders)

    def findings(self) -> list[Finding]:
        """All that is wrong. Raises OSError."""
        self._list()
        found = {number: seen for number in ["", *self._folders] if (seen := set(self._look(number)))}
        pages = self.pages
        for _ in range(_LOOKS - 1):
            if found:
                time.sleep(_PAUSE_SECONDS)
                self._list()
            found = {number: again for number, seen in found.items() if (again := seen & set(self._look(number)))}
        self.pages = pages
        return sorted(finding for seen in found.values() for finding in seen)

    def _look(self, number: str) -> Iterable[Finding]:
        return self._mailbox(number) if number else self._outside

    # The spool

    def _list(self) -> None:
        """List all mailboxes, and look at what is in none."""
        self._folders, self._scheduled = collections.defaultdict(list), collections.defaultdict(list)
        root = self._spool.root
        self._outside = list(self._strays(root, {*_DIRECTORIES, *_TOP_FILES, "README.md", "lost+found"}))
        for top in _DIRECTORIES:
            self._outside += self._folder(self._spool.path(top))
        self._outside += self._files(root, _TOP_FILES)
        locks = [*(f".lock-{shard:02x}" for shard in range(_LOCKS)), ".lock-relief", LOCK]
        self._outside += self._files(f"{root}/keys", locks)
        for top in ("new", "leased", "keys", "runs", "rooms"):
            self._list_mailboxes(top, f"{root}/{top}")
        for top in ("archive", "dead"):
            self._outside += self._strays(f"{root}/{top}", {}, _DAY)
            for day in filter(_DAY.fullmatch, _names(f"{root}/{top}")):
                problems = list(self._folder(f"{root}/{top}/{day}"))
                self._outside += problems
                if not any(problem.mend == "" for problem in problems):
                    self._list_mailboxes(top, f"{root}/{top}/{day}")
        for file in _names(f"{root}/scheduled"):
            due = Due.parse(file)
            if due and is_number(due.number):
                self._scheduled[due.number].append(due)
                self._folders[due.number] += []
            else:
                self._outside.append(Finding(f"{root}/scheduled/{file}", *_STRAY))
        for name in _names(f"{root}/read"):
            if is_number(name):
                self._outside += self._files(f"{root}/read", [name])
            else:
                self._outside.append(Finding(f"{root}/read/{name}", *_STRAY))
        self._outside += self._left_over()

    def _list_mailboxes(self, top: str, folder: str) -> None:
        for name in _names(folder):
            if is_number(name):
                self._folders[name].append((top, f"{folder}/{name}"))
            elif top == "new" and os.path.isfile(f"{folder}/{name}"):
                remedy = f"to send it, move it into a mailbox's folder: {folder}/<number>/"
                self._outside.append(Finding(f"{folder}/{name}", "is in no mailbox", remedy))
            else:
                remedy = "if it was meant as a mailbox, what `pagermcp number` prints is its name; or move it away"
                self._outside.append(Finding(f"{folder}/{name}", "is not named by a number", remedy))

    def _strays(self, folder: str, known: Iterable[str], pattern: re.Pattern[str] | None = None) -> Iterator[Finding]:
        for name in _names(folder):
            if name not in known and not (pattern and pattern.fullmatch(name)):
                yield Finding(f"{folder}/{name}", *_STRAY)

    def _left_over(self) -> Iterator[Finding]:
        for name in _names(self._spool.path("tmp")):
            path = self._spool.path("tmp", name)
            status = _status(path)
            if status and _age(status) > _LEFT_OVER_SECONDS:
                if stat.S_ISREG(status.st_mode):
                    yield Finding(path, "was left by something that was killed", "it may go", "left over")
                else:
                    yield Finding(path, *_STRAY)

    # One mailbox

    def _mailbox(self, number: str) -> Iterator[Finding]:
        pages: dict[str, list[_File]] = collections.defaultdict(list)
        for top, folder in self._folders.get(number, ()):
            problems = list(self._folder(folder))
            yield from (problem._replace(number=number) for problem in problems)
            names = [] if any(problem.mend == "" for problem in problems) else _names(folder)
            for file in names:
                if top in _STATES:
                    match = _ENDED.fullmatch(file)
                    name = PageName.parse_handle(match[1]) if match and (not match[2] or top == "archive") else None
                    yield from self._page(number, _STATES[top], name, f"{folder}/{file}", pages)
                else:
                    yield from self._note(number, top, f"{folder}/{file}")
            if top == "keys":
                yield from self._forgotten(number, folder, names)
        for due in self._scheduled.get(number, ()):
            yield from self._page(number, "scheduled", due.page, self._spool.path("scheduled", due.file), pages)
        for files_of_one in pages.values():
            if len(files_of_one) > 1:
                yield from _doubled(number, files_of_one)

    def _page(
        self, number: str, state: str, name: PageName | None, path: str, pages: dict[str, list[_File]]
    ) -> Iterator[Finding]:
        status = _status(path)
        if status is None:
            return
        brought = state == "waiting" and (name is None or status.st_uid != os.geteuid())
        if state == "dead" and path.endswith(".why"):
            if not os.path.lexists(path.removesuffix(".why") + ".json") and _age(status) > _LEFT_OVER_SECONDS:
                yield Finding(path, "is the reason for a dead page that is not there", "rm it", number=number)
            return
        if name is None and not brought:
            yield Finding(path, *_STRAY, number=number)
            return
        problems = [] if brought and stat.S_ISREG(status.st_mode) else list(self._access(path, status, False))
        yield from (problem._replace(number=number) for problem in problems)
        if any(problem.mend == "" or not status.st_mode & 0o400 for problem in problems):
            return
        if name and not brought:
            self.pages += 1
            pages[name.id].append(_File(state, name, path, status))
        try:
            content, _ = files.read(path, 0 if brought or state == "dead" else ANY_SIZE)
            if name and not brought and state != "dead":
                run = read_page(name, content).extra.get("run")
                if state == "scheduled" and name.attempt == 1 and isinstance(run, str):
                    yield from self._switch(number, path, run, status)
        except FileNotFoundError:
            return
        except BadPage as error:
            if _age(status) > SETTLED_SECONDS:
                yield Finding(path, f"is no page ({error})", "look at it, and move it away", "bury", number)
        except OSError as error:
            remedy = f"give it to uid {os.geteuid()} with chown, or move it away"
            yield Finding(path, f"can't be read ({error.strerror or error})", remedy, number=number)

    def _switch(self, number: str, path: str, run: str, status: os.stat_result) -> Iterator[Finding]:
        record = _note(self._spool.path("runs", number, f"{os.path.basename(run)}.json"))
        if (record or {}).get("switch") != os.path.basename(path) and _age(status) > SETTLED_SECONDS:
            yield Finding(path, "is the alarm of a run that does not name it", "it may go", "bury", number)

    def _note(self, number: str, top: str, path: str) -> Iterator[Finding]:
        name = os.path.basename(path)
        if top == "rooms" and name == "agents":
            for agent in os.listdir(path) if os.path.isdir(path) else ():
                yield from self._note(number, "agents", f"{path}/{agent}")
            problems = self._folder(path)
        elif not _NOTES[top].fullmatch(name):
            problems = iter([Finding(path, *_STRAY)])
        else:
            problems = self._files(os.path.dirname(path), [name])
        found = list(problems)
        yield from (problem._replace(number=number) for problem in found)
        if found or name == "agents":
            return
        try:
            record = read_note(path)
        except OSError as error:
            yield Finding(path, f"can't be read ({error.strerror or error})", "move it away", number=number)
            return
        status = _status(path)
        if top == "runs" and record and status and _age(status) > SETTLED_SECONDS:
            due = Due.parse(str(record.get("switch", "")))
            if due is None or due.number != number:
                yield Finding(path, "is a run that names no alarm of this mailbox", "move it away", number=number)
            elif due.micros > time.time_ns() // 1000 and find(self._spool, number, due.page.id) is None:
                what = f"is a run whose alarm has gone ({due.file}), so that nothing would say it is lost"
                yield Finding(path, what, "have it report again", "forget run", number)

    def _forgotten(self, number: str, folder: str, names: list[str]) -> Iterator[Finding]:
        """Keys without a mailbox, which a janitor that runs would have removed."""
        if os.path.lexists(self._spool.path("new", number)):
            return
        statuses = [_status(path) for path in [folder, *(f"{folder}/{name}" for name in names)]]
        if all(status and time.time() - status.st_mtime > _FORGOTTEN_SECONDS for status in statuses):
            yield Finding(
                folder, "has idempotency keys of a mailbox that is not there", "they may go", "forget", number
            )

    # Files and folders

    def _folder(self, path: str) -> Iterator[Finding]:
        if status := _status(path):
            yield from self._access(path, status, True)

    def _files(self, folder: str, names: Iterable[str]) -> Iterator[Finding]:
        for name in names:
            if status := _status(f"{folder}/{name}"):
                yield from self._access(f"{folder}/{name}", status, False)

    def _access(self, path: str, status: os.stat_result, folder: bool) -> Iterator[Finding]:
        """Whether it is a file or folder of ours, and for whom."""
        wanted = self._spool.directory_mode if folder else self._spool.file_mode
        least = wanted & 0o700
        mode = stat.S_IMODE(status.st_mode) & 0o777
        if stat.S_ISLNK(status.st_mode):
            yield Finding(path, "is a symbolic link, which a spool does not follow", "put what it names in its place")
        elif not (stat.S_ISDIR if folder else stat.S_ISREG)(status.st_mode):
            yield Finding(path, f"is no {'folder' if folder else 'regular file'}", "move it away")
        elif status.st_uid != os.geteuid():
            remedy = f"chown {os.geteuid()} it, as root, or move it away"
            yield Finding(path, f"belongs to uid {status.st_uid}", remedy)
        elif mode & ~wanted or mode & least != least:
            yield Finding(path, f"has the mode {mode:04o}", f"chmod {wanted:o} it", "mode")


def _doubled(number: str, places: list[_File]) -> Iterator[Finding]:
    *others, kept = sorted(places, key=lambda place: place.rank)
    for place in others:
        if (place.status.st_ino, place.status.st_dev) != (kept.status.st_ino, kept.status.st_dev):
            may = [one for one in (place, kept) if one.state in ("waiting", "archived", "dead")]
            one, other = (may[0], kept if may[0] is place else place) if may else (place, kept)
            what = f"is another page with the same id as {other.path}"
            yield Finding(one.path, what, "move one of them away", "new id" if may else "", number)
        elif place.status.st_nlink > 1 and kept.status.st_nlink > 1:  # or else it has moved from here to there
            yield Finding(place.path, f"is also in a later place: {kept.path}", "rm it", "unlink", number, kept.path)


def _names(path: str) -> list[str]:
    try:
        return files.names(path)
    except PermissionError:  # of a folder whose mode is told
        return []


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, PermissionError):  # the latter: of a folder whose mode is told
        return None


def _note(path: str) -> dict[str, object] | None:
    try:
        return read_note(path)
    except OSError:
        return None


def _age(status: os.stat_result) -> float:
    """Seconds since the last change, also of its name: what was moved here may have an old mtime."""
    return time.time() - max(status.st_mtime, status.st_ctime)
