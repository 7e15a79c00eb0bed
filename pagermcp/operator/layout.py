"""What belongs in a spool, by its path in there; for those who look at all of it, and follow no symbolic link."""

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator

from pagermcp import files
from pagermcp.address import NUMBER
from pagermcp.spool import Spool
from pagermcp.spool.page import HANDLE, PageName
from pagermcp.spool.spool import DAY, DIRECTORIES
from pagermcp.spool.whereabouts import listing

ANY_SIZE = 1 << 31
"""How much is read of a page here: what is too large is for the relay to say, which has its own settings."""

_N, _D, _H = NUMBER.pattern, DAY.pattern, HANDLE.pattern
_FOLDERS = rf"(?:new|leased|keys|runs|rooms)/{_N}|rooms/{_N}/agents|(?:archive|dead)/{_D}(?:/{_N})?"
_ENDED = rf"archive/{_D}/{_N}/{_H}(?:\.(?:expired|replaced|cleared))?"
_KINDS = {
    "folder": rf"{'|'.join(DIRECTORIES)}|{_FOLDERS}",
    "page": rf"(?:(?:(?:new|leased|dead/{_D})/{_N}/|scheduled/[0-9]{{16}}-{_N}-){_H}|{_ENDED})\.json",
    "why": rf"dead/{_D}/{_N}/{_H}\.why",
    "note": rf"(?:keys/{_N}/[0-9a-f]{{64}}\.(?:json|pending)|runs/{_N}/[0-9a-f]{{64}}\.json"
    rf"|rooms/{_N}/(?:cleared|agents/[a-z0-9._-]{{1,64}}\.json))",
    "mark": rf"read/{_N}",
    "brought": rf"new/{_N}/[^/.][^/]*",  # a file from a shell, which is not a page yet
    "draft": r"tmp/[^/]+",
    "own": r"FORMAT|relay\.lock|janitor\.(?:lock|last)",
}
_ANY = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()), re.ASCII)


def kind_of(path: str) -> str:
    """Which kind of file or folder may have this path; "" when there is none."""
    match = _ANY.fullmatch(path)
    return (match and match.lastgroup) or ""


def number_in(path: str) -> str:
    """The number of the mailbox to which a path belongs; "" when it belongs to none."""
    return match[0] if (match := NUMBER.search(path)) else ""


def name_in(path: str) -> PageName:
    """The page whose file has this path."""
    id, attempt, *_ = os.path.basename(path).rpartition("-")[2].split(".")
    return PageName(id, int(attempt) if attempt.isdecimal() else 1)


def walk(spool: Spool, names: Iterable[str], folder: str = "") -> Iterator[tuple[str, str, os.stat_result]]:
    """Files and folders with their paths, kinds and status: these, and all that is in such as may be in a spool."""
    for path in (f"{folder}{name}" for name in names):
        with contextlib.suppress(
            FileNotFoundError, PermissionError
        ):  # it has moved on; its folder's mode is to be told
            kind, status = kind_of(path), os.lstat(spool.path(path))
            yield path, kind, status
            if kind == "folder" and stat.S_ISDIR(status.st_mode):
                yield from walk(spool, files.names(spool.path(path)), f"{path}/")


def files_of(spool: Spool, number: str) -> list[str]:
    """The paths of all files of a mailbox: its alarms first, then the runs that name them. Raises OSError."""
    ended = [f"{top}/{day}" for day in spool.days() for top in ("archive", "dead")]
    folders = [spool.path(top, number) for top in ("runs", "keys", "rooms", "new", "leased", *ended)]
    found = [place.path for place in listing(spool, number, "scheduled")]
    found += [path] if os.path.lexists(path := spool.path("read", number)) else []
    for folder in (*folders, spool.path("rooms", number, "agents")):
        if os.path.realpath(folder) == folder and os.path.isdir(folder):
            paths = (f"{folder}/{name}" for name in os.listdir(folder))  # an agent's may begin with a dot
            found += [path for path in paths if os.path.islink(path) or not os.path.isdir(path)]
    return found
