"""The threads that run requests. Waitress's own pool, with its condition variables, costs a post twice the switches."""

import logging
import queue
import threading
import time
from typing import Protocol

from pagermcp import turn

log = logging.getLogger(__name__)


class Task(Protocol):
    """What is run: a connection with a request."""

    def service(self) -> None: ...

    def cancel(self) -> None: ...


class Pool:
    """So many threads, which run one task after another."""

    def __init__(self, threads: int) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"request-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def add_task(self, task: Task) -> None:
        self._tasks.put(task)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            turn.take()
            try:
                task.service()
            except Exception:  # of waitress itself; the thread must stay
                log.exception("a fault in serving a connection")
            finally:
                turn.give()

    def stop(self, patience: float) -> None:
        """Let the threads end when they have run all tasks, and wait so many seconds for them."""
        for _ in self._threads:
            self._tasks.put(None)
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0, until - time.monotonic()))
