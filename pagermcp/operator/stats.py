"""How much there is in a spool, and where. Counted while pages move, so the sums are about right beside a relay."""

import collections
import heapq
import time
from typing import Any

from pagermcp.client import show
from pagermcp.durations import in_words
from pagermcp.operator.layout import name_in, number_in, walk
from pagermcp.spool import Spool
from pagermcp.spool.whereabouts import FOLDERS

_FULLEST = 10
_STATES = {top: state for state, top in FOLDERS.items()}
_LIVE = ("waiting", "leased", "scheduled")


def stats(spool: Spool) -> dict[str, Any]:
    """Everything, for a program. Raises OSError."""
    pages = {state: {"pages": 0, "bytes": 0} for state in FOLDERS}
    days: dict[str, dict[str, Any]] = {}
    held: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    oldest = (time.time(), "", "")
    boxes = [0, 0]
    for path, kind, status in walk(spool, _STATES):
        top, inside, *_ = [*path.split("/"), ""]
        state, number = _STATES[top], number_in(path)
        if kind == "folder" and top == "new" and number:
            boxes[spool.is_room(number)] += 1
        if kind != "page":
            continue
        pages[state]["pages"] += 1
        pages[state]["bytes"] += status.st_size
        if state in _LIVE:
            held[number][state] += 1
        else:
            day = days.setdefault(inside, {"day": inside, "archived": 0, "dead": 0, "bytes": 0})
            day[state] += 1
            day["bytes"] += status.st_size
        if state == "waiting":  # one that was to come later since it came; one that was given back, since it was sent
            name = name_in(path)
            oldest = min(oldest, (status.st_mtime if name.attempt == 1 else int(name.id) / 1e6, name.id, number))
    since, id, number = oldest
    fullest = heapq.nlargest(_FULLEST, held, key=lambda number: (held[number].total(), number))
    return {
        "spool": spool.root,
        "mailboxes": boxes[False],
        "rooms": boxes[True],
        "pages": pages,
        "oldest_waiting": {"number": number, "id": id, "age_seconds": int(max(0, time.time() - since))} if id else None,
        "fullest": [{"number": number} | {state: held[number][state] for state in _LIVE} for number in fullest],
        "days": [days[day] for day in sorted(days, reverse=True)],
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""

    def table(titles: str, rows: list[list[Any]]) -> list[str]:
        return ["", *show.table(titles.split(), [list(map(str, row)) for row in rows])] if rows else []

    told = [f"{found['spool']}: {found['mailboxes']} mailboxes, {found['rooms']} rooms"]
    told += table("STATE PAGES BYTES", [[state, *one.values()] for state, one in found["pages"].items()])
    if oldest := found["oldest_waiting"]:
        told += ["", f"longest waiting: {oldest['id']} of {oldest['number']}, {in_words(oldest['age_seconds'])}"]
    told += table("FULLEST WAITING LEASED SCHEDULED", [list(one.values()) for one in found["fullest"]])
    return told + table("DAY ARCHIVED DEAD BYTES", [list(one.values()) for one in found["days"]])
