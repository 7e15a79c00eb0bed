"""A model provider on loopback, as much of OpenAI's chat completions as an agent needs to talk to one: it keeps what it
was asked, says always the same, and thinks for as long as a test wants it to."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Model:
    """As a context. asked: the bodies of all requests; calls: tool calls with which the next answers are made, as
    (name, arguments); may_answer: cleared, it lets the model think."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        handler = type("Handler", (_Handler,), {"model": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> "Model":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def asked_with(self, text: str) -> list[dict[str, Any]]:
        """The requests in which this text is, but for those that only want a title: these offer no tools."""
        return [one for one in list(self.asked) if one.get("tools") and text in json.dumps(one, ensure_ascii=False)]


class _Handler(BaseHTTPRequestHandler):
    model: Model

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.model.asked.append(asked)
        self.model.may_answer.wait(60)
        delta: dict[str, Any] = {"role": "assistant", "content": "Understood."}
        reason = "stop"
        if asked.get("tools") and self.model.calls:
            name, arguments = self.model.calls.pop(0)
            call = {"name": name, "arguments": json.dumps(arguments)}
            delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": call}]}
            reason = "tool_calls"
        choices = ({"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": reason})
        chunks = [{"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, **one}]} for one in choices]
        lines = [*(json.dumps(chunk) for chunk in chunks), "[DONE]"]
        body = "".join(f"data: {line}\n\n" for line in lines).encode()
        with contextlib.suppress(OSError):  # who asked may be gone
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: pytest would show it with every test that fails."""
