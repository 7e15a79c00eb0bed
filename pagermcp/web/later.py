"""An answer that is not decided yet, and what a request may ask of its connection.

Such an answer is a generator: it yields the waiter that it waits by, or a commit that waits for the disk, and returns
the response; or what is left of its body, when the waiter has begun it. Under our server a request that waits has no
thread (`pagermcp.server.channel`); under any other one the same code blocks its thread.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, cast

from flask import Flask, Response, current_app, request

from pagermcp.commit import Commit
from pagermcp.waking import Waiter
from pagermcp.web.errors import answer_to

_LATE_SECONDS = 1.0

Steps = Generator[Waiter | Commit[Any], None, Response | Iterable[Any]]


class Connection:
    """The client's connection, as far as a server tells of it. This one tells of nothing."""

    def gone(self) -> bool:
        """Whether the client has gone, or will not send any more."""
        return False

    def flushed(self, waiter: Waiter) -> bool | None:
        """True when all that was written is with the system, False when it can't be; None when it is not yet, and
        then `waiter` is rung as soon as that changes."""
        return True


class _Asked(Connection):
    """A connection of plain waitress."""

    def __init__(self, gone: Callable[[], bool]) -> None:
        self.gone = gone  # type: ignore[method-assign]


def connection() -> Connection:
    """That of the current request."""
    return cast(Connection, request.environ["pagermcp.connection"])


class Later(Response):
    """A response that is decided by and by. An error on the way is answered as one in a view is."""

    def __init__(self, steps: Steps) -> None:  # and not the other's, since there is nothing of a response yet
        self._steps = steps
        self._app = current_app._get_current_object()  # type: ignore[attr-defined]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        # neither this nor the whole environment: ten thousand waiting requests would keep them
        kept = {"REQUEST_METHOD": environ["REQUEST_METHOD"]}
        return cast(Iterable[bytes], _decide(self._app, self._steps, kept, start_response))


def late(error: Exception) -> Later:
    """The answer to an error, but not at once: so whoever asks again and again takes little from the others."""
    answer = answer_to(error)

    def steps() -> Steps:
        yield Waiter().parked(time.monotonic() + _LATE_SECONDS)
        return answer

    return Later(steps())


def _decide(
    app: Flask, steps: Steps, environ: dict[str, Any], start_response: Any
) -> Iterator[Waiter | Commit[Any] | bytes]:
    body: Any
    try:
        with contextlib.closing(steps):
            while True:
                step = next(steps)
                if isinstance(step, Waiter):
                    step.start_response = start_response
                yield step
    except StopIteration as end:
        body = end.value
    except Exception as error:  # noqa: BLE001 - as Flask does for views
        with app.app_context():
            body = answer_to(error)
    if isinstance(body, Response):
        content, status, headers = body.get_wsgi_response(environ)
        start_response(status, headers)
        body = body.response if content else ()  # and not werkzeug's wrappers, for the same reason
        del content, headers
    try:
        yield from body
    finally:
        if hasattr(body, "close"):
            body.close()


Application = Callable[[dict[str, Any], Any], Iterable[Any]]


def parked_or_blocked(application: Application) -> Application:
    """The application for any server: its waiters are for ours, and on others they block."""

    def call(environ: dict[str, Any], start_response: Any) -> Iterable[Any]:
        if "pagermcp.connection" in environ:
            return application(environ, start_response)
        gone = environ.get("waitress.client_disconnected", lambda: False)
        environ["pagermcp.connection"] = _Asked(gone)
        return _blocked(application(environ, start_response), gone)

    return call


def _blocked(body: Any, gone: Callable[[], bool]) -> Iterator[bytes]:
    try:
        for step in body:
            if isinstance(step, Waiter):
                yield from step.block(gone)
            elif isinstance(step, Commit):
                step.finish()
            else:
                yield step
    finally:
        if hasattr(body, "close"):
            body.close()
