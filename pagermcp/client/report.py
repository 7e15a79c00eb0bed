"""The report about something that takes long: one page at its end, and if wanted a dead-man's switch around it."""

import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from pagermcp.client.outbox import Outbox, Outgoing, Overdue
from pagermcp.client.relay import BadCall, NotARelay, Refused, Relay, RelayError, Sent, backoff


class Report:
    """A report to be sent when something ends. Raises what `Relay.number` raises.

    fixed: what the page has at its beginning, with its JOB_ID; fields: at its end, where they win.
    expect: seconds; unless the end is reported by then, the relay pages that the run is lost. trouble: why that could
    not be arranged, in one line. outbox: where the page is kept until a relay takes it."""

    def __init__(
        self,
        relay: Relay,
        fixed: Mapping[str, Any],
        fields: Mapping[str, Any],
        expect: float | None,
        outbox: Outbox | None,
    ) -> None:
        self.relay = relay
        self.outbox = outbox
        self.trouble = ""
        self._to = relay.number
        self._fixed = fixed
        self._fields = fields
        self._run: str | None = None
        self._ended = threading.Event()
        self._page: Outgoing | None = None
        self._kept: str | None = None
        self._thread: threading.Thread | None = None
        if expect is not None:
            plain = "".join(c for c in str(fixed["JOB_ID"]) if c.isprintable() and c != ",")[:100].strip()
            self._run = f"{plain}-{secrets.token_hex(8)}"  # whoever knows it could end the run
            page = self._outgoing("", expect=expect)
            self._thread = threading.Thread(target=self._set_switch, args=[page], daemon=True)

    def begin(self) -> None:
        """Have the switch set in the background, as soon as the relay can be reached."""
        if self._thread:
            self._thread.start()

    def keep(self, payload: Mapping[str, Any]) -> None:
        """It has ended: put the page on the disk, whatever comes next."""
        self._ended.set()
        self._page = self._outgoing({**self._fixed, "host": socket.gethostname(), **payload, **self._fields})
        if self.outbox:
            try:
                self._kept = self.outbox.put(self._page)
            except OSError as error:
                self.trouble = f"the outbox {self.outbox.folder} can't be used: {error.strerror}"

    def send(self, say: Callable[[str], None]) -> Sent:
        """Send the page that was kept, which also ends the switch; one that is too large, without the logs.

        say: called about other pages in the outbox. Raises Kept, RelayError, BadCall, OSError."""
        if self._thread:
            self._thread.join()  # or else the switch might be set after it was ended
        assert self._page
        try:
            if self.outbox and self._kept:
                return self.outbox.send(self._kept, self._page, say)
            return self._page.deliver(self.relay)
        except (Refused, NotARelay) as error:
            if error.status != 413 or not isinstance(self._page.payload, dict):
                raise
            less = {**self._page.payload, "logs": f"[left out: {error}]"}
            return self._outgoing(less).deliver(self.relay)

    def _outgoing(self, payload: str | dict[str, Any], expect: float | None = None) -> Outgoing:
        key = str(uuid.uuid4())
        return Outgoing(self.relay.url, self._to, payload, key, time.time(), run=self._run, expect=expect)

    def _set_switch(self, page: Outgoing) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                page.deliver(self.relay)
            except (RelayError, BadCall, Overdue) as error:
                self.trouble = f"no dead-man's switch: {error}"
                if not isinstance(error, RelayError) or not error.for_now:
                    return
                self._ended.wait(backoff(failures, error.retry_after))
                failures += 1
            else:
                self.trouble = ""
                return
