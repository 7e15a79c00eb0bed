"""A relay as its clients see it: calls by HTTP with typed answers, and errors that say what to do."""

import contextlib
import json
import math
import os
import random
import re
import socket
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3

import pagermcp
from pagermcp import address
from pagermcp.client.session import read_session, session_file

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0  # a page that is not accepted by then goes to the outbox, and is sent again with the same key
_TRY_SECONDS = 6.0  # after so long there is no further try
_CHUNK = 65536
_MOST_ANSWER_BYTES = 1 << 28  # a thousand pages of some size
_POLL_SECONDS = 50.0  # below what proxies cut, and the relay answers by itself
_WATCHED_POLL_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 10.0
_LATE_SECONDS = 15.0  # an answer that is so late does not come
_CUT_SECONDS = 5.0  # what was connected for longer was cut, and not refused
_LONGEST_RETRY_SECONDS = 300.0
_HANDLE = re.compile(r"[0-9]{16}(\.[0-9]{1,9})?", re.ASCII)
_HOST = re.compile(r"[^\s*/\\]+")
_SANDBOX = (
    "; this sandbox has no network: ask to run it outside, or use the MCP tools"
    if os.environ.get("CODEX_SANDBOX_NETWORK_DISABLED") == "1"
    else ""
)
_LOCAL = {"localhost", "127.0.0.1", "::1"}


class RelayError(Exception):
    """A call did not succeed. The message is one line for a person.

    retry_after: seconds after which the same call may succeed, if it was the relay who said so.
    for_now: it may succeed later as it stands."""

    retry_after: float | None = None
    for_now = True


class BadCall(ValueError):
    """What was asked for makes no sense. The message is one line."""


class Unreachable(RelayError):
    """No relay answered at this URL. A page that was to be sent may have arrived all the same.

    cut: it was connected."""

    def __init__(self, message: str, cut: bool = False) -> None:
        self.cut = cut
        super().__init__(message)


class NotARelay(RelayError):
    """Somebody answered at this URL, and not as a relay does: a proxy, or another server.

    for_now: nothing says that what was sent has arrived, or never will."""

    def __init__(self, message: str, status: int, for_now: bool = True) -> None:
        self.status = status
        self.for_now = for_now
        super().__init__(message)


class Refused(RelayError):
    """The relay answered with an error. `code` is from the list in docs/protocol.md; answer: all that it said."""

    def __init__(self, status: int, answer: Mapping[str, Any], retry_after: float | None = None) -> None:
        error = answer["error"]
        self.status = status
        self.code = str(error.get("code"))
        self.hint = str(error.get("hint") or "")
        self.answer = answer
        self.retry_after = retry_after
        self.for_now = _passes(status)
        message = str(error.get("message") or f"the relay answers {status}")
        super().__init__(f"{message}; {self.hint}" if self.hint else message)


@dataclass(frozen=True)
class Sent:
    """What the relay says of a page that it accepted. id: None for a report that brings no page, and from an older
    relay; waiters: requests that waited for it at that moment; queued: pages that wait there now; last_read: when its
    reader last was there."""

    id: str | None
    number: str
    waiters: int
    queued: int | None
    last_read: datetime | None
    duplicate: bool
    answer: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class Page:
    """A page as the relay hands it out. handle: by which it is acknowledged; age_seconds: since it began to wait for
    the first time; stale: so old that it may be overtaken by events; attempt: from 1; answer: all that the relay said
    of it, as docs/protocol.md lists it for `GET /wait` and `GET /pages`."""

    id: str
    handle: str
    created_at: datetime | None
    age_seconds: int
    stale: bool
    attempt: int
    payload: Mapping[str, Any]
    lease_expires_at: datetime | None
    answer: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> "Page":
        """A page from the relay's JSON. What is dead and no page has an empty payload. Raises KeyError and TypeError,
        when it is none."""
        if not _HANDLE.fullmatch(answer["handle"]) or not isinstance(answer.get("payload", {}), Mapping):
            raise TypeError
        return cls(
            id=answer["id"],
            handle=answer["handle"],
            created_at=_moment(answer.get("created_at")),
            age_seconds=answer.get("age_seconds", 0),
            stale=answer.get("stale", False),
            attempt=answer.get("attempt", 1),
            payload=answer.get("payload", {}),
            lease_expires_at=_moment(answer.get("lease_expires_at")),
            answer=answer,
        )


