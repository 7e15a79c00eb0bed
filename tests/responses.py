"""A model that does as a test says: OpenAI's Responses API on loopback, as much of it as Codex uses."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from api import Api, events

_PAUSE_SECONDS = 0.2
_PASTIME = "list_mcp_resources"
_USAGE = {
    "input_tokens": 1,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 2,
}


@dataclass(frozen=True)
class Call:
    """The model calls this tool."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What the model was asked. From the whole conversation, each time."""

    body: dict[str, Any]

    def said(self, role: str) -> str:
        """All messages by `user` or `developer`."""
        return "\n\n".join(_text(item["content"]) for item in self.body["input"] if item.get("role") == role)

    def results(self) -> list[str]:
        """What tools have returned, except those by which time passes."""
        names = {item["call_id"]: item["name"] for item in self.body["input"] if item["type"] == "function_call"}
        outputs = [item for item in self.body["input"] if item["type"] == "function_call_output"]
        return [_text(item["output"]) for item in outputs if names[item["call_id"]] != _PASTIME]

    def tools(self) -> dict[str, str]:
        """The names of the tools there are, and the namespace of each."""
        return {
            tool["name"]: given["name"] if "tools" in given else ""
            for given in self.body["tools"]
            for tool in given.get("tools", [given])
            if "name" in tool
        }


Reply = str | Call


class Responses(Api):
    """The API, as a context. It does what is in `replies`, each once: a text ends the turn, a Call goes on with it, and
    a function gives one of these when it is asked. When there is none it says "done". A tool that is not there yet,
    since its server is starting, is waited for.
    requests: those of turns; Codex also asks for a title."""

    def __init__(self) -> None:
        self.replies: list[Reply | Callable[[], Reply]] = []
        self.requests: list[Request] = []
        self._numbers = itertools.count(1)
        super().__init__()

    def answer(self, path: str, asked: Any) -> object:
        return {"object": "list", "data": [], "models": []} if asked is None else events(self._events(asked))

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        request = Request(body)
        number = next(self._numbers)
        reply = self._reply(request) if body["tools"] else '{"title": "A title"}'
        item: dict[str, Any]
        if isinstance(reply, Call):
            item = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": reply.tool,
                "arguments": json.dumps(reply.arguments),
            }
            if namespace := request.tools().get(reply.tool):
                item["namespace"] = namespace
        else:
            content = [{"type": "output_text", "text": reply, "annotations": []}]
            item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}
        item["status"] = "completed"
        response = {"id": f"resp_{number}", "object": "response"}
        yield {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}
        yield {"type": "response.output_item.added", "output_index": 0, "item": item}
        yield {"type": "response.output_item.done", "output_index": 0, "item": item}
        completed = {**response, "status": "completed", "output": [item], "usage": _USAGE}
        yield {"type": "response.completed", "response": completed}

    def _reply(self, request: Request) -> Reply:
        reply = self.replies[0] if self.replies else "done"
        if isinstance(reply, Call) and reply.tool not in request.tools():
            self.over.wait(_PAUSE_SECONDS)
            return Call(_PASTIME)
        del self.replies[:1]
        self.requests.append(request)
        return reply() if callable(reply) else reply


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
