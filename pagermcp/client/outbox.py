"""The outbox: pages that no relay could take yet, as files, until one does.

It is a small spool in the user's state directory: `new/<id>.json` waits, `refused/<id>.json` is what a relay would not
have, with the reason in `<id>.why`. A file names a number and never a key, so whoever reads it can only send. Each page
keeps its idempotency key, so it comes once, however often it was tried.
"""

import contextlib
import errno
import json
import math
import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pagermcp import files
from pagermcp.client.relay import Relay, RelayError, Sent, Unreachable
from pagermcp.durations import in_words

_MOST_BYTES = 1 << 28  # as much as a relay can be set to take
_LEAST_SECONDS = 0.001
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
        if self.expires is not None and passed >= (self.delay or 0) + self.expires:
            raise Overdue(f"it was for {in_words(self.expires)}, and {in_words(passed)} have passed")
        if self.expect is not None and passed >= self.expect and not self.payload:
            raise Overdue(f"the run was to end within {in_words(self.expect)}, and {in_words(passed)} have passed")
        delay = None if self.delay is None else max(0.0, self.delay - passed)
        waited = max(0.0, passed - (self.delay or 0))
        expires = None if self.expires is None else self.expires - waited
        expect = None if self.expect is None else max(_LEAST_SECONDS, self.expect - passed)  # it is lost, then, at once
        return replace(self, delay=delay, expires=expires, expect=expect)


class Kept(Exception):
    """The page could not be sent, and is in the outbox. The message says why."""


class Overdue(Exception):
    """The time for which the page was meant has passed."""


