"""A line in the log for each request, when it has been answered, and an id that the client can name."""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flask import Flask, request

from pagermcp.web.access import ADDRESS

ID = "pagermcp.request"
"""Where a request's id is in its environment."""

_ROUTE = "pagermcp.route"

log = logging.getLogger(__name__)


def log_requests(app: Flask) -> None:
    """Have that in this application."""
    application = app.wsgi_app

    @app.before_request
    def note_route() -> None:
        request.environ[_ROUTE] = request.url_rule and request.url_rule.rule

    def call(environ: dict[str, Any], start_response: Any) -> Iterable[Any]:
        began = time.monotonic()
        method = environ["REQUEST_METHOD"]
        told: dict[str, Any] = {"request": secrets.token_hex(6), "method": method if method.isalpha() else "?"}
        environ[ID] = told["request"]

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            told["status"] = int(status[:3])
            return start_response(status, [*headers, ("X-Request-Id", told["request"])], exc_info)

        body = application(environ, start)
        told["route"] = environ.get(_ROUTE)  # and not the path, which may be a secret
        told.setdefault("status", None)  # of one whose client goes before it is answered, it stays so
        told["mailbox"] = environ[ADDRESS].hex[:8] if ADDRESS in environ else None  # of a key, and of its number

        def done() -> None:
            told["seconds"] = round(time.monotonic() - began, 6)
            what = [told[name] or "-" for name in ("method", "route", "status", "seconds", "mailbox")]
            log.info("%s %s %s %s s %s", *what, extra={"request": told})

        return _Body(body, done)

    app.wsgi_app = call  # type: ignore[method-assign]


class _Body:
    """A body of which one wants to know when it is over. It may wait, as any body may here."""

    def __init__(self, body: Any, done: Callable[[], None]) -> None:
        self._body, self._done = body, done

    def __iter__(self) -> Iterator[Any]:
        return iter(self._body)

    def close(self) -> None:
        try:
            if hasattr(self._body, "close"):
                self._body.close()
        finally:
            self._done()
