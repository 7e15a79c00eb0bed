"""A room: a mailbox whose readers keep a cursor instead of taking pages, so that everybody reads everything.

A message is a page with `from`, `to` and `body`; its id, as a number, is the message's. What is active, that is younger
than the room's hours and above the watermark that clearing leaves, is decided when it is read. The janitor only moves
to the archive what is hidden already.
"""

import bisect
import contextlib
import datetime
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from pagermcp import files
from pagermcp.spool.mailbox import Mailbox
from pagermcp.spool.notes import read_note, write_note
from pagermcp.spool.page import BadPage, Page, PageName, now, read_page, timestamp, to_json
from pagermcp.spool.whereabouts import listing

if TYPE_CHECKING:
    from pagermcp.spool.spool import Spool

OPEN_ROOM = "00000000-0000-8000-8000-000000000000"
"""The number of the room that needs no key. No key has it."""

MAX_ACTIVE = 10_000
MAX_AGENTS = 1000

_ADOPT_SECONDS = 0.5
_GRAIN_NS = 20_000_000  # more than the tick by which the kernel tells times of local folders


class NotARoom(Exception):
    """The mailbox has pages in it, so it is none."""


class Agent(NamedTuple):
    """Who has posted, read or checked in. machine: as it said, if it did."""

    name: str
    machine: str | None
    last_seen: datetime.datetime


