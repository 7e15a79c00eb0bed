"""What is wrong in a spool. Beside a relay pages move meanwhile, so only what several looks have found is told.

Mending deletes nothing that a sender has sent. Its steps are the relay's own, and are decided as there: by a rename, or
alone with the mailbox."""

import os
import secrets
import stat
import time
from typing import NamedTuple

from pagermcp import files
from pagermcp.address import redact
from pagermcp.operator.layout import ANY_SIZE, kind_of, name_in, number_in, walk
from pagermcp.spool import BadPage, Spool
from pagermcp.spool.notes import read_note
from pagermcp.spool.page import read_page
from pagermcp.spool.runs import forget_run
from pagermcp.spool.schedule import Due
from pagermcp.spool.spool import DIRECTORIES, LEFT_OVER_SECONDS, MAY_BE_THERE
from pagermcp.spool.whereabouts import find

_COPIED_SECONDS = 60.0  # a page that a shell copies here may be broken for so long; the mtime of a lease is its end
_MORE_LOOKS, _PAUSE_SECONDS = 2, 0.3


class Finding(NamedTuple):
    """What is wrong with the file or folder at a path in the spool. remedy: what to do; mend: what `mend` does."""

    path: str
    what: str
    remedy: str
    mend: str = ""


class Look:
    """One look at a spool: what was found, and how many mailboxes and pages were looked at. Raises OSError."""

    def __init__(self, spool: Spool) -> None:
        self.found: set[Finding] = set()
        self.mailboxes = self.pages = 0
        self._spool = spool
        self._live: dict[tuple[str, str], tuple[str, os.stat_result]] = {}  # pages that have not ended
        for path, kind, status in walk(spool, (*DIRECTORIES, *({*files.names(spool.root)} - MAY_BE_THERE))):
            self.mailboxes += kind == "folder" and path.startswith("new/")
            if self._is_ours(path, kind, status):
                if kind == "page":
                    self._page(path, status)
                elif kind == "note":
                    self._note(path)

    def _tell(self, path: str, what: str, remedy: str, mend: str = "") -> bool:
        self.found.add(Finding(path, what, remedy, mend))
        return False

    def _is_ours(self, path: str, kind: str, status: os.stat_result) -> bool:
        """Whether it is a file or folder of the relay's, and as it should be."""
        folder, user = kind == "folder", os.geteuid()
        wanted = self._spool.directory_mode if folder else self._spool.file_mode
        mode = stat.S_IMODE(status.st_mode)
        if not kind:
            parent, name = os.path.split(path)
            remedy = "to send it mv it into new/<number>/, which is what `pagermcp number` prints; or move it away"
            path = os.path.join(parent, redact(name))
            return self._tell(path, "is nothing of a spool", remedy if parent == "new" else "move it away")
        if stat.S_ISLNK(status.st_mode):
            return self._tell(path, "is a symbolic link, which a spool does not follow", "put there what it names")
        if not (stat.S_ISDIR if folder else stat.S_ISREG)(status.st_mode):
            return self._tell(path, f"is no {'folder' if folder else 'regular file'}", "move it away")
        if kind == "draft":
            if time.time() - status.st_ctime > LEFT_OVER_SECONDS:
                self._tell(path, "was left by something that was killed", "it may go", "clear")
        elif kind == "brought" or (path.startswith("new/") and status.st_uid != user and not folder):
            if not os.access(self._spool.path(path), os.R_OK) and os.path.lexists(self._spool.path(path)):
                self._tell(path, "can't be read", f"chown {user} it as root")
            return False
        elif status.st_uid != user:
            return self._tell(path, f"belongs to uid {status.st_uid}", f"chown {user} it as root, or move it away")
        elif mode & ~wanted or wanted & 0o700 & ~mode:
            return self._tell(path, f"has the mode {mode:04o}", f"chmod {wanted:o} it", "chmod")
        return True

    def _page(self, path: str, status: os.stat_result) -> None:
        self.pages += 1
        name, here = name_in(path), (path, status)
        seen = self._live.get if path.startswith(("archive/", "dead/")) else self._live.setdefault
        there = seen((number_in(path), name.id), here)
        if there[0] != path:
            self._twice(*there, *here)
        if path.startswith("dead/"):
            return
        try:
            read_page(name, files.read(self._spool.path(path), ANY_SIZE)[0])
        except FileNotFoundError:
            return
        except BadPage as error:
            if time.time() - status.st_ctime > _COPIED_SECONDS:
                self._tell(path, f"is no page ({redact(str(error))})", "look at it, and move it away", "bury")

    def _twice(self, path: str, status: os.stat_result, other: str, later: os.stat_result) -> None:
        if (status.st_ino, status.st_dev) != (later.st_ino, later.st_dev):
            mend = "rename" if path.startswith("new/") else ""
            self._tell(path, f"has the id of another page, {other}", "move one of them away", mend)
        elif status.st_nlink > 1 and later.st_nlink > 1:  # or else it has moved from here to there
            self._tell(path, f"is the same file as {other}", "rm the earlier one", "recover")

    def _note(self, path: str) -> None:
        try:
            note = read_note(self._spool.path(path)) or {}
        except OSError as error:
            self._tell(path, f"can't be read ({error.strerror})", "move it away")
            return
        due = Due.parse(str(note.get("switch"))) if path.startswith("runs/") else None
        waits = due and (due.micros < time.time_ns() // 1000 or os.path.exists(self._spool.path("scheduled", due.file)))
        if due and not waits and find(self._spool, due.number, due.page.id) is None:
            what = f"is a run whose alarm has gone ({due.file}), so that nothing would say it is lost"
            self._tell(path, what, "have it report again", "forget")


def examine(spool: Spool) -> Look:
    """Look at a spool, and again if something was found. Raises OSError."""
    look = Look(spool)
    for _ in range(_MORE_LOOKS):
        if look.found:
            time.sleep(_PAUSE_SECONDS)
            look.found &= Look(spool).found
    return look


def mend(spool: Spool, finding: Finding) -> str:
    """Mend what was found, and say what was done: "" when it is not for us to mend. Raises Busy, OSError."""
    path, number = spool.path(finding.path), number_in(finding.path)
    match finding.mend:
        case "chmod":
            mode = spool.directory_mode if kind_of(finding.path) == "folder" else spool.file_mode
            os.chmod(path, mode)
            return f"has the mode {mode:04o} now"
        case "clear":
            spool.clear(os.path.basename(path))
            return "put back to where it was brought, or removed"
        case "forget":
            forget_run(spool, number, path)
            return "" if os.path.lexists(path) else "the run is forgotten"
        case "recover":
            spool.mailbox(number)  # which is what it does at first contact
            return "the later one stays"
        case "rename":  # to what is no page's name
            name = f"{name_in(path).id}.copy-{secrets.token_hex(4)}.json"
            moved = files.move(path, f"{os.path.dirname(path)}/{name}", spool.directory_mode)
            return f"renamed {name}, which a relay takes in as a page of its own" if moved else ""
        case "bury":
            return "moved to dead/" if spool.mailbox(number).bury(path, name_in(path), finding.what) else ""
    return ""
