"""One call of the chat-completions client against played bytes."""

from typing import Any

import httpx

from app.loop.messages import Message
from app.loop.ports import CheckedArguments, ModelRequest, OfferedTool
from app.providers.client import ModelSettings, ProviderError
from app.providers.openai import OpenAIClient
from app.providers.transport import Clocks, http_client
from tests.providers.model_server import Answer, ModelServer

TOOL = OfferedTool("f", "Does f.", {"type": "object"}, CheckedArguments)


class Asked:
    """The reply, or the error, and what was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str]] = []
        self.reply: Any = None
        self.error: Any = None

    def text(self, kind: str) -> str:
        return "".join(text for shown, text in self.shown if shown == kind)


async def ask(
    server: ModelServer,
    *answers: Answer,
    options: dict[str, Any] | None = None,
    clocks: Clocks | None = None,
    http: httpx.AsyncClient | None = None,
    api_key: str = "s3cret",
) -> Asked:
    """Play the answers and ask once; without `http` a client is made and closed for it."""
    server.play(*answers)
    if http is None:
        async with http_client() as made:
            return await _asked(server, made, options, clocks, api_key)
    return await _asked(server, http, options, clocks, api_key)


async def _asked(
    server: ModelServer, http: httpx.AsyncClient, options: dict[str, Any] | None, clocks: Clocks | None, api_key: str
) -> Asked:
    asked = Asked()
    client = OpenAIClient(http, provider="openai", base_url=server.base_url, api_key=api_key, clocks=clocks)
    request = ModelRequest(1, "msg_1", (Message("user", "hi"),), (TOOL,))
    settings = ModelSettings("gpt", options or {})
    try:
        asked.reply = await client.reply(request, settings, lambda kind, text: asked.shown.append((kind, text)))
    except ProviderError as error:
        asked.error = error
    return asked
