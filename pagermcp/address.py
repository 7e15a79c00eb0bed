"""Keys and numbers, the two kinds of address a mailbox has.

A key is a UUID of any version but 8: its holder reads the mailbox and can send to it. A number is a version-8 UUID
computed one way from the key: it can only send. Everything that is written down is named by the number.
"""

import hashlib
import re
import uuid

NUMBER_VERSION = 8
NUMBER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
"""A number in canonical form, as it names files."""

_PREFIX = b"pagermcp number 1:"
_ANY_UUID = re.compile(r"(?:[0-9a-fA-F]-*){31}[0-9a-fA-F]")
_FORM = re.compile(rf"\s*(?:urn:uuid:)?\{{?-*{_ANY_UUID.pattern}-*\}}?\s*")


class InvalidAddress(ValueError):
    """The text is not a UUID in any form. Its message never repeats the text, which may be most of a key."""


def parse(text: str) -> uuid.UUID:
    """Read a key or number in any usual form, with or without hyphens, braces or `urn:uuid:`; raises InvalidAddress.

    What `uuid.UUID` takes besides (digits of other scripts, prefixes in the middle) `redact` would not find."""
    if not _FORM.fullmatch(text):
        raise InvalidAddress("not a UUID")
    return uuid.UUID(text.strip())


def is_number(address: uuid.UUID) -> bool:
    """True for an address that only sends."""
    return address.version == NUMBER_VERSION


def number_of(address: uuid.UUID) -> str:
    """The number, in canonical form, that belongs to a key. A number is its own."""
    if is_number(address):
        return str(address)
    digest = hashlib.sha256(_PREFIX + address.bytes).digest()
    raw = bytearray(address.bytes[:4] + digest[:12])
    raw[6] = raw[6] & 0x0F | NUMBER_VERSION << 4
    raw[8] = raw[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(raw)))


def redact(text: str) -> str:
    """Replace every UUID in `text` by its number, so that a log line lets nobody read a mailbox."""
    return _ANY_UUID.sub(lambda match: number_of(parse(match[0])), text)
