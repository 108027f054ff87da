"""Requests to a chat-completions API as a test writes them down."""

import json
from typing import Any

from app.loop.messages import Message, ToolCall
from app.loop.ports import CheckedArguments, ModelRequest, OfferedTool
from app.providers.client import ModelSettings
from app.providers.openai_request import request_body

ME, OTHER = "openai/gpt", "other/model"
SEARCH = OfferedTool("search", "Finds.", {"type": "object", "properties": {}}, CheckedArguments)


def body(*messages: Message, tools: Any = (), choice: str = "auto", base_url: str = "http://h/v1", **settings: Any) -> Any:
    settings.setdefault("options", {})
    made = request_body(ModelRequest(1, "m", messages, tools, choice), ModelSettings("gpt", **settings), "openai", base_url)
    return json.loads(json.dumps(made))


def made_call(provider_id: str | None = "p1", arguments: Any = None, name: str = "search", **native: Any) -> ToolCall:
    return ToolCall("call_" + "0" * 32, name, arguments, "raw", provider_id, native)


def turn(*calls: ToolCall, by: str | None = ME, text: str = "", **native: Any) -> Message:
    return Message("assistant", text, calls, native=native, native_model=by)


def result(call: ToolCall, content: Any = "found") -> Message:
    return Message("tool", content, tool_call_id=call.id)
