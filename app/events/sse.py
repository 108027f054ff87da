"""Events as a server-sent stream: the headers that keep proxies from holding it back, and the pings."""

from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

from app.infra.telemetry import OPEN_STREAMS

PING_SECONDS = 15.0

HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


def event_stream(frames: AsyncIterator[bytes], headers: dict[str, str] | None = None) -> StreamingResponse:
    """Answer with frames as they come. The first byte goes out at once."""
    return StreamingResponse(_counted(frames), headers={**HEADERS, **(headers or {})}, media_type="text/event-stream")


async def _counted(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    OPEN_STREAMS.inc()
    try:
        async for part in frames:
            yield part
    finally:
        OPEN_STREAMS.dec()
