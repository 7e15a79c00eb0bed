"""The session file, `.pager_session`: a project's key, for whoever works there, and for nobody else."""

import contextlib
import os
import subprocess
import time
import uuid
from collections.abc import Mapping

from pagermcp import address, files

_MOST_BYTES = 200
_PATIENCE_SECONDS = 1.0


class NoSession(Exception):
    """There is no address to use. The message is one line that says where it was looked for, and what to do."""


def session_file(environment: Mapping[str, str] = os.environ) -> str:
    """Where the session is: PAGER_SESSION_FILE, or `.pager_session` in PROJECT_DIR, or in the current folder."""
    return environment.get("PAGER_SESSION_FILE") or os.path.join(
        environment.get("PROJECT_DIR") or ".", ".pager_session"
    )


def read_session(path: str) -> uuid.UUID:
    """The address in a session file: a key, or a number with which one can only send. Raises NoSession."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES).decode(errors="replace")
        return address.parse(content)
    except FileNotFoundError:
        raise NoSession(f"no mailbox: there is no {path}; make one with: pagermcp number") from None
    except OSError as error:
        raise NoSession(f"{path} can't be read: {error.strerror}") from None
    except address.InvalidAddress:
        what = "holds no UUID" if content else "is empty"
        raise NoSession(f"{path} {what}; remove it, and make one with: pagermcp number") from None


def make_session(path: str, environment: Mapping[str, str] = os.environ) -> uuid.UUID:
    """The key in a session file, which is made when there is none: for its owner alone, and kept out of git.

    For root it belongs to PAGER_UID and PAGER_GID, or to the folder's owner, so that a container does not leave a file
    that its user can't read. Raises NoSession, also when git tracks the file."""
    if is_tracked(path):
        raise NoSession(
            f"git tracks {path}, so whoever has the repository can read the mailbox: "
            f"git rm --cached {path}, remove the file, and make a new one"
        )
    try:
        made = _make(path)
        _own(path, environment)
        key = _read_when_written(path)
        _exclude(path, made)
    except OSError as error:
        raise NoSession(f"{error.filename or path}: {error.strerror}; name another with PAGER_SESSION_FILE") from None
    except ValueError as error:
        raise NoSession(str(error)) from None
    return key


def _make(path: str) -> bool:
    with contextlib.suppress(FileExistsError):
        files.write(path, f"{uuid.uuid4()}\n".encode(), 0o600)
        return True
    return False


def _read_when_written(path: str) -> uuid.UUID:
    """Another one may have made it just now, and be about to write it."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while os.stat(path).st_size == 0 and time.monotonic() < until:
        time.sleep(0.01)
    return read_session(path)


def _own(path: str, environment: Mapping[str, str]) -> None:
    folder = os.stat(os.path.dirname(path) or ".")
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if os.geteuid() == 0:
            owner = [_id(environment, "PAGER_UID", folder.st_uid), _id(environment, "PAGER_GID", folder.st_gid)]
            if owner != [status.st_uid, status.st_gid]:
                os.fchown(file.fileno(), *owner)
        if status.st_mode & 0o077 and status.st_uid in (0, os.geteuid()):
            os.fchmod(file.fileno(), 0o600)


def _id(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "").strip() or str(default)
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 32:
        raise ValueError(f"{name}={text!r}: must be the number of a user or group")
    return int(text)


def is_tracked(path: str) -> bool:
    """Whether git has the file in its index. False where git is not, or does not want to say."""
    return _git(path, "ls-files", "--error-unmatch", "--", os.path.basename(path)) is not None


def _exclude(path: str, made: bool) -> None:
    """Put the file on the list of what this clone ignores, unless git ignores it anyhow."""
    name = os.path.basename(path)
    if _git(path, "check-ignore", "--quiet", "--", name) is not None:
        return
    exclude = _git(path, "rev-parse", "--git-path", "info/exclude")
    if exclude is None:  # no repository, or no git (as in a container), so look for a repository by hand
        exclude = _exclude_by_hand(os.path.dirname(os.path.abspath(path)))
    if not exclude:
        return
    exclude = os.path.join(os.path.dirname(path), exclude)
    os.makedirs(os.path.dirname(exclude), exist_ok=True)
    with open(exclude, "a+b") as file:
        file.seek(0)
        lines = file.read().split(b"\n")
        if os.fsencode(name) not in lines:
            file.write(b"\n" * (lines[-1] != b"") + os.fsencode(name) + b"\n")


def _exclude_by_hand(folder: str) -> str | None:
    while not os.path.lexists(f"{folder}/.git"):
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent
    return f"{folder}/.git/info/exclude" if os.path.isdir(f"{folder}/.git") else None


def _git(path: str, *arguments: str) -> str | None:
    """What git prints about the file's folder; None when it fails, or is not there."""
    with contextlib.suppress(OSError):
        command = ["git", "-C", os.path.dirname(path) or ".", *arguments]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)  # noqa: S603
        return done.stdout.rstrip("\n") if done.returncode == 0 else None
    return None
