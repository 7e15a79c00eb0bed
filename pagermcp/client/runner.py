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
import signal
import stat
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass

TAIL_BYTES = 8192

_TERMINAL_SENDS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT}
_FORWARDED = {*_TERMINAL_SENDS, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
_TAKEN = {*_FORWARDED, signal.SIGCHLD, signal.SIGWINCH}
_SENT_BY_KERNEL = 0x80  # SI_KERNEL in Linux's siginfo.h
_CHUNK = 65536
_REST_SECONDS = 0.1  # when nothing comes for so long, the command that has ended has said all
_REST_AT_MOST_SECONDS = 1.0
_LOOK_SECONDS = 1.0  # where the system can't tell when a process ends


@dataclass(frozen=True)
class Ended:
    """How a command ended. exit_code: its own, 128 + signal, 127 when it was not found, 126 when it can't be run;
    error: why it did not begin; logs: the last lines of its output, standard output and error as they came."""

    exit_code: int
    seconds: float
    logs: str = ""
    signal: int | None = None
    error: str | None = None

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
def run(command: list[str], tail: int, begin: Callable[[], None] = lambda: None) -> Iterator[Ended]:
    """Run a command to its end, and keep the last `tail` lines of its output. For the main thread only.

    begin: called just before, with signals blocked, as is right for starting threads. A child of the command that goes
    on in the background does not hold this up; what it says later goes where it would have gone, except into a pipe,
    whose reader waits for the end of it. When the context ends, all that the command said has been passed on."""
    began = time.monotonic()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # then nobody could ask how a child ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        begin()
        output = _Output(tail)
        try:
            child = os.posix_spawnp(
                command[0],
                command,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs, number) for number, theirs in output.theirs.items()],
                setsigmask=before,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them
            )
        except OSError as error:
            found = not isinstance(error, FileNotFoundError)
            reason = error.strerror if found else "not found"
            ended = Ended(126 if found else 127, 0, error=reason)
        else:
            output.begin()
            code = os.waitstatus_to_exitcode(_attend(child, output))
            output.end()
            killed = -code if code < 0 else None
            ended = Ended(128 + killed if killed else code, time.monotonic() - began, output.logs(), killed)
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
            raise
        begin()
        select.select([process], [], [])
        os.close(process)
        return
    os.getpgid(pid)
    begin()
    while _alive(pid):
        time.sleep(_LOOK_SECONDS)


def _alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.getpgid(pid)  # also somebody else's
        return True
    return False


def _attend(child: int, output: "_Output") -> int:
    """Pass signals on until the child has ended; its wait status."""
    while True:
        number, by_terminal = _next_signal()
        if number == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            continue
        if number == signal.SIGWINCH:
            output.resize()
        if not by_terminal:  # what a terminal sends, it sends to the command as well
            os.kill(child, number)


def _next_signal() -> tuple[int, bool]:
    """The next signal, and whether the terminal sent it to all that run in its foreground."""
    if sys.platform == "linux":
        info = signal.sigwaitinfo(_TAKEN)
        return info.si_signo, info.si_signo in _TERMINAL_SENDS and info.si_code == _SENT_BY_KERNEL
    number = signal.sigwait(_TAKEN)
    with contextlib.suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return number, number in _TERMINAL_SENDS and os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return number, False


@dataclass
class _Channel:
    """One output: the end that we read, our descriptor where it goes, and what is still to be written there."""

    source: int
    target: int
    pending: bytes = b""

    def read(self) -> bytes | None:
        """What there is to read; empty at the end, None when there is nothing now."""
        try:
            return os.read(self.source, _CHUNK)
        except BlockingIOError:
            return None
        except OSError:  # how a pseudo-terminal says that nobody has its other end
            return b""

    def write(self, most: int) -> bool:
        """Write some of it; False when nobody can have it."""
        with contextlib.suppress(BlockingIOError):
            try:
                self.pending = self.pending[os.write(self.target, self.pending[:most]) :]
            except BlockingIOError:
                raise
            except OSError:
                self.pending = b""
                return False
        return True


