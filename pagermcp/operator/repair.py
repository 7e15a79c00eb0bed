"""Mends what was found, where that is certainly safe: nothing that a sender has sent is deleted. Each step is one that
the relay takes as well, and is decided as there: by a rename, or alone with the mailbox."""

import os
import stat
import time

from pagermcp import files
from pagermcp.operator.check import Finding
from pagermcp.spool import Spool
from pagermcp.spool.page import WORKERS, now
from pagermcp.spool.runs import forget_run
from pagermcp.spool.sending import KEY_HOURS
from pagermcp.spool.spool import _ADOPTED_NAME
from pagermcp.spool.whereabouts import find

_KEY_SECONDS = KEY_HOURS * 3600.0


def repair(spool: Spool, finding: Finding) -> str | None:
    """Mend what a finding is about, and say what was done; None when it is not for us to mend, or has just gone.

    Raises Busy, OSError."""
    match finding.mend:
        case "mode":
            return _mode(spool, finding.path)
        case "left over":
            return _left_over(spool, finding.path)
        case "forget run":
            forget_run(spool, finding.number, finding.path)
            return None if os.path.lexists(finding.path) else "the run is forgotten"
    if not finding.mend:
        return None
    with spool.alone(finding.number):
        match finding.mend:
            case "bury":
                return _bury(spool, finding)
            case "unlink":
                return _unlink(spool, finding)
            case "new id":
                return _new_id(spool, finding)
    return _forget(finding.path)


def _mode(spool: Spool, path: str) -> str | None:
    status = os.lstat(path)
    folder = stat.S_ISDIR(status.st_mode)
    if status.st_uid != os.geteuid() or not (folder or stat.S_ISREG(status.st_mode)):
        return None
    mode = spool.directory_mode if folder else spool.file_mode
    os.chmod(path, mode)
    return f"has the mode {mode:04o} now"


def _left_over(spool: Spool, path: str) -> str | None:
    if adopted := _ADOPTED_NAME.fullmatch(os.path.basename(path)):
        home = spool.path("new", adopted[2], adopted[3])
        files.put_back(path, home, spool.directory_mode)
        return f"put back to where it was brought: {home}"
    return "removed" if files.remove(path) else None


def _bury(spool: Spool, finding: Finding) -> str | None:
    """Move a file to dead/, with the reason beside it before it is there."""
    name = os.path.basename(finding.path).rpartition("-")[2].split(".")[0]
    folder = spool.path("dead", f"{now():%Y-%m-%d}", finding.number)
    for path in (os.path.dirname(folder), folder):
        files.make_directory(path, spool.directory_mode)
    while os.path.lexists(f"{folder}/{name}.json") or os.path.lexists(f"{folder}/{name}.why"):
        name = _next(name)
    why = f"{folder}/{name}.why"
    files.write(why, f"{finding.what}: moved here by spool check --repair\n".encode(), spool.file_mode)
    if not files.stamp(finding.path, time.time_ns()) or not files.move(
        finding.path, f"{folder}/{name}.json", spool.directory_mode
    ):
        files.remove(why)
        return None
    return f"moved to {folder}/{name}.json"


def _unlink(spool: Spool, finding: Finding) -> str | None:
    """Take away the earlier of a page's two names; not if the other has gone just now."""
    taken = spool.temporary()
    if not files.same(finding.path, finding.other) or not files.move(finding.path, taken, spool.directory_mode):
        return None
    if os.lstat(taken).st_nlink < 2:
        files.put_back(taken, finding.path, spool.directory_mode)
        return None
    files.remove(taken)
    return f"removed, since it is the same file as {finding.other}"


def _new_id(spool: Spool, finding: Finding) -> str | None:
    """Give a page the next id that is free: the page is where it was, and near the same time."""
    folder, file = os.path.split(finding.path)
    id, _, rest = file.partition(".")
    free = _next(id)
    while find(spool, finding.number, free):
        free = _next(free)
    target = f"{folder}/{free}.{rest}"
    if os.path.lexists(target) or not files.move(finding.path, target, spool.directory_mode):
        return None
    if folder.startswith(spool.path("dead", "")):
        files.move(f"{folder}/{id}.why", f"{folder}/{free}.why", spool.directory_mode)
    return f"is {target} now"


def _next(id: str) -> str:
    return f"{int(id) + WORKERS:016d}"


def _forget(folder: str) -> str | None:
    for name in files.names(folder):
        if time.time() - os.lstat(f"{folder}/{name}").st_mtime > _KEY_SECONDS:
            files.remove(f"{folder}/{name}")
    os.rmdir(folder)
    return "removed"