@dataclass
class Flushed:
    """What became of pages, by the paths of their files."""

    sent: dict[str, Sent] = field(default_factory=dict)
    left: dict[str, Exception] = field(default_factory=dict)
    refused: dict[str, Exception] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{len(self.sent)} sent, {len(self.left)} left, {len(self.refused)} refused"

    @property
    def trouble(self) -> Exception | None:
        """Why the last of those that were not sent was not."""
        return next(reversed([*self.left.values(), *self.refused.values()]), None)


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
        if not os.path.isabs(self.folder):
            raise OSError(errno.ENOENT, "this user has no home; say where with XDG_STATE_HOME")
        os.makedirs(self.folder, 0o700, exist_ok=True)
        if files.make_directory(self._new, 0o700):
            files.sync_directory(self.folder)
        path = f"{self._new}/{time.time_ns() // 1000:016d}-{secrets.token_hex(4)}.json"
        hidden = f"{self._new}/.{os.path.basename(path)}"
        content = {name: value for name, value in asdict(page).items() if value is not None}
        files.write(hidden, json.dumps(content).encode() + b"\n", 0o600)
        try:
            files.replace(hidden, path)
        except OSError:
            files.remove(hidden)
            raise
        files.sync_directory(self._new)
        return path

    def waiting(self) -> list[str]:
        """The paths of the pages that wait, oldest first. Raises OSError."""
        return [f"{self._new}/{name}" for name in sorted(files.names(self._new)) if name.endswith(".json")]

    def set_aside(self) -> dict[str, str]:
        """The paths of the pages that no relay would take, and why. Raises OSError."""
        paths = [f"{self._refused}/{name}" for name in sorted(files.names(self._refused)) if name.endswith(".json")]
        return {path: self._why(path) for path in paths}

    def read(self, path: str) -> Outgoing:
        """The page in a file. Raises OSError, and ValueError when it is none."""
        try:
            page = Outgoing(**json.loads(files.read(path, _MOST_BYTES)[0]))
            uuid.UUID(page.to)
            numbers = [page.created, *filter(None, (page.delay, page.expires, page.expect))]
            texts = [page.url, page.idempotency_key, *filter(None, (page.replace, page.run))]
            right = isinstance(page.payload, str | dict) and all(isinstance(text, str) for text in texts)
            if not right or not all(math.isfinite(number) and number >= 0 for number in numbers):
                raise ValueError("values of the wrong kind")
        except (TypeError, AttributeError, RecursionError, ValueError) as error:
            raise ValueError(f"{path} is no page of an outbox: {error}") from None
        return page

    def send(self, path: str, page: Outgoing, say: Callable[[str], None]) -> Sent:
        """Send a page that was put here, and before it the older ones to the same mailbox.

        say: called for each of those that was refused for good. Raises Kept when this one stays here, and what refuses
        it for good, which is then not kept; OSError."""
        flushed = self.flush(self._up_to(path, page), tries=3)
        for other, why in flushed.refused.items():
            if other != path:
                say(f"a page in the outbox was refused, and put aside: {why}")
        if path in flushed.refused:
            self.remove(path)
            raise flushed.refused[path]
        if path in flushed.left and path not in flushed.sent:
            raise Kept(str(flushed.left[path]))
        return flushed.sent.get(path) or page.deliver(Relay(page.to, page.url))  # or else another flush was faster

    def _up_to(self, path: str, page: Outgoing) -> list[str]:
        paths = []
        for other in self.waiting():
            with contextlib.suppress(OSError, ValueError):  # who flushes all of them says what is wrong there
                older = self.read(other)
                if other <= path and (older.url, older.to) == (page.url, page.to):
                    paths.append(other)
        return paths

    def flush(
        self,
        paths: Iterable[str] | None = None,
        *,
        url: str | None = None,
        seconds: float | None = None,
        tries: int = 1,
        progress: Callable[[], None] = lambda: None,
    ) -> Flushed:
        """Send what waits, oldest first, or these of them, or those for one relay; begin no other after so long.

        A relay that does not answer is not asked again; what it refuses for good is moved to refused/ with the reason.
        progress: called after each. Raises OSError when the outbox can't be read."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        flushed, silent = Flushed(), dict[str, Exception]()
        for path in self.waiting() if paths is None else paths:
            try:
                page = self.read(path)
                if (url is not None and page.url != url) or time.monotonic() > until:
                    continue
                if page.url in silent:
                    raise silent[page.url]
                flushed.sent[path] = page.deliver(Relay(page.to, page.url, tries=tries))
                files.remove(path)
            except FileNotFoundError:
                continue  # another flush was faster
            except OSError as error:
                flushed.left[path] = error
            except RelayError as error:
                if isinstance(error, Unreachable):
                    silent[page.url] = error
                self._keep_or_refuse(path, error, flushed, for_now=error.for_now)
            except (ValueError, Overdue) as error:
                self._keep_or_refuse(path, error, flushed, for_now=False)
            progress()
        return flushed

    def remove(self, path: str) -> None:
        """Forget a page, wherever it is. Raises OSError."""
        files.remove(path)
        aside = os.path.join(self._refused, os.path.basename(path))
        files.remove(aside)
        files.remove(aside.removesuffix(".json") + ".why")

    def _keep_or_refuse(self, path: str, error: Exception, flushed: Flushed, for_now: bool) -> None:
        try:
            if not for_now:
                self._refuse(path, error)
                flushed.refused[path] = error
                return
        except OSError as worse:
            error = worse
        flushed.left[path] = error

    def _refuse(self, path: str, why: Exception) -> None:
        files.make_directory(self._refused, 0o700)
        target = os.path.join(self._refused, os.path.basename(path))
        files.replace(path, target)
        with contextlib.suppress(FileExistsError):
            files.write(target.removesuffix(".json") + ".why", f"{why}\n".encode(errors="replace"), 0o600)

    def _why(self, path: str) -> str:
        with contextlib.suppress(OSError):
            return files.read(path.removesuffix(".json") + ".why", 4096)[0].decode(errors="replace").strip()
        return ""


def deliver(page: Outgoing, outbox: Outbox | None, say: Callable[[str], None]) -> Sent:
    """Send a page by way of the outbox, so that it is on the disk before anything can go wrong.

    say: called when the outbox, or a page in it, can't be used. Raises Kept, RelayError, BadCall."""
    if outbox:
        try:
            path = outbox.put(page)
        except OSError as error:
            say(f"the outbox {outbox.folder} can't be used: {error.strerror}")
        else:
            return outbox.send(path, page, say)
    return page.deliver(Relay(page.to, page.url))
