"""The pages and files for people and machines around the protocol: start page, health, version."""

import importlib.resources
import re

from flask import Blueprint, Response, current_app, request

import pagermcp
from pagermcp.web.answers import NO_STORE, answer
from pagermcp.web.errors import Refused
from pagermcp.web.frame import framed
from pagermcp.web.health import Health
from pagermcp.web.services import services

_SHARE = importlib.resources.files("pagermcp") / "share"
_DEFAULT_URL = "http://127.0.0.1:8080"  # what the files in share/ name, so that they also work as they lie there
_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")

blueprint = Blueprint("site", __name__)


@blueprint.get("/")
def start() -> Response:
    """What this is, with commands that work from where the page is read."""
    return framed("start.html", url=own_url(), url_is_configured=bool(services().settings.public_url))


@blueprint.get("/inbox")
def inbox() -> Response:
    """A mailbox, for people."""
    return framed("inbox.html", drawn_images=True, url=own_url())


@blueprint.get("/chat")
def chat() -> Response:
    """The room, for people."""
    return framed("chat.html", url=own_url())


@blueprint.get("/sample/pager.sh", defaults={"name": "pager.sh"})
@blueprint.get("/skill.md", defaults={"name": "skill.md"})
@blueprint.get("/install.sh", defaults={"name": "install.sh"})
@blueprint.get("/watch.sh", defaults={"name": "watch.sh"})
def shared(name: str) -> Response:
    """What others run or read, with this relay's URL in it: the script that pages about a command, what an agent has to
    know of the room, what installs that, and what wakes an agent."""
    kind = "markdown" if name.endswith(".md") else "x-shellscript"
    text = (_SHARE / name).read_text().replace(_DEFAULT_URL, own_url())
    return Response(text, 200, NO_STORE, content_type=f"text/{kind}; charset=utf-8")


@blueprint.get("/healthz")
def healthz() -> Response:
    """200 while a page can be written; a watcher that fails makes the relay slower, not ill."""
    relay = services()
    health: Health = current_app.extensions["pagermcp.health"]
    state: dict[str, object] = {
        "watching": relay.watcher.state,
        "retention": relay.janitor.state,
        "unreadable_files": relay.spool.unreadable,
    }
    if relay.settings.workers > 1:
        state["worker"] = relay.spool.worker
    problem = health.problem()
    if problem is not None:
        raise Refused(
            503,
            "disk_error",
            f"the spool can't be written: {problem}",
            "see the relay's log",
            retry_after=5,
            extra=state,
        )
    return answer({"status": "ok", **state})


@blueprint.get("/version")
def version() -> Response:
    return answer({"version": pagermcp.__version__, "build": services().settings.build})


def own_url() -> str:
    """The relay's URL as its operator set it, or else as this client called it. Raises Refused."""
    configured = services().settings.public_url.rstrip("/")
    if configured:
        return configured
    if not _HOST.fullmatch(request.host):
        raise Refused(400, "bad_host", "the Host header is not a host name", "call the relay by its name")
    return f"{request.scheme}://{request.host}"
