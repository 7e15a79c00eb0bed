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
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pagermcp import files
from pagermcp.client.relay import BadCall, Relay, RelayError, Sent, Unreachable
from pagermcp.durations import in_words

_MOST_BYTES = 1 << 28  # as much as a relay can be set to take
_LEAST_SECONDS = 0.001
_LEFT_SECONDS = 3600.0
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

    def deliver(self, tries: int = 3) -> Sent:
        """Send it, with its times less what has passed since it was made. Raises RelayError, and BadCall."""
        now = self.as_of(time.time())
        options = {name: getattr(now, name) for name in _OPTIONS}
        relay = Relay(self.to, self.url, tries=tries)
        return relay.send(self.payload, idempotency_key=self.idempotency_key, **options)

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


class Overdue(RelayError):
    """The time for which the page was meant has passed."""

    for_now = False


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


class Kept(Exception):
    """The page could not be sent, and is in the outbox. The message says why."""


def state_folder() -> str:
    """Where this user's state is. It need not be there, nor be a path that can be used."""
    return os.path.join(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"), "pagermcp")


def make_state_folder(name: str) -> str:
    """The folder of this name in the state folder, which are made, for us alone, when they are not there. Raises
    OSError."""
    if not os.path.isabs(state_folder()):  # no home, or a variable that is to be ignored then
        raise OSError(errno.ENOENT, "XDG_STATE_HOME must be set, and begin with /")
    os.makedirs(state_folder(), 0o700, exist_ok=True)
    folder = os.path.join(state_folder(), name)
    os.makedirs(folder, 0o700, exist_ok=True)
    return folder


class Outbox:
    """This user's outbox, in XDG_STATE_HOME or ~/.local/state. It is made by the first page that is put there."""

    def __init__(self) -> None:
        self.folder = os.path.join(state_folder(), "outbox")
        self._new = os.path.join(self.folder, "new")
        self._refused = os.path.join(self.folder, "refused")

    def put(self, page: Outgoing) -> str:
        """Keep a page, durably; the path of its file. Raises OSError."""
        make_state_folder("outbox")
        if files.make_directory(self._new, 0o700):
            files.sync_directory(self.folder)
            files.sync_directory(os.path.dirname(self.folder))
        path = f"{self._new}/{time.time_ns() // 1000:016d}-{secrets.token_hex(4)}.json"
        content = {name: value for name, value in asdict(page).items() if value is not None}
        hidden = f"{self._new}/.{os.path.basename(path)}"
        files.write_over(path, hidden, json.dumps(content).encode() + b"\n", 0o600)
        files.sync_directory(self._new)
        return path

    def keep(self, page: Outgoing, say: Callable[[str], None]) -> str | None:
        """The same; or say why not, and give None."""
        try:
            return self.put(page)
        except OSError as error:
            say(f"the outbox {self.folder} can't be used: {error.strerror}")
            return None

    def waiting(self) -> list[str]:
        """The paths of the pages that wait, oldest first. Raises OSError."""
        return [f"{self._new}/{name}" for name in sorted(files.names(self._new)) if name.endswith(".json")]

    def set_aside(self) -> dict[str, str]:
        """The paths of the pages that no relay would take, and why. Raises OSError."""
        paths = [f"{self._refused}/{name}" for name in sorted(files.names(self._refused)) if name.endswith(".json")]
        return {path: files.reason_beside(path) or "" for path in paths}

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

    def send(self, path: str | None, page: Outgoing, say: Callable[[str], None]) -> Sent:
        """Send a page that `keep` has put into this file, and before it the older ones to the same mailbox.

        say: called for each of those that was refused for good. Raises Kept when this one stays here, and what refuses
        it for good, which is then not kept; OSError."""
        if path is None:
            return page.deliver()
        flushed = self.flush(self._up_to(path, page), tries=3)
        if len(flushed.sent) > 1:
            say(f"from the outbox: {len(flushed.sent) - 1} sent")
        for other, why in flushed.refused.items():
            if other != path:
                say(f"a page in the outbox was refused, and put aside: {why}")
        if path in flushed.refused:
            self.remove(path)
            raise flushed.refused[path]
        if path in flushed.left and path not in flushed.sent:
            raise Kept(str(flushed.left[path]))
        try:
            return flushed.sent.get(path) or page.deliver()  # or else another flush was faster
        except (RelayError, BadCall) as error:
            if not isinstance(error, RelayError) or not error.for_now:
                self.remove(path)
            raise

    def _up_to(self, path: str, page: Outgoing) -> list[str]:
        """All that wait for the same mailbox, and this one last: going by the names, a clock that was set back would
        make older ones newer."""
        paths = []
        for other in self.waiting():
            with contextlib.suppress(OSError, ValueError):  # who flushes all of them says what is wrong there
                older = self.read(other)
                if other != path and (older.url, older.to) == (page.url, page.to):
                    paths.append(other)
        return [*paths, path]

    def flush(
        self, paths: Iterable[str] | None = None, *, url: str | None = None, seconds: float = math.inf, tries: int = 1
    ) -> Flushed:
        """Send what waits, oldest first, or these of them, or those for one relay; begin no other after so long.

        A relay that does not answer is not asked again, and no page is sent before an older one to the same mailbox.
        What is refused for good is moved to refused/ with the reason. Raises OSError when the outbox can't be read."""
        self._sweep()
        until = time.monotonic() + seconds
        flushed, held = Flushed(), dict[tuple[str, str], Exception]()
        for path in self.waiting() if paths is None else paths:
            try:
                page = self.read(path)
                if (url is not None and page.url != url) or time.monotonic() > until:
                    continue
                if trouble := held.get((page.url, "")) or held.get((page.url, page.to)):
                    flushed.left[path] = trouble
                    continue
                flushed.sent[path] = page.deliver(tries)
                self.remove(path)
            except FileNotFoundError:
                continue  # another flush was faster
            except (OSError, RelayError, ValueError) as error:
                why: Exception = error
                if isinstance(error, ValueError) or (isinstance(error, RelayError) and not error.for_now):
                    try:
                        self._refuse(path, error)
                        flushed.refused[path] = error
                        continue
                    except OSError as worse:
                        why = worse
                elif isinstance(error, RelayError):
                    held[page.url, "" if isinstance(error, Unreachable) else page.to] = error
                flushed.left[path] = why
        return flushed

    def remove(self, path: str) -> None:
        """Forget a page, wherever it is. Raises OSError."""
        files.remove(path)
        aside = os.path.join(self._refused, os.path.basename(path))
        files.remove(aside)
        files.remove(aside.removesuffix(".json") + ".why")

    def _sweep(self) -> None:
        """Remove what senders left half written who were killed."""
        with contextlib.suppress(FileNotFoundError):
            for one in os.scandir(self._new):
                if one.name.startswith(".") and time.time() - one.stat(follow_symlinks=False).st_mtime > _LEFT_SECONDS:
                    files.remove(one.path)

    def _refuse(self, path: str, why: Exception) -> None:
        files.make_directory(self._refused, 0o700)
        target = os.path.join(self._refused, os.path.basename(path))
        reason = target.removesuffix(".json") + ".why"
        with contextlib.suppress(OSError):  # better without a reason than not at all
            files.remove(reason)
            files.write(reason, f"{why}\n".encode(errors="replace"), 0o600)
        with contextlib.suppress(FileNotFoundError):  # another flush was faster
            files.replace(path, target)
