"""Runs that are to report again: dead-man's switches.

Such a run has a file in scheduled/, which is the page that says it is lost, ready to be delivered, and a record in
runs/ that names this file. The record is the truth: a file in scheduled/ that it does not name is of no account, and a
record whose file has gone is that of a run which was given up. All of it happens alone with the mailbox.
"""

import contextlib
import datetime
import logging
import os
import re
from typing import TYPE_CHECKING

from pagermcp import files
from pagermcp.durations import in_words
from pagermcp.spool.mailbox import Mailbox
from pagermcp.spool.notes import hash_of, read_note, write_note
from pagermcp.spool.page import BadPage, Page, now, page_line, read_page, timestamp, to_json
from pagermcp.spool.schedule import Due

if TYPE_CHECKING:
    from pagermcp.spool.spool import Spool

_LATE_SECONDS = 60.0  # a page about a lost run that comes later than this says so
_PATIENCE_SECONDS = 0.2  # of the thread that does what is due, which has other things to do
_HASH = re.compile(r"[0-9a-f]{64}", re.ASCII)

log = logging.getLogger(__name__)


class Run:
    """What the disk says of a run of one mailbox. Raises OSError."""

    def __init__(self, spool: "Spool", mailbox: Mailbox, key: str) -> None:
        self._spool, self._mailbox, self._key = spool, mailbox, key
        self._record = _record(spool, mailbox.number, hash_of(key))
        record = read_note(self._record)
        self._switch = Due.parse(record.get("switch", "")) if record else None
        self._page = scheduled_page(spool, self._switch) if self._switch else None

    @property
    def given_up(self) -> bool:
        """It was paged as lost."""
        return self._switch is not None and self._page is None

    @property
    def late(self) -> float:
        """Seconds since it should have reported."""
        return self._spool.clock.age(self._switch.at) if self._switch else 0

    @property
    def places(self) -> int:
        """How many places in the mailbox its switch takes."""
        return 1 if self._page else 0

    def prepare(self, seconds: float, report: str | None) -> Due:
        """Write the page that will say the run is lost, with its last report (JSON), if this one has something to say.

        It is of no account until `commit`. Raises also what `Mailbox.schedule` raises."""
        due = now() + datetime.timedelta(seconds=seconds)
        text = f"no report within {in_words(seconds)}: it was due at {due:%Y-%m-%dT%H:%M:%SZ}"
        head = {"status": "lost", "run": self._key, "message": text}
        last = report or to_json(self._page.payload.get("last") if self._page else None).decode()
        payload = to_json(head).decode()[:-1] + f',"last":{last}}}'
        return self._mailbox.schedule(payload, seconds, frees=self.places, run=hash_of(self._key))

    def commit(self, due: Due) -> None:
        """Let the run be lost then, and not when it was to be lost until now."""
        try:
            write_note(self._spool, self._record, {"reported_at": timestamp(now()), "switch": due.file})
        except OSError:
            if (read_note(self._record) or {}).get("switch") != due.file:
                self.drop(due)
            raise
        if self._switch:
            self.drop(self._switch)

    def drop(self, due: Due) -> None:
        """Remove a switch that is of no account."""
        with contextlib.suppress(OSError):  # it still is of none, and is removed when it is due
            _remove(self._spool, due)

    def end(self) -> None:
        """It needs to report no more."""
        if self._switch:
            files.remove(self._record)
            files.sync_directory(os.path.dirname(self._record))
            self.drop(self._switch)


def come_due(spool: "Spool", mailbox: Mailbox, due: Due) -> bool:
    """Let a scheduled page wait, unless it is a switch that is of no account; True when it waits.

    Raises Busy, OSError."""
    page = scheduled_page(spool, due)
    if page is None:
        return mailbox.come_due(due)
    run = page.extra.get("run")
    if due.page.attempt > 1 or not isinstance(run, str) or not _HASH.fullmatch(run):  # not a switch, or no longer
        mailbox.note_expiry(page.id, page.extra.get("expires_at"))
        return mailbox.come_due(due)
    with spool.alone(mailbox.number, _PATIENCE_SECONDS):
        record = read_note(_record(spool, mailbox.number, run))
        if record is None or record.get("switch") != due.file:  # it was ended or set anew, and a crash left this file
            _remove(spool, due)
            return False
        if spool.clock.age(due.at) > _LATE_SECONDS and scheduled_page(spool, due):
            _say_how_late(spool, due, page)
        return mailbox.come_due(due)


def forget_run(spool: "Spool", number: str, record: str) -> None:
    """Remove the record of a run, unless it may still be lost. Raises Busy, OSError."""
    with spool.alone(number, _PATIENCE_SECONDS):
        switch = (read_note(record) or {}).get("switch", "")
        if not os.path.exists(spool.path("scheduled", switch or ".")):
            files.remove(record)


def scheduled_page(spool: "Spool", due: Due) -> Page | None:
    """A scheduled page; None when it is gone, or no page (which whoever claims it will say). Raises OSError."""
    try:
        return read_page(due.page, files.read(spool.path("scheduled", due.file), spool.max_page_bytes)[0])
    except (FileNotFoundError, BadPage):
        return None


def _say_how_late(spool: "Spool", due: Due, page: Page) -> None:
    late = spool.clock.age(due.at)
    text = f"{page.payload.get('message')}; the relay did not run then, and says so {in_words(late)} late"
    payload = to_json({**page.payload, "message": text, "late_seconds": int(late)}).decode()
    line, path = page_line(payload, page.created_at, **page.extra), spool.path("scheduled", due.file)
    try:
        files.write_over(path, spool.temporary(), line, spool.file_mode)
    except OSError as error:  # better said without it than not at all
        log.warning("%s: a lost run is paged without saying how late: %s", due.number, error)


def _remove(spool: "Spool", due: Due) -> None:
    files.remove(spool.path("scheduled", due.file))
    spool.schedule.drop(due)


def _record(spool: "Spool", number: str, run: str) -> str:
    return spool.path("runs", number, f"{run}.json")
