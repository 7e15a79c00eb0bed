"""Looking at pages wherever they are, without taking any: the reader's list, the sender's receipt; sending again."""

import datetime

from flask import Blueprint, Response, request

from pagermcp import address
from pagermcp.address import redact
from pagermcp.spool import BadPage, DeliveredMaybe, MailboxFull, Page, SpoolFull
from pagermcp.spool.page import PageName, to_json
from pagermcp.spool.whereabouts import STATES, Place, find, listing
from pagermcp.web.access import authorized, mailbox_to_read, mailbox_to_take_from
from pagermcp.web.answers import answer, when, wrapped
from pagermcp.web.body import handle_in, listed_ids
from pagermcp.web.errors import Refused, refusal
from pagermcp.web.parameters import number, single
from pagermcp.web.services import services

blueprint = Blueprint("lookups", __name__)

_MOST_PAGES = 1000
_LOOKS = 10


@blueprint.get("/pages")
def pages() -> Response:
    """The pages in one state, ascending by id: the first ones after `since`, or without it the last ones."""
    mailbox = mailbox_to_read(authorized())
    state = single("state", "waiting")
    if state not in STATES:
        raise Refused(404, "no_such_state", "there is no such state", f"state is one of {', '.join(STATES)}")
    limit = int(number("limit", 100, low=1, high=_MOST_PAGES, whole=True))
    spool = services().spool
    mailbox.expire_waiting()
    places = listing(spool, mailbox.number, state)
    if "since" in request.args:
        since = handle_in(single("since", "").zfill(16), "as in ?since=<id>, or 0 for the first ones").id
        places = [place for place in places if place.name.id > since][:limit]
    shown: list[dict[str, object]] = []
    for place in places[-limit:]:
        try:
            page, changed_at = place.read(spool)
        except FileNotFoundError:
            continue  # it moved on meanwhile
        except (BadPage, OSError):
            shown.append({"id": place.name.id, "handle": place.name.handle, "state": state, "why": place.why()})
            continue
        shown.append(wrapped(spool, page, state=state, **_times(place, changed_at)))
    return answer({"pages": shown})


@blueprint.get("/receipts/<id>")
def receipt(id: str) -> Response:
    """Where a page is now, for who sent it (by number) or reads it (by key)."""
    sender = authorized()
    spool, box = services().spool, address.number_of(sender)
    name = PageName.parse_handle(id)
    if name is None:
        raise no_such_page(redact(id)[:40])
    spool.mailbox(box).expire_waiting()
    place, page, changed_at = _found(box, name.id)
    created = {"created_at": page.created} if page else {}
    told = {"id": place.name.id, "state": place.state, "attempt": place.name.attempt}
    return answer({**told, **created, **_times(place, changed_at)})


@blueprint.post("/replay")
def replay() -> Response:
    """Send copies of archived or dead pages to this mailbox."""
    mailbox = mailbox_to_take_from(authorized())
    names, _ = listed_ids()
    originals = []
    for id in dict.fromkeys(name.id for name in names):
        place, page, _ = _found(mailbox.number, id)
        if place.state not in ("archived", "dead"):
            hint = "only archived and dead pages can be sent again"
            raise Refused(409, "not_ended", f"{id} is {place.state}", hint)
        if page is None:
            raise Refused(409, "no_page", f"{id} is no page: {place.why()}", "mend it, then mv it to new/")
        originals.append(page)
    replayed: list[dict[str, str]] = []
    for page in originals:
        try:
            id = mailbox.deliver(to_json(page.payload).decode(), replay_of=page.id)
        except (Refused, MailboxFull, SpoolFull, DeliveredMaybe, OSError) as error:
            refused = error if isinstance(error, Refused) else refusal(error)
            refused.extra |= {"replayed": replayed}
            raise refused from error
        services().switchboard.ring(mailbox.number)
        replayed.append({"id": id, "replay_of": page.id})
    return answer({"replayed": replayed})


def _found(box: str, id: str) -> tuple[Place, Page | None, datetime.datetime | None]:
    """Where a page is, what it is if it is one, and its file's mtime. Raises Refused, OSError."""
    for _ in range(_LOOKS):
        place = find(services().spool, box, id)
        if place is None:
            break
        try:
            return place, *place.read(services().spool)
        except BadPage:
            return place, None, None
        except FileNotFoundError:
            continue  # it has moved on just now
    raise no_such_page(id)


def no_such_page(id: str, extra: dict[str, object] | None = None) -> Refused:
    hint = "a page is gone when its day of the archive was deleted, or it is in another mailbox"
    return Refused(404, "no_such_page", f"there is no page {id} in this mailbox", hint, extra=extra)


def _times(place: Place, changed_at: datetime.datetime | None) -> dict[str, object]:
    """What there is to say of a page in its state: when it got there, or is to leave it, and why."""
    changed = when(changed_at)
    match place.state:
        case "leased":
            return {"lease_expires_at": changed}
        case "scheduled":
            return {"due_at": when(place.due)}
        case "archived":
            return {"outcome": place.outcome, "archived_at": changed}
        case "dead":
            return {"died_at": changed, "why": place.why()}
    return {}
