"""The few system calls that pages on a disk are made of, each with its care: new files only, no symlinks, all synced.

Every step that changes the disk first raises the audit event `pagermcp.file` (step, path), so that a test can record
the order of steps, or end the process at one, without a mock (`sys.addaudithook`).
"""

import contextlib
import errno
import os
import secrets
import stat
import sys
import time

from pagermcp.commit import Steps, at_once, sync

NOT_FOLLOWED = os.O_NOFOLLOW | os.O_CLOEXEC
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def write(path: str, content: bytes, mode: int) -> None:
    """Make the new file `path`, durably. On any error it is gone again. Raises OSError."""
    _step("write", path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOT_FOLLOWED, mode)
    try:
        try:
            _fill(descriptor, path, content, mode)
            _fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        with contextlib.suppress(OSError):  # then tmp/ is cleared later, and the first error says more
            remove(path)
        raise


def _fill(descriptor: int, path: str, content: bytes, mode: int) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    if mode & ~0o600:
        os.fchmod(descriptor, mode)  # the umask may have taken the group's right
    _step("fsync", path)


def _fsync(descriptor: int) -> None:
    [error] = sync([descriptor])
    if error:
        raise error


class Draft:
    """A file that is written, to be shown under a name by `link` when its `descriptor` was synced. Raises OSError.

    Until then it has none, if the system can do that (`drafts_need_no_name`): that is one folder less to change, twice,
    which all who write at the same time would wait for; and nothing is left behind by a kill. Otherwise it is the
    new `temporary`. In either case it is to be discarded when it was linked, or will not be."""

    def __init__(self, temporary: str, content: bytes, mode: int, nameless: bool) -> None:
        self._path, self._nameless = temporary, nameless
        _step("write", temporary)
        if nameless:
            self.descriptor = os.open(os.path.dirname(temporary), os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, mode)
        else:
            self.descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOT_FOLLOWED, mode)
        try:
            _fill(self.descriptor, temporary, content, mode)
        except OSError:
            with contextlib.suppress(OSError):  # then tmp/ is cleared later, and the first error says more
                self.discard()
            raise

    def sync(self) -> None:
        """Wait until it is on the disk."""
        _fsync(self.descriptor)

    def link(self, target: str) -> None:
        """Show it under this name, too. Raises FileExistsError rather than replace anything."""
        if self._nameless:
            _step("link", target)
            source = f"/proc/self/fd/{self.descriptor}"
            os.link(source, target, src_dir_fd=self.descriptor)  # which Python only follows when given a folder, too
        else:
            link(self._path, target)

    def discard(self) -> None:
        """Leave only what `link` has made of it."""
        os.close(self.descriptor)
        if not self._nameless:
            remove(self._path)


def drafts_need_no_name(folder: str) -> bool:
    """Whether drafts for files on this folder's disk can do without."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    path = f"{folder}/{secrets.token_hex(8)}"
    try:
        draft = Draft(path, b"", 0o600, nameless=True)
        try:
            draft.sync()
            draft.link(path)
        finally:
            draft.discard()
        return remove(path)
    except OSError:  # an NFS, no /proc, an old kernel, no room: it will be seen then whether names help
        return False


def write_over(path: str, temporary: str, content: bytes, mode: int) -> None:
    """Write a file durably by way of `temporary`, over an older one; its directory is still to be synced.

    Raises OSError, and then `temporary` is gone again."""
    write(temporary, content, mode)
    try:
        replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            remove(temporary)
        raise


def reason_beside(path: str) -> str | None:
    """What stands in the file of the same name that ends in .why; None when there is none."""
    with contextlib.suppress(OSError):
        return read(path.removesuffix(".json") + ".why", 4096)[0].decode(errors="replace").strip()
    return None


def read(path: str, limit: int) -> tuple[bytes, os.stat_result]:
    """At most `limit` bytes of a regular file, and its status. Raises OSError, also for anything but a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | NOT_FOLLOWED)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        content, wanted = b"", min(limit, status.st_size + 1)  # one more, so that the end shows without another read
        while wanted > 0 and (chunk := os.read(descriptor, wanted)):
            content += chunk
            wanted = 0 if len(chunk) < wanted else limit - len(content)
        return content, status
    finally:
        os.close(descriptor)


