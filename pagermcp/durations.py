"""Lengths of time as people write them, `90`, `90s`, `30m`, `2h`, `7d`, and as they read them."""

import re

_FORM = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_in(text: str) -> float | None:
    """The seconds that a text says; None when it is no such text."""
    match = _FORM.fullmatch(text)
    return float(match[1]) * _UNITS[match[2]] if match else None


def in_words(seconds: float) -> str:
    """So long, for people: `45 s`, `3 min`, `2.5 h`, `4 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
