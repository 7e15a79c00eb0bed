"""Moves a mailbox to another spool: as lines of JSON, one for each of its files, and a last one that says it is whole.

    {"path":"leased/<number>/<id>.json","at":"…Z","text":"…"}
    {"end":"<number>","files":…}

at: the file's mtime, which says when a lease ends, or when a page was archived. text: what is in it; bytes that are no
UTF-8 are half surrogates, as Python has them.
"""

import contextlib
import datetime
import os
import time
from collections.abc import Iterator
from typing import Any

from pagermcp import files
from pagermcp.operator.layout import ANY_SIZE, files_of, kind_of, name_in, number_in
from pagermcp.spool import Spool
from pagermcp.spool.page import moment, parse_payload, read_page, timestamp
from pagermcp.spool.spool import DIRECTORIES
from pagermcp.spool.whereabouts import ANY, Place, find, listing

_TRIES = 5
_BESIDE_PAGES = ("note", "mark", "brought", "why")
_HEAD_BYTES = 44  # in which a page says when it was made; behind it the relay adds how late it says that a run is lost


def export(spool: Spool, number: str) -> Iterator[dict[str, Any]]:
    """The lines of one mailbox: each page that had come when this began, once. Raises Busy, OSError."""
    lines = []
    with spool.alone(number) if os.access(spool.path("keys"), os.W_OK) else contextlib.nullcontext():
        for path in files_of(spool, number):
            if kind_of(path.removeprefix(f"{spool.root}/")) in _BESIDE_PAGES:
                with contextlib.suppress(FileNotFoundError):
                    lines.append(_line(spool, path, files.read(path, ANY_SIZE)))
        scheduled = listing(spool, number, "scheduled")  # alone, so that runs and their alarms fit together
        lines += [_line(spool, *read) for place in scheduled if (read := _read(spool, number, place))]
    yield from lines
    count, done = len(lines), {place.name.id for place in scheduled}
    for id, place in sorted(places(spool, number).items()):
        if id not in done and (read := _read(spool, number, place)):
            count += 1
            yield _line(spool, *read)
    yield {"end": number, "files": count}


def places(spool: Spool, number: str) -> dict[str, Place]:
    """Where each page of a mailbox was last seen, by id. One that moves while it is looked for may not be seen, so that
    is done several times."""
    return {place.name.id: place for _ in range(_TRIES) for place in listing(spool, number, ANY)}


def _read(spool: Spool, number: str, place: Place | None) -> tuple[str, tuple[bytes, os.stat_result]] | None:
    """Where the file of a page is, wherever it has moved meanwhile, and what is in it; None when it is gone."""
    for _ in range(_TRIES):
        if place is None:
            return None
        try:
            return place.path, files.read(place.path, ANY_SIZE)
        except FileNotFoundError:
            place = find(spool, number, place.name.id)
    raise OSError(f"{number}: a page moves too fast to be read")


def _line(spool: Spool, path: str, read: tuple[bytes, os.stat_result]) -> dict[str, Any]:
    content, status = read
    at = timestamp(datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC))
    return {"path": path.removeprefix(f"{spool.root}/"), "at": at, "text": content.decode(errors="surrogateescape")}


class Refused(ValueError):
    """The line can't be taken in. The message says why."""


class Intake:
    """Takes in what `export` has written: each file where it was, as durably as if it had been sent here, and never
    over anything. What is here already, in whatever state it is by now, is left as it is.

    taken, there: files that were taken in, and that were here; unfinished: mailboxes whose last line has not come."""

    def __init__(self, spool: Spool) -> None:
        self.taken = self.there = 0
        self.unfinished: set[str] = set()
        self._spool = spool
        self._here: dict[str, dict[str, Place]] = {}
        self._tops = set(map(spool.path, DIRECTORIES))
        self._made = self._tops.copy()  # folders whose own names are durable

    def take(self, line: bytes) -> None:
        """Take one line in. Raises Refused, SpoolFull, OSError."""
        try:
            record = parse_payload(line.decode())
            if "end" in record:
                self.unfinished.discard(str(record["end"]))
                return
            path = str(record["path"])
            at = round(moment(str(record["at"])).timestamp() * 1e6)
            content = str(record["text"]).encode(errors="surrogateescape")
            self._check(path, content, at)
        except (KeyError, ValueError, OverflowError) as error:  # BadPage is one
            raise Refused(f"no {error}" if isinstance(error, KeyError) else str(error)) from None
        number, target = number_in(path), self._spool.path(path)
        self.unfinished.add(number)
        self._spool.check_room()
        if self._has_page(number, path, content) if kind_of(path) == "page" else os.path.lexists(target):
            self.there += 1
            return
        if path.startswith("new/"):
            self._make(self._spool.path("leased", number))  # what waits must be takeable, also on a full disk
        self._write(target, content, at)
        self.taken += 1

    def _check(self, path: str, content: bytes, at: int) -> None:
        kind = kind_of(path)
        if kind not in ("page", *_BESIDE_PAGES) or not path.isprintable():
            raise Refused("its path is that of no file of a mailbox, which is named by its number")
        if not 0 <= at < 10**16:
            raise Refused("its time is out of range")
        if len(content) > self._spool.max_page_bytes:
            raise Refused(f"larger than {self._spool.max_page_bytes} bytes, which follows from MAX_MESSAGE_BYTES")
        if kind == "page" and int(name_in(path).id) > (time.time() + 86400) * 1e6:
            raise Refused("its id is more than a day ahead of the clock")
        if kind == "page" and not path.startswith("dead/"):
            read_page(name_in(path), content)
        elif kind == "note":
            parse_payload(content.decode())

    def _has_page(self, number: str, path: str, content: bytes) -> bool:
        """Whether this page is here. Raises Refused when its id is that of another one."""
        if number not in self._here:
            self._here[number] = places(self._spool, number)
        name, here = name_in(path), self._here[number]
        if name.id not in here:
            here[name.id] = Place(name, "", self._spool.path(path))
            return False
        found = _read(self._spool, number, here[name.id])
        if found and found[1][0][:_HEAD_BYTES] != content[:_HEAD_BYTES]:
            raise Refused(f"another page of {number} has the id {name.id} here")
        return True

    def _write(self, path: str, content: bytes, at: int) -> None:
        folder = os.path.dirname(path)
        draft = self._spool.draft(content)
        try:
            draft.sync()
            self._make(folder)
            if not os.path.isdir(folder):  # it was empty, and the janitor has just removed it
                self._made = self._tops.copy()
                self._make(folder)
            draft.link(path)
            files.stamp(path, at * 1000)
            files.sync_directory(folder)
        finally:
            draft.discard()

    def _make(self, folder: str) -> None:
        """Make a folder, its name durable: also if it is there, since who has made it may have been killed before."""
        if folder not in self._made:
            parent = os.path.dirname(folder)
            self._make(parent)
            files.make_directory(folder, self._spool.directory_mode)
            files.sync_directory(parent)
            self._made.add(folder)
