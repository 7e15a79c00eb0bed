"""The Flask application, put together."""

from flask import Flask

from pagermcp.web import errors, mailboxes, site
from pagermcp.web.health import Health
from pagermcp.web.services import Services


def create_app(relay: Services) -> Flask:
    """The application for one relay. It starts nothing and can be made many times."""
    app = Flask("pagermcp.web")
    app.url_map.merge_slashes = False  # a redirect would repeat a path, and a path may hold a key
    app.extensions["pagermcp"] = relay
    app.extensions["pagermcp.health"] = Health(relay.spool)
    errors.register(app)
    app.register_blueprint(mailboxes.blueprint)
    app.register_blueprint(site.blueprint)
    return app
