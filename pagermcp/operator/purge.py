"""Deletes for good, when its operator says so: what has ended and is old, or all that a mailbox holds."""

import contextlib
import datetime
import os

from pagermcp import files
from pagermcp.operator.layout import files_of, number_in, walk
from pagermcp.spool import Spool
from pagermcp.spool.page import now
from pagermcp.spool.room import OPEN_ROOM

_PASSES = 10


def old_files(spool: Spool, seconds: float, number: str | None) -> list[str]:
    """The files of days that ended so long ago, of a mailbox or of all: those of rooms are kept, as by the janitor."""
    limit = f"{now() - datetime.timedelta(seconds=seconds):%Y-%m-%d}"
    days = [f"{top}/{day}" for top in ("archive", "dead") for day in spool.days() if day < limit]
    paths = [path for path, kind, _ in walk(spool, sorted(days)) if kind in ("page", "why")]
    whose = {number} if number else {number_in(path) for path in paths} - {*files.names(spool.path("rooms")), OPEN_ROOM}
    return [spool.path(path) for path in paths if number_in(path) in whose]


def delete(spool: Spool, paths: list[str]) -> None:
    """Delete files, and folders that are empty then, but for those into which a relay may be delivering just now: they
    are for its janitor. What it has moved or deleted meanwhile is gone already. Raises OSError."""
    for path in paths:
        files.remove(path)
    for folder in sorted({os.path.dirname(path) for path in paths}, reverse=True):
        inside = folder.removeprefix(f"{spool.root}/")
        while "/" in inside and not inside.startswith(("new/", "leased/")):
            with contextlib.suppress(OSError):  # something is in it
                os.rmdir(spool.path(inside))
            inside = os.path.dirname(inside)


def delete_mailbox(spool: Spool, number: str) -> None:
    """Delete all that a mailbox holds, whatever moves or comes meanwhile. Raises Busy, OSError."""
    for _ in range(_PASSES):
        with spool.alone(number):  # so that no run is set, and no key written, in between
            if not (paths := files_of(spool, number)):
                return
            delete(spool, paths)
