"""Who waits for which mailbox, in this process.

A waiter registers, looks, parks, looks again. A ring wakes the one that has waited longest and is not awake yet; when
it leaves without having looked since, it rings the next. So a lost or doubled ring never matters, only a look counts.
"""

import threading

from pagermcp.measures import MEASURES
from pagermcp.waking.waiter import Waiter


class Switchboard:
    """The waiters of this process by number, in the order in which they came. Safe between threads."""

    def __init__(self) -> None:
        self.draining = False
        self._takers: dict[str, dict[Waiter, None]] = {}
        self._readers: dict[str, dict[Waiter, None]] = {}
        self._lock = threading.Lock()

    def enter(self, number: str, taking: bool = True, name: str | None = None) -> Waiter:
        """Register a waiter. It must leave again."""
        waiter = Waiter(number, taking, name)
        with self._lock:
            self._of_its_kind(waiter).setdefault(number, {})[waiter] = None
        MEASURES.move("waiters", 1)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Take a waiter off. A ring that it did not answer with a look goes to the next."""
        with self._lock:
            kind = self._of_its_kind(waiter)
            waiters = kind[waiter.number]
            del waiters[waiter]
            if not waiters:
                del kind[waiter.number]
        MEASURES.move("waiters", -1)
        if waiter.rung and waiter.taking:
            self.ring(waiter.number)

    def ring(self, number: str) -> None:
        """There may be a page for this number: wake one who would take it, the oldest that sleeps, and all readers."""
        with self._lock:
            marked = [waiter for waiter in self._readers.get(number, ()) if waiter.mark()]
            for waiter in self._takers.get(number, ()):
                if not waiter.rung and waiter.mark():  # asked first, since in a burst many of them are awake
                    marked.append(waiter)
                    break
        for waiter in marked:  # not under the lock: it calls the server, which has locks of its own
            waiter.wake()

    def ring_all(self) -> None:
        """There may be pages anywhere: wake one waiter of each number."""
        for number in self.numbers():
            self.ring(number)

    def drain(self) -> None:
        """Wake everybody for the last time; from now on nobody should wait."""
        self.draining = True
        with self._lock:
            kinds = self._takers, self._readers
            everybody = [waiter for kind in kinds for waiters in kind.values() for waiter in waiters]
        for waiter in everybody:
            waiter.ring()

    def waiting(self, number: str) -> int:
        """How many wait for this number, in this process."""
        return len(self._takers.get(number, ())) + len(self._readers.get(number, ()))

    def takers(self, number: str) -> int:
        """How many of them would take a page."""
        return len(self._takers.get(number, ()))

    def names(self, number: str) -> set[str]:
        """Who waits in a room, in this process."""
        with self._lock:
            return {waiter.name for waiter in self._readers.get(number, ()) if waiter.name}

    def numbers(self) -> list[str]:
        """The numbers somebody waits for."""
        with self._lock:
            return list(self._takers | self._readers)

    def _of_its_kind(self, waiter: Waiter) -> dict[str, dict[Waiter, None]]:
        return self._takers if waiter.taking else self._readers
