"""A mailbox as lines of JSON: what belongs to it, its pages, and a last line that says it is whole.

    {"number":…,"state":"room"}                                             only of a room
    {"number":…,"state":"note","name":"runs/<sha256>.json","note":{…}}      keys, runs, what a room remembers
    {"number":…,"state":…,"id":…,"attempt":…,"at":…,…,"page":{…}}           as it stands in its file
    {"number":…,"state":"end","pages":…}

at: the file's mtime, which says when a lease ends, or when a page was archived. A file that is no page has "base64"
instead of "page". The notes come first: a relay forgets a switch that no run names.
"""

import base64
import contextlib
import datetime
import os
import time
from collections.abc import Iterator

from pagermcp import files
from pagermcp.operator.beside import ANY_SIZE
from pagermcp.spool import BadPage, Spool
from pagermcp.spool.notes import read_note
from pagermcp.spool.page import read_page, timestamp, to_json
from pagermcp.spool.whereabouts import STATES, Place, find, listing

NOTE_FOLDERS = ("keys", "runs", "rooms", "rooms/agents")
_QUIET_PASSES = 3
_MOST_PASSES = 100
_READ_TRIES = 10


def export(spool: Spool, number: str) -> Iterator[bytes]:
    """The lines of one mailbox: each page once, that had come when this began. Raises OSError."""
    pages = 0
    if os.path.isdir(spool.path("rooms", number)):
        yield to_json({"number": number, "state": "room"}) + b"\n"
    for name in _notes(spool, number):
        if note := read_note(note_path(spool, number, name)):
            yield to_json({"number": number, "state": "note", "name": name, "note": note}) + b"\n"
    for _, place in sorted(pages_of(spool, number).items()):
        if line := _line(spool, number, place):
            pages += 1
            yield line
    yield to_json({"number": number, "state": "end", "pages": pages}) + b"\n"


def pages_of(spool: Spool, number: str) -> dict[str, Place]:
    """Where each page of a mailbox was last seen, by id.

    A page that moves between two looks may not be seen by either, so it is looked again until several looks in
    succession have found nothing more. What comes meanwhile is not waited for."""
    began = f"{time.time_ns() // 1000:016d}"
    found: dict[str, Place] = {}
    quiet = passes = 0
    while quiet < _QUIET_PASSES and passes < _MOST_PASSES:
        before = sum(id <= began for id in found)
        for state in STATES:
            found |= {place.name.id: place for place in listing(spool, number, state)}
        quiet = quiet + 1 if sum(id <= began for id in found) == before else 0
        passes += 1
    return found


def exists(spool: Spool, number: str) -> bool:
    """Whether anything here belongs to this number."""
    tops = ["new", "leased", "keys", "runs", "rooms"]
    tops += [f"{top}/{day}" for top in ("archive", "dead") for day in spool.days()]
    return any(os.path.isdir(spool.path(top, number)) for top in tops) or bool(listing(spool, number, "scheduled"))


def note_path(spool: Spool, number: str, name: str) -> str:
    """Where a note is that is named `keys/<file>`, `rooms/agents/<file>` and so on."""
    top, _, rest = name.partition("/")
    return spool.path(top, number, rest)


def _notes(spool: Spool, number: str) -> Iterator[str]:
    for folder in NOTE_FOLDERS:
        path = note_path(spool, number, folder)
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(path)):  # an agent's may begin with a dot
                if not os.path.isdir(f"{path}/{name}"):
                    yield f"{folder}/{name}"


def _line(spool: Spool, number: str, place: Place | None) -> bytes | None:
    """The line of one page, wherever it has moved meanwhile; None when it is gone."""
    for _ in range(_READ_TRIES):
        if place is None:
            return None
        try:
            content, status = files.read(place.path, ANY_SIZE)
        except FileNotFoundError:
            place = find(spool, number, place.name.id)
            continue
        moment = datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC)
        head = {"number": number, "state": place.state, "id": place.name.id, "attempt": place.name.attempt}
        more = {
            "at": timestamp(moment),
            "outcome": place.outcome,
            "due_at": timestamp(place.due) if place.due else None,
            "day": place.path.split("/")[-3] if place.state in ("archived", "dead") else None,
            "why": place.why() if place.state == "dead" else None,
        }
        head |= {name: value for name, value in more.items() if value is not None}
        try:
            read_page(place.name, content)
            page = content.strip().replace(b"\n", b" ").replace(b"\r", b" ")  # only one copied here by hand has any
            return to_json(head)[:-1] + b',"page":' + page + b"}\n"
        except BadPage:
            return to_json(head | {"base64": base64.b64encode(content).decode()}) + b"\n"
    raise OSError(f"{number}: {place.name.id if place else ''} moves too fast to be read")
