"""The outbox: pages that no relay could take yet, as files, until one does.

It is a small spool in the user's state directory: `new/<id>.json` waits, `refused/<id>.json` is what a relay would not
have, with the reason in `<id>.why`. A file names a number and never a key, so whoever reads it can only send. Each page
keeps its idempotency key, so it comes once, however often it was tried.
"""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pagermcp import files
from pagermcp.client.relay import Refused, Relay, Sent, Unreachable
from pagermcp.durations import in_words

_MOST_BYTES = 1 << 28  # as much as a relay can be set to take
_OPTIONS = ("delay", "expires", "replace", "run", "expect")


@dataclass(frozen=True)
class Outgoing:
    """A page to be sent. url: the relay; to: a number; times in seconds; created: by the wall clock, since 1970."""

    url: str
    to: str
    payload: str | dict[str, Any]
    idempotency_key: str
    created: float
    delay: float | None = None
    expires: float | None = None
    replace: str | None = None
    run: str | None = None
    expect: float | None = None

    def deliver(self, relay: Relay) -> Sent:
        """Send it, with its times less what has passed since it was made. Raises RelayError, and Overdue."""
        now = self.as_of(time.time())
        options = {name: getattr(now, name) for name in _OPTIONS}
        return relay.send(self.payload, to=self.to, idempotency_key=self.idempotency_key, **options)

    def as_of(self, moment: float) -> "Outgoing":
        """The same page for who sends it at that time. Raises Overdue."""
        passed = max(0.0, moment - self.created)
        if passed < 1:
            return self
        late = self.expires is not None and passed >= (self.delay or 0) + self.expires
        if late or (self.expect is not None and passed >= self.expect):
            raise Overdue(
                f"it was for {in_words(self.expires or self.expect or 0)}, and {in_words(passed)} have passed"
            )
        delay = None if self.delay is None else max(0.0, self.delay - passed)
        waited = max(0.0, passed - (self.delay or 0))
        expires = None if self.expires is None else self.expires - waited
        return replace(self, delay=delay, expires=expires, expect=self.expect and self.expect - passed)


class Overdue(Exception):
    """The time for which the page was meant has passed."""


@dataclass
class Flushed:
    """What a flush did: how many pages it sent, how many stay, how many were refused for good; and the last trouble."""

    sent: int = 0
    left: int = 0
    refused: int = 0
    trouble: str = ""


def outbox_folder(environment: Mapping[str, str] = os.environ) -> str:
    """Where this user's outbox is: in XDG_STATE_HOME, or ~/.local/state."""
    state = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "pagermcp", "outbox")


class Outbox:
    """The outbox in `folder`, which is made by the first page that is put there."""

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder or outbox_folder()
        self._new = os.path.join(self.folder, "new")
        self._refused = os.path.join(self.folder, "refused")

    def put(self, page: Outgoing) -> str:
        """Keep a page, durably; the path of its file. Raises OSError."""
        os.makedirs(self.folder, 0o700, exist_ok=True)
        if files.make_directory(self._new, 0o700):
            files.sync_directory(self.folder)
        path = f"{self._new}/{time.time_ns() // 1000:016d}-{page.idempotency_key[:8]}.json"
        hidden = f"{self._new}/.{uuid.uuid4()}"
        content = {name: value for name, value in asdict(page).items() if value is not None}
        files.write(hidden, json.dumps(content).encode() + b"\n", 0o600)
        files.replace(hidden, path)
        files.sync_directory(self._new)
        return path

    def waiting(self) -> list[str]:
        """The paths of the pages that wait, oldest first. Raises OSError."""
        return [f"{self._new}/{name}" for name in sorted(files.names(self._new)) if name.endswith(".json")]

    def remove(self, path: str) -> None:
        """Forget a page that was delivered; another flush may have been faster. Raises OSError."""
        files.remove(path)

    def read(self, path: str) -> Outgoing:
        """The page in a file. Raises OSError, and ValueError when it is none."""
        content = json.loads(files.read(path, _MOST_BYTES)[0])
        try:
            page = Outgoing(**content)
            uuid.UUID(page.to)
            float(page.created)
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a page of an outbox: {error}") from None
        return page

    def flush(
        self,
        paths: Iterable[str] | None = None,
        *,
        seconds: float | None = None,
        progress: Callable[[str, str], None] = lambda path, what: None,
    ) -> Flushed:
        """Send what waits, oldest first, or these of them, and begin no other after so many seconds.

        A relay that does not answer is not asked again; what it refuses for good is moved to refused/ with the reason.
        progress: called with each path, and what became of it. Raises OSError when the outbox can't be read."""
        until = time.monotonic() + seconds if seconds is not None else None
        flushed, relays, silent = Flushed(), dict[str, Relay](), set[str]()
        for path in self.waiting() if paths is None else paths:
            what = "left"
            try:
                page = self.read(path)
                if page.url not in silent and (until is None or time.monotonic() < until):
                    page.deliver(relays.setdefault(page.url, Relay(page.to, page.url)))
                    self.remove(path)
                    what = "sent"
            except FileNotFoundError:
                continue  # another flush was faster
            except OSError as error:
                flushed.trouble = f"{path}: {error.strerror}"
            except (Refused, Unreachable) as error:
                flushed.trouble = str(error)
                if not error.for_now:
                    what = self._refuse(path, error)
                elif not isinstance(error, Refused) or error.status != 429:  # that is about one mailbox
                    silent.add(page.url)
            except (ValueError, Overdue) as error:
                flushed.trouble = f"{path}: {error}"
                what = self._refuse(path, error)
            setattr(flushed, what, getattr(flushed, what) + 1)
            progress(path, what)
        return flushed

    def _refuse(self, path: str, why: Exception) -> str:
        files.make_directory(self._refused, 0o700)
        target = os.path.join(self._refused, os.path.basename(path))
        with contextlib.suppress(FileNotFoundError):
            files.replace(path, target)
            with contextlib.suppress(FileExistsError):
                files.write(target.removesuffix(".json") + ".why", f"{why}\n".encode(errors="replace"), 0o600)
        return "refused"
