"""Waiting with leases: a page is a reader's for a time, and gone from the mailbox only when he acknowledges it."""

import datetime
from collections.abc import Callable

from flask import Blueprint, Response, request

from pagermcp.spool import Mailbox, Page
from pagermcp.spool.mailbox import LONGEST_LEASE
from pagermcp.spool.page import PageName, now, timestamp
from pagermcp.spool.whereabouts import find
from pagermcp.waking.waiter import BEAT_SECONDS
from pagermcp.web.access import authorized, begin, mailbox_to_take_from, no_head
from pagermcp.web.answers import answer, line, when, wrapped
from pagermcp.web.body import MAX_IDS, handle_in, listed_ids
from pagermcp.web.errors import Refused
from pagermcp.web.lookups import no_such_page
from pagermcp.web.parameters import LONGEST_DELAY, number
from pagermcp.web.services import services
from pagermcp.web.wait import Terms, Wait

LONGEST_TIMEOUT = 300.0
_LONGEST_QUIET = 55.0  # below the 60 s after which proxies give up

blueprint = Blueprint("leases", __name__)


@blueprint.get("/wait")
def wait() -> Response:
    """Lease pages, or take them, as soon as there are any; an empty list when none come in time."""
    no_head()
    relay, mailbox = services(), mailbox_to_take_from(authorized())
    asked = number("timeout", 50, low=0)
    timeout = min(asked, LONGEST_TIMEOUT)
    lease = number("lease", 0, low=0, high=LONGEST_LEASE)

    def form(pages: list[Page]) -> tuple[bytes, dict[str, str]]:
        clamped = {"timeout": timeout} if asked > timeout else {}
        shown = [
            wrapped(relay.spool, page, lease_expires_at=when(page.lease_ends) if lease else None) for page in pages
        ]
        return line({"pages": shown, **clamped}), {}

    terms = Terms(
        form,
        timeout=timeout,
        quiet=timeout if timeout <= _LONGEST_QUIET else BEAT_SECONDS,
        most=int(number("max", 1, low=1, high=MAX_IDS, whole=True)),
        lease=lease,
        max_age=number("max_age_seconds", float("inf"), low=0),
    )
    given = [text for values in request.args.getlist("ack") for text in values.split(",") if text]
    if len(given) > MAX_IDS:
        raise Refused(400, "bad_parameter", f"ack names {len(given)} pages, and may name {MAX_IDS}", "use POST /ack")
    if given:
        _each(mailbox, [handle_in(text, "as in ?ack=<id>,<id>") for text in given], "acknowledged", mailbox.acknowledge)
    return Wait(relay, begin(mailbox), terms).response()


@blueprint.post("/ack")
def acknowledge() -> Response:
    """Be done with leased pages, or also with waiting ones. Twice is as good as once."""
    mailbox = mailbox_to_take_from(authorized())
    names, body = listed_ids()
    waiting = body.get("waiting", False)
    if not isinstance(waiting, bool):
        raise Refused(400, "bad_parameter", "waiting must be true or false", 'as in {"ids":[…],"waiting":true}')

    def act(name: PageName) -> bool:
        if waiting and mailbox.acknowledge_waiting(name):
            return True
        return mailbox.acknowledge(name)  # after that, since somebody may have taken it just now

    return answer({"acknowledged": _each(mailbox, names, "acknowledged", act)})


@blueprint.post("/release")
def release() -> Response:
    """Give leased pages back, now or for later."""
    mailbox = mailbox_to_take_from(authorized())
    names, body = listed_ids()
    delay = _seconds(body.get("delay", 0), "delay", 0, LONGEST_DELAY)
    released = _each(mailbox, names, "released", lambda name: mailbox.release(name, delay))
    services().switchboard.ring(mailbox.number)
    return answer({"released": released})


@blueprint.post("/extend")
def extend() -> Response:
    """Let leases run out later, counted from now."""
    mailbox = mailbox_to_take_from(authorized())
    names, body = listed_ids()
    seconds = _seconds(body.get("lease", 60), "lease", 1, LONGEST_LEASE)
    ends = timestamp(now() + datetime.timedelta(seconds=seconds))
    extended = _each(mailbox, names, "extended", lambda name: mailbox.lease(name, seconds))
    return answer({"extended": extended, "lease_expires_at": ends})


def _each(mailbox: Mailbox, names: list[PageName], done: str, act: Callable[[PageName], bool]) -> list[str]:
    """Do something with leased pages; the handles of those with which it is done.

    Raises Refused when it could not be done with some, after it was done with the others."""
    succeeded: list[str] = []
    refused: list[dict[str, object]] = []
    for name in names:
        if act(name):
            succeeded.append(name.handle)
            continue
        place = find(services().spool, mailbox.number, name.id)
        if done == "acknowledged" and place and place.name == name and place.outcome == "acknowledged":
            succeeded.append(name.handle)
        else:
            where = {"state": place.state, "handle": place.name.handle} if place else {"state": None}
            refused.append({"id": name.handle, **where})
            lost = place is not None and place.name.attempt > name.attempt
            hint = "its lease ran out, or it was given back" if lost else "lease it first: GET /wait?lease=60"
    extra: dict[str, object] = {done: succeeded, "refused": refused}
    for one in refused:
        if one["state"] is not None:
            message = f"{one['id']} is not leased under this handle: it is {one['state']} as {one['handle']}"
            raise Refused(409, "not_leased", message, hint, extra=extra)
    for one in refused:
        raise no_such_page(str(one["id"]), extra)
    return succeeded


def _seconds(value: object, name: str, low: float, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        what = f"{name} must be a number of seconds from {low:g} to {high:g}"
        raise Refused(400, "bad_parameter", what, f'as in {{"ids":[…],"{name}":60}}')
    return value
