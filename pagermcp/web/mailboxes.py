"""The reading calls of the seed protocol, with the key in the path: looking, taking, waiting."""

import math
import uuid

from flask import Blueprint, Response

from pagermcp import address
from pagermcp.spool import Page, Spool
from pagermcp.waking.waiter import BEAT_SECONDS
from pagermcp.web.access import address_in, begin, listed, mailbox_to_read, mailbox_to_take_from, no_head
from pagermcp.web.answers import NO_STORE, Answer, answer, flat, line
from pagermcp.web.errors import Refused
from pagermcp.web.handover import HANDOVER_SECONDS, Handover
from pagermcp.web.later import connection
from pagermcp.web.parameters import number
from pagermcp.web.services import services
from pagermcp.web.wait import Terms, Wait

blueprint = Blueprint("mailboxes", __name__)


@blueprint.post("/mailboxes")
def mint() -> Response:
    """Make a mailbox with a new key."""
    key = uuid.uuid4()
    number = address.number_of(key)
    listed(key)
    begin(services().spool.mailbox(number))
    return answer({"uuid": str(key), "number": number}, 201)


@blueprint.get("/mailboxes/<key>/messages")
def messages(key: str) -> Response:
    """All waiting pages, oldest first. Takes none."""
    mailbox = mailbox_to_read(address_in(key))
    return answer({"messages": [flat(services().spool, page) for page in mailbox.waiting()]})


@blueprint.post("/mailboxes/<key>/consume")
def consume(key: str) -> Response:
    """Take the oldest page, or null."""
    mailbox = mailbox_to_take_from(address_in(key))
    page = mailbox.claim(HANDOVER_SECONDS)
    if page is None:
        return answer({"message": None})
    handover = Handover(services(), mailbox, [page], connection())
    handover.body = line({"message": flat(services().spool, page)})
    headers = {**NO_STORE, "Content-Length": str(len(handover.body)), **_headers(services().spool, page)}
    return Answer(handover, headers)


@blueprint.get("/mailboxes/<key>/wait")
def wait(key: str) -> Response:
    """Take the oldest page as soon as there is one."""
    no_head()
    relay, mailbox = services(), mailbox_to_read(address_in(key))  # that it is no room is asked when it takes a page
    timeout = relay.settings.wait_timeout_seconds

    def form(pages: list[Page]) -> tuple[bytes, dict[str, str]]:
        if not pages:
            raise Refused(408, "timeout", f"no page came within {timeout:g} s", "ask again")
        return line(flat(relay.spool, pages[0])), _headers(relay.spool, pages[0])

    terms = Terms(
        form,
        timeout=timeout or math.inf,
        quiet=timeout or BEAT_SECONDS,
        max_age=number("max_age_seconds", math.inf, low=0),
    )
    return Wait(relay, begin(mailbox), terms).response()


def _headers(spool: Spool, page: Page) -> dict[str, str]:
    age = int(spool.clock.age(page.since))
    return {"Pager-Id": page.id, "Pager-Created-At": page.created, "Pager-Age": str(age)}
