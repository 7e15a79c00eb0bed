"""A model's API on loopback, which says what a test has written down for it: Claude Code takes it for Anthropic's."""

import collections
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from api import Api, events


@dataclass(frozen=True)
class Tool:
    """A reply: the model wants to use a tool."""

    name: str
    input: dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A request of a conversation."""

    body: dict[str, Any]

    @property
    def news(self) -> str:
        """What has come since the model's last reply: what the user, the hooks and the tools say."""
        news: list[str] = []
        for message in reversed(self.body["messages"]):
            if message["role"] == "assistant":
                break
            news[:0] = _texts(message["content"])
        return "\n".join(news)


Reply = str | Tool | None | Callable[[Asked], "str | Tool"]
DONE = "That is all."


class Model(Api):
    """The API, as a context. replies: what the model says next, and None: nothing at all, until this ends; without one
    it ends the turn. asked: the requests so far."""

    def __init__(self) -> None:
        self.replies: collections.deque[Reply] = collections.deque()
        self.asked: list[Asked] = []
        super().__init__()

    def told(self, text: str) -> list[Asked]:
        """The requests that have brought this text to the model."""
        return [one for one in list(self.asked) if text in one.news]

    def answer(self, path: str, asked: Any) -> object:
        if path == "/v1/messages/count_tokens":
            return {"input_tokens": 1000}
        if path != "/v1/messages":
            return None
        message = self._message(asked)
        return events(_streamed(message)) if message and asked.get("stream") else message

    def _message(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The model's message; None: none ever comes."""
        reply: Reply = DONE
        if body.get("tools"):  # without tools it is no conversation, but a title for it, say
            asked = Asked(body)
            reply = self.replies.popleft() if self.replies else DONE
            self.asked.append(asked)
            reply = reply(asked) if callable(reply) else reply
        if reply is None:
            self.over.wait()
            return None
        if isinstance(reply, Tool):
            block = {"type": "tool_use", "id": f"toolu_{len(self.asked)}", "name": reply.name, "input": reply.input}
        else:
            block = {"type": "text", "text": reply}
        return {
            "id": f"msg_{len(self.asked)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [block],
            "stop_reason": "tool_use" if isinstance(reply, Tool) else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }


def _streamed(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The message as it is streamed."""
    [block] = message["content"]
    if block["type"] == "text":
        start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        start = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": start}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def _texts(content: Any) -> Iterator[str]:
    """All text in a message's content, also that of tools' results."""
    if isinstance(content, str):
        yield content
        return
    for block in content or []:
        yield from [block["text"]] if "text" in block else _texts(block.get("content"))
