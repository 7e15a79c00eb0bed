"""The numbers that a private relay serves: a file, one number on each line, and what people write behind it."""

import logging
import os
import time

from pagermcp import address

_LOOK_SECONDS = 1.0

log = logging.getLogger("pagermcp")


def numbers_in(path: str) -> frozenset[str]:
    """The numbers in a file; what begins with # is for people. Raises ValueError."""
    numbers = set()
    try:
        with open(path, encoding="utf-8") as file:
            for place, line in enumerate(file, 1):
                words = line.partition("#")[0].split(maxsplit=1)
                if words:
                    numbers.add(_number(words[0], place))
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("is not a text") from None
    return frozenset(numbers)


def _number(word: str, place: int) -> str:
    try:
        parsed = address.parse(word)
    except address.InvalidAddress:
        raise ValueError(f"line {place} does not begin with a number") from None
    if not address.is_number(parsed):
        raise ValueError(f"line {place} has a key, which nobody but its owner should have: list its number")
    return str(parsed)


class Listed:
    """The numbers in a file, which is read again when it has changed. Raises ValueError at first; later the last
    numbers that could be read hold."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = self._stamp()
        self._numbers = numbers_in(path)
        self._looked_at = time.monotonic()

    def __contains__(self, number: str) -> bool:
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            seen = self._stamp()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._numbers = numbers_in(self._path)
                    log.info("%s lists %d numbers now", self._path, len(self._numbers))
                except ValueError as error:
                    log.error("%s %s; what it listed before still holds", self._path, error)
        return number in self._numbers

    def _stamp(self) -> object:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
