"""What all pages for people have in common: their headers, and what their frame (templates/base.html) is told."""

from flask import Response, current_app, render_template

import pagermcp
from pagermcp.web.answers import NO_STORE

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    **NO_STORE,
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def framed(template: str, **context: object) -> Response:
    """A page of the site. It may load what the relay itself serves, and nothing is written in line.

    The navigation has a link to /status when app.config["STATUS_PAGE"] is true."""
    frame = {"version": pagermcp.__version__, "status_page": current_app.config.get("STATUS_PAGE", False)}
    return Response(render_template(template, **frame, **context), 200, _HEADERS)
