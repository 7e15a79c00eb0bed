"""Where a page is: in which of the spool's directories, and by what outcome."""

import contextlib
import datetime
import functools
import hashlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pagermcp import files
from pagermcp.spool.page import MTIME_GRAIN_NS, Page, PageName, read_page
from pagermcp.spool.schedule import Due

if TYPE_CHECKING:
    from pagermcp.spool.spool import Spool

FOLDERS = {"waiting": "new", "leased": "leased", "scheduled": "scheduled", "archived": "archive", "dead": "dead"}
STATES = tuple(FOLDERS)
ANY = "any"
_ENDED_STATES = ("archived", "dead")
_ENDED = re.compile(r"([0-9.]+)(?:\.(expired|replaced|cleared))?\.json", re.ASCII)


class Place(NamedTuple):
    """One page's file. outcome: of an archived page, how it ended."""

    name: PageName
    state: str
    path: str
    outcome: str | None = None
    due: datetime.datetime | None = None

    def read(self, spool: "Spool") -> tuple[Page, datetime.datetime]:
        """The page and its file's mtime: when a lease ends, or when the page was archived. Raises OSError, BadPage."""
        content, status = files.read(self.path, spool.max_page_bytes)
        return read_page(self.name, content), datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC)

    def why(self) -> str | None:
        """The reason beside a dead page."""
        return files.reason_beside(self.path)


def find(spool: "Spool", number: str, id: str) -> Place | None:
    """Where the page with this id is, in this mailbox; None when it is nowhere. Raises OSError."""
    day = datetime.datetime.fromtimestamp(int(id) / 1e6, datetime.UTC) - datetime.timedelta(days=1)
    for since in (f"{day:%Y-%m-%d}", f"{day:%Y-%m-%d}", ""):  # the last one for a clock that was set back
        for state in STATES:  # more than once, since it may move from a place not looked at yet to one that was
            for place in _places(spool, number, state, since, lambda name: name.startswith(id)):
                return place
    return None


def listing(
    spool: "Spool",
    number: str,
    state: str,
    most: int | None = None,
    *,
    since: str | None = None,
    before: str | None = None,
) -> list[Place]:
    """The pages of a mailbox in one state, or in ANY, by id: the first ones with a higher id than `since`; without it
    the last ones (with a lower id than `before`). All by default. Raises OSError."""

    def wanted(file: str) -> bool:
        return (since is None or file[:16] > since) and (before is None or file[:16] < before)

    first = since is not None
    found: dict[str, Place] = {}
    # one that moves on meanwhile is met twice, and was later where it was met later; leased ones may be given back
    for one in (*STATES, "waiting") if state == ANY else (state,):
        found |= {place.name.id: place for place in _places(spool, number, one, "", wanted, most, first)}
    places = sorted(found.values())
    return places[:most] if first or most is None else places[-most:]


def counts(spool: "Spool", number: str) -> dict[str, int]:
    """How many pages of a mailbox are in each state. Raises OSError."""
    return {state: _count(spool, number, state) for state in STATES}


def _count(spool: "Spool", number: str, state: str) -> int:
    if state not in _ENDED_STATES:
        return sum(1 for _ in _places(spool, number, state, "", lambda name: True))
    total = 0
    for day in spool.days():
        folder = spool.path(FOLDERS[state], day, number)
        with contextlib.suppress(FileNotFoundError):
            mtime = os.stat(folder).st_mtime_ns
            just_now = abs(time.time_ns() - mtime) < MTIME_GRAIN_NS  # then it may change again and show the same mtime
            total += (_ended_in.__wrapped__ if just_now else _ended_in)(folder, mtime)
    return total


@functools.lru_cache(maxsize=4096)  # days that are over are most of an archive, and do not change
def _ended_in(folder: str, mtime: int) -> int:
    return sum(1 for file in files.names(folder) if _ended(file))


def _ended(file: str) -> tuple[PageName, str | None] | None:
    """The page whose file has this name, and the outcome in it."""
    match = _ENDED.fullmatch(file)
    name = PageName.parse_handle(match[1]) if match else None
    return (name, match[2]) if match and name else None


def mark(spool: "Spool", number: str) -> str:
    """A short text that is another one when pages have come, moved on, or got a longer lease. Reads no page, and costs
    the same however long the archive is. Raises OSError."""
    new, leased = spool.path("new", number), spool.path("leased", number)
    seen: list[object] = [spool.days(), spool.schedule.of(number)]
    # every move but those into and out of scheduled/ begins or ends in one of these folders
    for path in (new, leased, *(f"{leased}/{file}" for file in files.names(leased))):
        with contextlib.suppress(FileNotFoundError):
            mtime = os.stat(path).st_mtime_ns
            just_now = not spool.tells_changes_apart and abs(time.time_ns() - mtime) < MTIME_GRAIN_NS
            seen.append((path, mtime, just_now))  # what has changed just now may change again and show the same mtime
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:20]


def _places(
    spool: "Spool",
    number: str,
    state: str,
    day: str,
    wanted: Callable[[str], bool],
    most: int | None = None,
    first: bool = True,
) -> Iterator[Place]:
    """The pages in one state, since that day, with a wanted name: of each folder so many at most, its first or last."""
    if state == "scheduled":
        folder = spool.path("scheduled")
        for file in files.names(folder):
            due = Due.parse(file) if f"-{number}-" in file else None
            if due and due.number == number and wanted(due.page.file):
                yield Place(due.page, state, f"{folder}/{file}", due=due.at)
        return
    if state in _ENDED_STATES:
        folders = [spool.path(FOLDERS[state], one, number) for one in spool.days() if one >= day]
    else:
        folders = [spool.path(FOLDERS[state], number)]
    for folder in folders:
        in_order = sorted(
            filter(wanted, files.names(folder)), reverse=not first
        )  # a name is parsed when it is asked for
        pages = ((file, ended) for file in in_order if (ended := _ended(file)))
        for file, (name, how) in itertools.islice(pages, most):
            outcome = (how or "acknowledged") if state == "archived" else None
            yield Place(name, state, os.path.join(folder, file), outcome)