def replace(source: str, target: str) -> None:
    """Rename `source`, over `target` if there is one. Raises OSError."""
    _step("replace", target)
    os.rename(source, target)


def touch(path: str, mode: int) -> None:
    """Set a file's mtime to now, and make it if there is none. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | NOT_FOLLOWED, mode)
    try:
        os.utime(descriptor)
    finally:
        os.close(descriptor)


def stamp(path: str, nanoseconds: int) -> bool:
    """Set a file's times; False when it is gone."""
    try:
        os.utime(path, ns=(nanoseconds, nanoseconds), follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def is_directory(path: str) -> bool:
    """Whether there is such a folder. Twice as fast as `os.path.isdir`, most of all where there is none."""
    return os.access(f"{path}/.", os.F_OK)


def same(path: str, other: str) -> bool:
    """Whether both are names of one file; False when one is gone."""
    try:
        return os.path.samefile(path, other)
    except FileNotFoundError:
        return False


def link(source: str, target: str) -> None:
    """Show a written file under its final name. Raises FileExistsError rather than replace anything."""
    _step("link", target)
    os.link(source, target, follow_symlinks=False)


def move(source: str, target: str, mode: int) -> bool:
    """Rename `source`, making the target's directory (and its parent) when it is missing.

    False when `source` is gone: somebody else moved it first, which is how claims are decided."""
    _step("move", target)
    try:
        os.rename(source, target)
    except FileNotFoundError:
        if not os.path.lexists(source):  # ask for that: the directory may have been made by another thread just now
            return False
        directory = os.path.dirname(target)
        make_directory(os.path.dirname(directory), mode)
        make_directory(directory, mode)
        try:
            os.rename(source, target)
        except FileNotFoundError:
            if os.path.lexists(source):
                raise
            return False
    return True


def put_back(source: str, target: str, mode: int) -> None:
    """Move a file to where it was, or beside it when something else has come there; never over it. Raises OSError."""
    make_directory(os.path.dirname(target), mode)
    try:
        link(source, target)
    except FileExistsError:
        if not same(source, target):  # or else this is the second try
            link(source, f"{os.path.dirname(target)}/{secrets.token_hex(8)}.json")
    remove(source)


def remove(path: str) -> bool:
    """Unlink a file; False when it was gone already."""
    _step("remove", path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def make_directory(path: str, mode: int) -> bool:
    """Make a directory whose mode does not depend on the umask; False when there was one."""
    _step("mkdir", path)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    if mode & ~0o700:
        os.chmod(path, mode)
    return True


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Raises OSError."""
    at_once(directory_synced(path))


def directory_synced(path: str) -> Steps[None]:
    """The same in steps."""
    _step("fsync directory", path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | NOT_FOLLOWED)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def tells_changes_apart(folder: str) -> bool:
    """Whether the mtime of a folder differs after every change, however soon it comes. Raises OSError.

    So it is on local disks under Linux 6.13 and newer; elsewhere it differs after a tick of the clock, which is not
    shorter than a millisecond."""
    trial = f"{folder}/{secrets.token_hex(8)}"
    for _ in range(10):  # where all differ though there were ticks enough for it, the machine is busy
        began, seen = time.perf_counter(), []
        for _ in range(8):
            os.mkdir(trial, 0o700)
            seen.append(os.stat(folder).st_mtime_ns)
            os.rmdir(trial)
            seen.append(os.stat(folder).st_mtime_ns)
        if len(set(seen)) < len(seen):
            return False
        if time.perf_counter() - began < 0.001 * (len(seen) - 3):
            return True
    return False


def file_system(path: str, mounts: str = "/proc/self/mountinfo") -> str:
    """The type of the file system that a folder is on, such as "ext4" or "nfs4"; "" where the system does not tell, as
    for a subvolume of btrfs. mounts: a file as in proc_pid_mountinfo(5). Raises OSError when there is no folder."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(FileNotFoundError), open(mounts, errors="replace") as lines:
        for fields in map(str.split, lines):
            if fields[2] == number:
                return fields[fields.index("-") + 1]
    return ""


def names(path: str) -> list[str]:
    """The names in a directory that do not begin with a dot; none when it is not there, or no directory."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [name for name in os.listdir(path) if not name.startswith(".")]
    return []


def _step(step: str, path: str) -> None:
    sys.audit("pagermcp.file", step, path)
