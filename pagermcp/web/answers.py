"""What answers look like: JSON, and the two forms of a page in it."""

import datetime
import functools
import http
from collections.abc import Iterable, Mapping
from typing import Any

from flask import Response
from werkzeug.datastructures import Headers

from pagermcp.spool import Page, Spool
from pagermcp.spool.page import STALE_SECONDS, timestamp, to_json

NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

_JSON = "Content-Type", "application/json"

BEGINNING = "200 OK", (_JSON, *NO_STORE.items())
"""The head of an answer that begins before it is known."""

_STATUS_LINES = {status.value: f"{status.value} {status.phrase.upper()}" for status in http.HTTPStatus}

_NOTED = ("due_at", "expires_at", "replay_of", "recovered", "late_seconds")  # what readers are told besides


class Answer(Response):
    """JSON, whose headers are all known, so there is less to find out about it than Werkzeug does.

    body: what is sent, as it is; headers: besides those that all of them have."""

    def __init__(self, body: Iterable[bytes], headers: Mapping[str, str], status: int = 200) -> None:
        self.response: Any = body
        self._line, self._given = _STATUS_LINES[status], [_JSON, *headers.items()]

    @functools.cached_property
    def headers(self) -> Headers:  # type: ignore[override]
        return Headers(self._given)

    def get_wsgi_response(self, environ: dict[str, Any]) -> tuple[Iterable[bytes], str, list[tuple[str, str]]]:
        body = () if environ["REQUEST_METHOD"] == "HEAD" else self.response
        return body, self._line, list(self.headers) if "headers" in self.__dict__ else self._given

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body, status, headers = self.get_wsgi_response(environ)
        start_response(status, headers)
        return body


def answer(value: object, status: int = 200) -> Response:
    body = line(value)
    return Answer((body,), {**NO_STORE, "Content-Length": str(len(body))}, status)


def line(value: object) -> bytes:
    return to_json(value) + b"\n"


def flat(spool: Spool, page: Page) -> dict[str, object]:
    """The seed's form of a page: the sender's fields beside the relay's, which they may hide."""
    return {"id": page.id, **_told(spool, page), **page.payload}


def wrapped(spool: Spool, page: Page, **more: object) -> dict[str, object]:
    """The form of a page in which nothing is hidden. more: what only this call has to say."""
    who = {"id": page.id, "handle": page.name.handle, **_told(spool, page), "attempt": page.name.attempt}
    return {**who, "payload": page.payload, **more}


def when(moment: datetime.datetime | None) -> str | None:
    return timestamp(moment) if moment else None


def _told(spool: Spool, page: Page) -> dict[str, object]:
    age = spool.clock.age(page.since)
    noted = {name: page.extra[name] for name in _NOTED if name in page.extra}
    return {"created_at": page.created, "age_seconds": int(age), "stale": age > STALE_SECONDS, **noted}
