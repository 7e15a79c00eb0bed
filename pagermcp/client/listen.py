"""Handling pages as they come: each goes to a command, and is acknowledged when that succeeds."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

from pagermcp.client.relay import Page, Refused, Relay, RelayError, backoff
from pagermcp.client.show import job, json_line
from pagermcp.durations import in_words

_MOST_VARIABLE_BYTES = 100_000  # Linux takes 128 KiB for one
_FIRST_DELAY_SECONDS = 10.0
_LONGEST_DELAY_SECONDS = 300.0
_MOST_ATTEMPTS = 5  # the relay's
_STOP_SECONDS = 10.0  # for which a page that is done with is tried to be acknowledged when we are to stop
_FIELDS = {"message": "MESSAGE", "status": "STATUS", "PROJECT": "PROJECT", "exit_code": "EXIT_CODE"}
_EVENT = 0  # no signal has this number


class Listener:
    """Takes pages from a relay, `jobs` at a time, until a signal says that it is enough.

    handle: called in a thread with each page. None: it is done with, and acknowledged. A text: so it has failed, and
    the page comes again later. What it raises ends the listener, and the page is given back.
    say: called with what people should know; contact: when the relay has been reached, or again; lease: seconds,
    lengthened while a page is being handled."""

    def __init__(
        self,
        relay: Relay,
        handle: Callable[[Page], str | None],
        say: Callable[[str], None],
        contact: Callable[[], None],
        *,
        jobs: int,
        lease: float,
    ) -> None:
        self._relay = relay
        self._handle = handle
        self._say = say
        self._contact = contact
        self._lease = lease
        self._jobs = jobs
        self._free = threading.Semaphore(jobs)
        self._lock = threading.Lock()
        self._stopping = False
        self._troubled = True
        self._busy = 0
        self._hurried = threading.Event()
        self._error: Exception | None = None
        self._woken, self._wake = os.pipe()

    def run(self, hurry: Callable[[int], None] | None = None) -> None:
        """Listen until SIGTERM, SIGINT or SIGHUP, then until what is under way has ended.

        hurry: called at each signal after that, with their number; without it the second one ends all, and otherwise
        the fourth.
        Raises Refused for what does not pass by itself, and what `handle` raised."""
        # Each signal, and each event of another thread, is a byte in a pipe: a signal may reach any thread, and then
        # wakes no main thread that waits for a lock.
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        threading.Thread(target=self._fetch, daemon=True).start()
        signals = 0
        while not (self._stopping and not self._busy):
            for event in os.read(self._woken, 4096):
                if event == _EVENT:
                    continue
                signals += 1
                with self._lock:
                    self._stopping = True
                if signals > 1:
                    self._hurried.set()
                    if hurry is None or signals > 3:
                        return
                    hurry(signals)
        if self._error:
            raise self._error

    def _fetch(self) -> None:
        try:
            self._reached()
            while not self._stopping:
                self._free.acquire()
                if self._stopping:
                    return
                room = 1
                while room < self._jobs and self._free.acquire(blocking=False):
                    room += 1
                pages = self._wait(room)
                with self._lock:
                    wanted = not self._stopping
                    self._busy += len(pages) if wanted else 0
                if not wanted:
                    self._relay.release(*pages)
                    return
                self._begin(pages)
                self._reached()
                for _ in range(room - len(pages)):
                    self._free.release()
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self._tell(error)

    def _begin(self, pages: list[Page]) -> None:
        for index, page in enumerate(pages):
            try:
                threading.Thread(target=self._work, args=[page], daemon=True).start()
            except RuntimeError as error:
                with self._lock:
                    self._busy -= len(pages) - index
                with contextlib.suppress(RelayError):  # then they come back when their lease ends
                    self._relay.release(*pages[index:])
                raise CannotRun(str(error)) from None

    def _wait(self, room: int) -> list[Page]:
        return self._relay.wait(
            timeout=None, max=room, lease=self._lease, on_trouble=self._trouble, on_contact=self._reached
        )

    def _work(self, page: Page) -> None:
        error = None
        try:
            self._do(page)
        except Exception as raised:  # noqa: BLE001 - the main thread raises it
            error = raised
        with self._lock:
            self._busy -= 1
        self._tell(error)
        self._free.release()

    def _tell(self, error: Exception | None) -> None:
        """Wake the main thread, since something has ended."""
        with self._lock:
            self._error = self._error or error
            self._stopping = self._stopping or bool(error)
        with contextlib.suppress(BlockingIOError):  # then it is awake
            os.write(self._wake, bytes([_EVENT]))

    def _do(self, page: Page) -> None:
        try:
            with self._extending(page):
                failed = self._handle(page)
        except Exception:
            self._surely("given back", page, self._relay.release)
            raise
        if failed is None:
            self._surely("acknowledged", page, self._relay.ack)
            return
        delay = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 4.0 ** (page.attempt - 1))
        if self._surely("given back", page, lambda page: self._relay.release(page, delay=delay)):
            again = f"it comes again in {in_words(delay)}"
            dead = f"it is dead, and comes again by: pagermcp replay {page.id}"
            self._say(f"page {page.id}: {failed}; {dead if page.attempt >= _MOST_ATTEMPTS else again}")

    def _surely(self, what: str, page: Page, call: Callable[[Page], None]) -> bool:
        """Call the relay until it answers, but not for longer than the lease, nor when we are to stop; whether
        it has."""
        began, failures = time.monotonic(), 0
        while True:
            try:
                call(page)
            except RelayError as error:
                trouble = error
            else:
                return True
            if failures and call != self._relay.ack and isinstance(trouble, Refused) and trouble.code == "not_leased":
                return True  # an earlier try has given it back, and its answer was lost
            pause = backoff(failures, trouble.retry_after)
            until = began + (_STOP_SECONDS if self._stopping else self._lease)
            if not trouble.for_now or self._hurried.is_set() or time.monotonic() + pause > until:
                self._say(f"page {page.handle} could not be {what}, and may come again: {trouble}")
                return False
            self._hurried.wait(pause)
            failures += 1

    @contextlib.contextmanager
    def _extending(self, page: Page) -> Iterator[None]:
        done = threading.Event()

        def extend() -> None:
            while not done.wait(self._lease / 3):
                try:
                    self._relay.extend(page, lease=self._lease)
                except RelayError as error:
                    if not error.for_now and not done.is_set():
                        self._say(f"the lease of page {page.handle} is lost: {error}")
                        return

        try:
            threading.Thread(target=extend, daemon=True).start()
        except RuntimeError as error:
            raise CannotRun(str(error)) from None
        try:
            yield
        finally:
            done.set()

    def _reached(self) -> None:
        if self._troubled:
            self._troubled = False
            self._contact()

    def _trouble(self, error: RelayError, pause: float) -> None:
        self._troubled = True
        self._say(f"{error}; trying again in {in_words(round(pause, 1))}")


class CannotRun(Exception):
    """The system does not run the command. The message says why."""


class Commands:
    """Has a shell command handle pages: the page is its standard input, as a line of JSON, and in variables.

    Nothing of a page ever becomes part of the command. Each runs in a process group of its own."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._running: set[int] = set()
        self._starting = threading.Lock()

    def handle(self, page: Page) -> str | None:
        """Run the command with this page; how it failed, if it did. Raises CannotRun."""
        try:
            with _input(json_line(page.answer)) as standard_input, self._starting:
                process = subprocess.Popen(  # noqa: S602 - it is the user's own command
                    self._command,
                    shell=True,
                    stdin=standard_input,
                    env=os.environb | {name.encode(): value for name, value in variables(page).items()},
                    process_group=0,
                )
                self._running.add(process.pid)
        except OSError as error:
            raise CannotRun(f"the command can't be run: {error.strerror}") from None
        try:
            code = process.wait()
        finally:
            self._running.discard(process.pid)
        if code < 0:
            return f"the command was killed by signal {-code}"
        return f"the command failed with exit code {code}" if code else None

    def end(self, signals: int) -> None:
        """Have all commands that run end now; from the third signal on, whether they want or not."""
        with self._starting:
            running = list(self._running)
        for process in running:
            for number in (signal.SIGTERM if signals < 3 else signal.SIGKILL, signal.SIGCONT):
                with contextlib.suppress(OSError):  # it has ended, or is somebody else now
                    os.killpg(process, number)


def _input(content: bytes) -> IO[bytes]:
    """A file that is nowhere, with this in it. Raises OSError."""
    if sys.platform == "linux":
        file: IO[bytes] = open(os.memfd_create("page"), "w+b")  # noqa: SIM115
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(content)
    file.seek(0)
    return file


def variables(page: Page) -> dict[str, bytes]:
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
        "JOB_ID": job(page),
    }
    return {f"PAGER_{name}": _variable(value) for name, value in values.items()}


def _variable(value: object) -> bytes:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    raw = text.replace("\0", "").encode(errors="replace")[:_MOST_VARIABLE_BYTES]
    return raw.decode(errors="ignore").encode()  # without half a character at its end
