"""Making files durable: what must wait for the disk is written as steps, which say what they wait for.

A step ends at each `yield` of a descriptor, and goes on when that is on the disk; an OSError that fsync gives is raised
there. So the same steps can be run alone (`at_once`), or many of them together, whose files the disk is then asked for
all at a time (`pagermcp.server.pool`): it takes little longer for ten of them than for one.
"""

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from pagermcp import aio, turn
from pagermcp.measures import MEASURES

T = TypeVar("T")

Steps = Generator[int, None, T]
"""Gives descriptors, each to be synced before it goes on; in the end a result."""


class Commit(Generic[T]):
    """Steps under way. For one thread at a time.

    descriptor: what is to be synced before it goes on; error: why that failed, if so; then: what a server does when it
    is over, which may begin another commit."""

    def __init__(self, steps: Steps[T]) -> None:
        self.descriptor = -1
        self.error: OSError | None = None
        self.then: Callable[[], Commit[Any] | None] = lambda: None
        self._steps = steps
        self._outcome: T | BaseException

    def go_on(self) -> bool:
        """Take the next step; False when there is none."""
        error, self.error = self.error, None
        try:
            self.descriptor = next(self._steps) if error is None else self._steps.throw(error)
        except StopIteration as end:
            self._outcome = end.value
        except Exception as failure:  # noqa: BLE001 - it is for who asks for the result
            self._outcome = failure
        else:
            return True
        return False

    def result(self) -> T:
        """What came of it, once it is over. Raises what the steps raised."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def finish(self) -> None:
        """Take the steps that are left, alone."""
        while True:
            [self.error] = sync([self.descriptor])
            if not self.go_on():
                return

    def service(self) -> "Commit[Any] | None":
        """Go on, and then with what comes after it; what is to be synced before that."""
        return self if self.go_on() else self.then()


def at_once(steps: Steps[T]) -> T:
    """The result of these steps, taken alone. Raises what they raise."""
    commit = Commit(steps)
    if commit.go_on():
        commit.finish()
    return commit.result()


def sync(descriptors: Sequence[int]) -> list[OSError | None]:
    """Wait until these files and folders are on the disk; for each of them why it is not, if so.

    Never to be tried again on the same descriptor: a second fsync would lie (Rebello, ATC 2020)."""
    with turn.waiting():
        began = time.perf_counter()
        errors = aio.fsync(descriptors) if 1 < len(descriptors) <= aio.MOST else None
        if errors is None:
            errors = [aio.alone(descriptor) for descriptor in descriptors]
        took = time.perf_counter() - began
    for _ in descriptors:
        MEASURES.observe("fsync", took)
    return errors
