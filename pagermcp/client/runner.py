"""Running a command as if nothing stood between it and its caller, and knowing afterwards how it ended.

The command gets our standard input itself. Its output comes through a pseudo-terminal where ours is a terminal, and
through a pipe where it is not; a thread copies it, and keeps the end. The main thread has all signals blocked and takes
them one by one: it passes them on, or sees that the command has ended.
"""

import array
import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import stat
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

TAIL_BYTES = 8192

_TERMINAL_SENDS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH}
_TAKEN = {*_TERMINAL_SENDS, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD}
_SENT_BY_KERNEL = 0x80  # SI_KERNEL in Linux's siginfo.h
_CHUNK = 65536
_REST_SECONDS = 0.1  # when nothing comes for so long, the command that has ended has said all
_REST_AT_MOST_SECONDS = 1.0
_LOOK_SECONDS = 1.0  # where the system can't tell when a process ends


@dataclass(frozen=True)
class Ended:
    """How a command ended. exit_code: its own, 128 + signal, 127 when it was not found, 126 when it can't be run;
    error: why it did not begin; logs: the last lines of its output, standard output and error as they came; lost: why
    its output could not be written; interrupted: Ctrl-C killed it."""

    exit_code: int
    seconds: float
    logs: str = ""
    signal: int | None = None
    error: str | None = None
    lost: str | None = None
    interrupted: bool = False

    def __str__(self) -> str:
        """In words, as in `failed with exit code 2`."""
        if self.signal:
            name = ""
            with contextlib.suppress(ValueError):  # real-time signals have no name
                name = f" ({signal.Signals(self.signal).name})"
            return f"killed by signal {self.signal}{name}"
        if self.error:
            return f"could not be run: {self.error}"
        return f"failed with exit code {self.exit_code}" if self.exit_code else "done"


@contextlib.contextmanager
def run(command: list[str], tail: int, begin: Callable[[], None], end: Callable[[Ended], None]) -> Iterator[Ended]:
    """Run a command to its end, and keep the last `tail` lines of its output. For the main thread only.

    begin: called just before, with signals blocked, as is right for starting threads; end: called when it has ended,
    before any signal can end us. A child of the command that goes on in the background does not hold this up; what it
    says later goes where it would have gone, except into a pipe, whose reader waits for the end of it. When the context
    ends, all that the command said has been passed on."""
    began = time.monotonic()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    try:
        begin()
        output = _Output(tail)
        try:
            child = _spawn(command, output.actions(), before)
        except OSError as error:
            found = not isinstance(error, FileNotFoundError)
            reason = error.strerror if found else "not found"
            ended = Ended(126 if found else 127, 0, error=reason)
        else:
            output.begun()
            status, interrupted = _attend(child, output)
            output.end()
            code = os.waitstatus_to_exitcode(status)
            killed = -code if code < 0 else None
            ended = Ended(
                128 + killed if killed else code,
                time.monotonic() - began,
                output.logs(),
                killed,
                lost=output.lost,
                interrupted=interrupted and killed == signal.SIGINT,
            )
        end(ended)
        while pending := signal.sigpending() & _TAKEN:  # they were for the command
            signal.sigwait(pending)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    yield ended
    if not ended.error:
        output.finish()


def wait_for_process(pid: int, begin: Callable[[], None] = lambda: None) -> None:
    """Return when a process has ended; it may be another user's. begin: called when it was found.

    Raises ProcessLookupError when there is none."""
    if sys.platform == "linux":
        try:
            process = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # the number of a thread
                raise ProcessLookupError(errno.ESRCH, "No such process") from None
            if error.errno != errno.ENOSYS:  # Linux before 5.3, and its imitations
                raise
        else:
            begin()
            poll = select.poll()
            poll.register(process, select.POLLIN)
            poll.poll()
            os.close(process)
            return
    os.getpgid(pid)  # also somebody else's
    begin()
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.getpgid(pid)
            time.sleep(_LOOK_SECONDS)


