"""The client of Anthropic's Messages API and of the servers that speak its format."""

from collections.abc import Mapping

import httpx

from app.loop.messages import Reply
from app.loop.ports import ModelRequest
from app.providers.answer import receive
from app.providers.anthropic_request import CAPABILITIES, RESERVED_OPTIONS, request_body
from app.providers.anthropic_stream import ReplyStream
from app.providers.client import ModelSettings, Show
from app.providers.transport import Clocks, StallClock

__all__ = ["CAPABILITIES", "RESERVED_OPTIONS", "AnthropicClient"]

_API_VERSION = "2023-06-01"


class AnthropicClient:
    """Asks one account of one server. `provider` is the name before the slash of its models, `http` the shared client.

    `base_url` is what stands before `/v1/messages`. `headers` are the caller's additions (`anthropic-beta`, …) and win
    over the client's own.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        provider: str,
        base_url: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self._http = http
        self._provider = provider
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/messages"
        self._api_key = (api_key or "").strip()
        self._headers = dict(headers or {})
        self._clocks = clocks or Clocks()

    async def reply(self, request: ModelRequest, settings: ModelSettings, show: Show) -> Reply:
        body = request_body(request, settings, self._provider)
        clock = StallClock(self._clocks)
        secrets = (self._api_key, *self._headers.values())
        stream = ReplyStream(f"{self._provider}/{settings.model}", show, clock.content, secrets=secrets)
        await receive(self._http, self._url, self._all_headers(), body, stream, clock, secrets)
        return stream.reply()

    def _all_headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "anthropic-version": _API_VERSION,
        }
        if self._api_key:
            headers["x-api-key"] = self._api_key
        return {**headers, **{name.lower(): value for name, value in self._headers.items()}}
