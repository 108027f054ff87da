"""A run's events in the stream protocols of chat clients: the same log in other words, with the same ids as cursor.

A dialect is read from the run's first event on, whatever the client has already: what an event becomes depends on those
before it (a text that is open, say). What the client has is then left out, so that a stream that was cut goes on as if it
had not been.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from app.events.frames import read
from app.infra.lines import one_line
from app.infra.telemetry import log
from app.loop.events import TERMINAL_TYPES, MessageDelta, RunWaiting

Chunk = dict[str, Any]
"""One JSON object of the protocol."""

StillWaits = Callable[[Mapping[str, Any]], Awaitable[bool]]
"""Whether the run waits even now for what a `run.waiting` event names."""


class Dialect(Protocol):
    """Of one stream. It is told every event of the run, in order, and keeps what of them is open."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def end(self) -> bytes:
        """What stands at the end of a stream that was whole."""

    async def chunks(self, event: Mapping[str, Any]) -> list[Chunk]: ...

    async def forget(self, message_id: str) -> list[Chunk]:
        """For a client that was cut off inside a message whose deltas are lost since: it comes anew, as one."""

    def broken_off(self, message: str) -> list[Chunk]:
        """What tells a client that this stream is no more, though its run may go on."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A native event with `seq`; `has_id` is false for a `message.discarded` that is for one client only."""

    event: dict[str, Any]
    seq: int
    has_id: bool


async def spoken(
    frames: AsyncIterator[bytes], dialect: Dialect, after: int, still_waits: StillWaits
) -> AsyncIterator[bytes]:
    """A run's native SSE frames from its first on, in a dialect, from after a seq.

    The stream ends with the run, or where the run waits: clients of these protocols answer a question when the stream that
    asked it is over, and come back. They take a stream that just ends for a good end, so one that breaks off says so.
    """
    before, is_whole = 0, False
    try:
        async for part in frames:
            shown: list[bytes] = []
            for block in part.split(b"\n\n"):
                if not block or block.startswith((b":", b"retry:")):
                    shown += [block, b"\n\n"] if block else []
                    continue
                told = _told(block)
                if told.seq > after > before and told.has_id and told.event["type"] == MessageDelta.type:
                    shown += _frames(await dialect.forget(told.event["message_id"]), None)
                before = told.seq
                chunks = await dialect.chunks(told.event)
                if told.seq <= after:
                    continue
                shown += _frames(chunks, told.seq if told.has_id else None)
                if told.event["type"] in TERMINAL_TYPES or await _stops_here(told.event, still_waits):
                    is_whole = True
                    break
            if is_whole:
                shown.append(dialect.end)
            if shown:
                yield b"".join(shown)
            if is_whole:
                return
    except Exception as error:
        log.warning("stream_broken_off", error=type(error).__name__)
        yield b"".join(_frames(dialect.broken_off("The stream broke off; the run may go on."), None))
        raise
    yield b"".join(_frames(dialect.broken_off("The stream ended before its run."), None))


async def _stops_here(event: Mapping[str, Any], still_waits: StillWaits) -> bool:
    return event["type"] == RunWaiting.type and await still_waits(event)


def _told(block: bytes) -> _Told:
    event = read(block)
    return _Told(event, event["seq"], block.startswith(b"id:"))


def _frames(chunks: list[Chunk], seq: int | None) -> list[bytes]:
    """SSE frames. The last one of an event bears its id: a client that has it has all of them."""
    frames = [b"data: %s\n\n" % one_line(orjson.dumps(chunk)) for chunk in chunks]
    if frames and seq is not None:
        frames[-1] = b"id: %d\n%s" % (seq, frames[-1])
    return frames
