"""Handling pages as they come: each goes to a command, and is acknowledged when that succeeds."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from pagermcp.client.relay import Page, Relay, RelayError, backoff
from pagermcp.client.show import json_line
from pagermcp.durations import in_words

_MOST_VARIABLE_BYTES = 100_000  # Linux takes 128 KiB for one
_FIRST_DELAY_SECONDS = 5.0
_LONGEST_DELAY_SECONDS = 300.0
_FIELDS = {"message": "MESSAGE", "status": "STATUS", "JOB_ID": "JOB_ID", "PROJECT": "PROJECT", "exit_code": "EXIT_CODE"}
_SIGNAL, _ENDED = "signal", "ended"


class Listener:
    """Takes pages from a relay, `jobs` at a time, until a signal says that it is enough.

    handle: called in a thread with each page. True: it is done with, and acknowledged. False: it has failed, and comes
    again later. What it raises ends the listener.
    say: called with what people should know; lease: seconds, lengthened while a page is being handled."""

    def __init__(
        self, relay: Relay, handle: Callable[[Page], bool], say: Callable[[str], None], *, jobs: int, lease: float
    ) -> None:
        self._relay = relay
        self._handle = handle
        self._say = say
        self._jobs = jobs
        self._lease = lease
        self._lock = threading.Lock()
        self._stopping = False
        self._busy = 0
        self._events = queue.SimpleQueue[str | Exception]()  # its put() may be called by a signal handler

    def run(self, hurry: Callable[[], None] = lambda: None) -> None:
        """Listen until SIGTERM or SIGINT, then until what is under way has ended; at the next signal `hurry` is called.

        Raises Refused for what does not pass by itself, and what `handle` raised."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put(_SIGNAL))
        for _ in range(self._jobs):
            threading.Thread(target=self._work, daemon=True).start()
        signals, error = 0, None
        while not (self._stopping and not self._busy):
            event = self._events.get()
            if event is _SIGNAL:
                signals += 1
                if signals > 1:
                    hurry()
            elif isinstance(event, Exception):
                error = error or event
            with self._lock:
                self._stopping = bool(signals or error)
        if error:
            raise error

    def _work(self) -> None:
        try:
            for page in self._relay.listen(lease=self._lease, on_trouble=self._trouble):
                with self._lock:
                    wanted = not self._stopping
                    self._busy += wanted
                if not wanted:
                    return self._relay.release(page)
                try:
                    self._do(page)
                finally:
                    with self._lock:
                        self._busy -= 1
                    self._events.put(_ENDED)
                if self._stopping:
                    return None
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self._events.put(error)

    def _do(self, page: Page) -> None:
        with self._extending(page):
            done = self._handle(page)
        if done:
            self._surely("acknowledged", page, self._relay.ack)
            return
        delay = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** (page.attempt - 1))
        self._surely("given back", page, lambda page: self._relay.release(page, delay=delay))

    def _surely(self, what: str, page: Page, call: Callable[[Page], None]) -> None:
        """Call the relay until it answers, but not for longer than the lease."""
        until, failures = time.monotonic() + self._lease, 0
        while True:
            try:
                return call(page)
            except RelayError as error:
                pause = backoff(failures, error.retry_after)
                if not error.for_now or time.monotonic() + pause > until:
                    return self._say(f"page {page.handle} could not be {what}, and may come again: {error}")
                time.sleep(pause)
                failures += 1

    @contextlib.contextmanager
    def _extending(self, page: Page) -> Iterator[None]:
        done = threading.Event()

        def extend() -> None:
            while not done.wait(self._lease / 3):
                try:
                    self._relay.extend(page, lease=self._lease)
                except RelayError as error:
                    if not error.for_now:
                        self._say(f"the lease of page {page.handle} is lost: {error}")
                        return

        extender = threading.Thread(target=extend, daemon=True)
        extender.start()
        try:
            yield
        finally:
            done.set()
            extender.join()

    def _trouble(self, error: RelayError, pause: float) -> None:
        self._say(f"{error}; trying again in {in_words(round(pause, 1))}")


class Commands:
    """Has a shell command handle pages: the page is its standard input, as a line of JSON, and in variables.

    Nothing of a page ever becomes part of the command. Each runs in a process group of its own."""

    def __init__(self, command: str, say: Callable[[str], None]) -> None:
        self._command = command
        self._say = say
        self._running: set[int] = set()

    def handle(self, page: Page) -> bool:
        """Run the command with this page; whether it succeeded. Raises OSError when it can't be run."""
        with tempfile.TemporaryFile() as input_file:
            input_file.write(json_line(page.answer))
            input_file.seek(0)
            process = subprocess.Popen(  # noqa: S602 - it is the user's own command
                self._command, shell=True, stdin=input_file, env=os.environ | variables(page), process_group=0
            )
        self._running.add(process.pid)
        try:
            code = process.wait()
        finally:
            self._running.discard(process.pid)
        if code:
            how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
            self._say(f"page {page.handle}: the command {how}")
        return code == 0

    def terminate(self) -> None:
        """Ask all commands that run to end now."""
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGTERM)


def variables(page: Page) -> dict[str, str]:
    """The environment in which a command sees a page: PAGER_ID and the like. The sender chooses the values and never
    the names. What an environment can't hold, a NUL, is left out; a long text is cut, and whole on standard input."""
    values: dict[str, object] = {
        "ID": page.id,
        "HANDLE": page.handle,
        "CREATED_AT": page.answer.get("created_at"),
        "AGE": page.age_seconds,
        "STALE": page.stale or None,
        "ATTEMPT": page.attempt,
        **{name: page.payload.get(field) for field, name in _FIELDS.items()},
    }
    return {f"PAGER_{name}": _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return text.replace("\0", "").encode(errors="replace")[:_MOST_VARIABLE_BYTES].decode(errors="ignore")
