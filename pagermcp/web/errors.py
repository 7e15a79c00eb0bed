"""Every error as the client sees it: a status, and `{"error":{"code","message","hint"}}`."""

import http
import logging

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from pagermcp.spool import Busy, DeliveredMaybe, KeyReused, MailboxFull, SpoolFull
from pagermcp.spool.files import DISK_FULL
from pagermcp.spool.page import to_json

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
    app.register_error_handler(Refused, _refused)
    app.register_error_handler(MailboxFull, _mailbox_full)
    app.register_error_handler(Busy, _busy)
    app.register_error_handler(KeyReused, _key_reused)
    app.register_error_handler(SpoolFull, _spool_full)
    app.register_error_handler(DeliveredMaybe, _delivered_maybe)
    app.register_error_handler(OSError, _disk_error)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unforeseen)


def _refused(error: Refused) -> Response:
    body = error_body(error.code, error.message, error.hint, **error.extra)
    response = Response(body, error.status, content_type="application/json")
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if error.allow is not None:
        response.headers["Allow"] = error.allow
    if error.status == http.HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="pagermcp"'
    response.headers["Cache-Control"] = "no-store"
    return response


def _mailbox_full(error: MailboxFull) -> Response:
    return _refused(
        Refused(
            429, "mailbox_full", "the mailbox is full; nothing was dropped", "read it, or send later", retry_after=30
        )
    )


def _busy(error: Busy) -> Response:
    return _refused(Refused(503, "busy", str(error), "try again", retry_after=1))


def _key_reused(error: KeyReused) -> Response:
    message = "this Idempotency-Key came within 24 hours with another body"
    return _refused(Refused(422, "key_reused", message, "use a new key for a new page"))


def _spool_full(error: SpoolFull) -> Response:
    return _refused(
        Refused(507, "disk_full", str(error), "make room on the relay's disk, or send later", retry_after=60)
    )


def _delivered_maybe(error: DeliveredMaybe) -> Response:
    log.error("a page was taken before it could be made durable: %s", error.__cause__)
    return _refused(
        Refused(
            503,
            "disk_error",
            "the disk failed while the page was delivered; a reader may have it",
            "sending it again may deliver it twice",
            retry_after=30,
            extra={"delivered": "maybe"},
        )
    )


def _disk_error(error: OSError) -> Response:
    log.error("the spool failed: %s", error)
    reason = error.strerror or "input/output error"
    if error.errno in DISK_FULL:
        return _spool_full(SpoolFull(f"the spool can't be written: {reason}"))
    return _refused(
        Refused(
            503, "disk_error", f"the spool can't be used: {reason}", "see the relay's log; try later", retry_after=30
        )
    )


_HINTS = {
    404: ("not_found", "nothing is at this address", "the calls are listed at /"),
    405: ("method_not_allowed", "this address does not know that method", "see the Allow header"),
}


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    phrase = http.HTTPStatus(status).phrase
    code, message, hint = _HINTS.get(status, (phrase.lower().replace(" ", "_"), phrase, "see the protocol"))
    allow = dict(error.get_headers(request.environ)).get("Allow")
    return _refused(Refused(status, code, message, hint, allow=allow))


def _unforeseen(error: Exception) -> Response:
    log.error("a fault in %s", request.endpoint, exc_info=error)
    return _refused(Refused(500, "internal", "a fault in the relay", "its log says more; nothing was accepted"))