class _Output:
    """What the command says, on its way from a pseudo-terminal or a pipe for each of our outputs to that, and the tail.

    theirs: by the command's descriptor, the end that it gets."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._kept = bytearray()
        self._cut = False
        self._channels: list[_Channel] = []
        self.theirs: dict[int, int] = {}
        for target in (1, 2):
            if target == 2 and os.path.sameopenfile(1, 2):  # one channel, so that both stay in order
                self.theirs[2] = self.theirs[1]
                continue
            ours, self.theirs[target] = os.openpty() if os.isatty(target) else os.pipe()
            if os.isatty(target):
                tty.setraw(self.theirs[target])  # bytes pass as they are; the real terminal does what terminals do
            os.set_blocking(ours, False)
            self._channels.append(_Channel(ours, target))
        self._open = list(self._channels)
        self.resize()
        self._ended, self._say_ended = os.pipe()
        self._copying = threading.Thread(target=self._copy, daemon=True)

    def resize(self) -> None:
        """Let the pseudo-terminals be as large as the real ones are now."""
        for channel in list(self._open):
            size = array.array("h", [0] * 4)
            with contextlib.suppress(OSError):
                fcntl.ioctl(channel.target, termios.TIOCGWINSZ, size)
                fcntl.ioctl(channel.source, termios.TIOCSWINSZ, size)

    def begin(self) -> None:
        """The command has its ends now."""
        for theirs in set(self.theirs.values()):
            os.close(theirs)
        self._copying.start()

    def end(self) -> None:
        """The command has ended: take what it has said. It may not be written yet, since its reader may be slow."""
        os.close(self._say_ended)
        self._copying.join()

    def finish(self) -> None:
        """Write what is still to be written; if somebody else keeps an output open, leave a process that copies it."""
        for channel in self._channels:
            while channel.pending and channel.write(_CHUNK):
                select.select([], [channel.target], [])
        if not self._open or os.fork():
            return
        with contextlib.suppress(BaseException):
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                kind = os.fstat(descriptor).st_mode
                if descriptor == 0 or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
                    os.dup2(nowhere, descriptor)
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            self._ended, self._say_ended = os.pipe()
            self._copy()
        os._exit(0)

    def logs(self) -> str:
        """The last lines, at most TAIL_BYTES; what is not UTF-8 is shown as U+FFFD."""
        if not self._lines:
            return ""
        cut = self._cut or len(self._kept) > TAIL_BYTES
        lines = bytes(self._kept[-TAIL_BYTES:]).split(b"\n")
        count = self._lines + (lines[-1] == b"")
        if len(lines) > count:
            lines, cut = lines[-count:], False
        if cut:
            lines[0] = lines[0].lstrip(bytes(range(0x80, 0xC0)))  # the rest of a character
            lines.insert(0, b"[only the last %d bytes]" % TAIL_BYTES)
        return b"\n".join(lines).decode(errors="replace")

    def _copy(self) -> None:
        """Copy until all is said. While a reader is slow, nothing is read, so the command has to wait as it would have;
        but once it has ended, what it has said is read."""
        until = None
        while self._open and (until is None or time.monotonic() < until):
            poll = select.poll()
            if until is None:
                poll.register(self._ended, select.POLLIN)
            for channel in self._open:
                if channel.pending:
                    poll.register(channel.target, select.POLLOUT)
                if until or not channel.pending:
                    poll.register(channel.source, select.POLLIN)
            ready = dict(poll.poll(None if until is None else _REST_SECONDS * 1000))
            if until and not any(channel.source in ready for channel in self._open):
                return
            if self._ended in ready:
                until = time.monotonic() + _REST_AT_MOST_SECONDS
            for channel in list(self._open):
                data = channel.read() if channel.source in ready else None
                if data:
                    self._kept += data
                    channel.pending += data
                if len(self._kept) > _CHUNK:
                    self._cut = True
                    del self._kept[:-TAIL_BYTES]
                wanted = channel.target not in ready or channel.write(select.PIPE_BUF)  # so much does not block
                if data == b"" or not wanted:
                    self._open.remove(channel)
                    os.close(channel.source)  # if it was our output that failed, the command's next writing will fail
