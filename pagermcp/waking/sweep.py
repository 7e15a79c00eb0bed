"""The sweep: every 2 s, look whether anything was missed; and what is on the agenda, when its time has come.

It makes waking independent of watchdog: whatever lost an event, the mailbox's directory shows that it changed. While
all mailboxes with waiters are watched well, it looks at a thousand of them each time, in turn. It also tends the
watches.
"""

import contextlib
import logging
import threading
import time

from pagermcp.measures import MEASURES, WATCHING
from pagermcp.spool import Spool
from pagermcp.waking.switchboard import Switchboard
from pagermcp.waking.watch import Watcher

SWEEP_SECONDS = 2.0
LOOKS = 1000

log = logging.getLogger(__name__)


class Sweep:
    """Sweeps, in a thread of its own from `start` until `stop`."""

    def __init__(self, spool: Spool, switchboard: Switchboard, watcher: Watcher) -> None:
        self._thread = threading.Thread(target=self._run, name="sweep", daemon=True)
        self._spool = spool
        self._switchboard = switchboard
        self._watcher = watcher
        self._next = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        sweep_at = time.monotonic() + SWEEP_SECONDS
        while True:
            self._spool.agenda.wait(sweep_at)
            if self._stopped.is_set():
                return
            try:
                self.come_due()
                if time.monotonic() >= sweep_at:
                    sweep_at = time.monotonic() + SWEEP_SECONDS
                    self.sweep()
            except Exception:  # whatever it was may be over in 2 s, and then the sweep must still be here
                log.exception("a sweep failed")

    def come_due(self) -> None:
        """Do what the agenda says."""
        for number in self._spool.come_due():
            self._switchboard.ring(number)

    def sweep(self) -> None:
        """Sweep once."""
        with contextlib.suppress(OSError):  # of which the janitor's pass tells
            self._spool.schedule.refresh()  # so that what another process has scheduled comes in time when it dies
        waiting = self._switchboard.numbers()
        self._watcher.tend(waiting)
        MEASURES.put("watching", WATCHING.index(self._watcher.state))
        looks = waiting
        if self._watcher.state == "ok":
            self._next %= len(waiting) or 1
            looks = (waiting + waiting[: self._next])[self._next :][:LOOKS]
            self._next += LOOKS
        for number in looks:
            if self._changed(number):
                self._switchboard.ring(number)

    def _changed(self, number: str) -> bool:
        try:
            return self._spool.mailbox(number).changed()
        except OSError:  # who waits meets it as well, and answers it; here it must not keep the others from being rung
            return True

    def stop(self) -> None:
        self._stopped.set()
        self._spool.agenda.interrupt()
        self._thread.join(1)
