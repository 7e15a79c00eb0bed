"""Health: can a page be written right now? Asked of the disk, not assumed."""

import threading
import time

from pagermcp import turn
from pagermcp.spool import Spool

_SHARED_SECONDS = 2.0
_PATIENCE_SECONDS = 3.0


class Health:
    """The last answer of the spool's probe, shared by all who ask within 2 s, so that asking is no load."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._lock = threading.Lock()
        self._asked_at = -_SHARED_SECONDS
        self._problem: str | None = None

    def problem(self) -> str | None:
        """Why no page can be written, or None when it can."""
        with turn.waiting():
            answered = self._lock.acquire(timeout=_PATIENCE_SECONDS)
        if not answered:
            return f"the disk has not answered for {_PATIENCE_SECONDS:g} s"
        try:
            if time.monotonic() - self._asked_at >= _SHARED_SECONDS:
                self._problem = None
                try:
                    self._spool.probe()
                except OSError as error:
                    self._problem = error.strerror or str(error)
                self._asked_at = time.monotonic()
            return self._problem
        finally:
            self._lock.release()
