"""Looking at pages wherever they are, without taking any: the reader's list, the sender's receipt; sending again."""

import datetime
import time

from flask import Blueprint, Response, request

from pagermcp import address
from pagermcp.address import redact
from pagermcp.spool import BadPage, DeliveredMaybe, Mailbox, MailboxFull, Page, SpoolFull
from pagermcp.spool.page import PageName, to_json
from pagermcp.spool.whereabouts import ANY, STATES, Place, counts, find, listing, mark
from pagermcp.web.access import authorized, begin, mailbox_to_read, mailbox_to_take_from, may_post, origin
from pagermcp.web.answers import answer, when, wrapped
from pagermcp.web.body import handle_in, listed_ids
from pagermcp.web.errors import Refused, refusal
from pagermcp.web.later import Connection, Later, Steps, connection
from pagermcp.web.parameters import number, single
from pagermcp.web.services import Services, services
from pagermcp.web.wait import Place as Waiting
from pagermcp.web.wait import WaitEnded

blueprint = Blueprint("lookups", __name__)

_MOST_PAGES = 1000
_LOOKS = 10
_LONGEST_WAIT = 60.0
_LOOK_SECONDS = 1.0  # so often who waits for changes looks by himself: nobody rings about a lease, or what is done


@blueprint.get("/pages")
def pages() -> Response:
    """The pages in one state, ascending by id: the first ones after `since`, or the last ones (before `before`)."""
    mailbox = mailbox_to_read(authorized())
    state = single("state", "waiting")
    if state not in (*STATES, ANY):
        raise Refused(404, "no_such_state", "there is no such state", f"state is one of {', '.join(STATES)}, or {ANY}")
    limit = int(number("limit", 100, low=1, high=_MOST_PAGES, whole=True))
    spool = services().spool
    mailbox.expire_waiting()
    since, before = _id("since", "0 for the first ones"), _id("before", "nothing for the last ones")
    if since is not None and before is not None:
        raise Refused(400, "bad_parameter", "since and before go in two directions", "give one of them")
    shown: list[dict[str, object]] = []
    for listed in listing(spool, mailbox.number, state, limit, since=since, before=before):
        try:
            place, page, changed_at = _found(mailbox.number, listed.name.id, listed)
        except Refused:
            continue  # deleted meanwhile
        except OSError:
            place, page, changed_at = listed, None, None
        if state not in (ANY, place.state):
            continue  # it moved on meanwhile
        if page is None:
            shown.append({"id": place.name.id, "handle": place.name.handle, "state": place.state, "why": place.why()})
        else:
            shown.append(wrapped(spool, page, state=place.state, **_times(place, changed_at)))
    return answer({"pages": shown})


def _id(name: str, otherwise: str) -> str | None:
    """The id in a query parameter, if it is there. Raises Refused."""
    if name not in request.args:
        return None
    return handle_in(single(name, "").zfill(16), f"as in ?{name}=<id>, or {otherwise}").id


@blueprint.get("/mailbox")
def overview() -> Response:
    """How many pages are in each state: at once, or as soon as something is not as it was when `mark` was given.

    It only looks, so it is no reader whom a page would be for."""
    mailbox = mailbox_to_read(authorized())
    known = single("mark", "")
    wait = min(number("wait", 0, low=0), _LONGEST_WAIT)
    if not wait:
        return _told(services(), mailbox)
    return Later(_changed(services(), begin(mailbox), connection(), origin(), known, time.monotonic() + wait))


def _changed(
    relay: Services, mailbox: Mailbox, connection: Connection, client: str | None, known: str, until: float
) -> Steps:
    def changed() -> bool:
        mailbox.look()  # takes in what a shell brought
        return known != _mark(relay, mailbox)

    place = Waiting(relay, mailbox, connection, client, taking=False)
    try:
        yield from place.wait(until, changed, _LOOK_SECONDS)
        return _told(relay, mailbox)
    except WaitEnded as ended:
        raise ended.answer from None
    finally:
        place.close()


def _told(relay: Services, mailbox: Mailbox) -> Response:
    mailbox.expire_waiting()
    now = _mark(relay, mailbox)  # before the rest: what happens meanwhile gives another one
    told = {"number": mailbox.number, "pages": counts(relay.spool, mailbox.number)}
    return answer({**told, "waiters": relay.switchboard.takers(mailbox.number), "mark": now})


def _mark(relay: Services, mailbox: Mailbox) -> str:
    # every worker has waiters of its own, and the next question may come to another one
    takers = relay.switchboard.takers(mailbox.number) if relay.settings.workers == 1 else 0
    return f"{mark(relay.spool, mailbox.number)}.{takers}"


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
            may_post(mailbox.number)
            begin(mailbox)
            id = mailbox.deliver(to_json(page.payload).decode(), replay_of=page.id)
        except (Refused, MailboxFull, SpoolFull, DeliveredMaybe, OSError) as error:
            refused = error if isinstance(error, Refused) else refusal(error)
            refused.extra |= {"replayed": replayed}
            raise refused from error
        services().switchboard.ring(mailbox.number)
        replayed.append({"id": id, "replay_of": page.id})
    return answer({"replayed": replayed})


def _found(box: str, id: str, place: Place | None = None) -> tuple[Place, Page | None, datetime.datetime | None]:
    """Where a page is, what it is if it is one, and its file's mtime. Raises Refused, OSError.

    place: where it was just now."""
    for _ in range(_LOOKS):
        place = place or find(services().spool, box, id)
        if place is None:
            break
        try:
            return place, *place.read(services().spool)
        except BadPage:
            return place, None, None
        except FileNotFoundError:
            place = None  # it has moved on just now
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
