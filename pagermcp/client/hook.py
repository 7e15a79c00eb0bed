"""What runs beside an agent's session, `pagermcp hook`: it hands waiting pages to the session, and wakes it.

A page is leased, handed over, and acknowledged by a later hook of the same session: by then the session has it. If
none ever runs, the lease ends and the page comes again. Without a page, a mailbox or a relay nothing is said and
nothing fails: a hook that fails is shown to the user at each prompt, and one that wakes a session for nothing costs
money without end. docs/agents.md says what the clients do with hooks, as it was seen.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NoReturn

from pagermcp import address, files
from pagermcp.client import fence, show
from pagermcp.client.outbox import make_state_folder, state_folder
from pagermcp.client.relay import BadCall, Page, Refused, Relay, RelayError
from pagermcp.client.session import NoSession, read_session, session_file
from pagermcp.client.wake import Handed, Probe, acknowledge

_WAKES = 82  # plugins/claude/bin/hook makes 2 of it, which is also that of a wrong call, and wakes Claude Code
_LEASE_SECONDS = 600.0  # a turn runs a tool, or ends, within that time
_PATIENCE_SECONDS = 1.5  # the session stands still meanwhile
_LOOK_SECONDS = 20.0  # between looks while a turn runs
_BETWEEN_LINES_SECONDS = 2.0  # Claude Code suppresses what comes faster, and stops the monitor for it
_MOST_FAILURES = 3
_REST_SECONDS = 300.0  # without calls, after so many failures
_MOST_PAGES = 100
_MOST_CONTINUED = 8  # as many as Claude Code allows; Codex has no limit of its own
_MOST_BYTES = 8000  # of all pages together: Claude Code puts more than 10,000 characters into a file
_MOST_MEMORY_BYTES = 1 << 20
_OLD_SECONDS = 7 * 86400.0
_OWN_NOTICE = "<task-notification>"  # with this begins the prompt by which Claude Code wakes a session
_IN_CODEX = (
    "In Codex leave out the `&`: what a command leaves behind is killed when its shell ends, and what still runs after "
    "yield_time_ms runs on, until the session ends. A sandbox without network can't page: ask to run it outside.\n"
)
_UNATTENDED = (
    "Nothing wakes this run when its turn has ended: what it needs is waited for within the turn, by "
    "`pagermcp wait --timeout 10m --ack`.\n"
)
_NOTHING_TO_DO = (NoSession, address.InvalidAddress, BadCall, RelayError, OSError)


def trouble_file() -> str:
    """Where the last fault of a hook is, since it is not shown."""
    return os.path.join(state_folder(), "hook-trouble")


def run(what: str, client: str, hold: float = 0) -> int:
    """Do what this hook does; the exit code. client: `claude` or `codex`; hold: seconds for which `stop` may hold up
    the end of a turn."""
    try:
        if what == "watch":
            _watch(client)
        raw = b"" if os.isatty(0) else sys.stdin.buffer.read(_MOST_MEMORY_BYTES)
        said = json.loads(raw or b"{}")
        session = Session(said if isinstance(said, dict) else {}, client, lambda text: _say(what, text))
        if what == "rewake":
            if text := session.wake():
                os.write(2, text.encode())
                return _WAKES
        elif what == "session-start":
            show.put_lines([session.introduce()])
        elif what == "stop":
            session.continued(hold)
        elif what == "prompt":
            session.prompted()
        else:
            session.in_between()
    except (*_NOTHING_TO_DO, ValueError, show.Unwritable):
        pass
    except Exception:  # noqa: BLE001 - the session must not suffer from it; doctor shows it
        with contextlib.suppress(OSError):
            _write_trouble(traceback.format_exc())
    return 0


def _say(what: str, text: str) -> None:
    """Hand pages over, as this event has it. Raises Unwritable."""
    if what == "stop":
        show.put_json({"decision": "block", "reason": text})
    else:
        event = {"prompt": "UserPromptSubmit", "mid-turn": "PostToolUse"}[what]
        show.put_json({"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}})


def _write_trouble(text: str) -> None:
    make_state_folder("sessions")
    temporary = f"{trouble_file()}.{os.getpid()}"
    files.write_over(trouble_file(), temporary, text.encode(errors="replace"), 0o600)


@dataclass
class _Memory:
    """What is known of a session from one hook to the next. handed: pages that are in its context; woken: pages by
    which it was woken, which it may not have got; continued: how often this turn was continued; looked and rest_until:
    in wall time."""

    handed: list[Handed] = field(default_factory=list)
    woken: list[Handed] = field(default_factory=list)
    continued: int = 0
    failures: int = 0
    looked: float = 0.0
    rest_until: float = 0.0

    @classmethod
    def read(cls, content: bytes) -> "_Memory":
        """From a file's content. What can't be read is forgotten, and its pages come again."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            given = json.loads(content)
            for name in ("handed", "woken"):
                given[name] = [Handed(one["handle"], Probe.read(one["probe"])) for one in given[name]]
            memory = cls(**given)
            if all(isinstance(getattr(memory, one.name), int | float | list) for one in fields(cls)):
                return memory
        return cls()

    def rests(self) -> bool:
        """Whether the relay has failed so often that it is left alone for a while."""
        return time.time() < self.rest_until < time.time() + 2 * _REST_SECONDS  # a clock may have been set back


