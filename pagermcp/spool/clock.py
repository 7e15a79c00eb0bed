"""Whether the wall clock may decide what is old.

A clock that jumps would make every page look a year old at once. So a jump against the monotonic clock is believed only
when it has lasted, and after a long absence nothing is deleted before somebody had time to notice.
"""

import time

JUMP_SECONDS = 300.0
LASTING_SECONDS = 3600.0
ABSENCE_SECONDS = 86400.0


def _offset() -> float:
    return time.time() - time.monotonic()


class Clock:
    """Watches the wall clock from its making on. `last_pass`: when the janitor last ran, by the wall clock, if ever."""

    def __init__(self, last_pass: float | None) -> None:
        self._believed = _offset()
        self._jumped: tuple[float, float] | None = None  # the new difference, and since when by the monotonic clock
        self._absence = 0.0 if last_pass is None else time.time() - last_pass
        self._deletes_from = time.monotonic() + (ABSENCE_SECONDS if abs(self._absence) > ABSENCE_SECONDS else 0)

    def check(self) -> None:
        """Look whether the clock has jumped, or a jump has lasted. To be called at least every few minutes."""
        offset = _offset()
        if abs(offset - self._believed) <= JUMP_SECONDS:
            self._jumped = None
        elif self._jumped is None or abs(offset - self._jumped[0]) > JUMP_SECONDS:
            self._jumped = offset, time.monotonic()
        elif time.monotonic() - self._jumped[1] >= LASTING_SECONDS:
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
