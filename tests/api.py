"""A model's API on loopback: what those of all providers have in common. A test decides what the model says."""

import contextlib
import json
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Api:
    """As a context. over: set when it ends."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05])
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, asked: Any) -> object:
        """What the API says: a text, which is a stream of events, or a value of JSON; None: there is no such path.
        asked: None for a GET."""
        raise NotImplementedError


def events(messages: Iterable[dict[str, Any]]) -> str:
    """Messages as a stream, each named by its type."""
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in messages)


class _Handler(BaseHTTPRequestHandler):
    api: Api

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        said = self.api.answer(self.path.partition("?")[0], asked)
        is_stream = isinstance(said, str)
        content = (said if isinstance(said, str) else json.dumps(said)).encode()
        with contextlib.suppress(OSError):  # who asked may be gone
            self.send_response(404 if said is None else 200)
            self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST  # noqa: N815

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: pytest would show it with every test that fails."""
