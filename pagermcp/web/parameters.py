"""Query parameters and send options, with clear errors for what makes no sense."""

import math
import re

from flask import request

from pagermcp.durations import seconds_in
from pagermcp.spool import Options
from pagermcp.web.errors import Refused

LONGEST_DELAY = 365 * 86400.0
LONGEST_EXPECT = 30 * 86400.0

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,9})?", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,16}", re.ASCII)
_SECRET = re.compile(r"[^,\x00-\x1f\x7f]{1,255}")
_NAMES = ("idempotency-key", "delay", "expires", "replace", "run", "expect")
_OPTIONS_IN_WSGI = ("HTTP_PAGER_", "HTTP_IDEMPOTENCY_KEY")
_NO_OPTIONS = Options()


def number(name: str, default: float, low: float, high: float = math.inf, *, whole: bool = False) -> float:
    """A number in the query. Raises Refused."""
    values = request.args.getlist(name)
    if not values:
        return default
    form = _WHOLE if whole else _NUMBER
    if len(values) != 1 or not form.fullmatch(values[0]) or not low <= float(values[0]) <= high:
        bounds = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
        what = f"{name} must be one {'whole ' if whole else ''}number, {bounds}"
        raise Refused(400, "bad_parameter", what, f"as in ?{name}={max(low, 1):g}")
    return float(values[0])


def single(name: str, default: str) -> str:
    """A text in the query. Raises Refused."""
    values = request.args.getlist(name) or [default]
    if len(values) > 1:
        raise Refused(400, "ambiguous", f"{name} was given twice", "send one")
    return values[0]


def send_options() -> Options:
    """The options of the page that this request sends, from headers and query. Raises Refused."""
    environ = request.environ
    if not environ.get("QUERY_STRING"):
        names = " ".join(environ)
        if not any(option in names for option in _OPTIONS_IN_WSGI):
            return _NO_OPTIONS  # as with most pages, so it costs them little
    given = _given()
    run, expect, delay = (_secret(given, "run"), _duration(given, "expect", LONGEST_EXPECT), given.get("delay"))
    if expect is not None and run is None:
        raise _bad("Pager-Expect needs a run", "name the run with Pager-Run")
    if run is not None and delay is not None:
        raise _bad("a report about a run can't be delayed", "send it without Pager-Run, or without Pager-Delay")
    return Options(
        idempotency_key=_secret(given, "idempotency-key"),
        delay=_duration(given, "delay", LONGEST_DELAY) or 0,
        expires=_duration(given, "expires", LONGEST_DELAY),
        replace=_secret(given, "replace"),
        run=run,
        expect=expect,
    )


def _given() -> dict[str, str]:
    given: dict[str, str] = {}
    headers = [(name, _text(name, value)) for name, value in request.headers if _is_option(name.lower())]
    query = [(name, value) for name, value in request.args.items(multi=True) if _is_option(name, *_NAMES)]
    for full, value in headers + query:
        name = _plain(full).removeprefix("pager-")
        if name not in _NAMES:
            known = ", ".join(f"Pager-{name.title()}" for name in _NAMES[1:])
            raise _bad(f"{full} is no option", f"there are Idempotency-Key, {known}")
        if name in given or "," in value:  # a header given twice becomes one with a comma
            what = f"{name} was given twice, or has a comma in it"
            raise Refused(400, "ambiguous", what, "send it once, in a header or in the query, without a comma")
        given[name] = value.strip()
    return given


def _is_option(name: str, *short: str) -> bool:
    return _plain(name).startswith("pager-") or _plain(name) in ("idempotency-key", *short)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _text(name: str, value: str) -> str:
    """A header as its sender wrote it: WSGI gives its bytes as Latin-1."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise _bad(f"{name} is not UTF-8", "send it as UTF-8") from None


def _secret(given: dict[str, str], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not _SECRET.fullmatch(value):
        raise _bad(f"{name} must have 1 to 255 characters", "make it random: uuidgen")
    return value


def _duration(given: dict[str, str], name: str, longest: float) -> float | None:
    text = given.get(name)
    if text is None:
        return None
    seconds = seconds_in(text)
    if seconds is None or not 0 <= seconds <= longest or (seconds == 0 and name != "delay"):
        most = f"{longest / 86400:g}d"
        raise _bad(f"{name} must be a time of at most {most}", "as in 90, 90s, 30m, 2h or 7d")
    return seconds


def _bad(message: str, hint: str) -> Refused:
    return Refused(400, "bad_option", message, hint)
