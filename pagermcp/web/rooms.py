"""Rooms: named agents talk, and everybody reads everything."""

import contextlib
import functools
import ipaddress
import re
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, request

from pagermcp import address
from pagermcp.address import redact
from pagermcp.spool.room import OPEN_ROOM, NotARoom, Room
from pagermcp.web.access import authorized, begin, may_post, origin, unauthorized
from pagermcp.web.answers import NO_STORE, answer, when
from pagermcp.web.body import json_body
from pagermcp.web.errors import Refused
from pagermcp.web.later import Connection, Later, Steps, connection, late
from pagermcp.web.parameters import number, single
from pagermcp.web.services import Services, services
from pagermcp.web.wait import Place, WaitEnded

LONGEST_WAIT = 60.0
RESERVED = ("relay",)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_MACHINE_CHARACTERS = 255
_INBOX = 20
_ARCHIVED = 100
_MOST = 10_000

_LINE_CHARACTERS = 350
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

blueprint = Blueprint("rooms", __name__)


@blueprint.post("/api/messages")
def post() -> Response:
    """Say something, to all or to one."""
    room = _room()
    limit = services().settings.max_message_bytes
    said = json_body(6 * limit + 1024)
    sender = _name(said.get("from"), "from")
    to = None if said.get("to") is None else _name(said["to"], "to")
    body = said.get("body")
    if not isinstance(body, str) or not body:
        raise Refused(400, "bad_parameter", "body must be a text", 'as in {"from":"desktop","body":"hello"}')
    size = len(body.encode(errors="surrogatepass"))
    if size > limit:
        raise Refused(413, "too_large", f"the body has {size} bytes and the limit is {limit}", "send less, or a link")
    try:
        may_post(room.mailbox.number)
    except Refused as refused:
        return late(refused)
    begin(room.mailbox)
    message = room.post(sender, to, body)
    with contextlib.suppress(OSError):  # it is posted, whatever happens now
        room.saw(sender)
    services().switchboard.ring(room.mailbox.number)
    return answer(message, 201)


@blueprint.get("/api/messages")
def messages() -> Response:
    """The active log, or one agent's inbox, now or as soon as there is something."""
    room = _room_to_read()
    reader = _name(single("for", ""), "for") if "for" in request.args else None
    since = int(number("since", 0, low=0, high=10**16, whole=True)) if "since" in request.args else None
    wait = min(number("wait", 0, low=0), LONGEST_WAIT)
    archived = single("archived", "0") not in ("", "0", "false")
    default = _ARCHIVED if archived else _INBOX if reader else _MOST
    limit = int(number("limit", default, low=1, high=_MOST, whole=True))
    if reader and room.exists:
        room.saw(reader)
    form = single("format", "json")
    if form not in ("json", "lines"):
        raise Refused(400, "bad_parameter", "format must be json or lines", "as in ?format=lines")
    if archived:
        return _shown(room.archived(reader, since, limit), form)
    look = functools.partial(room.messages, reader, since, limit)
    found = look()
    if wait and not found:
        begin(room.mailbox)
        return Later(_waiting(services(), room, connection(), origin(), reader, time.monotonic() + wait, look, form))
    return _shown(found, form)


def _waiting(
    relay: Services,
    room: Room,
    connection: Connection,
    client: str | None,
    reader: str | None,
    until: float,
    look: Callable[[], list[dict[str, Any]]],
    form: str,
) -> Steps:
    place = Place(relay, room.mailbox, connection, client, taking=False, name=reader)
    try:
        return _shown((yield from place.wait(until, look)), form)
    except WaitEnded as ended:
        raise ended.answer from None
    finally:
        place.close()
        if reader and room.exists:
            room.saw(reader)


def _shown(messages: list[dict[str, Any]], form: str) -> Response:
    if form == "lines":
        return Response("".join(map(_line, messages)), 200, NO_STORE, content_type="text/plain; charset=utf-8")
    return answer({"messages": messages})


@blueprint.post("/api/messages/clear")
def clear() -> Response:
    """Hide all messages; they stay in the archive."""
    room = _room()
    cleared = room.clear() if room.exists else 0
    return answer({"cleared": cleared})