def _spawn(command: list[str], actions: list[tuple[int, ...]], mask: set[Any]) -> int:
    if not command[0]:
        raise FileNotFoundError(errno.ENOENT, "not found")
    options: dict[str, Any] = {
        "file_actions": actions,
        "setsigmask": mask,
        "setsigdef": [signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them
    }
    try:
        return os.posix_spawnp(command[0], command, _environment(), **options)
    except OSError as error:
        script = shutil.which(command[0])
        if error.errno != errno.ENOEXEC or not script:
            raise
        return os.posix_spawn("/bin/sh", ["sh", script, *command[1:]], _environment(), **options)  # as shells do


def _environment() -> dict[bytes, bytes]:
    """Our environment as it was before Python, in the C locale, put LC_CTYPE into it (PEP 538)."""
    environment = dict(os.environb)
    with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as file:
        if b"\0LC_CTYPE=" not in b"\0" + file.read():
            environment.pop(b"LC_CTYPE", None)
    return environment


def _attend(child: int, output: "_Output") -> tuple[int, bool]:
    """Pass signals on until the child has ended; its wait status, and whether there was a Ctrl-C."""
    interrupted = False
    while True:
        number, by_terminal, by_us = _next_signal()
        if number == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status, interrupted
            continue
        interrupted = interrupted or (by_terminal and number == signal.SIGINT)
        with contextlib.suppress(OSError):  # it may be somebody else now, by setuid
            if number == signal.SIGWINCH and output.resize():
                os.killpg(0, number)  # the terminal told them when it was too early
            elif not by_us and (not by_terminal or os.getpgid(child) != os.getpgrp()):
                os.kill(child, number)


def _next_signal() -> tuple[int, bool, bool]:
    """The next signal, whether the terminal sent it to all that run in its foreground, and whether we did."""
    if sys.platform == "linux":
        info = signal.sigwaitinfo(_TAKEN)
        # a terminal that is closed tells none but the leader of its session
        to_all = info.si_signo in _TERMINAL_SENDS - ({signal.SIGHUP} if os.getsid(0) == os.getpid() else set())
        return info.si_signo, to_all and info.si_code == _SENT_BY_KERNEL, info.si_pid == os.getpid()
    number = signal.sigwait(_TAKEN)
    with contextlib.suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return number, number in _TERMINAL_SENDS and os.tcgetpgrp(terminal.fileno()) == os.getpgrp(), False
    return number, False, False


def _own(target: int) -> int:
    """Our terminal or pipe by a descriptor that does not block, which others don't share; if need be the same one."""
    with contextlib.suppress(OSError):  # it may be out of reach in a container, or somebody else's
        is_pipe = stat.S_ISFIFO(os.fstat(target).st_mode)
        path = f"/proc/self/fd/{target}" if is_pipe else os.ttyname(target)
        return os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    return target


@dataclass
class _Channel:
    """One output: the end that we read, our descriptor where it goes, and what is still to be written there."""

    source: int
    target: int
    pending: bytes = b""
    lost: str | None = None

    def read(self) -> bytes | None:
        """What there is to read; empty at the end, None when there is nothing now."""
        try:
            return os.read(self.source, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:  # how a pseudo-terminal says that nobody has its other end
            return b""

    def write(self) -> bool:
        """Write so much of it as does not block; False when nobody can have it."""
        try:
            self.pending = self.pending[os.write(self.target, self.pending[: select.PIPE_BUF]) :]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.lost = error.strerror
            self.pending = b""
            return False
        return True


class _Output:
    """What the command says, on its way from a pseudo-terminal or a pipe for each of our outputs to that, and the tail.

    lost: why some of it could not be written."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._kept = b""
        self._channels: list[_Channel] = []
        self._theirs: dict[int, int | None] = {}
        for target in (1, 2):
            if fcntl.fcntl(target, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                self._theirs[target] = None  # it was closed, and something had to be in its place
                continue
            if target == 2 and self._theirs[1] is not None and os.path.sameopenfile(1, 2):
                self._theirs[2] = self._theirs[1]  # one channel, so that both stay in order
                continue
            ours, self._theirs[target] = ends = os.openpty() if os.isatty(target) else os.pipe()
            if os.isatty(target):
                tty.setraw(ends[1])  # bytes pass as they are; the real terminal does what terminals do
            self._channels.append(_Channel(ours, _own(target)))
        for channel in self._channels:
            os.set_blocking(channel.source, False)
        self._open = list(self._channels)
        self.resize()
        self._ended, self._say_ended = os.pipe()
        self._said_all = threading.Event()
        self._copying = threading.Thread(target=self._copy, daemon=True)
        self._copying.start()

    @property
    def lost(self) -> str | None:
        return next((channel.lost for channel in self._channels if channel.lost), None)

    def actions(self) -> list[tuple[int, ...]]:
        """What makes the ends the command's, for posix_spawn."""
        return [
            (os.POSIX_SPAWN_CLOSE, target) if theirs is None else (os.POSIX_SPAWN_DUP2, theirs, target)
            for target, theirs in self._theirs.items()
        ]

    def resize(self) -> bool:
        """Let the pseudo-terminals be as large as the real ones are now; whether one was not."""
        changed = False
        for channel in list(self._open):
            size, before = (array.array("h", [0] * 4) for _ in range(2))
            with contextlib.suppress(OSError):  # a pipe
                fcntl.ioctl(channel.target, termios.TIOCGWINSZ, size)
                fcntl.ioctl(channel.source, termios.TIOCGWINSZ, before)
                fcntl.ioctl(channel.source, termios.TIOCSWINSZ, size)
                changed = changed or size != before
        return changed

    def begun(self) -> None:
        """The command has its ends now."""
        for theirs in set(filter(None, self._theirs.values())):
            os.close(theirs)

    def end(self) -> None:
        """The command has ended: take what it has said. It may not be written yet, since its reader may be slow."""
        os.close(self._say_ended)
        self._said_all.wait(_REST_AT_MOST_SECONDS + 1)

    def finish(self) -> None:
        """All is written after this; if somebody else keeps an output open, a process stays that copies it."""
        self._copying.join()
        if not self._open or os.fork():
            return
        with contextlib.suppress(BaseException):
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in {0, 1, 2, *(channel.target for channel in self._open)}:
                kind = os.fstat(descriptor).st_mode
                if descriptor == 0 or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
                    os.dup2(nowhere, descriptor)
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            lowest = 3  # what else our caller has opened, as a lock, is none of this process's business
            for kept in sorted({end for channel in self._open for end in (channel.source, channel.target)}):
                os.closerange(lowest, kept)
                lowest = max(lowest, kept + 1)
            os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))
            self._ended, self._say_ended = os.pipe()
            self._copy()
        os._exit(0)

    def logs(self) -> str:
        """The last lines, at most TAIL_BYTES; what is not UTF-8 is shown as U+FFFD."""
        if not self._lines:
            return ""
        lines, cut = self._kept[-TAIL_BYTES:].split(b"\n"), len(self._kept) > TAIL_BYTES
        count = self._lines + (lines[-1] == b"")
        if len(lines) > count:
            lines, cut = lines[-count:], False
        if cut:
            lines[0] = lines[0].lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character
            lines.insert(0, b"[only the last %d bytes]" % TAIL_BYTES)
        return b"\n".join(lines).decode(errors="replace")

    def _copy(self) -> None:
        self._copy_until_all_is_said()
        self._said_all.set()
        for channel in self._channels:
            poll = select.poll()
            poll.register(channel.target, select.POLLOUT)
            while channel.pending:
                poll.poll()
                channel.write()

    def _copy_until_all_is_said(self) -> None:
        """While a reader is slow, nothing is read, so the command has to wait as it would have; but once it has ended,
        what it has said is read."""
        until = None
        while self._open:
            poll = select.poll()
            if until is None:
                poll.register(self._ended, select.POLLIN)
            for channel in self._open:
                if channel.pending:
                    poll.register(channel.target, select.POLLOUT)
                if until or not channel.pending:
                    poll.register(channel.source, select.POLLIN)
            ready = dict(poll.poll(None if until is None else _REST_SECONDS * 1000))
            if until and not ready:
                return
            for channel in list(self._open):
                data = channel.read() if channel.source in ready else None
                if data:
                    self._kept = (self._kept + data)[-TAIL_BYTES - 1 :]  # one more, to know whether there was more
                    channel.pending += data
                wanted = channel.target not in ready or channel.write()
                if data == b"" or not wanted:
                    self._open.remove(channel)
                    os.close(channel.source)  # if it was our output that failed, the command's next writing will fail
            if self._ended in ready:
                until = time.monotonic() + _REST_AT_MOST_SECONDS
            elif until and time.monotonic() > until:
                return
