"""Query parameters and send options, with clear errors for what makes no sense."""

import math
import re

from flask import request

from pagermcp.spool import Options
from pagermcp.web.errors import Refused

LONGEST_DELAY = 365 * 86400.0
LONGEST_EXPECT = 30 * 86400.0

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SECRET = re.compile(r"[^,\x00-\x1f\x7f]{1,255}")
_NAMES = ("idempotency-key", "delay", "expires", "replace", "run", "expect")


def number(name: str, default: float, low: float, high: float = math.inf, *, whole: bool = False) -> float:
    """A number in the query. Raises Refused."""
    values = request.args.getlist(name)
    if not values:
        return default
    try:
        (value,) = (int(text) if whole else float(text) for text in values)
        if not low <= value <= high:
            raise ValueError
    except ValueError:
        bounds = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
        what = f"{name} must be one {'whole ' if whole else ''}number, {bounds}"
        raise Refused(400, "bad_parameter", what, f"as in ?{name}={max(low, 1):g}") from None
    return value


def send_options() -> Options:
    """The options of the page that this request sends, from headers and query. Raises Refused."""
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
    headers = [(name.lower(), value) for name, value in request.headers]
    pairs = [(name, value) for name, value in headers if name == "idempotency-key" or name.startswith("pager-")]
    pairs += [
        (f"pager-{_plain(name)}", value) for name, value in request.args.items(multi=True) if _plain(name) in _NAMES
    ]
    for full, value in pairs:
        name = full.removeprefix("pager-")
        if name not in _NAMES:
            known = ", ".join(f"Pager-{name.title()}" for name in _NAMES[1:])
            raise _bad(f"{full} is no option", f"there are Idempotency-Key, {known}")
        if name in given:
            raise Refused(400, "ambiguous", f"{name} was given twice", "send it once, in a header or in the query")
        given[name] = value.strip()
    return given


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("pager-")


def _secret(given: dict[str, str], name: str) -> str | None:
    value = given.get(name)
    if value is not None and "," in value:  # what a header given twice becomes
        raise Refused(
            400, "ambiguous", f"{name} was given twice, or has a comma in it", "send it once, without a comma"
        )
    if value is not None and not _SECRET.fullmatch(value):
        raise _bad(f"{name} must have 1 to 255 characters", "make it random: uuidgen")
    return value


def _duration(given: dict[str, str], name: str, longest: float) -> float | None:
    text = given.get(name)
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else -1
    if not 0 <= seconds <= longest or (seconds == 0 and name != "delay"):
        most = f"{longest / 86400:g}d"
        raise _bad(f"{name} must be a time of at most {most}", "as in 90, 90s, 30m, 2h or 7d")
    return seconds


def _bad(message: str, hint: str) -> Refused:
    return Refused(400, "bad_option", message, hint)
