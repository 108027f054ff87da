"""The client of chat-completions APIs: OpenAI's own and the many that speak its format."""

from collections.abc import Mapping

import httpx

from app.loop.messages import FinishReason, Reply
from app.loop.ports import ModelRequest
from app.providers.answer import receive
from app.providers.client import ModelSettings, Show
from app.providers.openai_request import CAPABILITIES, RESERVED_OPTIONS, request_body
from app.providers.openai_stream import ReplyStream
from app.providers.transport import Clocks, StallClock

__all__ = ["CAPABILITIES", "RESERVED_OPTIONS", "OpenAIClient"]


class OpenAIClient:
    """Asks one account of one server. `provider` is the name before the slash of its models, `http` the shared client.

    `base_url` ends in `/v1` or whatever stands before `/chat/completions` there. `headers` are the caller's additions.
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
        self._base_url = base_url.rstrip("/")
        self._api_key = (api_key or "").strip()
        self._headers = dict(headers or {})
        self._clocks = clocks or Clocks()

    async def reply(self, request: ModelRequest, settings: ModelSettings, show: Show) -> Reply:
        body = request_body(request, settings, self._provider, self._base_url)
        clock = StallClock(self._clocks)
        stream = ReplyStream(
            f"{self._provider}/{settings.model}",
            [tool.name for tool in request.tools],
            show,
            clock.content,
            think_tags=settings.options.get("think_tags"),
            secrets=self._secrets(),
        )
        url, headers = f"{self._base_url}/chat/completions", self._all_headers()
        await receive(self._http, url, headers, body, stream, clock, self._secrets())
        return _settled(stream.reply(), settings)

    def _all_headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **self._headers}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        return headers

    def _secrets(self) -> tuple[str, ...]:
        return (self._api_key, *self._headers.values())


def _settled(reply: Reply, settings: ModelSettings) -> Reply:
    """With finish reason `length` where the output limit was used up to the last token, whatever the server said."""
    limit = settings.options.get("max_output_tokens")
    if not reply.calls or not isinstance(limit, int) or not 0 < limit <= reply.usage.output_tokens:
        return reply
    return Reply(reply.text, reply.calls, reply.reasoning, FinishReason.LENGTH, reply.usage, native=reply.native)
