"""The Flask application, put together."""

from flask import Flask

from pagermcp.spool.census import Census
from pagermcp.web import errors, leases, lookups, mailboxes, rooms, sending, site, status
from pagermcp.web.health import Health
from pagermcp.web.later import parked_or_blocked
from pagermcp.web.requestlog import log_requests
from pagermcp.web.services import Services


def create_app(relay: Services) -> Flask:
    """The application for one relay. It starts nothing and can be made many times."""
    app = Flask("pagermcp.web")
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
