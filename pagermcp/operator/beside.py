"""A spool that is there already, opened beside the relay that may be serving it: nothing is made in it by that."""

import os
import re
import stat

from filelock import FileLock

from pagermcp import address
from pagermcp.settings import Settings
from pagermcp.spool import Spool, SpoolRefused
from pagermcp.spool.page import WORKERS
from pagermcp.spool.spool import _DIRECTORIES

ANY_SIZE = 1 << 31
"""How much is read of a page here: what is too large is for the relay to say, which has its own settings."""

LOCK = ".lock-operator"
"""In keys/: held by who repairs or takes in, so that there is one at a time."""

_NUMBER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)


class OtherFormat(SpoolRefused):
    """The spool is of another version."""


class Beside(Spool):
    """The spool of these settings. writes: more is done than to look, so its files must come to belong to its owner.

    Root becomes the owner, since a relay could not use what root has made. Raises SpoolRefused."""

    def __init__(self, settings: Settings, *, writes: bool) -> None:
        self._writes = writes
        super().__init__(
            settings.data_dir,
            max_message_bytes=settings.max_message_bytes,
            min_free_bytes=settings.min_free_bytes,
            worker=WORKERS - 1,  # a relay that clears up after one of its workers hardly has this one
        )

    def _open(self) -> None:
        hint = "name the spool with --data-dir or DATA_DIR"
        if not os.path.isdir(self.root):
            raise SpoolRefused(f"{self.root}: there is no such folder: {hint}")
        status = os.stat(self.root)
        if os.geteuid() == 0 != status.st_uid:
            os.setgroups([])
            os.setgid(status.st_gid)
            os.setuid(status.st_uid)
        if self._writes and os.geteuid() != status.st_uid:
            raise SpoolRefused(f"{self.root} belongs to uid {status.st_uid}: run this as that user, or as root")
        try:
            found = self._read_format()
        except SpoolRefused as error:
            raise OtherFormat(*error.args) if os.path.exists(self.path("FORMAT")) else error from None
        if found is None:
            raise SpoolRefused(f"{self.root} is no spool (it has no FORMAT): {hint}")
        for name in _DIRECTORIES:
            if not stat.S_ISDIR(os.stat(self.path(name)).st_mode):
                raise SpoolRefused(f"{self.path(name)} is no folder: move it away, and restart the relay")
        self.directory_mode = 0o700 | status.st_mode & 0o070
        self.file_mode = 0o600 | status.st_mode & 0o040
        self.tells_changes_apart = self.nameless_drafts = False

    def one_at_a_time(self) -> FileLock:
        """Keeps out others who repair or take in."""
        return FileLock(self.path("keys", LOCK), mode=self.file_mode, fallback_to_soft=False)

    def explain(self, error: OSError) -> str:
        reason = f"{error.filename or self.root}: {error.strerror or error}"
        if isinstance(error, PermissionError):
            return f"{reason}; run this as the user to whom {self.root} belongs, or as root"
        if isinstance(error, FileNotFoundError):
            return f"{reason}; a relay that starts there makes what is missing"
        return reason


def is_number(name: str) -> bool:
    """Whether a folder is named as that of a mailbox."""
    return _NUMBER.fullmatch(name) is not None


def number_in(text: str) -> str:
    """The number that a text is. Raises ValueError, which never repeats it, since it may be a key."""
    parsed = address.parse(text)
    if not address.is_number(parsed):
        raise ValueError("that is a key; here a mailbox has its number, which is what `pagermcp number` prints")
    return str(parsed)
