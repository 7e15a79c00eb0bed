"""Deletes for good, when its operator says so: what has ended and is old, or all of one mailbox."""

import contextlib
import datetime
import os
import shutil
import time
from typing import NamedTuple

from pagermcp import files
from pagermcp.spool import Spool
from pagermcp.spool.mailbox import KNOWN_SECONDS
from pagermcp.spool.page import now
from pagermcp.spool.whereabouts import listing

_ENDED = {"archive": "archived", "dead": "dead"}
_PASSES = 10


class Part(NamedTuple):
    """What can be deleted together. what: archived, dead, waiting and so on."""

    path: str
    what: str
    pages: int
    bytes: int

    @property
    def group(self) -> str:
        """What it is told together with: its day, or its state."""
        return f"{self.path.split('/')[-2]}, {self.what}" if self.what in _ENDED.values() else self.what


def old_days(spool: Spool, seconds: float, number: str | None) -> list[Part]:
    """The days that ended so long ago, of a mailbox or of all: those of rooms are kept, as by the janitor."""
    limit = f"{now() - datetime.timedelta(seconds=seconds):%Y-%m-%d}"
    parts = []
    for day in sorted(day for day in spool.days() if day < limit):
        for top, what in _ENDED.items():
            for one in sorted(files.names(spool.path(top, day))):
                if one == number or (number is None and not spool.is_room(one)):
                    parts.append(_part(spool.path(top, day, one), what))
    return parts


def mailbox(spool: Spool, number: str) -> list[Part]:
    """All that belongs to a mailbox."""
    paths = [(place.path, "scheduled") for place in listing(spool, number, "scheduled")]
    for top, what in (("new", "waiting"), ("leased", "leased")):
        paths += [(spool.path(top, number, name), what) for name in files.names(spool.path(top, number))]
    folders = [(spool.path(top, day, number), what) for day in spool.days() for top, what in _ENDED.items()]
    folders += [(spool.path(top, number), top) for top in ("keys", "runs", "rooms")]
    return [_part(path, what) for path, what in [*paths, *(one for one in folders if os.path.isdir(one[0]))]]


def delete(part: Part) -> None:
    """Delete it; what a relay, or its janitor, has moved or deleted meanwhile is gone already. Raises OSError."""
    if not os.path.isdir(part.path) or os.path.islink(part.path):
        files.remove(part.path)
        return
    for _ in range(_PASSES):
        try:
            shutil.rmtree(part.path)
        except FileNotFoundError:
            if os.path.lexists(part.path):
                continue
        break
    with contextlib.suppress(OSError):
        if part.what in _ENDED.values():
            os.rmdir(os.path.dirname(part.path))  # the day, if this was its last mailbox


def delete_mailbox(spool: Spool, number: str) -> bool:
    """Delete all that belongs to a mailbox, whatever moves or comes meanwhile; False when its folder stays, empty.

    A relay may rely on the folder for a while after it has delivered into it. Raises Busy, OSError."""
    folder = spool.path("new", number)
    idle = os.path.isdir(folder) and time.time() - os.stat(folder).st_mtime > 2 * KNOWN_SECONDS
    for _ in range(_PASSES):
        parts = mailbox(spool, number)
        if not parts:
            break
        with spool.alone(number):  # so that no run is set, and no key written, in between
            for part in sorted(parts, key=lambda part: part.what not in ("runs", "scheduled")):
                delete(part)
    files.remove(spool.path("read", number))
    for path in (folder, spool.path("leased", number)):
        if idle:
            with contextlib.suppress(OSError):  # something has just come
                os.rmdir(path)
    return not os.path.isdir(folder)


def _part(path: str, what: str) -> Part:
    pages = size = 0
    if os.path.isdir(path):
        for name in files.names(path):
            with contextlib.suppress(FileNotFoundError):
                size += os.lstat(f"{path}/{name}").st_size
                pages += what in _ENDED.values() and not name.endswith(".why")
    else:
        with contextlib.suppress(FileNotFoundError):
            size, pages = os.lstat(path).st_size, 1
    return Part(path, what, pages, size)
