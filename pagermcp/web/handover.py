"""Handing pages to a reader, and knowing whether he has them."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

from pagermcp.spool import Mailbox, Page
from pagermcp.web.services import Services

HANDOVER_SECONDS = 10.0
"""The lease of pages that are taken for good, while they are handed over: how long they stay away when the relay dies
just then."""

Flushed = Callable[[float], bool | None]

log = logging.getLogger(__name__)


class Handover:
    """A response body with claimed pages in it.

    The server asks for more only after it took what it got. When the last of it is with the system, pages that are
    taken for good are acknowledged, and leased ones stay leased; closed before that, for instance because the client
    had gone, all of them wait again for the next reader.
    flushed: waits that many seconds at most; True when all is written, False when it can't be, None for not yet."""

    def __init__(
        self, relay: Services, mailbox: Mailbox, pages: list[Page], body: bytes, flushed: Flushed, leased: bool = False
    ) -> None:
        self.body = body
        self._relay, self._mailbox, self._pages = relay, mailbox, pages
        self._flushed, self._leased = flushed, leased
        self._written = False

    def __iter__(self) -> Iterator[bytes]:
        yield self.body
        while (flushed := self._flushed(HANDOVER_SECONDS / 2)) is None:
            if not self._leased:
                for page in self._pages:
                    self._mailbox.lease(page.name, HANDOVER_SECONDS)  # it takes long, but it goes on
        if not flushed:
            raise ConnectionAbortedError
        self._written = True
        if not self._leased:
            self._acknowledge()

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


def flushed_by(environment: dict[str, Any]) -> Flushed:
    """How the server of a request says that all is written; other servers than ours have written when they go on."""
    return cast(Flushed, environment.get("pagermcp.wait_flushed", lambda seconds: True))
