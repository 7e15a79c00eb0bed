"""A page: one message to one mailbox, and its form as a file.

The file is one line of JSON, `{"created_at":"…Z","payload":{…}}`. Id and attempt are in its name, `<id>.json` the first
time and `<id>.2.json` the second, so handing a page on never rewrites it.
"""

import dataclasses
import datetime
import json
import math
import re
import time
from typing import Any, NamedTuple

MAX_DEPTH = 100
"""Nesting allowed in a payload: what is accepted must stay readable on every later, perhaps deeper, call stack."""

WORKERS = 16
"""Processes that may serve one spool: each gives out the ids whose remainder by this is its own number."""

STALE_SECONDS = 900.0
"""A page older than this is marked stale: what it says may no longer be so."""

MTIME_GRAIN_NS = 100_000_000
"""A directory that is changed again this soon may show the same mtime."""

HANDLE = re.compile(r"([0-9]{16})(?:\.([2-9]|[1-9][0-9]{1,5}))?", re.ASCII)
"""What a reader acknowledges: the id, and the attempt from the second on."""

_TIMES = {"due_at", "expires_at"}


class BadPage(ValueError):
    """The text is no JSON object that can be a payload, or the file no page. The message says why and where."""


class PageName(NamedTuple):
    """What a page's file name says. Sorts by age."""

    id: str
    attempt: int

    @classmethod
    def parse(cls, name: str) -> "PageName | None":
        """Read `<id>.json` or `<id>.<attempt>.json`; None for any other name."""
        return cls.parse_handle(name.removesuffix(".json")) if name.endswith(".json") else None

    @classmethod
    def parse_handle(cls, handle: str) -> "PageName | None":
        """Read `<id>` or `<id>.<attempt>`; None for anything else."""
        match = HANDLE.fullmatch(handle)
        return cls(match[1], int(match[2] or 1)) if match else None

    @property
    def handle(self) -> str:
        """What a reader acknowledges: the id, and the attempt from the second on."""
        return self.id if self.attempt == 1 else f"{self.id}.{self.attempt}"

    @property
    def file(self) -> str:
        return f"{self.handle}.json"

    def next(self) -> "PageName":
        return self._replace(attempt=self.attempt + 1)


@dataclasses.dataclass(frozen=True)
class Page:
    """One page as read from its file.

    created_at: when the relay accepted it, in UTC; extra: what the relay noted beside the payload, such as `due_at`;
    lease_ends: when it is to be acknowledged, of a page that was claimed."""

    name: PageName
    created_at: datetime.datetime
    payload: dict[str, Any]
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    lease_ends: datetime.datetime | None = None

    @property
    def id(self) -> str:
        return self.name.id

    @property
    def created(self) -> str:
        return timestamp(self.created_at)

    @property
    def since(self) -> datetime.datetime:
        """From when its age counts: for a page that was sent ahead of its time, when that came."""
        return moment(self.extra["due_at"]) if "due_at" in self.extra else self.created_at


def now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time.time(), datetime.UTC)


def timestamp(moment: datetime.datetime) -> str:
    """RFC 3339 in UTC with microseconds: 2026-11-29T15:14:48.000001Z."""
    return moment.isoformat(timespec="microseconds")[:26] + "Z"


def moment(text: str) -> datetime.datetime:
    """What `timestamp` wrote. Raises ValueError, also for a time without a zone."""
    parsed = datetime.datetime.fromisoformat(text)
    if parsed.tzinfo is None:
        raise ValueError("no time zone")
    return parsed.astimezone(datetime.UTC)


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8. Lone surrogates, which UTF-8 can't carry, stay escapes."""
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def parse_payload(text: str, depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Parse a sender's JSON. Raises BadPage for what is no object or what readers could not parse back."""
    try:
        payload = _decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise BadPage(f"not JSON: {error.msg.removesuffix(' at')} at {place}") from None
    except RecursionError:
        raise BadPage(f"nested deeper than {depth} levels") from None
    except BadPage:
        raise
    except ValueError:  # the only other one json.loads has: an integer beyond sys.get_int_max_str_digits()
        raise BadPage("a number has more digits than can be read back") from None
    if not isinstance(payload, dict):
        raise BadPage(f"not a JSON object but {_kind(payload)}")
    if text.count("[") + text.count("{") > depth and _deeper_than(payload, depth):
        raise BadPage(f"nested deeper than {depth} levels")
    return payload


def payload_text(text: str) -> tuple[str, object]:
    """A sender's JSON as it is kept, and the address in its top-level `uuid`, if any, which is taken out: it may be a
    key. Raises BadPage."""
    payload = parse_payload(text)
    if "uuid" not in payload:
        return text, None
    address = payload.pop("uuid")
    return to_json(payload).decode(), address


def page_line(payload: str, created_at: datetime.datetime, **extra: object) -> bytes:
    """The file's content for a payload that `parse_payload` accepted, with what the relay notes beside it.

    The sender's text is kept as it came, but on one line: outside of strings a line break is only white space, and
    inside of them JSON has none."""
    one_line = payload.replace("\r", " ").replace("\n", " ")
    noted = f",{to_json(extra).decode()[1:-1]}" if extra else ""
    return f'{{"created_at":"{timestamp(created_at)}"{noted},"payload":{one_line}}}\n'.encode()


def read_page(name: PageName, content: bytes) -> Page:
    """The page that a file's content holds. Raises BadPage."""
    try:
        page = parse_payload(content.decode(), MAX_DEPTH + 2)  # a lost page has another's payload in its own
        payload, created_at = page.pop("payload"), _moment_in("created_at", page.pop("created_at"))
        if not isinstance(payload, dict):
            raise BadPage("payload is no object")
        for field in page.keys() & _TIMES:
            _moment_in(field, page[field])
        return Page(name, created_at, payload, page)
    except UnicodeDecodeError as error:
        raise BadPage(f"not UTF-8 at byte {error.start}") from None
    except KeyError as error:
        raise BadPage(f"no {error.args[0]}") from None


def _moment_in(field: str, text: object) -> datetime.datetime:
    try:
        return moment(str(text))
    except (ValueError, OverflowError) as error:
        raise BadPage(f"{field} is not a time: {error}") from None


def _refuse_constant(name: str) -> float:
    raise BadPage(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadPage(f"the number {text[:40]} is too large to be read back")
    return value


# Made once, since json.dumps and json.loads make theirs anew for each call that is not the plainest.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_decode = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _deeper_than(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)  # type: ignore[attr-defined]
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
