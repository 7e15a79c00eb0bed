"""The threads that run requests, of which one has the turn (`pagermcp.turn`).

Who has it runs one task after another, and gives it away where it waits. So while all goes on without waiting, no
thread has to be woken for a task, and none has to wait for another. What tasks have for the disk is brought there for
many of them at a time. A turn that lasts long is lost: a disk that hangs, or a task that computes for a while, holds
nobody up for more than some milliseconds.
"""

import collections
import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pagermcp import aio, turn
from pagermcp.commit import Commit, sync

PATIENCE_SECONDS = 0.005  # sys.getswitchinterval()

log = logging.getLogger(__name__)


class Task(Protocol):
    """What is run: a connection with a request, or a commit. What is to be synced before it can go on, it gives."""

    def service(self) -> Commit[Any] | None: ...


class Member:
    """A thread that takes turns. `called` is free for a moment when it is given one."""

    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.called = threading.Lock()
        self.called.acquire()

    def give(self) -> bool:
        """End this thread's turn; False when it has none."""
        return self.pool.give(self)

    def take(self) -> None:
        """Wait for this thread's turn, but not for long. It comes before new tasks."""
        self.pool.take(self, self.pool.back)


class Last(Member):
    """A thread that runs, in this context, when nobody else has anything to run: that of the event loop, so that what
    came meanwhile is read in one go."""

    def __enter__(self) -> None:
        self.pool.take(self, self.pool.patient)

    def __exit__(self, *exception: object) -> None:
        self.give()


class _Worker(Member):
    def __init__(self, pool: "Pool", number: int) -> None:
        super().__init__(pool)
        self.thread = threading.Thread(target=self._run, name=f"request-{number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        turn.belongs(self)
        while self.pool.rest(self):
            self.called.acquire()
            while task := self.pool.next_task(self):
                try:
                    self.pool.run(task)
                except Exception:  # of waitress itself; the thread must stay
                    log.exception("a fault in serving a connection")


class Pool:
    """So many threads, and the turn of these and others. Safe between threads.

    commits: how many may be under way at a time, since each has files open; beyond that each has a thread to itself.
    interrupt: ends a turn of the event loop."""

    def __init__(self, threads: int, commits: int) -> None:
        self.interrupt: Callable[[], None] = lambda: None
        self._most_commits = commits
        self._commits_under_way = 0
        self._watched = False  # the loop looks again soon
        self.back: collections.deque[Member] = collections.deque()
        """Who has waited for something, and would go on."""
        self.patient: collections.deque[Member] = collections.deque()
        """Who would run when there are no tasks."""
        self._turn: Member | None = None
        self._since = 0.0  # monotonic: since when it has the turn, or runs this task
        self._tasks: collections.deque[Task] = collections.deque()
        self._commits: list[Commit[Any]] = []
        self._commits_since = 0.0
        self._resting: list[_Worker] = []
        self._stopping = False
        self._lock = threading.Lock()
        self._workers = [_Worker(self, number) for number in range(threads)]

    def add_task(self, task: Task) -> None:
        self._tasks.append(task)
        turn = self._turn
        if turn is None:  # asked after it was added; who gives the turn away asks in the other order
            self._pass_on()
        elif isinstance(turn, Last):  # the loop, which can't look now
            self._end_if_long()
        elif not self._watched:
            self._watched = True
            self.interrupt()

    def look(self) -> bool:
        """See to it that nobody is held up by who has the turn. To be called now and then; whether again soon."""
        self._watched = self._turn is not None
        if self._tasks or self._commits or self.back:
            self._end_if_long()
        return self._watched

    def _end_if_long(self) -> None:
        with self._lock:
            if self._turn is not None and time.monotonic() - self._since > PATIENCE_SECONDS:
                self._turn = None
        if self._turn is None:
            self._pass_on()

    def stop(self, patience: float) -> None:
        """Let the threads end when they have run all tasks, and wait so many seconds for them."""
        self._stopping = True
        self._call_all()
        until = time.monotonic() + patience
        while (alive := [one.thread for one in self._workers if one.thread.is_alive()]) and time.monotonic() < until:
            self.look()
            alive[0].join(PATIENCE_SECONDS)

    # For the threads

    def next_task(self, worker: _Worker) -> Task | None:
        """What this one is to run now; None when it has no turn (any more), or nothing to run."""
        while self._turn is worker and not self.back:
            self._since = now = time.monotonic()
            if self._commits and (not self._tasks or now - self._commits_since > PATIENCE_SECONDS):
                self._sync(worker)
                continue
            try:
                return self._tasks.popleft()
            except IndexError:
                return None
        return None

    def run(self, task: Task) -> None:
        """Run it. What it has for the disk is synced together with what others have, and then it goes on."""
        commit = None
        try:
            commit = task.service()
        finally:
            with self._lock:
                if isinstance(task, Commit) and commit is not task:
                    self._commits_under_way -= 1
                if commit is not None and commit is not task:
                    self._commits_under_way += 1
                alone = self._commits_under_way > self._most_commits
                if alone:
                    self._commits_under_way -= 1
                elif commit is not None:
                    if not self._commits:
                        self._commits_since = time.monotonic()
                    self._commits.append(commit)
        while alone and commit is not None:
            commit.finish()
            commit = commit.then()

    def _sync(self, worker: _Worker) -> None:
        """Sync what has come together, while others have the turn."""
        with self._lock:
            commits, self._commits = self._commits[: aio.MOST], self._commits[aio.MOST :]
        self.give(worker)
        errors: Sequence[OSError | None]
        try:
            errors = sync([commit.descriptor for commit in commits])
        except Exception as error:  # nobody knows what became of them, and each is told so
            log.exception("files could not be synced")
            errors = [OSError(errno.EIO, str(error)) for _ in commits]
        for commit, failed in zip(commits, errors, strict=True):
            commit.error = failed
        self._tasks.extendleft(reversed(commits))
        with self._lock:  # if somebody else has the turn, he goes on with them
            if self._turn is None:
                self._turn = worker

    def rest(self, worker: _Worker) -> bool:
        """End a thread's turn, if it has it still, until it is called. False when it should end."""
        with self._lock:
            if self._turn is worker:
                self._turn = None
            ends = self._stopping and not self._tasks and not self._commits
            if not ends:
                self._resting.append(worker)
        if ends:
            self._call_all()
        else:
            self._pass_on()
        return not ends

    def give(self, member: Member) -> bool:
        with self._lock:
            if self._turn is not member:
                return False
            self._turn = None
        self._pass_on()
        return True

    def take(self, member: Member, queue: collections.deque[Member]) -> None:
        """Wait for a turn in this queue, but not for long."""
        with self._lock:
            if self._turn is None and (queue is self.back or not self._tasks):
                self._turn, self._since = member, time.monotonic()
                return
            queue.append(member)
        if not member.called.acquire(timeout=PATIENCE_SECONDS):
            with self._lock:
                if member in queue:
                    queue.remove(member)
                    return
            member.called.acquire()  # it has just been called

    def _pass_on(self) -> None:
        """Call who can use the turn, if nobody has it."""
        if not (self.back or self._tasks or self._commits or self.patient):
            return
        with self._lock:
            if self._turn is not None:
                return
            member: Member
            if self.back:
                member = self.back.popleft()
            elif self._resting and (self._tasks or self._commits):
                member = self._resting.pop()
            elif self.patient:
                member = self.patient.popleft()
            else:
                return
            self._turn, self._since = member, time.monotonic()
        member.called.release()

    def _call_all(self) -> None:
        with self._lock:
            resting, self._resting = self._resting, []
        for worker in resting:
            worker.called.release()