class Session:
    """An agent's session as its hooks see it. said: what the client gave them. Raises NoSession, InvalidAddress and
    BadCall, when there is no mailbox to look into."""

    def __init__(self, said: Mapping[str, Any], client: str, say: Callable[[str], None] = lambda text: None) -> None:
        project = os.environ.get("CLAUDE_PROJECT_DIR") if client == "claude" else None  # Codex may run inside of it
        folder = project or str(said.get("cwd") or ".")
        key = read_session(session_file(folder))
        self._relay = Relay(key, tries=1, patience=_PATIENCE_SECONDS)
        self._client = client
        self._said = said
        self._say = say
        self.owner = Owner(os.environ.get("CLAUDE_PID", "") if client == "claude" else "")
        who = f"{self._relay.number} {client} {self.owner.name or said.get('session_id')}"
        self._folder = make_state_folder("sessions")
        self._path = os.path.join(self._folder, hashlib.sha256(who.encode()).hexdigest()[:32])

    def introduce(self) -> str:
        """What a session should know from its start."""
        self._forget_others()
        waiting = len(self._relay.pages(limit=_MOST_PAGES))
        number = self._relay.number
        here = _IN_CODEX if self._client == "codex" else "" if self._is_attended() else _UNATTENDED
        return f"{fence.GUIDANCE}\n{here}The number of this project is {number}. Pages that wait for it: {waiting}."

    def prompted(self) -> None:
        """The pages for a session to which somebody has just said something."""
        prompt = str(self._said.get("prompt", ""))
        by_itself = prompt.lstrip().startswith(_OWN_NOTICE)
        with self._memory() as memory:
            did_wake = [one for one in memory.woken if by_itself and one.handle[:16] in prompt]
            if not memory.rests():
                self._hand_over(memory, again=[] if by_itself else [one.handle for one in memory.woken])
            memory.woken = [one for one in memory.woken if one not in did_wake]
            memory.handed += did_wake

    def in_between(self) -> None:
        """The pages for a session in the midst of a turn."""
        with self._memory() as memory:
            # a page that another tool's hook has just handed over, in parallel, is not acknowledged by this one
            soon = 0 <= time.time() - memory.looked < _LOOK_SECONDS
            if not (soon or memory.rests() or self._is_sub_agent()):
                memory.looked = time.time()
                self._hand_over(memory)

    def continued(self, hold: float) -> None:
        """The pages by which a turn goes on that is about to end. hold: seconds to wait for one."""
        with self._memory() as memory:
            memory.continued = memory.continued + 1 if self._said.get("stop_hook_active") else 0
            if memory.continued < _MOST_CONTINUED:  # others could keep it busy for ever; they wait for the next prompt
                self._hand_over(memory, seconds=hold)

    def wake(self) -> str:
        """The pages by which an idle session is woken, when they come; empty when it is gone, or another one of us
        watches already."""
        if self._is_sub_agent():
            return ""
        with self._memory() as memory, contextlib.suppress(RelayError):  # then later
            self._acknowledge(memory)
        if not self._is_attended():
            return ""  # `claude -p` would not end before we do
        with self.watching() as free:
            return _fenced(pages) if free and (pages := self.wait_and_wake()) else ""

    @contextlib.contextmanager
    def watching(self) -> Iterator[bool]:
        """Whether nobody else watches for this session; while this lasts nobody else does."""
        with open(f"{self._path}.watch", "ab", opener=_private) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def wait_and_wake(self, most: int = _MOST_PAGES) -> list[Page]:
        """Wait for pages by which the session is woken; none when it is gone. Raises RelayError for what does not
        pass."""
        pages = self._relay.wait(
            timeout=None,
            max=most,
            lease=_LEASE_SECONDS,
            on_trouble=lambda error, pause: None,
            given_up=self.owner.is_gone,
        )
        with contextlib.suppress(OSError), self._memory() as memory:  # on a full disk they come again
            memory.woken += map(Handed.over, pages)
        return pages

    def keep_leases(self, enough: threading.Event) -> None:
        """Keep the pages by which the session was woken, until it shows that it was."""
        while not enough.wait(_LEASE_SECONDS / 3):
            with self._memory() as memory:
                woken = memory.woken
            for one in woken:
                with contextlib.suppress(RelayError):  # acknowledged by now, or it comes again
                    self._relay.extend(one.handle, lease=_LEASE_SECONDS)

    def _hand_over(self, memory: _Memory, again: Sequence[str] = (), seconds: float = 0) -> None:
        """Acknowledge what was handed over before, and hand over what waits. again: handles of leased pages to be
        handed over as well."""
        try:
            self._acknowledge(memory)
            pages = [page for page in self._relay.pages("leased", limit=1000) if page.handle in again] if again else []
            pages += self._relay.wait(
                timeout=seconds,
                max=max(1, _MOST_PAGES - len(pages)),
                lease=_LEASE_SECONDS,
                given_up=self.owner.is_gone,
            )
        except RelayError:
            memory.failures += 1
            if memory.failures >= _MOST_FAILURES:
                memory.failures, memory.rest_until = 0, time.time() + _REST_SECONDS
            return
        memory.failures = 0
        if pages:  # first to the session, and then into the memory: in between nothing is lost
            self._say(_fenced(pages))
        memory.handed = list(map(Handed.over, pages))
        memory.woken = [one for one in memory.woken if one.handle not in again]

    def _acknowledge(self, memory: _Memory) -> None:
        try:
            acknowledge(self._relay, memory.handed, self._client)
        except Refused as error:
            if error.for_now:
                raise
            # a lease ran out, and that page comes again; the others are acknowledged
        memory.handed = []

    def _is_attended(self) -> bool:
        return os.environ.get("CLAUDE_CODE_SESSION_ATTENDED") != "0"

    def _is_sub_agent(self) -> bool:
        return "agent_id" in self._said

    @contextlib.contextmanager
    def _memory(self) -> Iterator[_Memory]:
        """The memory, which is written down afterwards; one hook at a time."""
        with open(self._path, "r+b", opener=_private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            memory = _Memory.read(file.read(_MOST_MEMORY_BYTES))
            try:
                yield memory
            finally:
                file.seek(0)
                file.truncate()
                file.write(json.dumps(asdict(memory)).encode())

    def _forget_others(self) -> None:
        for name in files.names(self._folder):
            with contextlib.suppress(OSError):
                path = os.path.join(self._folder, name)
                if os.stat(path).st_mtime < time.time() - _OLD_SECONDS:
                    with open(path, "ab", opener=_private) as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a session of long ago may still be watched
                        files.remove(path)


class Owner:
    """The process to which a session belongs: Claude Code's, by its pid, and our parent, which waits for us."""

    def __init__(self, given: str) -> None:
        self._parent = os.getppid()
        self._pid = int(given) if given.isascii() and given.isdigit() else 0
        self._since = _started(self._pid)
        self.name = f"{self._pid} {self._since}" if self._since else ""

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return os.getppid() != self._parent or (bool(self._since) and _started(self._pid) != self._since)


def _started(pid: int) -> str:
    """When a process has started, as the kernel counts; empty when there is none, or it can't be known."""
    with contextlib.suppress(OSError, IndexError):
        return files.read(f"/proc/{pid}/stat", 4096)[0].decode(errors="replace").rpartition(")")[2].split()[19]
    return ""


def _fenced(pages: Sequence[Page]) -> str:
    return fence.fenced(pages, most_bytes=min(fence.MOST_BYTES, _MOST_BYTES // len(pages)))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | files.NOT_FOLLOWED, 0o600)


def _watch(client: str) -> NoReturn:
    """Write a line for each page, by which Claude Code wakes the session. It never ends by itself, since its end wakes
    the session too: only when nobody reads the lines any more."""
    threading.Thread(target=_end_with_reader, daemon=True).start()
    while True:
        enough = threading.Event()
        with contextlib.suppress(*_NOTHING_TO_DO):
            session = Session({}, client)
            with session.watching() as free:
                if free:
                    threading.Thread(target=session.keep_leases, args=[enough], daemon=True).start()
                while free and (pages := session.wait_and_wake(fence.MOST_LINE_IDS)):
                    show.put_lines(fence.lines(pages))
                    time.sleep(_BETWEEN_LINES_SECONDS)
                if session.owner.is_gone():
                    os._exit(0)
        enough.set()
        time.sleep(_REST_SECONDS)  # by then there may be a mailbox, or the relay is one again


def _end_with_reader() -> NoReturn:
    poll = select.poll()
    poll.register(1, 0)
    poll.poll()  # returns when the pipe's other end is closed
    os._exit(0)
