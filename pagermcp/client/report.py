"""The report about something that takes long: one page at its end, and if wanted a dead-man's switch around it."""

import secrets
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from pagermcp.client.outbox import Flushed, Outbox, Outgoing, Overdue
from pagermcp.client.relay import Relay, RelayError, backoff


class Report:
    """A report to be sent when something ends. Raises what `Relay.number` raises.

    expect: seconds; unless the end is reported by then, the relay pages that the run is lost. trouble: why that could
    not be arranged, in one line. outbox: where the page is kept until a relay takes it."""

    def __init__(self, relay: Relay, job_id: str, expect: float | None, outbox: Outbox | None) -> None:
        self.trouble = ""
        self._relay = relay
        self._to = relay.number
        self._job_id = job_id
        self._outbox = outbox
        self._run: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if expect is not None:
            plain = "".join(c for c in job_id if c.isprintable() and c != ",")[:100]
            self._run = f"{plain}-{secrets.token_hex(8)}"  # whoever knows it could end the run
            page = self._outgoing("", expect=expect)
            self._thread = threading.Thread(target=self._set_switch, args=[page], daemon=True)

    def begin(self) -> None:
        """Have the switch set in the background, as soon as the relay can be reached."""
        if self._thread:
            self._thread.start()

    def end(self, payload: Mapping[str, Any]) -> Flushed:
        """Send the page, which also ends the switch; JOB_ID and host are added. Never raises for want of a relay: the
        page is on the disk before it is sent. Raises RelayError when it can't be kept there, and was not accepted."""
        self._ended.set()
        page = self._outgoing({"JOB_ID": self._job_id, **payload, "host": socket.gethostname()})
        path = None
        if self._outbox:
            try:
                path = self._outbox.put(page)
            except OSError as error:
                self.trouble = f"the outbox {self._outbox.folder} can't be used: {error.strerror}"
        if self._thread:
            self._thread.join()  # or else the switch might be set after it was ended
        if self._outbox and path:
            return self._outbox.flush([path])
        page.deliver(self._relay)
        return Flushed(sent=1)

    def _outgoing(self, payload: str | dict[str, Any], expect: float | None = None) -> Outgoing:
        key = str(uuid.uuid4())
        return Outgoing(self._relay.url, self._to, payload, key, time.time(), run=self._run, expect=expect)

    def _set_switch(self, page: Outgoing) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                page.deliver(self._relay)
            except (RelayError, Overdue) as error:
                self.trouble = f"no dead-man's switch: {error}"
                if isinstance(error, Overdue) or not error.for_now:
                    return
                self._ended.wait(backoff(failures, error.retry_after))
                failures += 1
            else:
                self.trouble = ""
                return
