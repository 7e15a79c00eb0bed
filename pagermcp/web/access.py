"""Who calls: the holder of a mailbox's key, who may read it, or of its number, who may only send; and from where."""

import math
import uuid

from flask import request

from pagermcp import address
from pagermcp.spool import Mailbox, Spool
from pagermcp.web.errors import Refused
from pagermcp.web.services import services

ADDRESS = "pagermcp.address"
"""Where the key or number that a request names is in its environment."""


def authorized() -> uuid.UUID:
    """The address in the Authorization header: `Bearer <uuid>`, or the bare UUID, as the seed's clients send it.

    Raises Refused."""
    header = request.environ.get("HTTP_AUTHORIZATION")
    if header is None:
        raise unauthorized("no Authorization")
    if "," in header:  # what a header given twice becomes
        raise Refused(400, "ambiguous", "Authorization was given twice", "send one")
    scheme, _, rest = header.strip().rpartition(" ")
    if scheme.strip().lower() not in ("", "bearer"):
        raise unauthorized("Authorization is not a Bearer")
    return address_in(rest)


def address_in(text: str) -> uuid.UUID:
    """The key or number that a text is. Raises Refused."""
    try:
        parsed = address.parse(text)
    except address.InvalidAddress:
        raise unauthorized("the address is not a UUID") from None
    request.environ[ADDRESS] = parsed
    listed(parsed)
    return parsed


def unauthorized(message: str) -> Refused:
    return Refused(401, "unauthorized", message, "send -H 'Authorization: Bearer <key or number>'")


def listed(key_or_number: uuid.UUID) -> None:
    """Refuse numbers that a private relay does not list. Raises Refused."""
    only = services().limits.listed
    if only is not None and address.number_of(key_or_number) not in only:
        hint = "ask its operator to list your number; `pagermcp number` says which that is"
        raise Refused(403, "not_listed", "this relay serves only the numbers that its operator lists", hint)


def origin() -> str | None:
    """What limits count this request by: its client's address; None when they don't count it."""
    environ = request.environ
    origins = services().limits.origins
    return origins.of(environ.get("REMOTE_ADDR", ""), environ.get("HTTP_X_FORWARDED_FOR", ""))


def may_post(number: str) -> None:
    """Count a post to this number. Raises Refused."""
    if wait := services().limits.posts.take(number):
        most = services().settings.posts_per_hour
        message = f"this mailbox has had more posts than the {most} an hour that it may have"
        raise Refused(429, "too_many_posts", message, "send later, and less often", retry_after=math.ceil(wait))


def begin(mailbox: Mailbox) -> Mailbox:
    """Make a mailbox that is not there, as far as limits allow. Raises Refused, SpoolFull, OSError.

    So this comes before everything by which one could come into being."""
    if mailbox.exists:
        return mailbox
    relay, client = services(), origin()
    relay.spool.check_room()  # first: while the disk is away no mailbox seems to be there, which costs nobody tokens
    if client is not None and (wait := relay.limits.new_mailboxes.take(client)):
        most = relay.settings.new_mailboxes_per_hour
        message = f"your address has made more mailboxes than the {most} an hour that it may make"
        hint = "use those that you have, or come again later"
        raise Refused(429, "too_many_new_mailboxes", message, hint, retry_after=math.ceil(wait))
    if not relay.spool.has_place():
        message = f"there are {relay.settings.max_mailboxes} mailboxes here, which is as many as may be"
        hint = "use one that is there; the operator may allow more, with PAGERMCP_MAX_MAILBOXES"
        raise Refused(507, "too_many_mailboxes", message, hint, retry_after=3600)
    mailbox.make()
    return mailbox


def no_room(spool: Spool, number: str) -> None:
    """Refuse what can only be done with pages that are taken. Raises Refused."""
    if spool.is_room(number):
        hint = "say it there: POST /api/messages with the room's key"
        raise Refused(409, "is_a_room", "this is a room: its messages are read by all, and taken by nobody", hint)


def mailbox_to_take_from(reader: uuid.UUID) -> Mailbox:
    """The same for calls that take pages, or give them back."""
    mailbox = mailbox_to_read(reader)
    no_room(services().spool, mailbox.number)
    return mailbox


def mailbox_to_read(reader: uuid.UUID) -> Mailbox:
    """The mailbox of a key; that it was read is noted. Raises Refused, OSError."""
    if address.is_number(reader):
        raise Refused(403, "number_cannot_read", "a number only sends", "read with the mailbox's key")
    mailbox = services().spool.mailbox(address.number_of(reader))
    mailbox.note_read()
    return mailbox


def no_head() -> None:
    """Flask answers HEAD by the view for GET; of one that takes pages it would take some, and show nobody."""
    if request.method == "HEAD":
        raise Refused(405, "method_not_allowed", "waiting takes a page, so HEAD can't", "use GET", allow="GET")
