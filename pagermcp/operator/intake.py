"""Takes in what `export` has written: each page into the state and under the id that it had, as durably as if it had
been sent here, and never over anything. A page that is here already, in whatever state, is left as it is."""

import base64
import datetime
import os
import re
import time
from typing import Any

from pagermcp import files
from pagermcp.operator.beside import number_in
from pagermcp.operator.export import note_path, pages_of
from pagermcp.spool import BadPage, Spool, SpoolFull
from pagermcp.spool.notes import write_note
from pagermcp.spool.page import MAX_DEPTH, Page, PageName, moment, parse_payload, read_page, to_json
from pagermcp.spool.schedule import Due
from pagermcp.spool.whereabouts import Place, find

_NOTE = re.compile(
    r"keys/[0-9a-f]{64}\.(json|pending)|runs/[0-9a-f]{64}\.json|rooms/cleared|rooms/agents/[a-z0-9._-]{1,64}\.json",
    re.ASCII,
)
OUTCOMES = ("acknowledged", "expired", "replaced", "cleared")
_DAY_MICROSECONDS = 86_400_000_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Refused(ValueError):
    """The line can't be taken in. The message says why, without a key."""


class Intake:
    """Takes lines. taken, there: pages that were taken in, and that were here already; unfinished: the mailboxes whose
    last line has not come."""

    def __init__(self, spool: Spool) -> None:
        self.taken = self.there = 0
        self.unfinished: set[str] = set()
        self._spool = spool
        spool.nameless_drafts = files.drafts_need_no_name(spool.path("tmp"))
        self._here: dict[str, dict[str, Place]] = {}
        self._made: set[str] = set()  # folders whose own names are durable

    def take(self, line: bytes) -> None:
        """Take one line in. Raises Refused, SpoolFull, Busy, OSError."""
        try:
            text = line.decode()
            record = parse_payload(text, MAX_DEPTH + 4)
            number = number_in(str(record.get("number")))
        except UnicodeDecodeError as error:
            raise Refused(f"not UTF-8 at byte {error.start}") from None
        except ValueError as error:  # BadPage is one
            raise Refused(str(error)) from None
        state = record.get("state")
        if state == "end":
            self.unfinished.discard(number)
            return
        self.unfinished.add(number)
        if shortage := self._spool.shortage(1):
            raise SpoolFull(shortage)
        if state == "room":
            self._prepare("rooms", number, "agents")
        elif state == "note":
            self._take_note(number, record)
        else:
            self._take_page(number, record, text)

    def _take_note(self, number: str, record: dict[str, Any]) -> None:
        name, note = record.get("name"), record.get("note")
        if not isinstance(name, str) or not _NOTE.fullmatch(name) or not isinstance(note, dict):
            raise Refused("no note of a spool")
        path = note_path(self._spool, number, name)
        self._prepare(*os.path.dirname(path).removeprefix(f"{self._spool.root}/").split("/"))
        with self._spool.alone(number):
            if not os.path.lexists(path):
                write_note(self._spool, path, note)

    def _take_page(self, number: str, record: dict[str, Any], text: str) -> None:
        try:
            name = _name(record)
            content = _content(record, text)
            page = None if "base64" in record else read_page(name, content)
            folder, file = _target(number, name, record)
            at = _microseconds(record["at"]) if "at" in record else None
        except Refused:
            raise
        except KeyError as error:
            raise Refused(f"no {error.args[0]}") from None
        except (ValueError, OverflowError) as error:
            raise Refused(str(error)) from None
        if len(content) > self._spool.max_page_bytes:
            raise Refused(f"larger than {self._spool.max_page_bytes} bytes, which follows from MAX_MESSAGE_BYTES")
        here = self._here.get(number)
        if here is None:
            here = self._here[number] = pages_of(self._spool, number)
        if name.id in here:
            if not self._is_same(number, here[name.id], page, content):
                raise Refused(f"another page of {number} has the id {name.id} here")
            self.there += 1
            return
        if folder[0] == "new":
            self._prepare("leased", number)  # what waits must be takeable, also when the disk is full
        path = self._spool.path(*folder, file)
        why = record.get("why")
        if folder[0] == "dead" and isinstance(why, str):
            self._write(folder, f"{name.handle}.why", f"{why}\n".encode(errors="backslashreplace"), None)
        self._write(folder, file, content, at)
        here[name.id] = Place(name, str(record["state"]), path)
        self.taken += 1

    def _is_same(self, number: str, place: Place, page: Page | None, content: bytes) -> bool:
        there: Place | None = place
        while there:
            try:
                found, _ = files.read(there.path, self._spool.max_page_bytes)
                break
            except FileNotFoundError:
                there = find(self._spool, number, place.name.id)
        else:
            return True  # it was here, and has gone just now
        try:  # the relay adds to the page of a lost run how late it was
            return found == content or (page is not None and read_page(place.name, found).created_at == page.created_at)
        except BadPage:
            return False

    def _write(self, folder: tuple[str, ...], file: str, content: bytes, at: int | None) -> None:
        path = self._spool.path(*folder, file)
        draft = self._spool.draft(content)
        try:
            self._prepare(*folder)
            try:
                draft.link(path)
            except FileNotFoundError:  # the folder was empty, and the janitor has just removed it
                self._made.clear()
                self._prepare(*folder)
                draft.link(path)
            except FileExistsError:
                if file.endswith(".why"):  # of an import that was killed before its page was there
                    return
                raise
            if at is not None:
                files.stamp(path, at * 1000)
            files.sync_directory(self._spool.path(*folder))
        finally:
            draft.discard()

    def _prepare(self, *folder: str) -> None:
        """Make a folder and those above it, and their names durable: also if they are there, since who has made them
        may have been killed before."""
        for depth in range(2, len(folder) + 1):
            path = self._spool.path(*folder[:depth])
            if path not in self._made:
                files.make_directory(path, self._spool.directory_mode)
                files.sync_directory(os.path.dirname(path))
                self._made.add(path)


