"""What can stand between a client and a relay: a connection that is cut, held up, or answered by somebody else."""

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Proxy:
    """Passes TCP on to a relay, as a context. `answer` sees each piece of an answer, and returns what the client gets
    of it; it may wait, and raises Cut to cut the connection."""

    def __init__(self, relay: int, answer: Callable[[bytes], bytes] = lambda data: data, port: int = 0) -> None:
        self.answer = answer
        self.connections = 0
        self.answers = 0
        self._relay = relay
        self._listening = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> "Proxy":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Cut all connections there are."""
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.connections += 1
                self._threads.append(threading.Thread(target=self._connect, args=[client]))
                self._threads[-1].start()

    def _connect(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._relay)) as relay:
            self._open |= {client, relay}
            there = threading.Thread(target=self._pump, args=[client, relay, lambda data: data])
            there.start()
            self._pump(relay, client, self._changed)
            there.join()
            self._open -= {client, relay}

    def _changed(self, data: bytes) -> bytes:
        changed = self.answer(data)
        self.answers += 1
        return changed

    def _pump(self, source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
        with contextlib.suppress(OSError, Cut):
            while data := source.recv(65536):
                target.sendall(change(data))
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Cut(Exception):
    """Here the connection is cut."""


def cut(data: bytes) -> bytes:
    """The request has arrived, and its answer never does."""
    raise Cut


@contextlib.contextmanager
def somebody(status: int, body: Any, asked: list[str] | None = None, **headers: str) -> Iterator[str]:
    """A server that answers everything like this; its URL. asked: gets the path of each request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            if asked is not None:
                asked.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # it has read enough
                self.wfile.write(content)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
