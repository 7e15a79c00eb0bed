"""What systemd is told of the relay that it started: that it listens, that its main loop turns, that it stops.

The protocol is that of sd_notify(3): each line is a datagram to the Unix socket in NOTIFY_SOCKET, where a name that
begins with @ is an abstract one. How often it wants to hear that the loop turns is in WATCHDOG_USEC, for the process
WATCHDOG_PID: sd_watchdog_enabled(3). A relay that was started otherwise has none of these, and tells nobody anything.

The loop's turning is all that the watchdog is told. A full disk or a watch that failed is on /healthz, since a restart
would mend neither, and would cut off everybody who waits.
"""

import logging
import math
import os
import socket
import time
from collections.abc import Callable, MutableMapping

_PATIENCE_SECONDS = 5.0  # for what is said once

log = logging.getLogger("pagermcp")


class Notifier:
    """Whoever started this process and wants to hear of it; watchdog_seconds: how often, math.inf for never."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Takes its variables out of `environment`, so that no other process speaks for this one."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        # kept open, for a loop that turns may be out of descriptors, and is not to be killed for that
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        meant = address and microseconds and pid in ("", str(os.getpid()))
        self.watchdog_seconds = _seconds(microseconds) if meant else math.inf

    def ready(self) -> None:
        """The relay listens."""
        self._tell("READY=1", _PATIENCE_SECONDS)

    def stopping(self) -> None:
        """The relay has been told to stop, and does."""
        self._tell("STOPPING=1", _PATIENCE_SECONDS)

    def alive(self) -> None:
        """The main loop turns. It is not held up by this; a datagram that nobody takes is lost."""
        self._tell("WATCHDOG=1", 0)

    def _tell(self, state: str, patience: float) -> None:
        if self._socket is None:
            return
        try:
            self._socket.settimeout(patience)
            self._socket.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("NOTIFY_SOCKET can't be told %s: %s", state, error.strerror or error)


def _seconds(microseconds: str) -> float:
    if microseconds.isascii() and microseconds.isdecimal() and int(microseconds) > 0:
        return int(microseconds) / 1e6
    log.warning("WATCHDOG_USEC=%r is no number of microseconds; there is no watchdog", microseconds)
    return math.inf


class Pulse:
    """Says that a loop turns: three times in so many seconds (math.inf: never), as long as it calls `beat`."""

    def __init__(self, say: Callable[[], None], seconds: float) -> None:
        self._say, self._every = say, seconds / 3
        self._next = math.inf if seconds == math.inf else 0.0

    def due_in(self) -> float:
        """For how many seconds the loop may sleep."""
        return max(0.0, self._next - time.monotonic())

    def beat(self) -> None:
        """To be called in each turn."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            self._say()
