"""The calls that send a page."""

import contextlib
import uuid
from typing import Any

from flask import Blueprint, Response, request

from pagermcp import address
from pagermcp.commit import Commit
from pagermcp.commit import Steps as CommitSteps
from pagermcp.measures import MEASURES
from pagermcp.spool import Mailbox, MailboxFull, Sent, sending
from pagermcp.spool.page import now
from pagermcp.web.access import address_in, authorized, begin, may_post, no_room, unauthorized
from pagermcp.web.answers import answer, when
from pagermcp.web.body import media_type, payload_of, request_body
from pagermcp.web.errors import Refused
from pagermcp.web.later import Later, Steps, late
from pagermcp.web.parameters import send_options
from pagermcp.web.services import services

blueprint = Blueprint("sending", __name__)


@blueprint.post("/notify")
def notify() -> Response:
    """Page the mailbox that Authorization names, or else the body's `uuid`."""
    body = request_body()
    payload, uuid_in_body = payload_of(body, media_type())
    if "HTTP_AUTHORIZATION" in request.environ:
        return _accept(authorized(), payload, empty=not body)
    if uuid_in_body is None:
        raise unauthorized("no address: who is paged?")
    return _accept(address_in(uuid_in_body), payload)


@blueprint.post("/to/<number>")
def to_number(number: str) -> Response:
    """Page a number: for webhooks that can't set a header."""
    receiver = address_in(number)
    if not address.is_number(receiver):
        raise Refused(400, "key_in_url", "this is a key, and whoever sees it can read the mailbox", "use its number")
    body = request_body()
    payload, _ = payload_of(body, media_type())
    return _accept(receiver, payload, empty=not body)


def _accept(receiver: uuid.UUID, payload: str, empty: bool = False) -> Response:
    relay = services()
    options = send_options()
    number = address.number_of(receiver)
    no_room(relay.spool, number)
    mailbox = relay.spool.mailbox(number)
    readers, waiters = relay.switchboard.waiting(number), relay.switchboard.takers(number)

    def delivered() -> CommitSteps[Sent]:
        sent = yield from sending(relay.spool, mailbox, payload, options, empty)
        if sent.id is not None:  # a report may bring no page
            relay.switchboard.ring(number)
        return sent

    def answered() -> Steps:
        if under_way:
            yield commit
        try:
            sent = commit.result()
        except Exception:
            MEASURES.count("refused")
            raise
        return _answer(mailbox, sent, readers, waiters)

    commit = Commit(delivered())
    try:
        may_post(number)
        begin(mailbox)
        under_way = commit.go_on()
        if not under_way:
            commit.result()
    except Exception as error:
        MEASURES.count("refused")
        if isinstance(error, Refused | MailboxFull):  # which who floods gets again and again
            return late(error)
        raise
    return Later(answered())


def _answer(mailbox: Mailbox, sent: Sent, readers: int, waiters: int) -> Response:
    accepted: dict[str, Any] = {"accepted": True, "id": sent.id, "number": mailbox.number, "waiters": waiters}
    accepted["queued"] = sent.queued
    if sent.queued is None:
        with contextlib.suppress(OSError):  # the page is delivered, whatever happens now
            accepted["queued"] = mailbox.queued()
    accepted["last_read"] = when(now() if readers else mailbox.last_read)  # who waits does not note it all the time
    if sent.due:
        accepted["due_at"] = when(sent.due)
    if sent.expected:
        accepted["expected_at"] = when(sent.expected)
    if sent.duplicate:
        MEASURES.count("duplicate")
        accepted["duplicate"] = True
    return answer(accepted, 202)
