"""The session file, `.pager_session`: a project's key, for whoever works there, and for nobody else."""

import contextlib
import os
import stat
import subprocess
import time
import uuid
from collections.abc import Callable

from pagermcp import address, files

_MOST_BYTES = 200
_MOST_PATH_BYTES = 4096
_MOST_INDEX_BYTES = 1 << 28
_PATIENCE_SECONDS = 1.0


class NoSession(Exception):
    """There is no address to use. The message is one line that says where it was looked for, and what to do."""


def session_file(folder: str = ".") -> str:
    """Where the session is: PAGER_SESSION_FILE, or `.pager_session` in PROJECT_DIR, or in this folder."""
    folder = os.environ.get("PROJECT_DIR") or folder
    return os.environ.get("PAGER_SESSION_FILE") or os.path.join(folder, ".pager_session")


def read_session(path: str) -> uuid.UUID:
    """The address in a session file: a key, or a number with which one can only send. Raises NoSession, also when
    somebody has put the file there who is neither we, nor root, nor the folder's owner."""
    try:
        content, status = files.read(os.path.realpath(path), _MOST_BYTES)
        folder = os.stat(os.path.dirname(path) or ".")
        if os.geteuid() not in (0, status.st_uid) and status.st_uid not in (0, folder.st_uid):
            raise NoSession(f"{path} belongs to uid {status.st_uid}, who could read what is sent there; remove it")
        return address.parse(content.decode(errors="replace"))
    except FileNotFoundError:
        raise NoSession(f"no mailbox: there is no {path}; {_where_else(path)}") from None
    except OSError as error:
        raise NoSession(f"{path} can't be read: {error.strerror}") from None
    except address.InvalidAddress:
        what = "holds no UUID" if content else "is empty"
        raise NoSession(f"{path} {what}; remove it, and make one with: pagermcp number") from None


def _where_else(path: str) -> str:
    """What to do without a session here: perhaps there is one in a folder above."""
    with contextlib.suppress(OSError):  # the folder in which we are may be gone
        folder = "" if os.environ.get("PAGER_SESSION_FILE") else os.path.dirname(os.path.abspath(path))
        while folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)
            if os.path.isfile(f"{folder}/.pager_session"):
                return f"there is one in {folder}: use it with PROJECT_DIR={folder}"
    return "make one with: pagermcp number"


def make_session(path: str, say: Callable[[str], None]) -> uuid.UUID:
    """The address in a session file, which is made with a new key when there is none: for its owner alone, and kept out
    of git.

    For root it belongs to PAGER_UID and PAGER_GID, or to the folder's owner, so that a container does not leave a file
    that its user can't read. say: called with what could not be done. Raises NoSession, also when git tracks it."""
    try:
        tracked = is_tracked(path)
    except OSError as error:
        raise NoSession(f"{path}: {error.strerror}") from None
    if tracked:
        raise NoSession(
            f"git tracks {path}, so whoever has the repository can read the mailbox: "
            f"git rm --cached {path}, remove the file, make a new one, and tell its number to those who page you"
        )
    try:
        with contextlib.suppress(FileExistsError):
            files.write(path, f"{uuid.uuid4()}\n".encode(), 0o600)
            say(f"made {path}, with the key of a new mailbox")
        key = _read_when_written(path)
        _restrict(path)
    except OSError as error:
        raise NoSession(f"{path}: {error.strerror}; name another file with PAGER_SESSION_FILE") from None
    try:
        _exclude(path)
    except OSError as error:
        say(f"{path} could not be kept out of git ({error.filename}: {error.strerror}): add it to .gitignore")
    return key


def _read_when_written(path: str) -> uuid.UUID:
    """Another one may have made it just now, and be about to write it."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while os.stat(path).st_size == 0 and time.monotonic() < until:
        time.sleep(0.01)
    return read_session(path)


def _restrict(path: str) -> None:
    """Let it belong to who works there, and nobody else read it; a file of another place, by a link, is left alone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | files.NOT_FOLLOWED)
    try:
        status = os.fstat(descriptor)
        address.parse(os.read(descriptor, _MOST_BYTES).decode(errors="replace"))
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return
        if os.geteuid() == 0:
            os.fchown(descriptor, *_owner(path))
        if status.st_mode & 0o077 and os.geteuid() in (0, status.st_uid):
            os.fchmod(descriptor, 0o600)
    except address.InvalidAddress:
        return
    finally:
        os.close(descriptor)


def _owner(path: str) -> tuple[int, int]:
    folder = os.stat(os.path.dirname(path) or ".")
    return _id("PAGER_UID", folder.st_uid), _id("PAGER_GID", folder.st_gid)


def _id(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip() or str(default)
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 32:
        raise NoSession(f"{name}={text!r}: must be the number of a user or group")
    return int(text)


def is_tracked(path: str) -> bool:
    """Whether git has the file in its index. Where git is missing, or does not trust the folder, any of a name like
    this one counts: rather one refused too many."""
    known = _git(path, "ls-files", "--", os.path.basename(path))
    if known is not None:
        return bool(known)
    repository = _repository(path)
    try:
        index = files.read(f"{repository}/index", _MOST_INDEX_BYTES)[0] if repository else b""
    except OSError:
        return False
    return os.fsencode(os.path.basename(path)) in index


def _exclude(path: str) -> None:
    """Put the file on the list of what this clone ignores, unless git ignores it anyhow. Raises OSError."""
    name = os.path.basename(path)
    repository = _repository(path)
    if repository is None or _git(path, "check-ignore", "--", name):
        return
    with contextlib.suppress(FileNotFoundError):  # a worktree, whose list is that of the main one
        common = files.read(f"{repository}/commondir", _MOST_PATH_BYTES)[0]
        repository = os.path.join(repository, os.fsdecode(common).rstrip("\n"))
    with contextlib.suppress(FileExistsError):
        os.mkdir(f"{repository}/info")
    descriptor = os.open(f"{repository}/info/exclude", os.O_RDWR | os.O_APPEND | os.O_CREAT | files.NOT_FOLLOWED, 0o644)
    with open(descriptor, "r+b") as file:
        lines = file.read().split(b"\n")
        if os.fsencode(name) not in lines:
            file.write(b"\n" * (lines[-1] != b"") + os.fsencode(name) + b"\n")
        if os.geteuid() == 0 and os.fstat(descriptor).st_uid == 0:
            owner = os.stat(repository)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
            os.chown(f"{repository}/info", owner.st_uid, owner.st_gid, follow_symlinks=False)


def _repository(path: str) -> str | None:
    """The git folder to which a file's folder belongs; found by hand, since git may be missing, as in a container."""
    folder = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(f"{folder}/.git"):
        folder, child = os.path.dirname(folder), folder
        if folder == child:
            return None
    if os.path.isdir(f"{folder}/.git"):
        return f"{folder}/.git"
    try:  # of a worktree or submodule it is a file that says where
        link = os.fsdecode(files.read(f"{folder}/.git", _MOST_PATH_BYTES)[0])
    except OSError:
        return None
    where = os.path.join(folder, link.removeprefix("gitdir:").strip())
    return where if link.startswith("gitdir:") and os.path.isdir(where) else None


def _git(path: str, *arguments: str) -> str | None:
    """What git prints about the file's folder, whatever repository the caller is busy with; None when it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", os.path.dirname(path) or ".", *arguments]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)  # noqa: S603
        return done.stdout if done.returncode == 0 else None
    return None
