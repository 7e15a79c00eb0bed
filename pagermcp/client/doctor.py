"""What may keep this machine from being woken: looked at and measured, each finding with what to do about it."""

import contextlib
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import requests

import pagermcp
from pagermcp import address, files
from pagermcp.client.hook import trouble_file
from pagermcp.client.outbox import Outbox
from pagermcp.client.relay import Page, Refused, Relay, RelayError
from pagermcp.client.session import NoSession, is_tracked, read_session, session_file
from pagermcp.client.wake import Probe

_HEARTBEAT_SECONDS = 20.0  # the relay's; the first comes with the headers
_WAKE_SECONDS = 2.0
_SKEW_SECONDS = 5.0
_PATIENCE_SECONDS = 15.0
_TIMEOUT_SECONDS = 300

_WAKE_REMEDIES = {
    "opencode": "pagermcp install opencode; then start OpenCode in this folder and open a session; its log says more",
    "claude": "pagermcp install claude; a session must be open in this folder, and have had a turn",
    "codex": "pagermcp install codex; trust its hooks by /hooks; it takes pages at the end of a turn, so give it one",
    "mcp": "while this waits, let the agent call wait_for_event, or pager_wait and then pager_ack",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. verdict: `ok`, `note` (it may be as it should), or `bad`; remedy: what to do."""

    verdict: str
    what: str
    remedy: str = ""


def examine(relay: Relay, wait_seconds: float, progress: Callable[[str], None]) -> Iterator[Finding]:
    """Look at everything, in the order in which it has to work. progress: called about once a second while it waits."""
    yield from _outbox()
    yield from _hooks()
    yield from _session()
    try:
        yield from _reach(relay)
        yield from _mailbox(relay)
        yield from _wake(relay, wait_seconds, progress)
    except RelayError as error:
        yield _unreachable(error)


def examine_wake(relay: Relay, client: str, seconds: float, progress: Callable[[str], None]) -> Iterator[Finding]:
    """Page this project, and see whether this client (`opencode`, `claude`, `codex` or `mcp`) acknowledges it in so
    many seconds: it then answers with the page's nonce, to a mailbox of our own."""
    yield from _session()
    try:
        yield from _reach(relay)
        mailbox = Relay(uuid.uuid4(), relay.url)
        probe = Probe.make(mailbox.number)
        wait = _Wait(mailbox, seconds + _PATIENCE_SECONDS)
        sent = relay.send(probe.payload(client), expires=max(1, seconds))
        began, answer = time.monotonic(), probe.answer(client)
        wait.until_over(began, seconds, progress, f"waiting for {client} to acknowledge the page {sent.id}")
        took = time.monotonic() - began
        if wait.page and wait.page.payload == answer:
            yield Finding("ok", f"{client} received a page, and acknowledged it after {took:.1f} s")
            return
        place = relay.receipt(sent.id) if sent.id else {}
        where = place.get("outcome") or place.get("state")
        if wait.page:
            what = f"{wait.page.payload.get('client')} acknowledged the page, and not {client}"
        elif where == "acknowledged":
            what = f"something else than {client} acknowledged the page"
        else:
            what = f"{client} did not acknowledge a page in {seconds:.0f} s; it is {where}"
        taken = wait.page or where == "acknowledged"
        other = "stop what takes this mailbox's pages (another agent, pagermcp listen or wait), and try again"
        yield Finding("bad", what, other if taken else _WAKE_REMEDIES[client])
    except RelayError as error:
        yield _unreachable(error)


def _unreachable(error: RelayError) -> Finding:
    start = "start it (pagermcp serve), or say where it is with --url or PAGER_URL"
    return Finding("bad", str(error), "" if isinstance(error, Refused) else start)


def _outbox() -> Iterator[Finding]:
    outbox = Outbox()
    try:
        waiting = len(outbox.waiting())
    except OSError as error:
        yield Finding("bad", f"the outbox {outbox.folder} can't be read: {error.strerror}", "make it yours: chown -R")
        return
    if waiting:
        yield Finding("note", f"pages in the outbox {outbox.folder}: {waiting}", "send them: pagermcp outbox flush")


def _hooks() -> Iterator[Finding]:
    path = trouble_file()
    with contextlib.suppress(OSError):
        lines = files.read(path, 65536)[0].decode(errors="replace").strip().splitlines()
        yield Finding(
            "bad", f"a hook has failed: {lines[-1] if lines else ''}", f"report what is in {path}, and remove it"
        )


def _session() -> Iterator[Finding]:
    path = session_file()
    try:
        session = read_session(path)
        status = os.stat(path)
    except NoSession as error:
        yield Finding("bad" if os.path.lexists(path) else "note", str(error))
        return
    can = "send to" if address.is_number(session) else "read"
    if status.st_mode & 0o077:
        what = f"others can read {path} (mode {stat.S_IMODE(status.st_mode):o}), and so {can} the mailbox"
        yield Finding("bad", what, f"chmod 600 {path}")
    elif status.st_uid != os.geteuid():
        yield Finding(
            "note", f"{path} belongs to uid {status.st_uid}, and we are {os.geteuid()}", "chown it, or be him"
        )
    elif is_tracked(path):
        yield Finding(
            "bad", f"git tracks {path}: the repository gives the mailbox away", "pagermcp number says how to mend it"
        )
    elif address.is_number(session):
        yield Finding("note", f"{path} holds a number: you can send from here, and not read")
    else:
        yield Finding("ok", f"{path} holds a key, and is yours alone")


def _reach(relay: Relay) -> Iterator[Finding]:
    version = relay.version()
    yield Finding("ok", f"{relay.url} is a relay, version {version}")
    if version != pagermcp.__version__:
        what = f"this is pagermcp {pagermcp.__version__}, the relay is {version}"
        yield Finding("note", what, "the same version on both sides is what is tested")
    if proxy := relay.proxy():
        yield Finding("note", f"calls go through the proxy {proxy}", "if they need not, add the relay to NO_PROXY")
    health = relay.health()
    if health.get("watching") == "degraded":
        yield Finding("note", "the relay notices files that others bring late", "see its log")
    if health.get("retention") not in ("ok", "another process does it", None):
        yield Finding("note", f"the relay ages nothing: {health['retention']}")


def _mailbox(relay: Relay) -> Iterator[Finding]:
    try:
        waiting = len(relay.pages("waiting", limit=1000))
    except NoSession:
        return
    except Refused as error:
        if error.code != "number_cannot_read":
            raise
        return
    yield Finding("ok", f"the mailbox {relay.number} can be read; pages that wait there: {waiting}")


def _wake(relay: Relay, seconds: float, progress: Callable[[str], None]) -> Iterator[Finding]:
    """Wait in a mailbox of its own, page it after so long, and see how and when the page comes."""
    probe = Relay(uuid.uuid4(), relay.url)
    wait = _Wait(probe, seconds + _PATIENCE_SECONDS)
    if wait.until_over(wait.began, seconds, progress, f"waiting, to see whether a wait lasts {seconds:.0f} s"):
        after = time.monotonic() - wait.began
        what = f"a wait was ended after {after:.0f} s: {wait.trouble}"
        yield Finding("bad", what, "let the proxy wait longer (nginx: proxy_read_timeout 90s)")
        return
    buffered = not wait.has_headers and seconds > _HEARTBEAT_SECONDS + 5
    before, sent = time.time(), time.monotonic()
    probe.send("pagermcp doctor")
    after = time.time()
    arrived = wait.over.wait(_PATIENCE_SECONDS) and wait.page is not None
    took = time.monotonic() - sent
    unbuffered = "switch its buffering off for the relay (nginx: proxy_buffering off, proxy_http_version 1.1)"
    if not arrived:
        what = f"a page did not come within {_PATIENCE_SECONDS:.0f} s: {wait.trouble}"
        yield Finding("bad", what, unbuffered)
        return
    if buffered or took > _WAKE_SECONDS:
        late = "nothing of the answer came before the page" if buffered else f"the page came after {took:.1f} s"
        yield Finding("bad", f"something buffers waits: {late}", unbuffered)
    else:
        yield Finding("ok", f"a page woke a wait that was open for {seconds:.0f} s; it took {took * 1000:.0f} ms")
    created = wait.page.created_at.timestamp() if wait.page and wait.page.created_at else before
    skew = created - min(max(created, before), after)
    if abs(skew) > _SKEW_SECONDS:
        way = "ahead of" if skew > 0 else "behind"
        what = f"the relay's clock is {abs(skew):.0f} s {way} this machine's"
        yield Finding("bad", what, "set both by NTP: timedatectl set-ntp true")


class _Wait:
    """A long wait under way in a thread. over: set when it has ended, with a page or with trouble."""

    def __init__(self, relay: Relay, seconds: float) -> None:
        self.began = time.monotonic()
        self.has_headers = False
        self.page: Page | None = None
        self.trouble = "without a page"
        self.over = threading.Event()
        self._relay = relay
        self._seconds = seconds
        threading.Thread(target=self._run, daemon=True).start()

    def until_over(self, began: float, seconds: float, progress: Callable[[str], None], what: str) -> bool:
        """Wait for its end, for so long from then on, and say each second what for; whether it has ended."""
        while not self.over.wait(max(0, min(1, began + seconds - time.monotonic()))):
            passed = time.monotonic() - began
            if passed >= seconds:
                break
            progress(f"{what}: {passed:.0f} s")
        return self.over.is_set()

    def _run(self) -> None:
        try:
            path = f"/wait?lease=0&timeout={_TIMEOUT_SECONDS}"  # beyond 55 s the relay sends heartbeats
            address = self._relay.address
            with self._relay.request("GET", path, address, read=self._seconds + 5, stream=True) as answer:
                self.has_headers = True
                if answer.status_code != 200:
                    self.trouble = f"with status {answer.status_code}"
                    return
                pages = answer.json()["pages"]
                self.page = Page.read(pages[0]) if pages else None
        except (RelayError, requests.RequestException, ValueError, KeyError, TypeError) as error:
            if not self.has_headers or isinstance(error, requests.RequestException):
                self.trouble = str(error) if isinstance(error, RelayError) else "the connection was cut"
        finally:
            self.over.set()
