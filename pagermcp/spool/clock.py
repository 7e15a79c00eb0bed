"""Whether the wall clock may decide what is old.

A clock that jumps would make every page look a year old at once. So a jump against the monotonic clock is believed only
when it has lasted, and after a long absence nothing is deleted before somebody had time to notice.
"""

import datetime
import time

JUMP_SECONDS = 300.0
LASTING_SECONDS = 3600.0
ABSENCE_SECONDS = 86400.0


def _offset() -> float:
    return time.time() - time.monotonic()


class Clock:
    """Watches the wall clock from its making on."""

    def __init__(self) -> None:
        self._believed = _offset()
        self._jumped: tuple[float, float] | None = None  # the new difference, and since when by the monotonic clock
        self._absence = 0.0
        self._deletes_from = time.monotonic()

    def was_absent_since(self, last_pass: float) -> None:
        """The janitor takes up his work, who ran last at that wall time."""
        self._absence = time.time() - last_pass
        self._deletes_from = time.monotonic() + (ABSENCE_SECONDS if abs(self._absence) > ABSENCE_SECONDS else 0)

    def now(self) -> datetime.datetime:
        """The time by which pages age. While a jump is not believed yet this is the earlier of the two, so that a page
        from before it, or from after it, may look younger than it is, but never older."""
        self.check()
        now = time.time() if self._jumped is None else min(time.time(), time.monotonic() + self._believed)
        return datetime.datetime.fromtimestamp(now, datetime.UTC)

    def within(self, since: datetime.datetime, seconds: float) -> bool:
        """Whether some moment was less than so many seconds ago, or will be that soon; by either of the two."""
        times = (time.time(), time.monotonic() + self._believed)
        return any(abs(now - since.timestamp()) < seconds for now in times)

    def age(self, since: datetime.datetime) -> float:
        """Seconds, never negative."""
        return max(0.0, (self.now() - since).total_seconds())

    def check(self) -> None:
        """Look whether the clock has jumped, or a jump has lasted. To be called at least every few minutes."""
        offset, jumped = _offset(), self._jumped  # which another thread may change meanwhile
        if abs(offset - self._believed) <= JUMP_SECONDS:
            self._jumped = None
        elif jumped is None or abs(offset - jumped[0]) > JUMP_SECONDS:
            self._jumped = offset, time.monotonic()
        elif time.monotonic() - jumped[1] >= LASTING_SECONDS:
            self._believed, self._jumped = offset, None

    @property
    def may_age(self) -> bool:
        return self._jumped is None

    @property
    def may_delete(self) -> bool:
        return self.may_age and time.monotonic() >= self._deletes_from

    @property
    def problem(self) -> str | None:
        """Why something is not done, or None."""
        jumped = self._jumped
        if jumped is not None:
            return f"the clock jumped by {jumped[0] - self._believed:+.0f} s; nothing is aged for an hour"
        if not self.may_delete:
            return f"by the clock nobody was here for {self._absence / 86400:.1f} days; nothing is deleted for a day"
        return None
