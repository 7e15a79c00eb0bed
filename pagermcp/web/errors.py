"""Every error as the client sees it: a status, and `{"error":{"code","message","hint"}}`."""

import http
import logging
import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from flask import Flask, Response, has_request_context, request
from werkzeug.exceptions import HTTPException

from pagermcp.address import redact
from pagermcp.files import DISK_FULL
from pagermcp.measures import MEASURES, REFUSALS
from pagermcp.spool import Busy, DeliveredMaybe, KeyReused, MailboxFull, SpoolFull
from pagermcp.spool.page import to_json
from pagermcp.spool.room import NotARoom
from pagermcp.web.services import services

_SAY_SECONDS = 60.0
_NAMES_OF_TEMPORARY_FILES = re.compile(r"\btmp/[0-9a-f]{16}\b")
_MOST_SAID = 100
_said: dict[str, float] = {}
_say_lock = threading.Lock()

log = logging.getLogger(__name__)


class Refused(Exception):
    """A request can't be done as asked.

    retry_after: seconds; allow: the methods that would do; extra: fields beside the error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str,
        *,
        retry_after: int | None = None,
        allow: str | None = None,
        extra: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.retry_after, self.allow, self.extra = retry_after, allow, extra or {}


def error_body(code: str, message: str, hint: str, **extra: object) -> bytes:
    return to_json({"error": {"code": code, "message": message, "hint": hint}, **extra}) + b"\n"


def register(app: Flask) -> None:
    """Answer every exception in this form. What nobody foresaw is logged and is a 500."""
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, answer_to)


def answer_to(error: Exception) -> Response:
    """What a client gets for an error that is none of HTTP. Needs an application's context."""
    if isinstance(error, Refused):
        return _answer(error)
    if isinstance(error, tuple(_REFUSALS)):
        return _answer(refusal(error))
    where = (request.endpoint or request.path) if has_request_context() else "an answer that waited"
    log.error("a fault in %s", where, exc_info=error)
    return _answer(Refused(500, "internal", "a fault in the relay", "its log says more; nothing was accepted"))


def refusal(error: Exception) -> Refused:
    """What a client is told of an error that the spool raises."""
    return next(refuse(error) for kind, refuse in _REFUSALS.items() if isinstance(error, kind))


def _answer(error: Refused) -> Response:
    for code in REFUSALS:
        if code == error.code:
            MEASURES.count(code)
    body = error_body(error.code, redact(error.message), error.hint, **error.extra)  # it may repeat what came
    response = Response(body, error.status, content_type="application/json")
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if error.allow is not None:
        response.headers["Allow"] = error.allow
    if error.status == http.HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="pagermcp"'
    response.headers["Cache-Control"] = "no-store"
    return response


def _mailbox_full(error: Any) -> Refused:
    message = "the mailbox is full; nothing was dropped"
    return Refused(429, "mailbox_full", message, "read it, or send later", retry_after=30)


def _busy(error: Any) -> Refused:
    return Refused(503, "busy", str(error), "try again", retry_after=1)


def _key_reused(error: Any) -> Refused:
    message = "this Idempotency-Key came within 24 hours with another body"
    return Refused(422, "key_reused", message, "use a new key for a new page")


def _not_a_room(error: Any) -> Refused:
    hint = "make another key for the room: POST /mailboxes"
    return Refused(409, "not_a_room", "this is a mailbox with pages in it, not a room", hint)


def _spool_full(error: Any) -> Refused:
    return Refused(507, "disk_full", str(error), "make room on the relay's disk, or send later", retry_after=60)


def _delivered_maybe(error: Any) -> Refused:
    log.error("a page was taken before it could be made durable: %s", error.__cause__)
    return Refused(
        503,
        "disk_error",
        "the disk failed while the page was delivered; a reader may have it",
        "sending it again may deliver it twice",
        retry_after=30,
        extra={"delivered": "maybe"},
    )


def _disk_error(error: Any) -> Refused:
    _say(services().spool.explain(error))
    reason = error.strerror or "input/output error"
    if error.errno in DISK_FULL:
        return _spool_full(f"the spool can't be written: {reason}")
    message = f"the spool can't be used: {reason}"
    return Refused(503, "disk_error", message, "see the relay's log; try later", retry_after=30)


def _say(trouble: str) -> None:
    """Log what an operator has to mend, once a minute; it is the same for every request."""
    trouble = _NAMES_OF_TEMPORARY_FILES.sub("tmp/", trouble)
    with _say_lock:
        if time.monotonic() - _said.get(trouble, -math.inf) <= _SAY_SECONDS:
            return
        if len(_said) >= _MOST_SAID:
            _said.clear()
        _said[trouble] = time.monotonic()
    log.error("%s", trouble)


_REFUSALS: dict[type[Exception], Callable[[Any], Refused]] = {
    MailboxFull: _mailbox_full,
    Busy: _busy,
    KeyReused: _key_reused,
    NotARoom: _not_a_room,
    SpoolFull: _spool_full,
    DeliveredMaybe: _delivered_maybe,
    OSError: _disk_error,
}

_HINTS = {
    404: ("not_found", "nothing is at this address", "the calls are listed at /"),
    405: ("method_not_allowed", "this address does not know that method", "see the Allow header"),
}


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    phrase = http.HTTPStatus(status).phrase
    code, message, hint = _HINTS.get(status, (phrase.lower().replace(" ", "_"), phrase, "see the protocol"))
    allow = dict(error.get_headers(request.environ)).get("Allow")
    return _answer(Refused(status, code, message, hint, allow=allow))
