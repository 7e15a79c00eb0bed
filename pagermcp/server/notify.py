"""What systemd is told of the relay that it started: that it listens, that its main loop turns, that it stops.

As in sd_notify(3), each is a datagram to the Unix socket NOTIFY_SOCKET, where @ begins an abstract name; as in
sd_watchdog_enabled(3), WATCHDOG_USEC is how often it wants to hear of the loop from the process WATCHDOG_PID. A relay
that was started otherwise has none of these, and tells nobody anything.

The loop's turning is all that the watchdog is told. A full disk or a watch that failed is on /healthz, since a restart
would mend neither, and would cut off everybody who waits.
"""

import logging
import math
import os
import re
import socket
from collections.abc import Mapping

_PATIENCE_SECONDS = 1.0

log = logging.getLogger("pagermcp")

READY, TURNS, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
"""The relay listens; its main loop turns; it was told to stop."""


class Notifier:
    """Whoever started this process and wants to hear of it. every: after how many seconds it is to hear TURNS again,
    which is three times as often as it asks for; math.inf for never."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = re.sub("^@", "\0", environment.get("NOTIFY_SOCKET", ""))
        self._socket: socket.socket | None = None
        microseconds = environment.get("WATCHDOG_USEC", "")
        meant = self._address and environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        self.every = int(microseconds) / 3e6 if meant and microseconds.isdecimal() and int(microseconds) else math.inf

    def tell(self, state: str) -> None:
        """Say it, if there is somebody who wants to hear. A failure is a warning in the log."""
        if not self._address:
            return
        try:
            if self._socket is None:  # kept: a loop that turns may be out of descriptors, and must not be ended for it
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.settimeout(_PATIENCE_SECONDS)
            self._socket.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("NOTIFY_SOCKET can't be told %s: %s", state, error.strerror or error)
