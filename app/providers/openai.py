"""The client of chat-completions APIs: OpenAI's own and the many that speak its format."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import httpx
import orjson

from app.loop.messages import FinishReason, Reply
from app.loop.ports import ModelRequest
from app.providers.client import ModelSettings, ProviderError, ProviderErrorKind, Show
from app.providers.errors import http_error
from app.providers.openai_request import CAPABILITIES, RESERVED_OPTIONS, request_body
from app.providers.openai_stream import ReplyStream, chunk_of
from app.providers.sse import FrameSplitter, FrameTooLarge
from app.providers.transport import Clocks, StallClock, byte_stream, drain, exchange, read_at_most

__all__ = ["CAPABILITIES", "MAX_REPLY_BYTES", "RESERVED_OPTIONS", "OpenAIClient"]

MAX_REPLY_BYTES = 128 * 1024 * 1024
"""Of one answer on the wire, where each token takes some hundred bytes."""

_MAX_ERROR_BYTES = 64 * 1024
_MAX_WHOLE_BYTES = 32 * 1024 * 1024


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
        body = encoded(request_body(request, settings, self._provider, self._base_url))
        clock = StallClock(self._clocks)
        stream = ReplyStream(
            f"{self._provider}/{settings.model}",
            [tool.name for tool in request.tools],
            show,
            clock.content,
            think_tags=settings.options.get("think_tags"),
            secrets=self._secrets(),
        )
        try:
            async with exchange(self._http, f"{self._base_url}/chat/completions", self._all_headers(), body, clock) as got:
                await self._read(got, stream, clock)
        except ProviderError:
            # After its finish reason nothing of an answer is missing, however the connection ended.
            if not stream.finished:
                raise
        return _settled(stream.reply(), settings)

    async def _read(self, response: httpx.Response, stream: ReplyStream, clock: StallClock) -> None:
        if not 200 <= response.status_code < 300:
            error = await read_at_most(response, _MAX_ERROR_BYTES, clock)
            raise http_error(response.status_code, response.headers, error, self._secrets())
        if response.headers.get("content-type", "").startswith("application/json"):
            stream.whole(chunk_of(await read_at_most(response, _MAX_WHOLE_BYTES, clock)))
            return
        async with aclosing(byte_stream(response)) as chunks:
            await _read_frames(chunks, stream, clock)

    def _all_headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **self._headers}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        # A bad header's text would be in the exception that the transport raises.
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise ProviderError(ProviderErrorKind.AUTH, "The provider's key or headers hold characters that none may.")
        return headers

    def _secrets(self) -> tuple[str, ...]:
        return (self._api_key, *self._headers.values())


async def _read_frames(chunks: AsyncIterator[bytes], stream: ReplyStream, clock: StallClock) -> None:
    splitter = FrameSplitter()
    total = 0
    try:
        async for chunk in chunks:
            clock.heard()
            total += len(chunk)
            for frame in splitter.feed(chunk):
                if stream.accept(frame.data, frame.event):
                    _require_answer(stream)
                    await drain(chunks)
                    return
            if stream.finished:
                clock.finished()
            if total > MAX_REPLY_BYTES:
                raise _unavailable("The provider's answer is too long.")
    except FrameTooLarge as error:
        raise _unavailable("The provider sent an event that is too long.") from error
    last = splitter.end()
    done = last is not None and stream.accept(last.data, last.event)
    _require_answer(stream)
    if not done and not stream.finished:
        raise _unavailable("The provider ended its answer in the middle.")


def _require_answer(stream: ReplyStream) -> None:
    if not stream.began:
        raise _unavailable("The provider ended the stream without an answer.")


def _unavailable(message: str) -> ProviderError:
    return ProviderError(ProviderErrorKind.UNAVAILABLE, message)


def encoded(body: dict[str, Any]) -> bytes:
    """The body as JSON. Raises `ProviderError` for what a caller's option or schema holds that is none."""
    try:
        return orjson.dumps(body, default=_plain)
    except (TypeError, ValueError) as error:
        message = "The request holds something that is no JSON."
        raise ProviderError(ProviderErrorKind.REJECTED, message) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value).__name__)


def _settled(reply: Reply, settings: ModelSettings) -> Reply:
    """With finish reason `length` where the output limit was used up to the last token, whatever the server said."""
    limit = settings.options.get("max_output_tokens")
    if not reply.calls or not isinstance(limit, int) or not 0 < limit <= reply.usage.output_tokens:
        return reply
    return Reply(reply.text, reply.calls, reply.reasoning, FinishReason.LENGTH, reply.usage, native=reply.native)
