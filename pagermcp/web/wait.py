"""A request that waits for pages, with the answer that suits how long it took.

Pages that come soon are an ordinary answer. After that the headers go out, and a space every BEAT_SECONDS until
pages come: white space before JSON is allowed, and it keeps proxies and NAT open. After the headers there is only the
answer, more waiting, or a cut connection; never a blank end, which existing clients can't digest.
"""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from flask import Response

from pagermcp.spool import Mailbox, Page
from pagermcp.waking import Waiter
from pagermcp.waking.waiter import BEAT_SECONDS, next_beat
from pagermcp.web.access import no_room, origin
from pagermcp.web.answers import BEGINNING, NO_STORE, Answer
from pagermcp.web.errors import Refused
from pagermcp.web.handover import HANDOVER_SECONDS, Handover
from pagermcp.web.later import Connection, Later, Steps, connection
from pagermcp.web.services import Services

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Terms:
    """What a wait is for.

    form: gives the answer's body for these pages (none, when the time is over) and its headers, or raises Refused.
    timeout, quiet: seconds that it lasts, and seconds without a heartbeat; most: pages; lease: seconds, 0 to take them
    for good; max_age: seconds that a page may be old."""

    form: Callable[[list[Page]], tuple[bytes, dict[str, str]]]
    timeout: float = math.inf
    quiet: float = BEAT_SECONDS
    most: int = 1
    lease: float = 0
    max_age: float = math.inf


class WaitEnded(Exception):
    """There is no page and no use in waiting on: the client went, or the relay stops. Holds what can be answered."""

    def __init__(self, answer: Refused) -> None:
        super().__init__(answer.message)
        self.answer = answer


class Place:
    """A waiter at a mailbox, until it is closed. Raises Refused, OSError.

    client: its `origin`, when it asked; taking, name: see `Waiter`."""

    def __init__(
        self,
        relay: Services,
        mailbox: Mailbox,
        connection: Connection,
        client: str | None,
        taking: bool = True,
        name: str | None = None,
    ) -> None:
        self._relay, self._mailbox, self._connection, self._client = relay, mailbox, connection, client
        most = relay.settings.max_waits_per_mailbox
        if most and relay.switchboard.waiting(mailbox.number) >= most:
            raise _too_many_waits(f"{most} requests wait at this mailbox, which is as many as may")
        mailbox.make()  # so that there is something to watch before the first look
        relay.watcher.watch(mailbox.number)
        waits = relay.limits.waits
        if waits.enter(client):
            waits.leave(client)
            raise _too_many_waits(f"{waits.most} requests of your address wait, which is as many as may")
        self.waiter = relay.switchboard.enter(mailbox.number, taking, name)
        self._left = False

    def wait(self, until: float, look: Callable[[], T], every: float = math.inf) -> Generator[Waiter, None, T]:
        """What `look` finds when it finds something, or at the monotonic time `until`. Raises WaitEnded.

        every: seconds after which it looks again without a ring, for what nobody rings about."""
        woken = False
        while True:
            if self._connection.gone():
                hint = "keep it open until the answer has come"
                # before the look, so that a ring goes to the next
                raise WaitEnded(Refused(408, "client_gone", "the client closed the connection while it waited", hint))
            self.waiter.about_to_look()
            if self._relay.switchboard.draining:
                # after that, so that its ring is not missed
                raise WaitEnded(Refused(503, "stopping", "the relay is stopping", "ask again", retry_after=1))
            found = look()
            if found or time.monotonic() >= until:
                return found
            if woken:
                self._mailbox.make()  # somebody may have removed it, which wakes who waits
                self._relay.watcher.watch(self._mailbox.number)
            if every == math.inf:  # or else it would write to the disk each time
                self._mailbox.note_read()
            yield self.waiter.parked(min(until, self._mailbox.settles_at, time.monotonic() + every))
            woken = True

    def close(self) -> None:
        """Leave, if it has not left yet."""
        if not self._left:
            self._left = True
            self._relay.switchboard.leave(self.waiter)
            self._relay.limits.waits.leave(self._client)


def _too_many_waits(message: str) -> Refused:
    return Refused(429, "too_many_waits", message, "end some of them, or try again", retry_after=10)


class Wait:
    """A wait for pages, and its answer. Begins with the first step of the answer. Raises Refused, OSError."""

    def __init__(self, relay: Services, mailbox: Mailbox, terms: Terms) -> None:
        self._relay, self._mailbox, self._terms = relay, mailbox, terms
        self._connection, self._client = connection(), origin()
        self._since = time.time()
        self._until = time.monotonic() + terms.timeout
        self._looks: Iterator[Waiter] = iter(())  # until there are `_pages`, or the time is over
        self._pages: list[Page] = []
        self._handover: Handover | None = None
        self._place: Place | None = None

    def response(self) -> Response:
        """The answer, once it is known; it may go on waiting then."""
        return Later(self._steps())

    def _steps(self) -> Steps:
        self._place = Place(self._relay, self._mailbox, self._connection, self._client)
        self._looks = self._look_for_pages(self._place)
        try:
            self._place.waiter.head, self._place.waiter.beat_at = BEGINNING, next_beat(self._terms.quiet)
            for waiter in self._looks:
                yield waiter
                if waiter.head is None:
                    return self
            body, headers = self._take()
            headers = {**NO_STORE, "Content-Length": str(len(body)), **headers}
            return Answer(self, headers)
        except WaitEnded as ended:
            self.close()
            raise ended.answer from None
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Any]:  # bytes, and waiters
        try:
            if self._handover is None and self._place:
                yield from self._looks
                self._take()
        except (WaitEnded, Refused):
            raise ConnectionAbortedError from None  # the server cuts the connection: no final chunk, no blank answer
        except Exception:
            log.exception("%s: a wait is cut", self._mailbox.number)
            raise ConnectionAbortedError from None
        assert self._handover
        yield from self._handover

    def close(self) -> None:
        place, self._place = self._place, None
        self._looks = iter(())  # which knows this object, as this one did it
        if place is None:
            return
        try:
            if self._handover is not None:
                self._handover.close()
        finally:
            place.close()

    def _take(self) -> tuple[bytes, dict[str, str]]:
        leased = self._terms.lease > 0
        self._handover = Handover(self._relay, self._mailbox, self._pages, self._connection, leased, self._since)
        body, headers = self._terms.form(self._pages)
        self._handover.body = body
        return body, headers

    def _look_for_pages(self, place: Place) -> Iterator[Waiter]:
        """Wait for the pages whose turn it is; there are none when none come in time. Raises WaitEnded."""
        self._pages = yield from place.wait(self._until, self._claim)
        if self._pages:
            place.close()  # a ring that came to it while it hands them over, which may take long, would wake nobody
            self._relay.switchboard.ring(self._mailbox.number)  # and one may have stood for several pages

    def _claim(self) -> list[Page]:
        lease = self._terms.lease or HANDOVER_SECONDS
        pages: list[Page] = []
        no_room(self._relay.spool, self._mailbox.number)  # it may have become one meanwhile
        while len(pages) < self._terms.most:
            try:
                page = self._mailbox.claim(lease, self._terms.max_age)
            except OSError:
                if pages:  # they are his now; the next wait meets the error
                    break
                raise
            if page is None:
                break
            pages.append(page)
        return pages
