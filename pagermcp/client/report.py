"""The report about something that takes long: one page at its end, and if wanted a dead-man's switch around it."""

import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from pagermcp.client.outbox import Outbox, Outgoing
from pagermcp.client.relay import BadCall, NotARelay, Refused, Relay, RelayError, Sent, backoff


class Report:
    """A report to be sent when something ends. Raises BadCall, and what `Relay.number` raises.

    job_id, project, fields: what the page has besides; fields win. expect: seconds; unless the end is reported by then,
    the relay pages that the run is lost. outbox: keep the page until a relay takes it. trouble: why the switch could
    not be set, in one line."""

    def __init__(
        self,
        job_id: str,
        *,
        url: str | None,
        to: str | None,
        project: str | None,
        fields: Mapping[str, Any],
        expect: float | None,
        outbox: bool,
    ) -> None:
        relay = Relay(to, url)
        self.url = relay.url
        self.outbox = Outbox() if outbox else None
        self.trouble = ""
        self._to = relay.number
        self._fixed = ({} if project is None else {"PROJECT": project}) | {"JOB_ID": job_id}
        self._fields = fields
        self._notes: list[str] = []
        self._run: str | None = None
        self._ended = threading.Event()
        self._page: Outgoing | None = None
        self._kept: str | None = None
        self._thread: threading.Thread | None = None
        if expect is not None:
            plain = "".join(c for c in job_id if c.isprintable() and c != ",")[:100].strip()
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
        self._kept = self.outbox.keep(self._page, self._notes.append) if self.outbox else None

    def send(self, say: Callable[[str], None]) -> Sent:
        """Send the page that was kept, which also ends the switch; one that is too large, without the logs.

        say: called about the outbox. Raises Kept, RelayError, BadCall, OSError."""
        if self._thread:
            self._thread.join()  # or else the switch might be set after it was ended
        for note in self._notes:
            say(note)
        assert self._page
        try:
            return self._deliver(self._page, self._kept, say)
        except (Refused, NotARelay) as error:
            if error.status != 413 or not isinstance(self._page.payload, dict):
                raise
            less = self._outgoing({**self._page.payload, "logs": f"[left out: {error}]"})
            return self._deliver(less, self.outbox.keep(less, say) if self.outbox else None, say)

    def _deliver(self, page: Outgoing, path: str | None, say: Callable[[str], None]) -> Sent:
        return self.outbox.send(path, page, say) if self.outbox else page.deliver()

    def _outgoing(self, payload: str | dict[str, Any], expect: float | None = None) -> Outgoing:
        return Outgoing(self.url, self._to, payload, str(uuid.uuid4()), time.time(), run=self._run, expect=expect)

    def _set_switch(self, page: Outgoing) -> None:
        failures = 0
        while not self._ended.is_set():
            try:
                page.deliver()
            except (RelayError, BadCall) as error:
                self.trouble = f"no dead-man's switch: {error}"
                if isinstance(error, BadCall) or not error.for_now:
                    return
                self._ended.wait(backoff(failures, error.retry_after))
                failures += 1
            else:
                self.trouble = ""
                return
