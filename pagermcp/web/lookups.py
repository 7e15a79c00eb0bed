"""Looking at pages wherever they are, without taking any: the reader's list, the sender's receipt; sending again."""

import datetime

from flask import Blueprint, Response, request

from pagermcp import address
from pagermcp.address import redact
from pagermcp.spool import BadPage, DeliveredMaybe, MailboxFull, SpoolFull
from pagermcp.spool.page import PageName, to_json
from pagermcp.spool.whereabouts import STATES, Place, find, listing
from pagermcp.web.access import authorized, mailbox_to_read
from pagermcp.web.answers import answer, when, wrapped
from pagermcp.web.body import handle_in, listed_ids
from pagermcp.web.errors import Refused, refusal
from pagermcp.web.parameters import number
from pagermcp.web.services import services

blueprint = Blueprint("lookups", __name__)

_MOST_PAGES = 1000


@blueprint.get("/pages")
def pages() -> Response:
    """The pages in one state, ascending by id: the first ones after `since`, or without it the last ones."""
    mailbox = mailbox_to_read(authorized())
    state = request.args.get("state", "waiting")
    if state not in STATES:
        raise Refused(404, "no_such_state", "there is no such state", f"state is one of {', '.join(STATES)}")
    limit = int(number("limit", 100, low=1, high=_MOST_PAGES, whole=True))
    spool = services().spool
    mailbox.expire_waiting()
    places = listing(spool, mailbox.number, state)
    if "since" in request.args:
        since = handle_in(request.args["since"].zfill(16), "as in ?since=<id>, or 0 for the first ones").id
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
    spool.mailbox(box).expire_waiting()
    place = name and find(spool, box, name.id)
    if place is None:
        raise no_such_page(redact(id[:40]))
    told = {"id": place.name.id, "state": place.state, "attempt": place.name.attempt}
    try:
        page, changed_at = place.read(spool)
    except BadPage:
        return answer({**told, **_times(place, None)})
    return answer({**told, "created_at": page.created, **_times(place, changed_at)})


@blueprint.post("/replay")
def replay() -> Response:
    """Send copies of archived or dead pages to this mailbox."""
    mailbox = mailbox_to_read(authorized())
    spool = services().spool
    names, _ = listed_ids()
    originals = []
    for name in names:
        place = find(spool, mailbox.number, name.id)
        if place is None:
            raise no_such_page(name.id)
        if place.state not in ("archived", "dead"):
            hint = "only archived and dead pages can be sent again"
            raise Refused(409, "not_ended", f"{name.id} is {place.state}", hint)
        try:
            originals.append(place.read(spool)[0])
        except BadPage as error:
            raise Refused(409, "no_page", f"{name.id} is no page: {error}", "mend it, then mv it to new/") from None
    replayed: list[dict[str, str]] = []
    for page in originals:
        try:
            id = mailbox.deliver(to_json(page.payload).decode(), replay_of=page.id)
        except (MailboxFull, SpoolFull, DeliveredMaybe, OSError) as error:
            refused = refusal(error)
            refused.extra |= {"replayed": replayed}
            raise refused from error
        services().switchboard.ring(mailbox.number)
        replayed.append({"id": id, "replay_of": page.id})
    return answer({"replayed": replayed})


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
