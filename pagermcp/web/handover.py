"""Handing one page to a reader who does not acknowledge it himself (the seed's /consume and /wait)."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from flask import Response

from pagermcp.spool import Mailbox, Page
from pagermcp.spool.page import now
from pagermcp.web.services import Services

HANDOVER_SECONDS = 10.0
"""The lease of a page while it is handed over: how long it stays away when the relay dies just then."""

NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

Flushed = Callable[[float], bool | None]

log = logging.getLogger(__name__)


class Handover:
    """A response body that is one claimed page.

    The server asks for more only after it took what it got. When the last of it is with the system the page is
    acknowledged; closed before that, for instance because the client had gone, it waits again for the next reader.
    flushed: waits that many seconds at most; True when all is written, False when it can't be, None for not yet."""

    def __init__(self, relay: Services, mailbox: Mailbox, page: Page, body: bytes, flushed: Flushed) -> None:
        self._relay, self._mailbox, self._page, self._body = relay, mailbox, page, body
        self._flushed = flushed
        self._written = False

    def __iter__(self) -> Iterator[bytes]:
        yield self._body
        while (flushed := self._flushed(HANDOVER_SECONDS / 2)) is None:
            self._mailbox.lease(self._page.name, HANDOVER_SECONDS)  # it takes long, but it goes on
        if not flushed:
            raise ConnectionAbortedError
        self._written = True
        try:
            self._mailbox.acknowledge(self._page.name)
        except OSError:
            log.exception(
                "%s: %s was handed over but not archived; it comes again", self._mailbox.number, self._page.id
            )

    def close(self) -> None:
        if not self._written and self._mailbox.withdraw(self._page.name):
            self._relay.switchboard.ring(self._mailbox.number)


def flushed_by(environment: dict[str, Any]) -> Flushed:
    """How the server of a request says that all is written; other servers than ours have written when they go on."""
    return cast(Flushed, environment.get("pagermcp.wait_flushed", lambda seconds: True))


def page_response(page: Page, body: bytes, chunks: Iterable[bytes]) -> Response:
    """An ordinary answer with a page in it."""
    headers = {
        **NO_STORE,
        "Content-Length": str(len(body)),
        "Pager-Id": page.id,
        "Pager-Created-At": page.created,
        "Pager-Age": str(page.age(now())),
    }
    return Response(chunks, 200, headers, content_type="application/json")


def flat(page: Page) -> dict[str, object]:
    """The seed's form of a page: the sender's fields beside the relay's, which they may hide."""
    return {"id": page.id, "created_at": page.created, "age_seconds": page.age(now()), **page.payload}
