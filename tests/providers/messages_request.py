"""Requests to a Messages API as a test writes them down, and the blocks they are made of."""

import json
from typing import Any

from app.loop.messages import Message, ToolCall
from app.loop.ports import CheckedArguments, ModelRequest, OfferedTool
from app.providers.anthropic_request import request_body
from app.providers.client import ModelSettings

MODEL = "claude-opus-4-5"
ME, OTHER = f"anthropic/{MODEL}", "openai/gpt"
SEARCH = OfferedTool("search", "Finds.", {"type": "object", "properties": {}}, CheckedArguments)
OTHER_TOOL = OfferedTool("other", "Does.", {"properties": {}, "anyOf": [{}]}, CheckedArguments)
USER = Message("user", "hi")
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig=="}
SERVER_CALL = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def body(*messages: Message, tools: Any = (SEARCH,), choice: str = "auto", model: str = MODEL, **settings: Any) -> Any:
    settings.setdefault("options", {})
    request = ModelRequest(1, "m", messages, tools, choice)
    made = request_body(request, ModelSettings(model, **settings), "anthropic")
    return json.loads(json.dumps(made))


def sent(*messages: Message, **more: Any) -> list[tuple[str, list[Any]]]:
    """The messages, without the cache's marks."""
    return [
        (message["role"], [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks])
        for message in body(*messages, **more)["messages"]
        for blocks in [message["content"]]
    ]


def made_call(n: int = 1, provider_id: str | None = "toolu_1", arguments: Any = None, name: str = "search") -> ToolCall:
    return ToolCall(f"call_{n}", name, arguments, "raw", provider_id)


def turn(*calls: ToolCall, text: str | None = None, blocks: list[Any] | None = None, by: str | None = ME) -> Message:
    """A turn of the assistant's; where no `text` is given it is that of the blocks, as it is for any reply."""
    if text is None:
        text = "".join(block["text"] for block in blocks or () if block["type"] == "text")
    return Message("assistant", text, calls, native={"blocks": blocks} if blocks else {}, native_model=by)


def result(call: ToolCall, content: Any = "found") -> Message:
    return Message("tool", content, tool_call_id=call.id)


def use(id: str, name: str = "search", **input_: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input_}


def answered(id: str, content: str | None = "found", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **({} if content is None else {"content": content}), **more}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
