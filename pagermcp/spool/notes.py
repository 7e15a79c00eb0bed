"""The relay's own small files beside the pages: what is known of an idempotency key, or of a run."""

import errno
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from pagermcp import files
from pagermcp.spool.page import to_json

if TYPE_CHECKING:
    from pagermcp.spool.spool import Spool

_NOTE_BYTES = 4096


def read_note(path: str) -> dict[str, Any] | None:
    """The note at this path; None when there is none. Raises OSError, also when it is none of ours."""
    try:
        note = json.loads(files.read(path, _NOTE_BYTES)[0])
        if not isinstance(note, dict):
            raise ValueError
    except FileNotFoundError:
        return None
    except ValueError:
        raise OSError(errno.EIO, "not what the relay wrote", path) from None
    return note


def write_note(spool: "Spool", path: str, note: dict[str, Any]) -> None:
    """Write a note durably, over an older one if there is one. Raises OSError."""
    folder, content = os.path.dirname(path), to_json(note) + b"\n"
    made = files.make_directory(folder, spool.directory_mode)
    try:
        files.write_over(path, spool.temporary(), content, spool.file_mode)
    except FileNotFoundError:  # the janitor has removed the folder meanwhile, since it was empty
        made = files.make_directory(folder, spool.directory_mode)
        files.write_over(path, spool.temporary(), content, spool.file_mode)
    files.sync_directory(folder)
    if made:
        files.sync_directory(os.path.dirname(folder))


def hash_of(secret: str) -> str:
    """How a sender's key is known on the disk."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
