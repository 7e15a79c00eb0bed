"""How many pages a mailbox holds, without listing its folders for every page that comes."""

import os

from pagermcp import files

_NOTED_BEFORE_A_NEW_COUNT = 16


class Tally:
    """A count of the files in new/ and leased/, remembered with the mtime of new/. Not safe between threads.

    Every arrival and every claim, by whomever, changes that mtime; what leaves leased/ does not, so there may be fewer
    than remembered, but not more. What this process links or claims it notes itself. Should somebody else change the
    folder between its two looks, that stays unseen until it counts again, which it does now and then.
    exact: the mtime differs after every change (`files.tells_changes_apart`); or else each look is a count."""

    def __init__(self, new: str, leased: str, exact: bool) -> None:
        self.waiting = self.leased = 0
        self.can_lease = False  # leased/ is there
        self._new, self._leased, self._exact = new, leased, exact
        self._mtime: int | None = None
        self._noted = 0

    def look(self) -> None:
        """Count again if new/ is not as it was."""
        if self._noted > _NOTED_BEFORE_A_NEW_COUNT or not self.unchanged():
            self.count()
        elif not self.waiting:  # only then may somebody remove leased/, of which new/ shows nothing
            self.can_lease = files.is_directory(self._leased)

    def count(self) -> None:
        self._mtime = self._mtime_now()
        self.waiting = len(files.names(self._new))
        self.can_lease = files.is_directory(self._leased)
        self.leased = len(files.names(self._leased)) if self.can_lease else 0
        self._noted = 0

    def unchanged(self) -> bool:
        """Whether new/ is as it was when it was counted, or when something was added."""
        return self._exact and self._mtime == self._mtime_now()

    def add(self, unchanged: bool) -> None:
        """This process has linked a page into new/, which until then was unchanged or not."""
        self.waiting += 1
        self._note(unchanged)

    def take(self, unchanged: bool) -> None:
        """This process has moved a page from new/ to leased/."""
        known = unchanged and self.waiting > 0  # or else one has come unseen
        if known:
            self.waiting -= 1
            self.leased += 1
        self._note(known)

    def _note(self, unchanged: bool) -> None:
        self._noted += 1
        self._mtime = self._mtime_now() if unchanged else None

    def _mtime_now(self) -> int:
        """-1: it is not there."""
        try:
            return os.stat(self._new).st_mtime_ns
        except FileNotFoundError:
            return -1
