"""The threads that run requests take turns: one runs, the others wait for their turn, or for the disk.

Python lets go of its interpreter lock for each system call, and a page is sixty of them. Where several threads run at
once, each of these calls, which take microseconds, becomes a change of threads: 44 % of what the relay did with 2,000
waiters was that (perf). So a thread gives its turn away only where it really waits, most of all for fsync. Its turn
lasts for no longer than Python's own time slice for threads, so a disk that hangs elsewhere holds nobody up.
"""

import contextlib
import threading
from collections.abc import Iterator

_PATIENCE_SECONDS = 0.005  # sys.getswitchinterval()

_turn = threading.Lock()
_mine = threading.local()


def take() -> None:
    """Wait for this thread's turn, but not for long."""
    _mine.held = _turn.acquire(timeout=_PATIENCE_SECONDS)


def give() -> bool:
    """End this thread's turn; False when it has none."""
    held: bool = getattr(_mine, "held", False)
    if held:
        _mine.held = False
        _turn.release()
    return held


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """While this thread waits for something: it is the turn of others."""
    had = give()
    try:
        yield
    finally:
        if had:
            take()
