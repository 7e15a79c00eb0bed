"""The mailbox calls of the seed protocol: sending, looking, taking, waiting."""

import contextlib
import math
import uuid

from flask import Blueprint, Response, request

from pagermcp import address
from pagermcp.spool import Mailbox
from pagermcp.spool.page import now, timestamp, to_json
from pagermcp.web.body import payload_of
from pagermcp.web.errors import Refused
from pagermcp.web.handover import HANDOVER_SECONDS, NO_STORE, Handover, flat, flushed_by, page_response
from pagermcp.web.services import services
from pagermcp.web.wait import Wait

_WRITE_PATIENCE_SECONDS = 1.0

blueprint = Blueprint("mailboxes", __name__)


@blueprint.post("/mailboxes")
def mint() -> Response:
    """Make a mailbox with a new key."""
    key = uuid.uuid4()
    number = address.number_of(key)
    services().spool.mailbox(number).make()
    return answer({"uuid": str(key), "number": number}, 201)


@blueprint.post("/notify")
def notify() -> Response:
    """Page the mailbox that Authorization names, or else the body's `uuid`."""
    authorization = request.headers.get("Authorization")
    payload, uuid_in_body = _payload()
    if authorization is not None:
        return _accept(address.number_of(_authorized(authorization)), payload)
    if uuid_in_body is None:
        raise _unauthorized("no address: who is paged?")
    return _accept(address.number_of(_address(uuid_in_body)), payload)


@blueprint.post("/to/<number>")
def to_number(number: str) -> Response:
    """Page a number: for webhooks that can't set a header."""
    parsed = _address(number)
    if not address.is_number(parsed):
        raise Refused(400, "key_in_url", "this is a key, and whoever sees it can read the mailbox", "use its number")
    payload, _ = _payload()
    return _accept(address.number_of(parsed), payload)


@blueprint.get("/mailboxes/<key>/messages")
def messages(key: str) -> Response:
    """All waiting pages, oldest first. Takes none."""
    mailbox = _mailbox_to_read(key)
    return answer({"messages": [flat(page) for page in mailbox.waiting()]})


@blueprint.post("/mailboxes/<key>/consume")
def consume(key: str) -> Response:
    """Take the oldest page, or null."""
    mailbox = _mailbox_to_read(key)
    page = mailbox.claim(HANDOVER_SECONDS)
    if page is None:
        return answer({"message": None})
    body = to_json({"message": flat(page)}) + b"\n"
    return page_response(page, body, Handover(services(), mailbox, page, body, flushed_by(request.environ)))


@blueprint.get("/mailboxes/<key>/wait")
def wait(key: str) -> Response:
    """Take the oldest page as soon as there is one."""
    if request.method == "HEAD":  # it would take a page and show nobody
        raise Refused(405, "method_not_allowed", "waiting takes a page, so HEAD can't", "use GET", allow="GET")
    mailbox, max_age = _mailbox_to_read(key), _max_age()
    return Wait(services(), mailbox, max_age, request.environ).response()


def _payload() -> tuple[str, str | None]:
    limit = services().settings.max_message_bytes
    size = request.content_length or 0
    body = b"" if size > limit else request.get_data(cache=False)
    size = max(size, len(body))
    if size > limit:
        raise Refused(413, "too_large", f"the body has {size} bytes and the limit is {limit}", "send less, or a link")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Refused(415, "unsupported_media_type", "the body is compressed", "send it as it is")
    return payload_of(body, request.mimetype)


def _accept(number: str, payload: str) -> Response:
    relay = services()
    if not relay.writes.acquire(timeout=_WRITE_PATIENCE_SECONDS):
        raise Refused(503, "busy", "too many pages are being written", "try again", retry_after=1)
    try:
        mailbox = relay.spool.mailbox(number)
        waiters = relay.switchboard.waiting(number)
        id = mailbox.deliver(payload)
    finally:
        relay.writes.release()
    relay.switchboard.ring(number)
    queued = None
    with contextlib.suppress(OSError):  # the page is delivered, whatever happens now
        queued = mailbox.queued()
    last_read = mailbox.last_read and timestamp(mailbox.last_read)
    accepted = {"accepted": True, "id": id, "number": number, "waiters": waiters, "queued": queued}
    return answer({**accepted, "last_read": last_read}, 202)


def _authorized(header: str) -> uuid.UUID:
    """The address in an Authorization header: `Bearer <uuid>`, or the bare UUID, as the seed's clients send it."""
    if "," in header:  # what a header given twice becomes
        raise Refused(400, "ambiguous", "Authorization was given twice", "send one")
    scheme, _, rest = header.strip().rpartition(" ")
    if scheme.strip().lower() not in ("", "bearer"):
        raise _unauthorized("Authorization is not a Bearer")
    return _address(rest)


def _address(text: str) -> uuid.UUID:
    try:
        return address.parse(text)
    except address.InvalidAddress:
        raise _unauthorized("the address is not a UUID") from None


def _unauthorized(message: str) -> Refused:
    return Refused(401, "unauthorized", message, "send -H 'Authorization: Bearer <key or number>'")


def _mailbox_to_read(text: str) -> Mailbox:
    parsed = _address(text)
    if address.is_number(parsed):
        raise Refused(403, "number_cannot_read", "a number only sends", "read with the mailbox's key")
    mailbox = services().spool.mailbox(address.number_of(parsed))
    mailbox.last_read = now()
    return mailbox


def _max_age() -> float:
    values = request.args.getlist("max_age_seconds")
    if not values:
        return math.inf
    try:
        (value,) = (float(text) for text in values)
        if not value >= 0:
            raise ValueError
    except ValueError:
        raise Refused(
            400,
            "bad_parameter",
            "max_age_seconds must be one number of seconds, 0 or more",
            "as in ?max_age_seconds=600",
        ) from None
    return value


def answer(value: object, status: int = 200) -> Response:
    return Response(to_json(value) + b"\n", status, NO_STORE, content_type="application/json")
