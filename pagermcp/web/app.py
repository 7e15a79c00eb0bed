"""The Flask application, put together."""

import functools
from typing import Any

from flask import Flask, Request, Response
from flask.sessions import NullSession, SecureCookieSessionInterface
from werkzeug.routing import MapAdapter

from pagermcp.spool.census import Census
from pagermcp.web import errors, leases, lookups, mailboxes, rooms, sending, site, status
from pagermcp.web.health import Health
from pagermcp.web.later import parked_or_blocked
from pagermcp.web.requestlog import log_requests
from pagermcp.web.routes import Adapter, Routes
from pagermcp.web.services import Services


class _NoSessions(SecureCookieSessionInterface):
    """There is one for all requests, which can't be written to."""

    _none = NullSession()

    def open_session(self, app: Flask, request: Request) -> NullSession:
        return self._none


class _Application(Flask):
    """Flask, without what each request pays for and nothing here uses: sessions, hosts, and what is done after requests
    and at their end."""

    session_interface = _NoSessions()

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        if request is None:
            return None
        return Adapter(self.url_map, self._routes, request.root_path, request.scheme, request.path, request.method)

    @functools.cached_property
    def _routes(self) -> Routes:
        return Routes(self.url_map.iter_rules())

    # Flask 3.2 gives these a context, too.

    def preprocess_request(self, *arguments: Any) -> Any:
        return super().preprocess_request(*arguments) if self.before_request_funcs else None

    def process_response(self, *arguments: Any) -> Response:
        response: Response = arguments[-1]
        return response

    def do_teardown_request(self, *arguments: object) -> None: ...

    def do_teardown_appcontext(self, *arguments: object) -> None: ...


def create_app(relay: Services) -> Flask:
    """The application for one relay. It starts nothing and can be made many times."""
    app = _Application("pagermcp.web")
    app.url_map.merge_slashes = False  # a redirect would repeat a path, and a path may hold a key
    if relay.settings.log_requests:
        log_requests(app)
    app.wsgi_app = parked_or_blocked(app.wsgi_app)  # type: ignore[assignment,method-assign]
    app.extensions["pagermcp"] = relay
    app.extensions["pagermcp.health"] = Health(relay.spool)
    errors.register(app)
    for part in (sending, mailboxes, leases, lookups, rooms, site):
        app.register_blueprint(part.blueprint)
    if relay.settings.operator_token:
        app.config["STATUS_PAGE"] = True
        app.extensions["pagermcp.census"] = Census(relay.spool)
        app.register_blueprint(status.blueprint)
    return app
