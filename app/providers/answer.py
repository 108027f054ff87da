"""One exchange with a model API, whatever its format: send the body, and feed what comes to whoever knows the format."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

import httpx
import orjson

from app.providers.client import ProviderError, ProviderErrorKind
from app.providers.errors import http_error
from app.providers.sse import FrameSplitter, FrameTooLarge
from app.providers.transport import StallClock, byte_stream, drain, exchange, read_at_most

MAX_REPLY_BYTES = 128 * 1024 * 1024
"""Of one answer on the wire, where each token takes some hundred bytes."""

_MAX_ERROR_BYTES = 64 * 1024
_MAX_WHOLE_BYTES = 32 * 1024 * 1024


class AnswerStream(Protocol):
    """What folds an answer together. `began`: there is some of it; `finished`: the model said that it is done."""

    began: bool
    finished: bool

    def accept(self, data: bytes, event: str = "") -> bool:
        """Fold in one frame; true when it says that the stream is done."""
        ...

    def whole(self, body: bytes) -> None:
        """Fold in an answer that came in one piece."""
        ...


async def receive(
    http: httpx.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    body: dict[str, Any],
    stream: AnswerStream,
    clock: StallClock,
    secrets: tuple[str, ...],
) -> None:
    """POST the body and fold the whole answer into the stream. Raises `ProviderError` only."""
    content, checked = encoded(body), _checked(headers)
    try:
        async with exchange(http, url, checked, content, clock) as response:
            await _read(response, stream, clock, secrets)
    except ProviderError:
        # After its finish reason nothing of an answer is missing, however the connection ended.
        if not stream.finished:
            raise


async def _read(response: httpx.Response, stream: AnswerStream, clock: StallClock, secrets: tuple[str, ...]) -> None:
    if not 200 <= response.status_code < 300:
        error = await read_at_most(response, _MAX_ERROR_BYTES, clock)
        raise http_error(response.status_code, response.headers, error, secrets)
    if response.headers.get("content-type", "").startswith("application/json"):
        stream.whole(await read_at_most(response, _MAX_WHOLE_BYTES, clock))
        return
    async with aclosing(byte_stream(response)) as chunks:
        await _read_frames(chunks, stream, clock)


async def _read_frames(chunks: AsyncIterator[bytes], stream: AnswerStream, clock: StallClock) -> None:
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


def _require_answer(stream: AnswerStream) -> None:
    if not stream.began:
        raise _unavailable("The provider ended the stream without an answer.")


def _unavailable(message: str) -> ProviderError:
    return ProviderError(ProviderErrorKind.UNAVAILABLE, message)


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The same headers. A bad one's text would be in the exception that the transport raises, so it is refused here."""
    if not all(value.isascii() and value.isprintable() for value in headers.values()):
        raise ProviderError(ProviderErrorKind.AUTH, "The provider's key or headers hold characters that none may.")
    return headers


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
