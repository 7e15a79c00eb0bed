"""Lengths of time as people write them, `90`, `90s`, `30m`, `2h`, `7d`, and as they read them."""

import re

_FORM = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhd]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_in(text: str) -> float | None:
    """The seconds that a text says; None when it is no such text."""
    match = _FORM.fullmatch(text)
    return float(match[1]) * _UNITS[match[2]] if match else None


def in_words(seconds: float) -> str:
    """About so long, for people: `45 s`, `3 min`, `2.5 h`, `40 d`."""
    sizes = ((86400, "d"), (3600, "h"), (60, "min"))
    size, unit = next((one for one in sizes if seconds >= one[0]), (1, "s"))
    count = seconds / size
    return f"{count:.2g} {unit}" if count < 10 else f"{count:.0f} {unit}"
