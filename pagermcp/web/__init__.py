"""The relay's HTTP: a Flask application on the spool and the switchboard, for any WSGI server."""

from pagermcp.web.app import create_app

__all__ = ["create_app"]
