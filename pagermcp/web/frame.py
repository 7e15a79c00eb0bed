"""What all pages for people have in common: their headers, and what their frame (templates/base.html) is told."""

from flask import Response, current_app, render_template

import pagermcp
from pagermcp.web.answers import NO_STORE

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'{images}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    **NO_STORE,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def framed(template: str, drawn_images: bool = False, **context: object) -> Response:
    """A page of the site. It may load what the relay itself serves, and nothing is written in line.

    drawn_images: its scripts draw images, as an icon with a number in it.
    The navigation has a link to /status when app.config["STATUS_PAGE"] is true."""
    frame = {"version": pagermcp.__version__, "status_page": current_app.config.get("STATUS_PAGE", False)}
    headers = {**_HEADERS, "Content-Security-Policy": _POLICY.format(images=" data:" if drawn_images else "")}
    return Response(render_template(template, **frame, **context), 200, headers)