@blueprint.get("/api/agents")
def agents() -> Response:
    """Who has shown itself here."""
    room = _room_to_read()
    listening = {name.lower() for name in services().switchboard.names(room.mailbox.number)}
    shown = [
        {
            "name": agent.name,
            "machine": agent.machine,
            "last_seen": when(agent.last_seen),
            "listening": agent.name.lower() in listening,
        }
        for agent in room.agents()
    ]
    return answer({"agents": shown})


@blueprint.post("/api/agents")
def check_in() -> Response:
    """Say that an agent is here, and on which machine."""
    room = _room()
    said = json_body()
    name, machine = _name(said.get("name"), "name"), said.get("machine")
    if machine is not None and (not isinstance(machine, str) or not 1 <= len(machine) <= _MACHINE_CHARACTERS):
        what = f"machine must be a text of 1 to {_MACHINE_CHARACTERS} characters"
        raise Refused(400, "bad_parameter", what, 'as in {"name":"desktop","machine":"desktop.lan"}')
    begin(room.mailbox)
    room.make()
    room.saw(name, machine)
    (agent,) = [agent for agent in room.agents() if agent.name.lower() == name.lower()]
    return answer({"name": agent.name, "machine": agent.machine, "last_seen": when(agent.last_seen)}, 201)


def _line(message: dict[str, Any]) -> str:
    """A message on one line that is short enough for whoever wakes an agent by it."""
    body = " ".join(_CONTROLS.sub(" ", message["body"]).split())
    if len(body) > _LINE_CHARACTERS:
        body = f"{body[:_LINE_CHARACTERS]}… ({len(message['body'])} characters)"
    line = f"MESSAGE id={message['id']} from={message['from']} to={message['to'] or 'all'}: {body}\n"
    return line.encode(errors="replace").decode()


def _room_to_read() -> Room:
    room = _room()
    if not room.exists and room.mailbox.size():
        raise NotARoom
    return room


def _room() -> Room:
    """The room that this request is for: that of the Bearer's key, or else the open one. Raises Refused."""
    site = _own_site()
    if _from_another_site(site):
        what, hint = "a page of another site can't use this room", "use the relay's own /chat"
        raise Refused(403, "other_site", what, hint)
    scheme = (request.headers.get("Authorization") or "").strip().rpartition(" ")[0].strip().lower()
    is_open = services().settings.room == "open"
    if "Authorization" not in request.headers or (is_open and scheme not in ("", "bearer")):
        if not is_open:
            raise unauthorized("a room needs its key, and there is no open room here (PAGERMCP_ROOM)")
        _check_host(site)
        return services().spool.room(OPEN_ROOM)
    key = authorized()
    if address.is_number(key):
        raise Refused(403, "number_cannot_read", "a number only sends to a mailbox", "use the room's key")
    return services().spool.room(address.number_of(key))


def _from_another_site(site: urllib.parse.SplitResult | None) -> bool:
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return True
    origin = request.headers.get("Origin")
    if origin is None:
        return False
    try:
        caller = urllib.parse.urlsplit(origin).netloc
    except ValueError:
        return True
    return caller not in (request.host, site.netloc.rpartition("@")[2] if site else None)


def _own_site() -> urllib.parse.SplitResult | None:
    url = services().settings.public_url
    return urllib.parse.urlsplit(url) if url else None


def _check_host(site: urllib.parse.SplitResult | None) -> None:
    """Anybody's web page can make a name of its own stand for this machine, and then it is no other site's."""
    host = urllib.parse.urlsplit(f"//{request.host}").hostname or ""
    if host == "localhost" or (site and host == site.hostname):
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        hint = "set PAGERMCP_PUBLIC_URL to the relay's URL, or call it by its address"
        raise Refused(403, "other_host", f"the open room does not know the host {redact(host)[:80]}", hint) from None


def _name(value: Any, field: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        what = f"{field} must be a name of 1 to 64 letters, digits, dots, hyphens and underscores"
        raise Refused(400, "bad_parameter", what, "as in desktop, or build-7.lan")
    if value.lower() in RESERVED and field != "to":
        raise Refused(400, "bad_parameter", f"{value} is kept for the relay itself", "choose another name")
    return value
