"""One event to its SSE frame, and to what the rows keep of it.

A frame is `id`, `event` and one line of JSON, with LF line ends. Deltas come by the thousand, so their JSON is put together
by hand around one `dumps`; everything else is rare.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import orjson

from app.infra.lines import one_line
from app.loop.events import (
    TERMINAL_TYPES,
    Event,
    IterationCompleted,
    IterationStarted,
    MessageCompleted,
    MessageDelta,
    MessageDiscarded,
    ReasoningDelta,
    RunEnded,
    RunQueued,
    RunResumed,
    RunStarted,
    ToolInvoked,
    ToolInvoking,
)

PING = b": ping\n\n"


@dataclass(frozen=True, slots=True)
class Group:
    """Frames that went to the log together: seqs `first` to `last`, and whether the run ends with them."""

    first: int
    last: int
    frames: bytes
    ends: bool

    def after(self, seq: int) -> "Group":
        """What of it has a greater seq."""
        if seq < self.first:
            return self
        frames = b"".join(frame for number, frame in split(self.frames) if number > seq)
        return Group(seq + 1, self.last, frames, self.ends)


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """What `run_events` keeps: the event without what other rows hold (`ref` names the message or call)."""

    seq: int
    type: str
    at: str
    ref: str | None
    data: dict[str, Any] | None

    def as_row(self) -> dict[str, Any]:
        return {"seq": self.seq, "type": self.type, "at": self.at, "ref": self.ref, "data": self.data}


def frame(run_id: str, seq: int, at: str, event: Event) -> bytes:
    if isinstance(event, MessageDelta):
        body = (
            f'{{"type":"message.delta","run_id":"{run_id}","seq":{seq},"at":"{at}","iteration":{event.iteration},'
            f'"message_id":"{event.message_id}","text":'.encode()
            + orjson.dumps(event.text)
            + b"}"
        )
    else:
        shown = {name: getattr(event, name) for name in _field_names(event)}
        body = orjson.dumps({"type": event.type, "run_id": run_id, "seq": seq, "at": at, **shown})
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, event.type.encode(), one_line(body))


def frame_of_dict(body: dict[str, Any], *, with_id: bool = True) -> bytes:
    """The frame of an event that is already JSON (`type`, `run_id`, `seq`, `at` and its fields)."""
    head = b"id: %d\n" % body["seq"] if with_id else b""
    return head + b"event: %s\ndata: %s\n\n" % (body["type"].encode(), one_line(orjson.dumps(body)))


def split(frames: bytes) -> Iterator[tuple[int, bytes]]:
    """Each frame with its seq."""
    for part in frames.split(b"\n\n"):
        if part:
            yield int(part[4 : part.index(b"\n")]), part + b"\n\n"


def read(frame_bytes: bytes) -> dict[str, Any]:
    """The JSON of one frame."""
    start = frame_bytes.index(b"\ndata: ") + 7
    body: dict[str, Any] = orjson.loads(frame_bytes[start:])
    return body


def is_terminal(event: Event) -> bool:
    return event.type in TERMINAL_TYPES


def kept(seq: int, at: str, event: Event, delta_seq: int | None, *, in_session: bool) -> KeptEvent | None:
    """What is stored of an event; None for deltas, and for the first two, which the run's row tells.

    `in_session`: messages of the run are rows of a session, so that only their id is kept here.
    """
    if isinstance(event, MessageDelta | ReasoningDelta | RunQueued | RunStarted):
        return None
    if isinstance(event, MessageCompleted):
        data: dict[str, Any] = {"iteration": event.iteration, "delta_seq": delta_seq}
        if not in_session:
            data["message"] = event.message
        return KeptEvent(seq, event.type, at, event.message["id"], data)
    if isinstance(event, ToolInvoking | ToolInvoked):
        return KeptEvent(seq, event.type, at, event.call_id, None)
    if isinstance(event, RunEnded):
        return KeptEvent(seq, event.type, at, None, None)
    return KeptEvent(seq, event.type, at, None, {name: getattr(event, name) for name in _field_names(event)})


_FRAME_FIELDS = frozenset({"type", "run_id", "seq", "at"})
_KEPT_WHOLE = frozenset({IterationStarted.type, IterationCompleted.type, MessageDiscarded.type, RunResumed.type})


def kept_of_dict(body: dict[str, Any]) -> KeptEvent | None:
    """What is stored of an event that is JSON already; None for those that are never shown before they are stored."""
    kind, seq, at = body["type"], body["seq"], body["at"]
    if kind == ToolInvoking.type:
        return KeptEvent(seq, kind, at, body["call_id"], None)
    if kind in _KEPT_WHOLE:
        return KeptEvent(seq, kind, at, None, {name: value for name, value in body.items() if name not in _FRAME_FIELDS})
    return None


_names: dict[type, tuple[str, ...]] = {}


def _field_names(event: Event) -> tuple[str, ...]:
    names = _names.get(type(event))
    if names is None:
        names = _names[type(event)] = tuple(field.name for field in fields(event))
    return names
