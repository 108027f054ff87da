"""The one writer of a run's events. It gives the seqs, joins adjacent deltas while an append is under way, and keeps count
of what is still to be stored with the rows.

An event that stands for a stored change is reserved first (its seq is stored with the change) and released when the change
is committed; what comes after it waits behind it.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.events.frames import Group, KeptEvent, frame, is_terminal, kept
from app.events.log import EventLog
from app.infra import clock
from app.infra.errors import LeaseLost
from app.loop.events import (
    Event,
    GuardHint,
    IterationCompleted,
    IterationStarted,
    MessageCompleted,
    MessageDelta,
    ReasoningDelta,
    ToolInvoking,
)

_JOIN_FROM = 16
"""With so many events waiting for an append, further deltas of a message are joined into its last one."""
_MAX_GROUP_EVENTS = 500


@dataclass(slots=True)
class _Item:
    seq: int
    at: str
    event: Event | None
    texts: list[str] | None = None
    """The pieces of a delta that may still grow."""


class RunLog:
    """Writes from `last_seq + 1` on. `shown` are the events that an earlier owner has shown and that are not shown again."""

    def __init__(
        self,
        log: EventLog,
        run_id: str,
        epoch: int,
        last_seq: int = 0,
        shown: Iterable[tuple[object, ...]] = (),
        *,
        in_session: bool = False,
    ) -> None:
        self.run_id = run_id
        self._in_session = in_session
        self._log, self._epoch = log, epoch
        self._seq = last_seq
        self._shown = set(shown)
        self._items: deque[_Item] = deque()
        self._unkept: list[KeptEvent] = []
        self._delta_seqs: dict[str, int] = {}
        self._flushing: asyncio.Task[None] | None = None
        self._refused = False
        log.hub.open_local(run_id)

    @property
    def last_seq(self) -> int:
        return self._seq

    def emit(self, event: Event) -> None:
        """Show an event. One that says the same as an event already shown is dropped."""
        if isinstance(event, MessageDelta | ReasoningDelta):
            self._delta(event)
        else:
            identity = identify(event)
            if identity is not None:
                if identity in self._shown:
                    return
                self._shown.add(identity)
            item = self._new_item(event)
            self._keep(item.seq, item.at, event)
        self._flush_soon()

    def _delta(self, event: MessageDelta | ReasoningDelta) -> None:
        last = self._items[-1] if self._items else None
        if len(self._items) >= _JOIN_FROM and last is not None and last.texts and _continues(last.event, event):
            last.texts.append(event.text)
            return
        item = self._new_item(event)
        item.texts = [event.text]
        if isinstance(event, MessageDelta):
            self._delta_seqs[event.message_id] = item.seq

    def _new_item(self, event: Event | None) -> _Item:
        self._seq += 1
        item = _Item(self._seq, clock.stamp(), event)
        self._items.append(item)
        return item

    # ---- events that are stored before they are shown

    def reserve(self, event: Event) -> int:
        """Give an event its seq and put it among what the next change stores. It is shown by `release`."""
        item = self._new_item(None)
        self._keep(item.seq, item.at, event)
        return item.seq

    def release(self, seq: int, event: Event) -> None:
        """The change is committed: show its event."""
        next(item for item in self._items if item.seq == seq).event = event
        self._flush_soon()

    def _keep(self, seq: int, at: str, event: Event) -> None:
        message_id = event.message["id"] if isinstance(event, MessageCompleted) else ""
        event_kept = kept(seq, at, event, self._delta_seqs.get(message_id), in_session=self._in_session)
        if event_kept is not None:
            self._unkept.append(event_kept)

    def take_unkept(self) -> list[KeptEvent]:
        """What the next change must store. When that fails for good, the run is over for this process."""
        taken, self._unkept = self._unkept, []
        return taken

    # ---- appending

    def _flush_soon(self) -> None:
        if self._flushing is None and self._items and self._items[0].event is not None:
            self._flushing = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        try:
            while (group := self._next_group()) is not None:
                if not await self._log.append(self.run_id, self._epoch, group):
                    self._refused = True
                    self._items.clear()
        finally:
            self._flushing = None

    def _next_group(self) -> Group | None:
        frames: list[bytes] = []
        first = last = 0
        ends = False
        while self._items and len(frames) < _MAX_GROUP_EVENTS:
            item = self._items[0]
            if item.event is None:
                break
            self._items.popleft()
            event = item.event
            if isinstance(event, MessageDelta | ReasoningDelta) and item.texts is not None and len(item.texts) > 1:
                event = replace(event, text="".join(item.texts))
            frames.append(frame(self.run_id, item.seq, item.at, event))
            first, last = first or item.seq, item.seq
            ends = is_terminal(event)
        return Group(first, last, b"".join(frames), ends) if frames else None

    async def flushed(self) -> None:
        """Wait until everything that may be shown is in the log. Raises LeaseLost if the log refused this writer."""
        while self._flushing is not None:
            await asyncio.shield(self._flushing)
        if self._refused:
            raise LeaseLost

    def close(self) -> None:
        self._log.hub.close_local(self.run_id)


def identify(event: Event) -> tuple[object, ...] | None:
    """What makes two events the same, for those that a resumed run comes by again."""
    match event:
        case IterationStarted() | IterationCompleted():
            return (event.type, event.iteration)
        case ToolInvoking() | GuardHint():
            return (event.type, event.call_id)
        case _:
            return None


def identify_json(body: dict[str, object]) -> tuple[object, ...] | None:
    """The same for an event that is JSON."""
    match body["type"]:
        case IterationStarted.type | IterationCompleted.type:
            return (body["type"], body["iteration"])
        case ToolInvoking.type | GuardHint.type:
            return (body["type"], body["call_id"])
        case _:
            return None


def _continues(earlier: Event | None, event: MessageDelta | ReasoningDelta) -> bool:
    if isinstance(event, MessageDelta):
        return isinstance(earlier, MessageDelta) and earlier.message_id == event.message_id
    return isinstance(earlier, ReasoningDelta) and earlier.iteration == event.iteration