class Room:
    """The room of one mailbox. Made by `Spool.room`; safe between threads. Everything raises OSError."""

    def __init__(self, spool: "Spool", mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        self._spool = spool
        self._new = spool.path("new", mailbox.number)
        self._folder = spool.path("rooms", mailbox.number)
        self._lock = threading.Lock()
        self._files: set[str] = set()  # the names in new/, as last seen
        self._ids: list[int] = []  # of the messages there, ascending
        self._messages: dict[int, tuple[str, str | None, str]] = {}  # from and to in small letters, and the file
        self._seen = -1
        self._adopted_at = -math.inf
        self._watermark: tuple[object, int] = (None, 0)  # which file it was, and what it says

    @property
    def exists(self) -> bool:
        return os.path.isdir(self._folder)

    def make(self) -> None:
        """Make a room of the mailbox. Raises NotARoom."""
        if self.exists:
            return
        if self.mailbox.size() and self.mailbox.number != OPEN_ROOM:
            raise NotARoom
        self.mailbox.make()
        mode = self._spool.directory_mode
        files.make_directory(self._folder, mode)
        files.make_directory(f"{self._folder}/agents", mode)
        files.sync_directory(self._spool.path("rooms"))

    def _name(self, id: int) -> PageName:
        known = self._messages.get(id)
        return (PageName.parse(known[2]) if known else None) or PageName(f"{id:016d}", 1)

    # Messages

    def post(self, sender: str, to: str | None, body: str) -> dict[str, Any]:
        """Add a message, durably; the message. Raises NotARoom, SpoolFull, DeliveredMaybe, Busy."""
        self.make()
        parties = {"from": sender, **({"to": to} if to else {})}
        payload = to_json({**parties, "body": body}).decode()
        with self._spool.alone(self.mailbox.number):  # so that ids appear in order, also those of other processes
            self._refresh(alone=True)
            self.mailbox.ids_after(max(self._ids[-1:], default=0), self._cleared())
            id = self.mailbox.deliver(payload, bounded=False)
        created = None
        with contextlib.suppress(OSError):  # it is posted, whatever happens now
            before = self._active_ids()
            for surplus in before[: max(0, len(before) + 1 - MAX_ACTIVE)]:
                self.mailbox.expire(self._name(surplus))
            created = self._read(int(id))
        return created or {"id": int(id), "from": sender, "to": to, "body": body, "created_at": timestamp(now())}

    def messages(self, reader: str | None, since: int | None, limit: int = MAX_ACTIVE) -> list[dict[str, Any]]:
        """Active messages, ascending: for a reader (addressed to it or to all, and not its own) or all of them.

        The oldest `limit` after `since`; without it the youngest ones."""
        self._refresh()
        ids = self._active_ids()
        if since is not None:
            ids = ids[bisect.bisect_right(ids, since) :]
        chosen: list[int] = []
        for id in ids if since is not None else reversed(ids):
            if len(chosen) >= limit:
                break
            if reader is None or self._is_for(reader.lower(), id):
                chosen.append(id)
        return [message for id in sorted(chosen) if (message := self._read(id))]

    def archived(self, reader: str | None, since: int | None, limit: int) -> list[dict[str, Any]]:
        """The same of those that are hidden: by age, or cleared."""
        self._refresh()
        hidden = {id: f"{self._new}/{self._name(id).file}" for id in self._hidden_ids()}
        for place in listing(self._spool, self.mailbox.number, "archived"):
            hidden[int(place.name.id)] = place.path
        chosen: list[dict[str, Any]] = []
        for id in sorted(hidden, reverse=since is None):
            if len(chosen) >= limit:
                break
            message = None if since is not None and id <= since else _message(id, hidden[id], self._spool)
            if message and (reader is None or _is_for(reader.lower(), message["from"].lower(), _lower(message["to"]))):
                chosen.append(message)
        return sorted(chosen, key=lambda message: int(message["id"]))

    def clear(self) -> int:
        """Hide what is active now; how many messages that are."""
        with self._spool.alone(self.mailbox.number):
            self._refresh(alone=True)
            active = self._active_ids()
            if active:
                write_note(self._spool, f"{self._folder}/cleared", {"id": active[-1]})
                self._watermark = None, 0
            return len(active)

    def tidy(self) -> None:
        """Move to the archive what is hidden."""
        self._refresh()
        cleared = self._cleared()
        for id in self._hidden_ids():
            if id <= cleared:
                self.mailbox.archive_cleared(self._name(id))
            else:
                self.mailbox.expire(self._name(id))

    def _active_ids(self) -> list[int]:
        ids = self._ids
        return ids[bisect.bisect_right(ids, self._floor()) :]

    def _hidden_ids(self) -> list[int]:
        ids = self._ids
        return ids[: bisect.bisect_right(ids, self._floor())]

    def _floor(self) -> int:
        """The highest id that is hidden."""
        oldest = self._spool.clock.now().timestamp() - self._spool.room_hours * 3600
        return max(int(oldest * 1e6), self._cleared())

    def _cleared(self) -> int:
        path = f"{self._folder}/cleared"
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return 0
        which = status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        if which != self._watermark[0]:
            self._watermark = which, int((read_note(path) or {}).get("id", 0))
        return self._watermark[1]

    def _refresh(self, alone: bool = False) -> None:
        """Take in which messages have come and gone, by whomever. alone: the caller is alone with the mailbox."""
        if self._list() and time.monotonic() - self._adopted_at > _ADOPT_SECONDS:
            self._adopted_at = time.monotonic()
            with contextlib.nullcontext() if alone else self._spool.alone(self.mailbox.number):
                self.mailbox.ids_after(max(self._ids[-1:], default=0))
                self.mailbox.look()  # which takes in what a shell has brought, in its turn
            self._list()

    def _list(self) -> bool:
        """List the messages, if the folder has changed; True when there are files in it that are none (yet)."""
        with self._lock:
            looked_at = time.time_ns()
            try:
                mtime = os.stat(self._new).st_mtime_ns
                if mtime == self._seen:
                    return False
                present = {file for file in os.listdir(self._new) if file[0] != "."}
            except FileNotFoundError:
                mtime, present = -1, set[str]()
            names = {file: PageName.parse(file) for file in present - self._files}
            come = {file for file, name in names.items() if name}
            gone = self._files - present
            messages = self._messages
            if gone:
                messages = {id: known for id, known in messages.items() if known[2] in present}
            for file in come:
                if message := _message(int(file[:16]), f"{self._new}/{file}", self._spool):
                    messages[message["id"]] = (message["from"].lower(), _lower(message["to"]), file)
            if come or gone:  # in order but for the end, mostly, and then sorting is quick
                self._files = (self._files - gone) | come
                self._messages, self._ids = messages, sorted(messages)
            foreign = len(come) < len(names)
            self._seen = mtime if abs(looked_at - mtime) > _GRAIN_NS and not foreign else -1
            return foreign

    def _is_for(self, reader: str, id: int) -> bool:
        known = self._messages.get(id)
        return known is not None and _is_for(reader, known[0], known[1])

    def _read(self, id: int) -> dict[str, Any] | None:
        known = self._messages.get(id)
        return _message(id, f"{self._new}/{known[2] if known else f'{id:016d}.json'}", self._spool)

    # Agents

    def saw(self, name: str, machine: str | None = None) -> None:
        """An agent has shown itself. Of too many, the one that was not seen for longest is forgotten."""
        path = f"{self._folder}/agents/{name.lower()}.json"
        if machine is None and files.stamp(path, time.time_ns()):
            return
        if not os.path.exists(path) and len(agents := self.agents()) >= MAX_AGENTS:
            files.remove(f"{self._folder}/agents/{agents[-1].name.lower()}.json")
        with contextlib.suppress(FileNotFoundError):  # not a room yet
            write_note(self._spool, path, {"name": name, "machine": machine})
            files.stamp(path, time.time_ns())  # what the kernel has set may be a tick old, and then the order is wrong

    def agents(self) -> list[Agent]:
        """All who have shown themselves, the latest first."""
        agents: list[Agent] = []
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(f"{self._folder}/agents")  # a name may begin with a dot
        for file in names:
            path = f"{self._folder}/agents/{file}"
            with contextlib.suppress(FileNotFoundError):
                note = read_note(path) or {}
                seen = datetime.datetime.fromtimestamp(os.stat(path).st_mtime, datetime.UTC)
                agents.append(Agent(str(note.get("name", file.removesuffix(".json"))), note.get("machine"), seen))
        return sorted(agents, key=lambda agent: agent.last_seen, reverse=True)


def _message(id: int, path: str, spool: "Spool") -> dict[str, Any] | None:
    """A message as its readers see it; None when the file is gone, or no page."""
    try:
        page = read_page(PageName(f"{id:016d}", 1), files.read(path, spool.max_page_bytes)[0])
    except (FileNotFoundError, BadPage):
        return None
    return {"id": id, **_parts(page), "created_at": timestamp(page.created_at)}


def _parts(page: Page) -> dict[str, Any]:
    """From, to and body, also of a page that somebody moved in here."""
    sender, to, body = (page.payload.get(name) for name in ("from", "to", "body"))
    if not isinstance(body, str):
        message = page.payload.get("message")
        body = message if isinstance(message, str) else to_json(page.payload).decode()
    return {
        "from": sender if isinstance(sender, str) and sender else "unknown",
        "to": to if isinstance(to, str) and to else None,
        "body": body,
    }


def _is_for(reader: str, sender: str, to: str | None) -> bool:
    return sender != reader and to in (None, reader)


def _lower(name: str | None) -> str | None:
    return name.lower() if name else None
