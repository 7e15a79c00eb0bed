"""A request that waits for a page, with the answer that suits how long it took.

A page within HEARTBEAT_SECONDS is an ordinary answer. After that the headers go out, and a space every
HEARTBEAT_SECONDS until the page comes: white space before JSON is allowed, and it keeps proxies and NAT open. After the
headers there is only the page, more waiting, or a cut connection; never an end without a page, which existing clients
can't digest.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from flask import Response

from pagermcp.spool import Mailbox, Page
from pagermcp.spool.page import now, to_json
from pagermcp.web.errors import Refused
from pagermcp.web.handover import HANDOVER_SECONDS, NO_STORE, Handover, flat, flushed_by, page_response
from pagermcp.web.services import Services

HEARTBEAT_SECONDS = 20.0

log = logging.getLogger(__name__)


class WaitEnded(Exception):
    """There is no page and no use in waiting on: the client went, or the relay stops. Holds what can be answered."""

    def __init__(self, answer: Refused) -> None:
        super().__init__(answer.message)
        self.answer = answer


class Wait:
    """Holds one of the places for waiting, and a waiter, until it is closed. Raises Refused, OSError."""

    def __init__(self, relay: Services, mailbox: Mailbox, max_age: float, environment: dict[str, Any]) -> None:
        self._relay, self._mailbox, self._max_age = relay, mailbox, max_age
        self._gone: Callable[[], bool] = environment.get("waitress.client_disconnected", lambda: False)
        self._flushed = flushed_by(environment)
        self._handover: Handover | None = None
        self._closed = False
        if not relay.waits.acquire(blocking=False):
            raise Refused(503, "too_many_waits", "as many requests wait as may", "try again", retry_after=5)
        self._waiter = relay.switchboard.enter(mailbox.number)

    def response(self) -> Response:
        """Wait for a first while, and answer; the answer may go on waiting."""
        timeout = self._relay.settings.wait_timeout_seconds
        try:
            self._mailbox.make()
            self._relay.watcher.watch(self._mailbox.number)
            page = self._next(timeout or HEARTBEAT_SECONDS)
            if page is not None:
                body = self._take(page)
                return page_response(page, body, self)
            if timeout:
                raise Refused(408, "timeout", f"no page came within {timeout:g} s", "ask again")
            return Response(self, 200, NO_STORE, content_type="application/json")
        except WaitEnded as ended:
            self.close()
            raise ended.answer from None
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        try:
            while self._handover is None:
                yield b" "
                page = self._next(HEARTBEAT_SECONDS)
                if page is not None:
                    self._take(page)
        except WaitEnded:
            raise ConnectionAbortedError from None  # the server cuts the connection: no final chunk, no blank answer
        except Exception:
            log.exception("%s: a wait is cut", self._mailbox.number)
            raise ConnectionAbortedError from None
        yield from self._handover

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._handover is not None:
                self._handover.close()
        finally:
            self._relay.switchboard.leave(self._waiter)
            self._relay.waits.release()

    def _take(self, page: Page) -> bytes:
        body = to_json(flat(page)) + b"\n"
        self._handover = Handover(self._relay, self._mailbox, page, body, self._flushed)
        return body

    def _next(self, seconds: float) -> Page | None:
        """The oldest page that is not too old; None when none comes in time. Raises WaitEnded."""
        until = time.monotonic() + seconds
        while True:
            if self._gone():
                hint = "keep it open until the answer has come"
                # before the look, so that a ring goes to the next
                raise WaitEnded(Refused(408, "client_gone", "the client closed the connection while it waited", hint))
            self._waiter.about_to_look()
            if self._relay.switchboard.draining:
                # after that, so that its ring is not missed
                raise WaitEnded(Refused(503, "stopping", "the relay is stopping", "ask again", retry_after=1))
            page = self._mailbox.claim(HANDOVER_SECONDS)
            if page is None:
                if time.monotonic() >= until:
                    return None
                self._waiter.park(min(until, self._mailbox.settles_at), self._gone)
                self._mailbox.make()  # somebody may have removed it
            elif page.age(now()) <= self._max_age:
                if self._relay.switchboard.waiting(self._mailbox.number) > 1 and self._mailbox.queued():
                    self._relay.switchboard.ring(self._mailbox.number)  # one ring may have stood for several pages
                return page
            else:
                self._mailbox.expire(page.name)
