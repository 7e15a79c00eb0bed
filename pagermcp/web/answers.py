"""What answers look like: JSON, and the two forms of a page in it."""

import datetime
from collections.abc import Iterable
from typing import Any

from flask import Response

from pagermcp.spool import Page, Spool
from pagermcp.spool.page import STALE_SECONDS, timestamp, to_json

NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

_NOTED = ("due_at", "expires_at", "replay_of", "recovered", "late_seconds")  # what readers are told besides


class _Answer(Response):
    """One whose body is all there, so there is less to find out about it than Werkzeug does."""

    def __init__(self, body: bytes, status: int) -> None:
        super().__init__((body,), status, NO_STORE, content_type="application/json")
        self.headers["Content-Length"] = str(len(body))

    def get_wsgi_response(self, environ: dict[str, Any]) -> tuple[Iterable[bytes], str, list[tuple[str, str]]]:
        body = () if environ["REQUEST_METHOD"] == "HEAD" else self.iter_encoded()
        return body, self.status, list(self.headers)


def answer(value: object, status: int = 200) -> Response:
    return _Answer(line(value), status)


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
