"""What the log looks like: lines of text or of JSON, none of which has a key in it."""

import datetime
import json
import logging
import sys

from flask import has_request_context, request

from pagermcp.address import redact
from pagermcp.spool.page import timestamp
from pagermcp.web.requestlog import ID


class TextFormatter(logging.Formatter):
    """No key in any line, whoever wrote it: waitress and Flask name paths in theirs."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        id = _fields(record).get("request")
        return super().formatMessage(record) + (f" [{id}]" if id else "")

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """The same as an object on a line, with what is told of a request in fields of its own."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": timestamp(datetime.datetime.fromtimestamp(record.created, datetime.UTC)),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redact(json.dumps(line))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What a line says of a request: all of it, or which it was that had a fault."""
    told: dict[str, object] | None = getattr(record, "request", None)
    if told is None and has_request_context() and ID in request.environ:
        return {"request": request.environ[ID]}
    return told or {}


def configure(form: str) -> None:
    """Log to standard error, as text or json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("pagermcp").setLevel(logging.INFO)
    logging.getLogger("waitress").setLevel(logging.ERROR)  # it warns of every burst, again and again