def _name(record: dict[str, Any]) -> PageName:
    id, attempt = record["id"], record.get("attempt", 1)
    handle = id if attempt == 1 else f"{id}.{attempt}"
    name = PageName.parse_handle(handle) if isinstance(id, str) and isinstance(attempt, int) else None
    if name is None:
        raise Refused("id or attempt is none")
    if int(name.id) > time.time_ns() // 1000 + _DAY_MICROSECONDS:
        raise Refused("its id is more than a day ahead of the clock")
    return name


def _content(record: dict[str, Any], text: str) -> bytes:
    """The page's file: as it was, to the byte, if the line is as `export` has written it."""
    if "base64" in record and record["state"] == "dead":
        return base64.b64decode(str(record["base64"]), validate=True)
    page = record["page"]
    if not isinstance(page, dict):
        raise Refused("page is no object")
    raw = text.partition(',"page":')[2].strip()[:-1]
    try:
        as_it_was = parse_payload(raw, MAX_DEPTH + 2) == page
    except BadPage:
        as_it_was = False
    return raw.encode() + b"\n" if as_it_was else to_json(page) + b"\n"


def _target(number: str, name: PageName, record: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """The folder in the spool, and the file in it."""
    match record["state"]:
        case "waiting":
            return ("new", number), name.file
        case "leased":
            return ("leased", number), name.file
        case "scheduled":
            return ("scheduled",), Due(_microseconds(record["due_at"]), number, name).file
        case "archived":
            return ("archive", _day(record), number), f"{name.handle}{_ending(record)}.json"
        case "dead":
            return ("dead", _day(record), number), name.file
    raise Refused("state is none of a page")


def _day(record: dict[str, Any]) -> str:
    return datetime.date.fromisoformat(str(record["day"])).isoformat()


def _ending(record: dict[str, Any]) -> str:
    if record["outcome"] not in OUTCOMES:
        raise Refused("outcome is none of an archived page")
    return "" if record["outcome"] == OUTCOMES[0] else f".{record['outcome']}"


def _microseconds(text: object) -> int:
    micros = (moment(str(text)) - _EPOCH) // datetime.timedelta(microseconds=1)
    if not 0 <= micros < 10**16:
        raise Refused("a time is out of range")
    return micros
