"""Pages for people and for programs. A page is other people's text: no control character of it reaches a terminal."""

import json
import os
import re
import select
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pagermcp.client.relay import Page
from pagermcp.durations import in_words

# Controls but for the line break, marks that turn the direction of text or can't be seen (but for the one that makes an
# emoji of a sign, behind such a sign), halves of surrogate pairs.
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]|(?<![\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff])\ufe0f"
)
_MESSAGE_LEAST = 20


class Unwritable(Exception):
    """Standard output could not be written. The message says why."""


def put(content: bytes, descriptor: int = 1) -> None:
    """Write to standard output, and know that it was written. Raises Unwritable."""
    try:
        while content:
            try:
                content = content[os.write(descriptor, content) :]
            except BlockingIOError:  # its reader is slow, and somebody has made it not to block
                select.select([], [descriptor], [])
    except OSError as error:
        raise Unwritable(f"the output can't be written: {error.strerror}") from None


def put_json(*values: object) -> None:
    """Write each as a line of JSON. Raises Unwritable."""
    put(b"".join(map(json_line, values)))


def put_lines(lines: Iterable[str]) -> None:
    """Write lines of text. Raises Unwritable."""
    put("".join(f"{line}\n" for line in lines).encode())


def json_line(value: object) -> bytes:
    """JSON in one line of UTF-8, with what could harm a terminal as escapes."""
    return json_text(value).encode() + b"\n"


def json_text(value: object) -> str:
    """JSON in one line, with what could harm a terminal, or can't be seen, as escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def plain(text: str) -> str:
    """A text whose dangerous characters are shown as escapes; line breaks stay, and tabs are spaces."""
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def in_one_line(value: object, most: int = sys.maxsize) -> str:
    """A value of a page in one line of at most so many characters."""
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    line = " ".join(plain(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def age(page: Page) -> str:
    """A page's age in words, and whether it is stale."""
    return in_words(page.age_seconds) + (" STALE" if page.stale else "")


def state(page: Page) -> str:
    """Where a page is, in words."""
    where = str(page.answer.get("state", ""))
    words, until = {"leased": ("leased", "lease_expires_at"), "scheduled": ("due in", "due_at")}.get(where, ("", ""))
    if until in page.answer:
        left = (datetime.fromisoformat(page.answer[until]) - datetime.now(UTC)).total_seconds()
        return f"{'alarm in' if _is_alarm(page) else words} {in_words(max(0, round(left)))}"
    return str(page.answer.get("outcome") or where)


def job(page: Page) -> object:
    """Which job a page is about; one that is lost is named by its run."""
    return page.payload.get("JOB_ID") or page.payload.get("run")


def _is_alarm(page: Page) -> bool:
    """Whether it is what will be paged about a run, unless that reports in time."""
    return page.answer.get("state") == "scheduled" and "run" in page.payload and page.payload.get("status") == "lost"


def summary(page: Page) -> str:
    """What a page says, in one line: its message, or all that it has."""
    if _is_alarm(page):
        return "if it has not reported by then"
    said = page.payload.get("message")
    if said is None:
        said = {name: value for name, value in page.payload.items() if name not in ("JOB_ID", "status")} or ""
    return in_one_line(said if page.payload else page.answer.get("why"))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines in columns as wide as they have to be, the last one cut at the edge of the terminal, if it is one."""
    lines = [titles, *rows]
    widths = [max(map(len, column)) for column in zip(*(line[:-1] for line in lines), strict=True)]
    room = 10**9
    if os.isatty(1):
        room = max(_MESSAGE_LEAST, shutil.get_terminal_size().columns - sum(widths) - 2 * len(widths))
    cut = [[*line[:-1], in_one_line(line[-1], room)] for line in lines]
    return ["  ".join(map(str.ljust, line, [*widths, 0])).rstrip() for line in cut]


def about(page: Page) -> list[str]:
    """What the relay says of a page, for people."""
    elsewhere = ("id", "handle", "payload", "age_seconds", "stale")
    more = {name: value for name, value in page.answer.items() if name not in elsewhere}
    return fields({"id": page.handle, "age": age(page), **more})


def fields(values: Mapping[str, Any]) -> list[str]:
    """Names and values, each in a line, or in more when the value has more."""
    lines = []
    for name, value in values.items():
        text = plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        first, *rest = text.removesuffix("\n").split("\n")
        if rest:
            lines += [f"{in_one_line(name)}:", *(f"    {line}" for line in [first, *rest])]
        else:
            lines.append(f"{in_one_line(name)}: {first}")
    return lines
