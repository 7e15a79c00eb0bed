"""What a sender's body becomes: always a JSON object, kept as the sender wrote it."""

from typing import Any

from flask import request
from werkzeug.wsgi import get_content_length, get_input_stream

from pagermcp.address import redact
from pagermcp.spool import BadPage
from pagermcp.spool.page import PageName, parse_payload, payload_text, to_json
from pagermcp.web.errors import Refused
from pagermcp.web.services import services

MAX_IDS = 100

_CURLS_DEFAULT = "application/x-www-form-urlencoded"


def request_body(limit: int | None = None) -> bytes:
    """The body of this request, of at most `limit` bytes, or as many as a page may have. Raises Refused."""
    limit = limit or services().settings.max_message_bytes
    environ = request.environ
    size = get_content_length(environ) or 0
    body = b"" if size > limit else get_input_stream(environ).read()
    size = max(size, len(body))
    if size > limit:
        raise Refused(413, "too_large", f"the body has {size} bytes and the limit is {limit}", "send less, or a link")
    if environ.get("HTTP_CONTENT_ENCODING", "identity").lower() != "identity":
        raise Refused(415, "unsupported_media_type", "the body is compressed", "send it as it is")
    return body


def media_type() -> str:
    """The Content-Type of this request without parameters, "" when there is none."""
    return str(request.environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()


def json_body(limit: int | None = None, hint: str = "send a JSON object") -> dict[str, Any]:
    """The JSON object that is the body of this request. Raises Refused."""
    try:
        return parse_payload(request_body(limit).decode())
    except UnicodeDecodeError as error:
        raise Refused(400, "not_utf8", f"the body is not UTF-8 (byte {error.start})", hint) from None
    except BadPage as error:
        raise Refused(400, "bad_json", str(error), hint) from None


def listed_ids() -> tuple[list[PageName], dict[str, Any]]:
    """The handles in this request's `{"ids":[…]}`, each once, and the whole of the object. Raises Refused."""
    hint = """send {"ids":["<id>"]}, as the page came with it"""
    body = json_body(hint=hint)
    ids = body.get("ids")
    if not isinstance(ids, list) or not 1 <= len(ids) <= MAX_IDS:
        raise Refused(400, "bad_parameter", f"ids must be a list of 1 to {MAX_IDS} ids", hint)
    if not all(isinstance(id, str) for id in ids):
        raise Refused(400, "bad_parameter", "ids must be strings", hint)
    return [handle_in(id, hint) for id in dict.fromkeys(ids)], body


def handle_in(text: str, hint: str) -> PageName:
    """A handle, `<id>` or `<id>.<attempt>`. Raises Refused."""
    name = PageName.parse_handle(text)
    if name is None:
        raise Refused(400, "bad_parameter", f"{redact(text)[:40]!r} is no id", hint)
    return name


def payload_of(body: bytes, media_type: str) -> tuple[str, str | None]:
    """The payload as JSON text, and the address in its top-level `uuid`, if any, which is taken out.

    media_type: the Content-Type without parameters, "" when there is none. Raises Refused."""
    if media_type.startswith("multipart/"):
        raise Refused(415, "unsupported_media_type", "multipart is no page", "send JSON or text: curl -d, not -F")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            400, "not_utf8", f"the body is not UTF-8 (byte {error.start})", "convert it first: iconv -t utf-8"
        ) from None
    if text and media_type in ("application/json", _CURLS_DEFAULT, ""):
        json = text.removeprefix("\ufeff")
        try:
            payload, address = payload_text(json)
        except BadPage as error:
            if media_type == "application/json":
                hint = "send a JSON object, or plain text with -H 'Content-Type: text/plain'"
                raise Refused(400, "bad_json", str(error), hint) from None
        else:
            return payload, address if isinstance(address, str) else None
    return to_json({"message": text}).decode(), None
