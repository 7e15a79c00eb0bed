"""Several processes that serve one spool on one port, and their parent, who keeps that many running.

The parent serves nobody. It stays one thread, so that it can fork at any time; it holds the port, so that workers come
and go on it; and it ends them with itself. They share its lock on the spool, which is free when the last one has gone.
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from pagermcp.server.notify import READY, STOPPING, TURNS, Notifier

STOP_SECONDS = 7.0
"""How long workers may take to stop; Docker waits for 10 s."""

_KILL_SECONDS = 2.0
_STEADY_SECONDS = 10.0  # a worker that lives so long has not died at once
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_TURN_SECONDS = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("pagermcp")

Serve = Callable[[int, bool, Callable[[str], None]], str | None]
"""What a worker does: it gets its number, whether it follows one that died, and what to tell READY and then, as long
as its loop does, TURNS; it ends when it was told to stop, with None, or with why it can't serve."""


class WorkerFailed(Exception):
    """A worker could not even start. The message says why."""


@dataclass
class _Worker:
    """pipe: gives a null byte when it listens, and more while its loop turns, or why it can't serve, and its end with
    that of the process."""

    number: int
    pid: int
    pipe: int
    began: float
    said: bytes = b""

    @property
    def listens(self) -> bool:
        return self.said.startswith(b"\0")

    @property
    def turns(self) -> bool:
        """Since `said` was last made to begin with one null byte."""
        return self.said.startswith(b"\0\0")

    @property
    def problem(self) -> str:
        return self.said.lstrip(b"\0").decode(errors="replace")


class Workers:
    """The parent of so many workers. To be run in the main thread of a process that has no other one.

    It tells that the relay turns when all workers have said so that listen: a restart mends one that hangs, too."""

    def __init__(self, count: int, serve: Serve, notifier: Notifier) -> None:
        self._count, self._serve, self._notifier = count, serve, notifier
        self._workers: dict[int, _Worker] = {}  # by pipe
        self._died_at_once = dict.fromkeys(range(count), 0)  # how often in a row
        self._start_at: dict[int, float] = {}  # monotonic, of those that are to be started again
        self._stopping = False
        self._life, self._ours = os.pipe()  # ends with this process, and so tells the workers
        self._waking, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def run(self, started: Callable[[], None], turn: Callable[[], None]) -> None:
        """Run workers until SIGTERM or SIGINT. started: called when all listen; turn: called at least every minute.

        Raises WorkerFailed, when one can't start at first, and OSError."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for one in _SIGNALS:
            signal.signal(one, self._on_signal)
        try:
            for number in range(self._count):
                self._start(number, follows=False)
            told = False
            while not self._stopping:
                longest = min(_TURN_SECONDS, self._notifier.every)
                self._listen(until=min([*self._start_at.values(), time.monotonic() + longest]), first=not told)
                if not told and sum(worker.listens for worker in self._workers.values()) == self._count:
                    told = True
                    started()
                    self._notifier.tell(READY)
                turn()
                if told:
                    self._tell_if_all_turn()
                for number in [one for one, at in self._start_at.items() if at <= time.monotonic()]:
                    if not self._stopping:
                        self._start_again(number)
            self._notifier.tell(STOPPING)
        finally:
            self._stop()

    def _tell_if_all_turn(self) -> None:
        listening = [worker for worker in self._workers.values() if worker.listens]
        if all(worker.turns for worker in listening):
            for worker in listening:
                worker.said = b"\0" + worker.said.lstrip(b"\0")
            self._notifier.tell(TURNS)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stopping = True  # and the wake-up descriptor ends the poll

    def _start(self, number: int, follows: bool) -> None:
        pipe, its = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # so that the child handles none as the parent would
        try:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for one in _SIGNALS:
                    signal.signal(one, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                self._be(number, follows, its)
        except OSError:
            os.close(pipe)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(its)
        self._workers[pipe] = _Worker(number, pid, pipe, time.monotonic())

    def _be(self, number: int, follows: bool, pipe: int) -> NoReturn:
        """Be a worker, in the child, to the end of the process."""
        status = 1
        try:
            os.close(self._ours)
            threading.Thread(target=self._end_with_parent, name="parent", daemon=True).start()
            problem = self._serve(number, follows, lambda state: _say(pipe, b"\0"))
            if problem is None:
                status = 0
            else:
                _say(pipe, problem.encode(errors="backslashreplace"))
        except Exception:
            log.exception("worker %d", number)
        finally:
            os._exit(status)  # what is above on the stack is the parent's

    def _end_with_parent(self) -> None:
        os.read(self._life, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _start_again(self, number: int) -> None:
        del self._start_at[number]
        try:
            self._start(number, follows=True)
        except OSError as error:
            log.warning("worker %d can't be started: %s", number, error.strerror)
            self._start_at[number] = time.monotonic() + _LONGEST_DELAY

    def _listen(self, until: float, first: bool) -> None:
        """Hear what workers say, once, until that monotonic time; first: none may end before it has listened."""
        for worker in self._heard(until):
            how = self._reap(worker)
            if self._stopping:
                continue
            if first and not worker.listens:
                raise WorkerFailed(worker.problem or f"a worker {how} before it listened: see the log")
            if time.monotonic() - worker.began >= _STEADY_SECONDS:
                self._died_at_once[worker.number] = 0
            times = self._died_at_once[worker.number]
            delay = min(_FIRST_DELAY * 2 ** (times - 1), _LONGEST_DELAY) if times else 0.0
            self._died_at_once[worker.number] = min(times + 1, 10)
            self._start_at[worker.number] = time.monotonic() + delay
            when = f" in {delay:g} s" if delay else ""
            why = f": {worker.problem}" if worker.problem else ""
            log.warning("worker %d %s and is started again%s%s", worker.number, how, when, why)

    def _heard(self, until: float) -> list[_Worker]:
        """The workers that ended, when something happens or that monotonic time has come."""
        poll = select.poll()
        for pipe in (self._waking, *self._workers):
            poll.register(pipe, select.POLLIN)
        ended = []
        for pipe, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000):
            said = os.read(pipe, 4096)
            if pipe in self._workers:
                self._workers[pipe].said += said
                if not said:
                    ended.append(self._workers[pipe])
        return ended

    def _reap(self, worker: _Worker) -> str:
        """How a worker has ended, in words; it is forgotten then."""
        os.close(worker.pipe)
        del self._workers[worker.pipe]
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        return f"was ended by signal {-code}" if code < 0 else f"ended with {code}"

    def _stop(self) -> None:
        """End all workers, for good."""
        self._stopping = True
        for how, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            until = time.monotonic() + seconds
            for worker in self._workers.values():
                if how == signal.SIGKILL:
                    log.warning("worker %d does not stop and is killed", worker.number)
                os.kill(worker.pid, how)  # not reaped yet, so the number is still its own
            while self._workers and time.monotonic() < until:
                self._listen(until, first=False)


def _say(pipe: int, text: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent has gone, which we are told otherwise
        os.write(pipe, text[: select.PIPE_BUF])
