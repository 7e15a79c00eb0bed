"""A model that always says the same: OpenAI's chat completions on loopback, as much of them as OpenCode uses."""

import json
import threading
from typing import Any

from api import Api


class Model(Api):
    """As a context. asked: the bodies of all requests; calls: tool calls with which the next answers are made, as
    (name, arguments); may_answer: cleared, it lets the model think."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        super().__init__()

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        super().__exit__()

    def asked_with(self, text: str) -> list[dict[str, Any]]:
        """The requests in which this text is, but for those that only want a title: these offer no tools."""
        return [one for one in list(self.asked) if one.get("tools") and text in json.dumps(one, ensure_ascii=False)]

    def answer(self, path: str, asked: dict[str, Any]) -> str:
        self.asked.append(asked)
        self.may_answer.wait(60)
        delta: dict[str, Any] = {"role": "assistant", "content": "Understood."}
        reason = "stop"
        if asked.get("tools") and self.calls:
            name, arguments = self.calls.pop(0)
            call = {"name": name, "arguments": json.dumps(arguments)}
            delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": call}]}
            reason = "tool_calls"
        choices = ({"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": reason})
        chunks = [{"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, **one}]} for one in choices]
        return "".join(f"data: {line}\n\n" for line in [*map(json.dumps, chunks), "[DONE]"])