def relay_url() -> str:
    """The relay's URL by PAGER_URL, SERVER_URL, SERVER_HOST and SERVER_PORT, or else the one on this machine."""
    host, port = os.environ.get("SERVER_HOST"), os.environ.get("SERVER_PORT")
    by_host = f"http://{host or '127.0.0.1'}:{port or 8080}"
    return os.environ.get("PAGER_URL") or os.environ.get("SERVER_URL") or by_host


class _Cuttable(requests.adapters.HTTPAdapter):
    """Connections that another thread may cut, which is the only way to end a wait at once."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        super().__init__()

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        """As its base class, but that it knows the sockets."""
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        opened = self._open

        class Connection(type(pool).ConnectionCls):  # type: ignore[misc]
            def connect(self) -> None:
                super().connect()
                opened.add(self.sock)

        pool.ConnectionCls = Connection
        return pool

    def cut(self) -> None:
        """Say on all connections that nothing more comes from here. What is under way may still be read."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_WR)


class Relay:
    """The relay at `url`, used with `address`, a key or a number.

    Without them: what `relay_url` says, and what is in the session file (NoSession is raised by the first call that
    needs it). Calls may be made from several threads. All raise Unreachable, NotARelay, Refused, BadCall and
    InvalidAddress; a call that can't double a page is tried `tries` times. patience: seconds for each answer."""

    def __init__(
        self,
        address: str | uuid.UUID | None = None,
        url: str | None = None,
        *,
        tries: int = 3,
        patience: float = _ANSWER_SECONDS,
    ) -> None:
        self.url = (url or relay_url()).rstrip("/")
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in ("http", "https") and parts.port != 0 and not parts.query and not parts.fragment
            usable = usable and bool(_HOST.fullmatch(parts.hostname or ""))
        except ValueError:
            usable = False
        if "@" in self.url:
            raise BadCall("a URL with a password in it can't be used: the relay is called with a mailbox's address")
        if not usable:
            raise BadCall(f"{self.url!r} is no URL of a relay, as in http://127.0.0.1:8080")
        self._address = address
        self._tries = tries
        self._patience = patience
        self._http = requests.Session()
        self._cuttable = _Cuttable()
        self._http.mount("http://", self._cuttable)
        self._http.mount("https://", self._cuttable)
        self._http.trust_env = parts.hostname not in _LOCAL  # a proxy can't know what this machine calls localhost
        self._http.auth = lambda request: request  # or else requests shows what it finds in ~/.netrc
        self._http.headers["User-Agent"] = f"pagermcp/{pagermcp.__version__}"

    @property
    def address(self) -> uuid.UUID:
        """The mailbox's address. Raises NoSession, and InvalidAddress."""
        if self._address is None:
            self._address = read_session(session_file())
        if isinstance(self._address, str):
            self._address = address.parse(self._address)
        return self._address

    @property
    def number(self) -> str:
        """The number to hand out. Raises like `address`."""
        return address.number_of(self.address)

    def cut(self) -> None:
        """End the calls that are under way in other threads: they raise Unreachable, unless they are answered by now.
        No call may be made by this object afterwards."""
        self._cuttable.cut()

    def send(
        self,
        payload: str | Mapping[str, Any],
        *,
        to: str | None = None,
        delay: str | float | None = None,
        expires: str | float | None = None,
        replace: str | None = None,
        run: str | None = None,
        expect: str | float | None = None,
        idempotency_key: str | None = None,
    ) -> Sent:
        """Send a page: a text, which becomes `{"message": text}`, or an object of JSON.

        to: a number, or else the own mailbox. Times are seconds, or texts as `30m`. An empty text with `run` only sets
        or ends that dead-man's switch. It is tried again with one idempotency key, so it never comes twice."""
        given: dict[str, str | float | None] = {
            "Content-Type": "text/plain; charset=utf-8" if isinstance(payload, str) else "application/json",
            "Idempotency-Key": idempotency_key or str(uuid.uuid4()),
            "Pager-Delay": delay,
            "Pager-Expires": expires,
            "Pager-Replace": replace,
            "Pager-Run": run,
            "Pager-Expect": expect,
        }
        headers = {
            name: (f"{value:f}" if isinstance(value, int | float) else value).encode()  # a str would be Latin-1
            for name, value in given.items()
            if value is not None
        }
        try:
            body = (payload if isinstance(payload, str) else _json(payload)).encode()
        except UnicodeEncodeError:
            raise BadCall("the text has half of a surrogate pair, which is no character") from None
        # the number will do, so who sends does not show the key
        number = uuid.UUID(address.number_of(address.parse(to) if to else self.address))
        answer = self.call("POST", "/notify", "accepted", number, data=body, headers=headers)
        return Sent(
            id=answer.get("id"),
            number=str(number),
            waiters=answer.get("waiters", 0),
            queued=answer.get("queued"),
            last_read=_moment(answer.get("last_read")),
            duplicate=answer.get("duplicate", False),
            answer=answer,
        )

    def wait(
        self,
        *,
        timeout: float | None = 50,
        max: int = 1,
        lease: float = 60,
        max_age: float | None = None,
        ack: Iterable[Page | str] | Page | str = (),
        on_trouble: Callable[[RelayError, float], None] | None = None,
        on_contact: Callable[[], None] = lambda: None,
        given_up: Callable[[], bool] | None = None,
    ) -> list[Page]:
        """Up to `max` pages, as soon as there is one; none after `timeout` seconds (None: never).

        lease: seconds until they come back, unless they are acknowledged; with 0 they are taken for good when the relay
        has written them. max_age: older pages go to the archive unread. ack: acknowledged first.
        on_trouble: called with each error after which it is tried again, and with the seconds until then; without it an
        error before the first answer is raised, and what is lost later is connected again. on_contact: called when the
        relay answers again after trouble, unless it is with pages. given_up: asked every ten seconds whether to end."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        query: dict[str, Any] = {"max": max, "lease": lease, "max_age_seconds": max_age}
        query["ack"] = ",".join(map(_handle, [ack] if isinstance(ack, str | Page) else ack)) or None
        failures, poll = 0, (longest := _WATCHED_POLL_SECONDS if given_up else _POLL_SECONDS)
        patient = met = on_trouble is not None
        while True:
            left = min(poll, until - time.monotonic()) if met else 0.0  # only a look, to know that there is a relay
            left = left if left > 0 else 0.0  # max is a parameter here
            query["timeout"] = f"{left:.3f}"
            began = time.monotonic()
            try:
                pages = self._pages("/wait", read=left + min(_LATE_SECONDS, 3 * self._patience), tries=1, params=query)
            except RelayError as error:
                now = time.monotonic()
                if given_up and given_up():
                    return []
                if not patient or not error.for_now or now >= until:
                    raise
                was_cut = now - began > _CUT_SECONDS and (getattr(error, "cut", False) or isinstance(error, NotARelay))
                if was_cut:  # something between us and the relay cuts, so ask for less at a time
                    poll, failures = min(longest, 0.8 * (now - began) + 1), 0
                pause = min(backoff(failures, error.retry_after), until - now)
                if on_trouble and not was_cut:
                    on_trouble(error, pause)
                time.sleep(pause)
                failures, met = failures + 1, False
                continue
            if met:
                poll = min(longest, 2 * poll)
            elif patient and not pages:
                on_contact()
            if pages or time.monotonic() >= until or (given_up and given_up()):
                return pages
            query["ack"], failures, patient, met = None, 0, True, True

    def listen(
        self, *, lease: float = 60, on_trouble: Callable[[RelayError, float], None] = lambda error, pause: None
    ) -> Iterator[Page]:
        """Pages as they come, one at a time, leased for `lease` seconds each; acknowledge each with `ack`.

        It stays connected, and connects again with growing pauses. A page that is not acknowledged comes again, so none
        is lost. Raises Refused for what does not pass by itself, as a wrong address."""
        while True:
            yield from self.wait(timeout=None, lease=lease, on_trouble=on_trouble)

    def ack(self, *pages: Page | str) -> None:
        """Acknowledge pages, by page, handle or id. Raises Refused when a lease was lost (`not_leased`)."""
        self._with_ids("/ack", "acknowledged", pages)

    def release(self, *pages: Page | str, delay: float = 0) -> None:
        """Give leased pages back: to the next reader at once, or after `delay` seconds."""
        self._with_ids("/release", "released", pages, tries=1, delay=delay)

    def extend(self, *pages: Page | str, lease: float = 60) -> None:
        """Let leases run out `lease` seconds from now."""
        self._with_ids("/extend", "extended", pages, lease=lease)

    def replay(self, *pages: Page | str) -> list[str]:
        """Send copies of archived or dead pages to this mailbox; their ids. Tried once, since each try sends."""
        return [copy["id"] for copy in self._with_ids("/replay", "replayed", pages, tries=1)["replayed"]]

    def pages(self, state: str = "waiting", *, since: str | None = None, limit: int = 100) -> list[Page]:
        """Look at pages that are waiting, leased, scheduled, archived or dead; takes none. The last `limit` ones, or
        the first ones after the id `since`."""
        query = {"state": state, "since": since, "limit": limit}
        return self._pages("/pages", params=query)

    def receipt(self, page: Page | str) -> dict[str, Any]:
        """Where a page is, as docs/protocol.md lists it for `GET /receipts`; its sender may ask with the number."""
        return self.call("GET", f"/receipts/{_handle(page)}", "state", self.address)

    def proxy(self) -> str | None:
        """The proxy by which this relay is called, without its password."""
        proxies = requests.utils.get_environ_proxies(self.url) if self._http.trust_env else {}
        proxy = requests.utils.select_proxy(self.url, proxies)
        return proxy and f"{urlsplit(proxy).hostname}:{urlsplit(proxy).port}"

    def version(self) -> str:
        """The relay's version."""
        return str(self.call("GET", "/version", "version", None)["version"])

    def health(self) -> dict[str, Any]:
        """How the relay is, as docs/protocol.md lists it for `GET /healthz`."""
        return self.call("GET", "/healthz", "status", None)

    def request(
        self,
        method: str,
        path: str,
        caller: uuid.UUID | None,
        *,
        read: float,
        headers: Mapping[str, bytes] | None = None,
        **options: Any,
    ) -> requests.Response:
        """One request and its raw answer. caller: whose address is shown. Raises Unreachable, and BadCall."""
        shown = {"Authorization": f"Bearer {caller}"} if caller else {}
        try:
            return self._http.request(
                method,
                self.url + path,
                headers={**(headers or {}), **shown},
                timeout=(min(_CONNECT_SECONDS, self._patience), read),
                allow_redirects=False,
                **options,
            )
        except requests.exceptions.InvalidHeader:
            raise BadCall("an option has a character that can't be sent") from None
        except (requests.exceptions.InvalidURL, urllib3.exceptions.HTTPError, UnicodeError):
            raise BadCall(f"{self.url!r} is no URL of a relay") from None
        except OSError as error:  # which is what all of requests' are
            raise Unreachable(f"{self.url} does not answer: {_reason(error)}{_SANDBOX}", _was_cut(error)) from None

    def _pages(self, path: str, **options: Any) -> list[Page]:
        try:
            return [Page.read(page) for page in self.call("GET", path, "pages", self.address, **options)["pages"]]
        except (KeyError, TypeError, AttributeError):
            raise NotARelay(f"{self.url} answers with pages that are none", 200) from None

    def _with_ids(
        self, path: str, expects: str, pages: Iterable[Page | str], tries: int | None = None, **more: float
    ) -> dict[str, Any]:
        ids = [_handle(page) for page in pages]
        return self.call("POST", path, expects, self.address, tries=tries, json={"ids": ids, **more})

    def call(
        self,
        method: str,
        path: str,
        expects: str,
        caller: uuid.UUID | None,
        *,
        read: float | None = None,
        tries: int | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """One call by its path, with its tries. expects: what its answer has; caller: whose address is shown; read:
        seconds to wait for the answer; options: as requests has them."""
        began = time.monotonic()
        tries = tries or self._tries
        for failures in range(tries):
            try:
                return self._try(method, path, expects, caller, read or self._patience, options)
            except RelayError as error:
                if not error.for_now or failures + 1 == tries or time.monotonic() - began > _TRY_SECONDS:
                    raise
                if (error.retry_after or 0) > 1 or (isinstance(error, NotARelay) and error.status < 500):
                    raise  # it will not be better by then
                time.sleep(backoff(failures, error.retry_after))
        raise AssertionError("unreachable")

    def _try(
        self, method: str, path: str, expects: str, caller: uuid.UUID | None, read: float, options: dict[str, Any]
    ) -> dict[str, Any]:
        with self.request(method, path, caller, read=read, stream=True, **options) as answer:
            body = self._body(answer, time.monotonic() + 2 * read)
        said: object = None
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(body)
        status, where = answer.status_code, answer.headers.get("Location")
        if answer.is_redirect and where:
            hint = f"{self.url} sends on to {where.split('?')[0]}: give that as the relay's URL"
            raise NotARelay(hint, status, for_now=False)
        told = isinstance(said, dict) and (said.get(expects) if answer.ok else said.get("error"))
        if not isinstance(said, dict) or told is None or (expects == "accepted" and not told):
            # the page of a network that wants a login is no answer to a page, and other JSON may be one
            for_now = _passes(status) or (answer.ok and said is None)
            raise NotARelay(f"{self.url} answers {status}, and not as a relay does", status, for_now)
        if not answer.ok:
            after = answer.headers.get("Retry-After", "")
            error = said if isinstance(told, dict) else {"error": {"code": "unknown", "message": told}}
            seconds = min(_LONGEST_RETRY_SECONDS, float(after)) if re.fullmatch("[0-9]{1,9}", after) else None
            raise Refused(status, error, seconds)
        return said

    def _body(self, answer: requests.Response, until: float) -> bytes:
        """All of an answer, if it comes to an end."""
        body = bytearray()
        try:
            for chunk in answer.iter_content(_CHUNK):
                body += chunk
                if len(body) > _MOST_ANSWER_BYTES or time.monotonic() > until:
                    raise Unreachable(f"{self.url} answers without end")
        except requests.RequestException as error:
            raise Unreachable(f"{self.url} did not answer to the end: {_reason(error)}", _was_cut(error)) from None
        return bytes(body)


def backoff(failures: int, retry_after: float | None = None) -> float:
    """Seconds to pause after so many failures before (from 0): growing, up to ten, and by chance, so that
    many clients do not come back at once."""
    pause = min(_LONGEST_PAUSE_SECONDS, 0.5 * 2.0 ** min(failures, 10))
    return max(pause * random.uniform(0.5, 1), retry_after or 0)  # noqa: S311


def _json(payload: Mapping[str, Any]) -> str:
    with contextlib.suppress(UnicodeEncodeError):
        (text := json.dumps(payload, ensure_ascii=False)).encode()
        return text
    return json.dumps(payload)  # half of a surrogate pair has no other form


def _handle(page: Page | str) -> str:
    handle = page.handle if isinstance(page, Page) else str(page)
    if not _HANDLE.fullmatch(handle):
        raise BadCall(f"{address.redact(handle)!r} is no page's id or handle, as in 1795981500901952")
    return handle


def _moment(text: Any) -> datetime | None:
    with contextlib.suppress(ValueError, TypeError):
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


def _passes(status: int) -> bool:
    """Whether the same call may succeed later."""
    return status in (408, 425, 429) or status >= 500


def _reason(error: OSError) -> str:
    """The cause in a few words; what requests says of itself is long and names the URL again."""
    if isinstance(error, requests.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    for cause in _causes(error):
        if isinstance(cause, urllib3.exceptions.ReadTimeoutError):
            return "no answer in time"
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, requests.RequestException):
            return cause.strerror
    return "the connection was cut"


def _was_cut(error: OSError) -> bool:
    return any(isinstance(cause, urllib3.exceptions.ProtocolError) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause := cause and (cause.__cause__ or cause.__context__):
        yield cause
