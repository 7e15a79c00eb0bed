"""Sending a page with more than a payload: once for an idempotency key, later, until some time, instead of another; and
runs that are to report again (dead-man's switches).

An idempotency key is first written down as pending, with the id that its page will have; then the page is delivered,
and then the key is marked as done. So whoever comes again after a crash can find out whether the page was delivered.

A run that is to report again has a file in scheduled/, which is the page that says it is lost, ready to be delivered,
and a record in runs/ that names this file. The record is the truth: a file in scheduled/ that it does not name is of no
account, and a record whose file has gone is that of a run which was given up.
"""

import contextlib
import datetime
import errno
import hashlib
import json
import logging
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagermcp.spool import files
from pagermcp.spool.mailbox import DeliveredMaybe, Mailbox
from pagermcp.spool.page import BadPage, Page, PageName, moment, now, page_line, read_page, timestamp, to_json
from pagermcp.spool.schedule import Due
from pagermcp.spool.whereabouts import find

if TYPE_CHECKING:
    from pagermcp.spool.spool import Spool

KEY_HOURS = 24
_LATE_SECONDS = 60.0  # a page about a lost run that comes later than this says so
_NOTE_BYTES = 4096
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)

log = logging.getLogger(__name__)


class KeyReused(Exception):
    """The idempotency key came before, with another body. Nothing was delivered."""


@dataclass(frozen=True)
class Options:
    """How a page is to be sent. Times in seconds. Of the keys, which are the sender's secrets, hashes are kept; only
    the page about a lost run names its key."""

    idempotency_key: str | None = None
    delay: float = 0
    expires: float | None = None
    replace: str | None = None
    run: str | None = None
    expect: float | None = None


@dataclass(frozen=True)
class Sent:
    """id: of the page, None for a report that brings none; due: when it will wait, if not now; expected: until when the
    run is to report again; duplicate: this key came before, and so did the page."""

    id: str | None
    due: datetime.datetime | None = None
    expected: datetime.datetime | None = None
    duplicate: bool = False


def send(spool: "Spool", mailbox: Mailbox, payload: str, options: Options, empty: bool = False) -> Sent:
    """Deliver a page, durably. `payload` is JSON that `parse_payload` accepts; empty: it stands for an empty body.

    Raises KeyReused, Busy, and what `Mailbox.deliver` raises."""
    if options.idempotency_key is None and options.replace is None and options.run is None:
        return _deliver(spool, mailbox, payload, options)
    with spool.alone(mailbox.number):
        if options.idempotency_key is None:
            return _report(spool, mailbox, payload, options, empty)
        return _send_once(spool, mailbox, payload, options, empty, options.idempotency_key)


def come_due(spool: "Spool", mailbox: Mailbox, due: Due) -> bool:
    """Let a scheduled page wait, if it still should; True when it does. Raises Busy, OSError."""
    page = _read(spool, due)
    run = page and page.extra.get("run")
    if page and isinstance(run, str) and _HASH.fullmatch(run):
        with spool.alone(mailbox.number):
            return _lose(spool, mailbox, due, page, _record(spool, mailbox, run))
    if page:
        mailbox.note_expiry(page.id, page.extra.get("expires_at"))
    return mailbox.come_due(due)


def _deliver(
    spool: "Spool",
    mailbox: Mailbox,
    payload: str,
    options: Options,
    id: str | None = None,
    resumed: bool = False,
    frees: int = 0,
    **extra: object,
) -> Sent:
    replaced: list[PageName | Due] = []
    if options.expires is not None:
        extra["expires_at"] = timestamp(now() + datetime.timedelta(seconds=options.delay + options.expires))
    if options.replace is not None:
        extra["replace"] = _hash(options.replace)
        replaced = _waiting_with(spool, mailbox, extra["replace"])
    if id and resumed and find(spool, mailbox.number, id):  # delivered before a crash
        sent = Sent(id)
    elif options.delay:
        due = mailbox.schedule(payload, options.delay, id=id, frees=frees + len(replaced), **extra)
        sent = Sent(due.page.id, due=due.at)
    else:
        sent = Sent(mailbox.deliver(payload, id=id, frees=frees + len(replaced), **extra))
    for page in replaced:  # only now: two wait for a moment, rather than none
        if (page.page if isinstance(page, Due) else page).id != sent.id:
            mailbox.replace(page)
    return sent


def _waiting_with(spool: "Spool", mailbox: Mailbox, replace: object) -> list[PageName | Due]:
    found: list[PageName | Due] = [page.name for page in mailbox.waiting() if page.extra.get("replace") == replace]
    for due in spool.schedule.of(mailbox.number):
        page = _read(spool, due)
        if page and page.extra.get("replace") == replace:
            found.append(due)
    return found


# Idempotency keys


