"""Of the threads that run requests one has the turn, and the others wait for it, or for the disk.

Python lets go of its interpreter lock for each system call, and a page is sixty of them. Where several threads run at
once, each of these calls, which take microseconds, becomes a change of threads: 44 % of what the relay did with 2,000
waiters was that (perf). So a thread gives its turn away only where it really waits, most of all for fsync.

Whose turn it is, `pagermcp.server.pool` decides; this is for those who wait, and know nothing of a server.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol


class Turn(Protocol):
    """A thread's side of it."""

    def give(self) -> bool:
        """End this thread's turn; False when it has none."""

    def take(self) -> None:
        """Wait for this thread's turn, but not for long."""


_mine = threading.local()


def belongs(turn: Turn) -> None:
    """From here on this thread takes turns."""
    _mine.turn = turn


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """While this thread waits for something: it is the turn of others."""
    turn: Turn | None = getattr(_mine, "turn", None)
    had = turn is not None and turn.give()
    try:
        yield
    finally:
        if had and turn:
            turn.take()
