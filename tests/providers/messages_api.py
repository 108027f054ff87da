"""One call of the Messages API client against played bytes, and the events that such a server sends."""

import json
from typing import Any

import httpx

from app.loop.messages import Message
from app.loop.ports import ModelRequest
from app.providers.anthropic import AnthropicClient
from app.providers.client import ModelSettings, ProviderError
from app.providers.transport import Clocks, http_client
from tests.providers.asking import TOOL, Asked
from tests.providers.model_server import Answer, ModelServer

START = {
    "type": "message_start",
    "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-4-5", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 25, "output_tokens": 1},
    },
}  # fmt: skip
STOP = {"type": "message_stop"}
PING = {"type": "ping"}


def event(data: Any) -> bytes:
    """An event as the API writes it: its type in a line of its own, too."""
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def events(*data: Any, end: Any = "finish") -> Answer:
    """A stream of these events; bytes stand as they are, and a number waits."""
    return Answer([item if isinstance(item, bytes | float) else event(item) for item in data], end=end)


def begun(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def ended(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def finished(reason: str | None, **usage: Any) -> dict[str, Any]:
    message = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": message, "usage": usage or {"output_tokens": 15}}


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    """A whole text block."""
    deltas = [delta(index, "text_delta", text=piece) for piece in pieces]
    return [begun(index, type="text", text=""), *deltas, ended(index)]


def thinking(index: int, *pieces: str, signature: str) -> list[dict[str, Any]]:
    """A whole block of thinking with its signature."""
    deltas = [delta(index, "thinking_delta", thinking=piece) for piece in pieces]
    deltas.append(delta(index, "signature_delta", signature=signature))
    return [begun(index, type="thinking", thinking="", signature=""), *deltas, ended(index)]


def call(index: int, id: str, name: str, *fragments: str, kind: str = "tool_use") -> list[dict[str, Any]]:
    """A whole call, its input in fragments."""
    deltas = [delta(index, "input_json_delta", partial_json=fragment) for fragment in fragments]
    return [begun(index, type=kind, id=id, name=name, input={}), *deltas, ended(index)]


async def ask(
    server: ModelServer,
    *answers: Answer,
    messages: tuple[Message, ...] = (Message("user", "hi"),),
    clocks: Clocks | None = None,
    http: httpx.AsyncClient | None = None,
    api_key: str = "s3cret",
    **client: Any,
) -> Asked:
    """Play the answers and ask once; without `http` a client is made and closed for it."""
    server.play(*answers)
    if http is None:
        async with http_client() as made:
            return await ask(server, messages=messages, clocks=clocks, http=made, api_key=api_key, **client)
    client.setdefault("base_url", server.address)
    asked = Asked()
    model = AnthropicClient(http, provider="anthropic", api_key=api_key, clocks=clocks, **client)
    try:
        asked.reply = await model.reply(
            ModelRequest(1, "msg_1", messages, (TOOL,)),
            ModelSettings("claude-opus-4-5", {}),
            lambda kind, text: asked.shown.append((kind, text)),
        )
    except ProviderError as error:
        asked.error = error
    return asked
