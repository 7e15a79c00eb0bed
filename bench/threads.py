"""This relay in plain threads: the same application under waitress as it is, where each waiting request has a thread.

Run as the relay is: python threads.py serve --port 0 --data-dir FOLDER"""

import importlib
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from waitress import create_server

from pagermcp.cli import main
from pagermcp.settings import Settings

_THREADS = 534
serving = importlib.import_module("pagermcp.server.serve")  # the package has a function of that name


class PlainServer:
    """In place of our `Server`."""

    def __init__(self, app: Callable[..., Any], settings: Settings, command: str, sockets: Sequence[Any] = ()) -> None:
        serving._raise_descriptor_limit()
        options = {"connection_limit": 15_000, "backlog": 4096, "asyncore_use_poll": True}
        self._server = create_server(app, host=settings.host, port=settings.port, threads=_THREADS, **options)
        self.url = f"http://127.0.0.1:{self._server.effective_port}"

    def stop_on_signals(self) -> None:
        def stop(number: int, frame: object) -> None:
            raise SystemExit

        signal.signal(signal.SIGTERM, stop)

    def run(self, drain: Callable[[], None], tell: Callable[[str], None], every: float) -> None:
        threading.Thread(target=self._server.run, daemon=True).start()
        try:
            signal.pause()
        except SystemExit:
            drain()


serving.Server = PlainServer  # type: ignore[attr-defined]
main()
