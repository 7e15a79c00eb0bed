"""Sending a page with more than a payload: once for an idempotency key, later, until some time, instead of another, or
as the report of a run.

An idempotency key is first written down as pending, with the id that its page will have; then the page is delivered,
and then the key is marked as done. So whoever comes again after a crash can find out whether the page was delivered.
"""

import contextlib
import dataclasses
import datetime
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagermcp import files
from pagermcp.commit import Steps, at_once
from pagermcp.durations import in_words
from pagermcp.spool.mailbox import DeliveredMaybe, Mailbox
from pagermcp.spool.notes import hash_of, read_note, write_note
from pagermcp.spool.page import PageName, moment, now, timestamp, to_json
from pagermcp.spool.runs import Run, scheduled_page
from pagermcp.spool.schedule import Due
from pagermcp.spool.whereabouts import find

if TYPE_CHECKING:
    from pagermcp.spool.spool import Spool

KEY_HOURS = 24

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
    run is to report again; duplicate: this key came before, and so did the page; queued: how many pages waited when it
    was delivered, if it was just now."""

    id: str | None
    due: datetime.datetime | None = None
    expected: datetime.datetime | None = None
    duplicate: bool = False
    queued: int | None = None


@dataclass(frozen=True)
class _Reserved:
    """The id that a page with an idempotency key is to have. resumed: there may be a page with it already."""

    id: str | None = None
    resumed: bool = False


def send(spool: "Spool", mailbox: Mailbox, payload: str, options: Options, empty: bool = False) -> Sent:
    """Deliver a page, durably. `payload` is JSON that `parse_payload` accepts; empty: it stands for an empty body.

    Raises KeyReused, Busy, and what `Mailbox.deliver` raises."""
    return at_once(sending(spool, mailbox, payload, options, empty))


def sending(spool: "Spool", mailbox: Mailbox, payload: str, options: Options, empty: bool = False) -> Steps[Sent]:
    """`send` in steps."""
    if options.idempotency_key is None and options.replace is None and options.run is None:
        return (yield from _delivering(spool, mailbox, payload, options, _Reserved()))
    with spool.alone(mailbox.number):
        if options.idempotency_key is None:
            return _report(spool, mailbox, payload, options, empty, _Reserved())
        return _send_once(spool, mailbox, payload, options, empty, options.idempotency_key)


def _send_once(
    spool: "Spool", mailbox: Mailbox, payload: str, options: Options, empty: bool, idempotency_key: str
) -> Sent:
    done = spool.path("keys", mailbox.number, f"{hash_of(idempotency_key)}.json")
    pending = done.removesuffix(".json") + ".pending"
    body = hash_of(payload)
    note, resumed = None, True
    for path in (done, pending):
        note = note or read_note(path)
        if note and not spool.clock.within(moment(note["created_at"]), KEY_HOURS * 3600):
            note = None
        if note and note["body"] != body:
            raise KeyReused
        if note and path == done:
            told = not note["empty"] or find(spool, mailbox.number, note["id"])
            return Sent(note["id"] if told else None, duplicate=True)
    if note is None:
        resumed = False
        note = {"created_at": timestamp(now()), "body": body, "empty": empty, "id": mailbox.next_id()}
        write_note(spool, pending, note)
    try:
        sent = _report(spool, mailbox, payload, options, empty, _Reserved(note["id"], resumed))
    except DeliveredMaybe:
        raise
    except Exception:
        if not resumed:  # nothing was delivered, so the key is free again
            with contextlib.suppress(OSError):
                files.remove(pending)
        raise
    try:
        files.replace(pending, done)
    except OSError as error:  # the page is there, and that is how the pending key will be understood
        log.warning("%s: an idempotency key could not be marked as done: %s", mailbox.number, error)
    return sent


def _report(spool: "Spool", mailbox: Mailbox, payload: str, options: Options, empty: bool, reserved: _Reserved) -> Sent:
    if options.run is None:
        return at_once(_delivering(spool, mailbox, payload, options, reserved))
    run = Run(spool, mailbox, options.run)
    due = None if options.expect is None else run.prepare(options.expect, None if empty else payload)
    extra: dict[str, Any] = {}
    if run.given_up:
        extra = {"recovered": True, "late_seconds": int(run.late)}
        if empty:  # then the reader, who was told that the run is lost, is told by the relay
            text = f"reported again, {in_words(run.late)} after it was given up"
            payload = to_json({"status": "recovered", "run": options.run, "message": text}).decode()
    sent = Sent(None)
    try:
        if not empty or run.given_up:
            sent = at_once(_delivering(spool, mailbox, payload, options, reserved, run.places, **extra))
    except Exception:
        if due:
            run.drop(due)
        raise
    try:
        if due:
            run.commit(due)
        else:
            run.end()
    except OSError as error:
        if sent.id is not None:
            raise DeliveredMaybe from error
        raise
    return dataclasses.replace(sent, expected=due.at if due else None)


def _delivering(
    spool: "Spool",
    mailbox: Mailbox,
    payload: str,
    options: Options,
    reserved: _Reserved,
    frees: int = 0,
    **extra: Any,
) -> Steps[Sent]:
    replaced: list[PageName | Due] = []
    if options.expires is not None:
        extra["expires_at"] = timestamp(now() + datetime.timedelta(seconds=options.delay + options.expires))
    if options.replace is not None:
        extra["replace"] = hash_of(options.replace)
        replaced = _waiting_with(spool, mailbox, extra["replace"])
    if reserved.id and reserved.resumed and find(spool, mailbox.number, reserved.id):
        sent = Sent(reserved.id)
        replaced = [page for page in replaced if _name(page).id < reserved.id]
    elif options.delay:
        due = mailbox.schedule(payload, options.delay, id=reserved.id, frees=frees + len(replaced), **extra)
        sent = Sent(due.page.id, due=due.at)
    else:
        id, waiting = yield from mailbox.delivering(payload, id=reserved.id, frees=frees + len(replaced), **extra)
        sent = Sent(id, queued=None if replaced else waiting)
    for page in replaced:  # only now: two wait for a moment, rather than none
        try:
            mailbox.replace(page)
        except OSError as error:
            log.warning("%s: %s was to be replaced: %s", mailbox.number, _name(page).id, error)
    return sent


def _waiting_with(spool: "Spool", mailbox: Mailbox, replace: object) -> list[PageName | Due]:
    found: dict[PageName, PageName | Due] = {}
    spool.schedule.refresh()
    for due in spool.schedule.of(mailbox.number):  # first, since one may come due and wait just now
        page = scheduled_page(spool, due)
        if page and page.extra.get("replace") == replace:
            found[due.page] = due
    found |= {page.name: page.name for page in mailbox.waiting() if page.extra.get("replace") == replace}
    return list(found.values())


def _name(page: PageName | Due) -> PageName:
    return page.page if isinstance(page, Due) else page
