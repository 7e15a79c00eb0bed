"""The settings of a relay: one frozen dataclass, read from the environment and from the options of `pagermcp serve`.

Each field carries the name of its environment variable, the values it may have and the reason why it exists; `--help`
and the README are checked against them.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pagermcp.listed import numbers_in
from pagermcp.origins import networks_in

Watch = Literal["auto", "observer", "off"]
Log = Literal["text", "json"]
Switch = Literal["", "on"]
OpenRoom = Literal["", "open"]


class InvalidSetting(ValueError):
    """A setting has a value it can't have. The message is one line: which, what, and what it may be."""


def _setting(
    default: Any,
    variable: str,
    reason: str,
    *,
    low: float = 0,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
    check: Callable[[str], object] = str,
    secret: bool = False,
) -> Any:
    """check: raises ValueError, whose message says what a text must be."""
    bounds = {"low": low, "high": high, "choices": choices, "check": check}
    metadata = {"variable": variable, "reason": reason, "secret": secret, **bounds}
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def _is_url(text: str) -> None:
    if not re.fullmatch(r"https?://[A-Za-z0-9._~:/@%\[\]-]+", text):  # it stands in scripts that others run
        raise ValueError("must be a plain URL, as in https://pager.example.org")


def _is_token(text: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]{16,256}", text):
        raise ValueError("must be 16 to 256 letters, digits, or ._~+/=- (openssl rand -base64 24)")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What an operator may change. Sizes in bytes, times in seconds. A secret is no option, and never shown."""

    host: str = _setting(
        "127.0.0.1", "HOST", "Address to listen on; 0.0.0.0 for every network, behind a proxy with TLS."
    )
    port: int = _setting(8080, "PORT", "Port to listen on; 0 takes any free one.", high=65535)
    data_dir: str = _setting("./spool", "DATA_DIR", "The spool: every page is a file in here.")
    mailbox_ttl_days: float = _setting(
        30, "MAILBOX_TTL_DAYS", "A mailbox that is empty and unused for so long is removed; 0 for ever.", high=36500
    )
    message_ttl_days: float = _setting(
        7,
        "MESSAGE_TTL_DAYS",
        "A page that nobody took for so long goes to the archive as expired; 0 for ever.",
        high=36500,
    )
    archive_ttl_days: float = _setting(
        30, "PAGERMCP_ARCHIVE_TTL_DAYS", "Days of the archive older than this are deleted; 0 for ever.", high=36500
    )
    max_messages_per_mailbox: int = _setting(
        128, "MAX_MESSAGES_PER_MAILBOX", "Pages that may wait in one mailbox; more are refused with 429.", low=1
    )
    max_message_bytes: int = _setting(
        65536, "MAX_MESSAGE_BYTES", "Largest body of a page; larger is refused with 413.", low=1, high=1 << 28
    )
    wait_timeout_seconds: float = _setting(
        0, "WAIT_TIMEOUT_SECONDS", "After this long a wait ends with 408; 0 waits for ever, with heartbeats."
    )
    watch: Watch = _setting(
        "auto",
        "PAGERMCP_WATCH",
        "How files that others bring are noticed: auto (inotify on Linux), observer, or off (a look every 2 s).",
        choices=("auto", "observer", "off"),
    )
    min_free_bytes: int = _setting(
        64 << 20, "PAGERMCP_MIN_FREE_BYTES", "Posts are refused with 507 when the disk has less room than this."
    )
    min_free_inodes: int = _setting(
        1000, "PAGERMCP_MIN_FREE_INODES", "The same for inodes, of which a page takes one and a mailbox a few."
    )
    max_mailboxes: int = _setting(
        200_000, "PAGERMCP_MAX_MAILBOXES", "Mailboxes there may be; one more is refused with 507; 0 for no limit."
    )
    posts_per_hour: int = _setting(
        36_000,
        "PAGERMCP_POSTS_PER_HOUR",
        "Posts to one mailbox: so many at once, and as many again by and by in an hour; 0 for no limit.",
    )
    new_mailboxes_per_hour: int = _setting(
        120,
        "PAGERMCP_NEW_MAILBOXES_PER_HOUR",
        "New mailboxes of one client's address, in the same way; 0 for no limit.",
    )
    max_waits_per_mailbox: int = _setting(
        1000, "PAGERMCP_MAX_WAITS_PER_MAILBOX", "Requests that may wait at one mailbox; 0 for no limit."
    )
    max_connections_per_address: int = _setting(
        1000,
        "PAGERMCP_MAX_CONNECTIONS_PER_ADDRESS",
        "Connections of one client's address, and behind a trusted proxy its requests that wait; 0 for no limit.",
    )
    trusted_proxy: str = _setting(
        "",
        "PAGERMCP_TRUSTED_PROXY",
        "Addresses or networks of proxies, with commas; they say in X-Forwarded-For whose a request is.",
        check=networks_in,
    )
    numbers_file: str = _setting(
        "", "PAGERMCP_NUMBERS_FILE", "A file of numbers, one on each line: only these are served.", check=numbers_in
    )
    room: OpenRoom = _setting(
        "",
        "PAGERMCP_ROOM",
        "open: there is one room that needs no key, for whoever reaches the relay.",
        choices=("open",),
    )
    room_ttl_hours: float = _setting(
        24, "PAGERMCP_ROOM_TTL_HOURS", "A room's messages older than this are in its archive.", high=876000
    )
    public_url: str = _setting(
        "",
        "PAGERMCP_PUBLIC_URL",
        "The relay's own URL in the texts it serves; without it, what the client called.",
        check=_is_url,
    )
    workers: int = _setting(
        1, "PAGERMCP_WORKERS", "Processes that serve together, so that more CPU cores are of use.", low=1, high=16
    )
    operator_token: str = _setting(
        "",
        "PAGERMCP_OPERATOR_TOKEN",
        "Who has this secret sees /status and /metrics; while none is set, they are 404.",
        check=_is_token,
        secret=True,
    )
    operator_token_file: str = _setting(
        "", "PAGERMCP_OPERATOR_TOKEN_FILE", "A file with the operator's secret, so that no environment shows it."
    )
    log: Log = _setting(
        "text",
        "PAGERMCP_LOG",
        "How the log on standard error is written: text, or json, an object on each line.",
        choices=("text", "json"),
    )
    log_requests: Switch = _setting(
        "",
        "PAGERMCP_LOG_REQUESTS",
        "on: a line in the log for each request, and its id in the answer.",
        choices=("on",),
    )
    build: str = _setting("source", "PAGERMCP_BUILD", "What /version calls this build; images set it to their commit.")

    @classmethod
    def read(cls, environment: Mapping[str, str], options: Mapping[str, str | None] | None = None) -> "Settings":
        """Settings from `environment`, overruled by `options` (by field name). Empty means unset.

        Raises InvalidSetting."""
        values = {}
        for field in dataclasses.fields(cls):
            text = (options or {}).get(field.name) or environment.get(field.metadata["variable"], "").strip()
            if text:
                values[field.name] = _parse(field, text)
        if path := values.get("operator_token_file"):
            if "operator_token" in values:
                raise InvalidSetting("PAGERMCP_OPERATOR_TOKEN and PAGERMCP_OPERATOR_TOKEN_FILE: set one of them")
            values["operator_token"] = _parse(_TOKEN, _content(path))
        return cls(**values)


_TOKEN = next(field for field in dataclasses.fields(Settings) if field.name == "operator_token")


def _content(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode().strip()
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "not a text"
        raise InvalidSetting(f"PAGERMCP_OPERATOR_TOKEN_FILE={path!r}: can't be read: {reason}") from None


def _parse(field: dataclasses.Field[Any], text: str) -> Any:
    rule = field.metadata
    name = rule["variable"]
    if rule["choices"] and text not in rule["choices"]:
        raise InvalidSetting(f"{name}={text!r}: must be {' or '.join(rule['choices'])}")
    try:
        rule["check"](text)
    except ValueError as error:
        shown = "" if rule["secret"] else f"={text!r}"
        raise InvalidSetting(f"{name}{shown}: {error}") from None
    if not isinstance(field.default, int):
        return text
    kind = float if field.type is float else int
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not rule["low"] <= value <= rule["high"] or value == math.inf:
        bounds = f"{rule['low']} or more" if rule["high"] == math.inf else f"from {rule['low']} to {rule['high']}"
        raise InvalidSetting(f"{name}={text!r}: must be a {'' if kind is float else 'whole '}number, {bounds}")
    return value
