"""How much there is in a spool, and where. Counted while pages move, so the sums are about right beside a relay."""

import collections
import contextlib
import heapq
import os
import time
from typing import Any

from pagermcp import files
from pagermcp.durations import in_words
from pagermcp.operator.beside import is_number
from pagermcp.spool import Spool
from pagermcp.spool.page import PageName
from pagermcp.spool.schedule import Due

_FULLEST = 10
_UNITS = ("B", "kB", "MB", "GB", "TB")


def stats(spool: Spool) -> dict[str, Any]:
    """Everything, for a program. Raises OSError."""
    states = {state: {"pages": 0, "bytes": 0} for state in ("waiting", "leased", "scheduled", "archived", "dead")}
    in_mailbox: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    oldest: tuple[float, str, str] | None = None
    mailboxes = 0

    def add(state: str, number: str, pages: int, size: int) -> None:
        states[state]["pages"] += pages
        states[state]["bytes"] += size
        if pages and state in ("waiting", "leased", "scheduled"):
            in_mailbox[number][state] += pages

    for number in filter(is_number, files.names(spool.path("new"))):
        mailboxes += 1
        pages, size, earliest = _count(spool.path("new", number))
        add("waiting", number, pages, size)
        if pages and (oldest is None or earliest < oldest[:2]):
            oldest = (*earliest, number)
    for number in filter(is_number, files.names(spool.path("leased"))):
        add("leased", number, *_count(spool.path("leased", number))[:2])
    for file in files.names(spool.path("scheduled")):
        if due := Due.parse(file):
            with contextlib.suppress(FileNotFoundError):
                add("scheduled", due.number, 1, os.lstat(spool.path("scheduled", file)).st_size)
    days = []
    for day in spool.days():
        sums = {"day": day, "archived": 0, "dead": 0, "bytes": 0}
        for top, state in (("archive", "archived"), ("dead", "dead")):
            for number in files.names(spool.path(top, day)):
                pages, size, _ = _count(spool.path(top, day, number))
                add(state, number, pages, size)
                sums[state] += pages  # type: ignore[operator]
                sums["bytes"] += size  # type: ignore[operator]
        days.append(sums)
    fullest = heapq.nlargest(_FULLEST, in_mailbox.items(), key=lambda item: (item[1].total(), item[0]))
    return {
        "spool": spool.root,
        "mailboxes": mailboxes,
        "rooms": len(files.names(spool.path("rooms"))),
        "pages": states,
        "oldest_waiting": oldest and {"number": oldest[2], "id": oldest[1], "age_seconds": _age(oldest[0])},
        "fullest": [
            {"number": number, **{state: held[state] for state in list(states)[:3]}} for number, held in fullest
        ],
        "days": days,
    }


def _count(folder: str) -> tuple[int, int, tuple[float, str]]:
    """The pages in a folder, their bytes, and since when the one has waited that waits longest, with its id."""
    pages = size = 0
    oldest = (time.time(), "")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name.endswith(".why"):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            pages += 1
            size += status.st_size
            name = PageName.parse(entry.name)
            if name:  # one that was to come later waits since it came; one that was given back, since it was sent
                since = status.st_mtime if name.attempt == 1 else int(name.id) / 1e6
                oldest = min(oldest, (since, name.id))
    return pages, size, oldest


def _age(since: float) -> int:
    return max(0, int(time.time() - since))


def table(found: dict[str, Any]) -> list[str]:
    """The same in lines, for people."""
    lines = [f"{found['spool']}: {found['mailboxes']} mailboxes, {found['rooms']} rooms", ""]
    lines += _columns(
        ["STATE", "PAGES", "SIZE"],
        [[state, one["pages"], in_bytes(one["bytes"])] for state, one in found["pages"].items()],
    )
    if oldest := found["oldest_waiting"]:
        lines += ["", f"longest waiting: {oldest['id']} of {oldest['number']}, {in_words(oldest['age_seconds'])}"]
    if found["fullest"]:
        rows = [list(one.values()) for one in found["fullest"]]
        lines += ["", *_columns(["FULLEST", "WAITING", "LEASED", "SCHEDULED"], rows)]
    if found["days"]:
        rows = [[one["day"], one["archived"], one["dead"], in_bytes(one["bytes"])] for one in found["days"]]
        lines += ["", *_columns(["DAY", "ARCHIVED", "DEAD", "SIZE"], rows)]
    return lines


def in_bytes(size: float) -> str:
    """About so much, for people."""
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"


def _columns(titles: list[str], rows: list[list[Any]]) -> list[str]:
    lines = [titles, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
