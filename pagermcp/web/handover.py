"""Handing pages to a reader, and knowing whether he has them."""

import logging
import math
import time
from collections.abc import Iterator
from typing import Any

from pagermcp.measures import MEASURES
from pagermcp.spool import Mailbox, Page
from pagermcp.waking import Waiter
from pagermcp.web.later import Connection
from pagermcp.web.services import Services

HANDOVER_SECONDS = 10.0
"""The lease of pages that are taken for good, while they are handed over: how long they stay away when the relay dies
just then."""

log = logging.getLogger(__name__)


class Handover:
    """A response body with claimed pages in it.

    When all of it is with the system, pages that are taken for good are acknowledged, and leased ones stay leased;
    closed before that, for instance because the client had gone, all of them wait again for the next reader.

    since: the time from when the reader waited for them."""

    def __init__(
        self,
        relay: Services,
        mailbox: Mailbox,
        pages: list[Page],
        connection: Connection,
        leased: bool = False,
        since: float = math.inf,
    ) -> None:
        self.body = b""
        self._relay, self._mailbox, self._pages = relay, mailbox, pages
        self._connection, self._leased, self._since = connection, leased, since
        self._written = False

    def __iter__(self) -> Iterator[Any]:  # bytes, and waiters
        yield self.body
        waiter = Waiter()
        while (flushed := self._connection.flushed(waiter)) is None:
            yield waiter.parked(time.monotonic() + HANDOVER_SECONDS / 2)
            waiter.about_to_look()
            if not self._leased:
                self._renew()
        if not flushed:
            raise ConnectionAbortedError
        self._written = True
        self._measure()
        if not self._leased:
            self._acknowledge()

    def _renew(self) -> None:
        """It takes long, but it goes on."""
        for page in self._pages:
            try:
                self._mailbox.lease(page.name, HANDOVER_SECONDS)
            except OSError:  # he gets them all the same; were they withdrawn now, they would surely come twice
                log.exception("%s: the lease of %s could not be renewed", self._mailbox.number, page.id)

    def _measure(self) -> None:
        """How long it took to wake him for pages that came while he waited."""
        for page in self._pages:
            came = page.since.timestamp() if "due_at" in page.extra else int(page.id) / 1e6
            if page.name.attempt == 1 and came > self._since:
                MEASURES.observe("wake", max(0, time.time() - came))

    def _acknowledge(self) -> None:
        for page in self._pages:
            try:
                self._mailbox.acknowledge(page.name)
            except OSError:
                number, id = self._mailbox.number, page.id
                log.exception("%s: %s was handed over but not archived; it comes again", number, id)

    def _withdraw(self, page: Page) -> bool:
        try:
            return self._mailbox.withdraw(page.name)
        except OSError:  # it comes back when its lease runs out
            log.exception("%s: %s could not be withdrawn", self._mailbox.number, page.id)
            return False

    def close(self) -> None:
        if not self._written and any([self._withdraw(page) for page in self._pages]):  # noqa: C419 - all of them
            self._relay.switchboard.ring(self._mailbox.number)
