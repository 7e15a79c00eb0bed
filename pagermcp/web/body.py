"""What a sender's body becomes: always a JSON object, kept as the sender wrote it."""

from pagermcp.spool import BadPage
from pagermcp.spool.page import payload_text, to_json
from pagermcp.web.errors import Refused

_CURLS_DEFAULT = "application/x-www-form-urlencoded"


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