def _send_once(
    spool: "Spool", mailbox: Mailbox, payload: str, options: Options, empty: bool, idempotency_key: str
) -> Sent:
    done = spool.path("keys", mailbox.number, f"{_hash(idempotency_key)}.json")
    pending = done.removesuffix(".json") + ".pending"
    note, body, resumed = None, _hash(payload), True
    for path in (done, pending):
        note = note or _read_note(path)
        if note and spool.clock.age(moment(note["created_at"])) >= KEY_HOURS * 3600:
            note = None
        if note and note["body"] != body:
            raise KeyReused
        if note and path == done:
            return Sent(note["id"], duplicate=True)
    if note is None:
        resumed = False
        note = {"created_at": timestamp(now()), "body": body, "id": None if empty else mailbox.next_id()}
        _write_note(spool, pending, note)
    try:
        sent = _report(spool, mailbox, payload, options, empty, note["id"], resumed)
    except DeliveredMaybe:
        raise
    except Exception:
        with contextlib.suppress(OSError):  # nothing was delivered, so the key is free again
            files.remove(pending)
        raise
    try:
        files.replace(pending, done)
    except OSError as error:  # the page is delivered, and that is how the pending key will be understood
        log.warning("%s: an idempotency key could not be marked as done: %s", mailbox.number, error)
    return sent


# Runs


def _report(
    spool: "Spool",
    mailbox: Mailbox,
    payload: str,
    options: Options,
    empty: bool,
    id: str | None = None,
    resumed: bool = False,
) -> Sent:
    if options.run is None:
        return _deliver(spool, mailbox, payload, options, id, resumed)
    path = _record(spool, mailbox, _hash(options.run))
    record = _read_note(path)
    before = Due.parse(record.get("switch", "")) if record else None
    page = _read(spool, before) if before else None
    lost = before is not None and page is None
    extra: dict[str, object] = {}
    if before and lost:
        late = int(spool.clock.age(before.at))
        extra = {"recovered": True, "late_seconds": late}
        if empty:
            text = f"reported again, {_words(late)} after it was given up"
            payload = to_json({"status": "recovered", "run": options.run, "message": text}).decode()
    frees = 1 if page else 0
    expected = None
    if options.expect is not None:
        last = payload if not empty else to_json(page.payload.get("last") if page else None).decode()
        expected = _expect(spool, mailbox, options.run, options.expect, last, path, frees)
        frees = 0
        if before:
            _remove_switch(spool, before)
    sent = Sent(None)
    if not empty or lost:
        sent = _deliver(spool, mailbox, payload, options, id, resumed, frees, **extra)
    if before and not expected:
        try:
            files.remove(path)
            files.sync_directory(os.path.dirname(path))
            _remove_switch(spool, before)
        except OSError as error:
            if sent.id is None:
                raise
            log.warning("%s: a run ended but will be called lost: %s", mailbox.number, error)
    return Sent(sent.id, sent.due, expected)


def _expect(
    spool: "Spool", mailbox: Mailbox, run: str, seconds: float, last: str, record: str, frees: int
) -> datetime.datetime:
    """Set a switch. It is in force once the record names it."""
    at = timestamp(now() + datetime.timedelta(seconds=seconds))
    head = {"status": "lost", "run": run, "message": f"no report within {_words(seconds)}: it was due at {at[:19]}Z"}
    payload = to_json(head).decode()[:-1] + f',"last":{last}}}'
    due = mailbox.schedule(payload, seconds, frees=frees, run=_hash(run))
    try:
        _write_note(spool, record, {"reported_at": timestamp(now()), "switch": due.file})
    except OSError:
        _remove_switch(spool, due)
        raise
    return due.at


def _lose(spool: "Spool", mailbox: Mailbox, due: Due, page: Page, record: str) -> bool:
    note = _read_note(record)
    if note is None or note.get("switch") != due.file:  # it was ended, or set anew, and a crash left this file
        _remove_switch(spool, due)
        return False
    late = spool.clock.age(due.at)
    if late > _LATE_SECONDS:
        text = f"{page.payload['message']}; the relay did not run then, and says so {_words(late)} late"
        payload = to_json({**page.payload, "message": text, "late_seconds": int(late)}).decode()
        temporary = spool.temporary()
        files.write(temporary, page_line(payload, page.created_at, **page.extra), spool.file_mode)
        files.replace(temporary, spool.path("scheduled", due.file))
    return mailbox.come_due(due)


def _remove_switch(spool: "Spool", due: Due) -> None:
    files.remove(spool.path("scheduled", due.file))
    spool.schedule.drop(due)


def _record(spool: "Spool", mailbox: Mailbox, run: str) -> str:
    return spool.path("runs", mailbox.number, f"{run}.json")


# Files


def _read(spool: "Spool", due: Due) -> Page | None:
    """A scheduled page; None when it is gone, or no page (which whoever claims it will say)."""
    try:
        return read_page(due.page, files.read(spool.path("scheduled", due.file), spool.max_page_bytes)[0])
    except (FileNotFoundError, BadPage):
        return None


def _read_note(path: str) -> dict[str, Any] | None:
    try:
        note = json.loads(files.read(path, _NOTE_BYTES)[0])
        if not isinstance(note, dict):
            raise ValueError
    except FileNotFoundError:
        return None
    except ValueError:
        raise OSError(errno.EIO, "not what the relay wrote", path) from None
    return note


def _write_note(spool: "Spool", path: str, note: dict[str, Any]) -> None:
    """Write a small file durably, over an older one if there is one."""
    folder, temporary = os.path.dirname(path), spool.temporary()
    made = files.make_directory(folder, spool.directory_mode)
    files.write(temporary, to_json(note) + b"\n", spool.file_mode)
    try:
        files.replace(temporary, path)
    except OSError:
        files.remove(temporary)
        raise
    files.sync_directory(folder)
    if made:
        files.sync_directory(os.path.dirname(folder))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _words(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
