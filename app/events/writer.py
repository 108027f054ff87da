"""The one writer of a run's events. It gives the seqs, joins adjacent deltas while an append is under way, and keeps count
of what is still to be stored with the rows.

An event that stands for a stored change is reserved first (its seq is stored with the change) and released when the change
is committed; what comes after it waits behind it.

A seq, once shown, is never given to another event, also when the log is lost and its writer dies at the same time. So the
run's row holds a seq beyond which nothing was shown (`reserved_seq`): it is set at the start and raised by statements that
are written anyway, far enough ahead that a message seldom needs one of its own. A new owner that finds no log goes on above
it. What its predecessor may have shown and not stored are deltas, and right after the last stored event those that a
resumed loop comes by again (an iteration's start, a call's): these get the very same seqs, as they come in the same order.
What no loop comes by again, that a message was discarded, is stored before it is shown.

While the log is behind, what waits is bounded: beyond the bound deltas are dropped, a message's for good until it is
complete or discarded, and events that stand in rows. Readers see the gap and take what is missing from the rows.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from app.events.frames import Group, KeptEvent, frame, is_terminal, kept
from app.events.likeness import continues, identify, subject
from app.events.log import EventLog
from app.events.ownership import Holder, Resumption
from app.infra import clock
from app.infra.errors import LeaseLost
from app.infra.telemetry import EVENTS_DROPPED, log
from app.loop.events import (
    Event,
    MessageCompleted,
    MessageDelta,
    MessageDiscarded,
    ReasoningDelta,
)

AHEAD = 1024
"""How many seqs are reserved beyond the latest one."""
_JOIN_FROM = 16
"""With so many events waiting for an append, further deltas of a message are joined into its last one."""
_MAX_GROUP_EVENTS = 500
_MAX_GROUP_BYTES = 256 * 1024
_DELTA_BYTES = 300
"""About what a delta takes beside its text."""


@dataclass(slots=True)
class _Item:
    seq: int
    at: str
    event: Event | None
    frame: bytes = b""
    texts: list[str] | None = None
    """The pieces of a delta that may still grow."""
    size: int = 0


class RunLog:
    """Writes from `last_seq + 1` on.

    `shown` are the events that an earlier owner has shown and that are not shown again, `unkept` those that it had no more
    time to store.
    """

    def __init__(
        self,
        log: EventLog,
        run_id: str,
        epoch: int,
        last_seq: int = 0,
        shown: Iterable[tuple[object, ...]] = (),
        unkept: Iterable[KeptEvent] = (),
        *,
        holder: Holder | None = None,
        reserved: int = AHEAD,
        in_session: bool = False,
        resumption: Resumption | None = None,
    ) -> None:
        self.run_id = run_id
        self._in_session = in_session
        self._log, self._epoch, self._holder = log, epoch, holder
        self._seq = self._stored = last_seq
        self._reserved = max(reserved, last_seq)
        self._shown = set(shown)
        self._items: deque[_Item] = deque()
        self._unkept = list(unkept)
        self._delta_seqs: dict[str, int] = {}
        self._cut: set[object] = set()
        self._to_keep = 0
        """The latest event that must be stored before it is shown."""
        self._bytes = 0
        self._flushing: asyncio.Task[None] | None = None
        self._reserving: asyncio.Task[None] | None = None
        self._refused = False
        self._resumption, self._is_held = resumption, resumption is not None
        log.hub.open_local(run_id)
        if resumption is not None and resumption.above is None:
            self.begin()

    @property
    def last_seq(self) -> int:
        return self._seq

    @property
    def to_reserve(self) -> int:
        """Up to where a statement that is written now should reserve."""
        return self._seq + AHEAD

    @property
    def is_held(self) -> bool:
        """Whether the preamble is still to be stored."""
        return self._is_held

    def begin(self) -> None:
        """From here on everything is new, other than what an earlier owner has shown."""
        resumption, self._resumption = self._resumption, None
        if resumption is not None:
            self._seq = max(self._seq, resumption.above or 0)
            for event in resumption.preamble:
                self.emit(event)

    def emit(self, event: Event) -> None:
        """Show an event. One that says the same as an event already shown is dropped."""
        if isinstance(event, MessageDelta | ReasoningDelta):
            self._delta(event)
        else:
            identity = identify(event)
            if identity is None:
                self.begin()
            elif identity in self._shown:
                return
            else:
                self._shown.add(identity)
            item = self._new_item(event)
            if isinstance(event, MessageDiscarded):
                self._mend(event.message_id)
                self._to_keep = item.seq
            self._keep(item.seq, item.at, event)
        self._flush_soon()

    def _delta(self, event: MessageDelta | ReasoningDelta) -> None:
        self.begin()
        if subject(event) in self._cut:
            EVENTS_DROPPED.inc()
            return
        last = self._items[-1] if self._items else None
        if len(self._items) >= _JOIN_FROM and last is not None and last.texts and continues(last.event, event):
            last.texts.append(event.text)
            self._grow(last, len(event.text))
            return
        self._seq += 1
        item = _Item(self._seq, clock.stamp(), event, texts=[event.text])
        self._items.append(item)
        if isinstance(event, MessageDelta):
            self._delta_seqs[event.message_id] = item.seq
        self._grow(item, _DELTA_BYTES + len(event.text))

    def _new_item(self, event: Event | None) -> _Item:
        if self._resumption is not None and self._seq + 1 == self._resumption.until:
            self.begin()
        self._seq += 1
        item = _Item(self._seq, clock.stamp(), event)
        self._items.append(item)
        if event is not None:
            self._fill(item, event)
        return item

    def _fill(self, item: _Item, event: Event) -> None:
        item.event, item.frame = event, frame(self.run_id, item.seq, item.at, event)
        self._grow(item, len(item.frame))

    # ---- events that are stored before they are shown

    def reserve(self, event: Event) -> int:
        """Give an event its seq and put it among what the next change stores. It is shown by `release`."""
        self.begin()
        item = self._new_item(None)
        self._keep(item.seq, item.at, event)
        return item.seq

    def release(self, seq: int, event: Event) -> None:
        """The change is committed: show its event."""
        if isinstance(event, MessageCompleted):
            self._mend(event.message["id"])
        item = next((item for item in self._items if item.seq == seq), None)
        if item is not None:  # None: the log has refused this writer
            self._fill(item, event)
        self.stored(seq)

    def stored(self, seq: int, reserved: int = 0) -> None:
        """All events up to this seq stand in the rows, and seqs up to `reserved` may be shown."""
        self._stored = max(self._stored, seq)
        self._reserved = max(self._reserved, reserved, seq)
        self._is_held = False
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

    # ---- what waits is bounded

    def _grow(self, item: _Item, size: int) -> None:
        item.size += size
        self._bytes += size
        room = self._log.room
        room.used += size
        if self._bytes > room.per_run or room.used > room.total:
            self._shed()

    def _shed(self) -> None:
        waiting, self._items = self._items, deque()
        dropped = 0
        for item in waiting:
            if self._must_stay(item):
                self._items.append(item)
                continue
            if isinstance(item.event, MessageDelta | ReasoningDelta) and item.seq > self._stored:
                self._cut.add(subject(item.event))
            self._free(item.size)
            dropped += 1
        if dropped:
            EVENTS_DROPPED.inc(dropped)
            log.warning("events_dropped", run_id=self.run_id, events=dropped)

    def _must_stay(self, item: _Item) -> bool:
        """The end, by which followers see that there is no more, and what stands in no row yet."""
        if isinstance(item.event, MessageDelta | ReasoningDelta):
            return False
        return item.event is None or item.seq > self._stored or is_terminal(item.event)

    def _mend(self, message_id: str) -> None:
        """The message is complete, or begun anew."""
        self._cut.discard(message_id)
        self._cut = {cut for cut in self._cut if isinstance(cut, str)}

    def _free(self, size: int) -> None:
        self._bytes -= size
        self._log.room.used -= size

    # ---- appending

    def _flush_soon(self) -> None:
        if self._flushing is None and not self._is_held and self._items and self._items[0].event is not None:
            self._flushing = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        try:
            while not self._refused and (next_group := self._next_group()) is not None:
                group, size = next_group
                try:
                    await self._may_show(group.last)
                    if not await self._log.append(self.run_id, self._epoch, group):
                        raise LeaseLost
                finally:
                    self._free(size)
        except LeaseLost:
            self._refused = True
        finally:
            self._flushing = None
            if self._refused:
                self._free(self._bytes)
                self._items.clear()

    async def _may_show(self, seq: int) -> None:
        """Nobody else owns the run, and its row tells that events up to this seq may have been shown."""
        if self._holder is None or seq <= self._stored:
            return
        if self._stored < self._to_keep <= seq:
            kept, reserved = self._to_keep, self.to_reserve
            await self._holder.keep(self.take_unkept, reserved)
            self.stored(kept, reserved)
        await self._holder.confirm()
        if self._reserving is None and seq > self._reserved - AHEAD // 4:
            self._reserving = asyncio.ensure_future(self._reserve_more(self._holder, self._seq + 4 * AHEAD))
        while seq > self._reserved and self._reserving is not None:
            await asyncio.shield(self._reserving)
        if seq > max(self._reserved, self._stored):
            raise LeaseLost

    async def _reserve_more(self, holder: Holder, upto: int) -> None:
        """Ahead of its need, so that seldom anything waits for it."""
        try:
            await holder.reserve(upto)
            self._reserved = max(self._reserved, upto)
        except LeaseLost:
            log.debug("seqs_not_reserved", run_id=self.run_id)  # lost, or ended meanwhile: then all that waits is stored
        finally:
            self._reserving = None

    def _next_group(self) -> tuple[Group, int] | None:
        frames: list[bytes] = []
        first = last = size = 0
        ends = False
        while self._items and len(frames) < _MAX_GROUP_EVENTS and size < _MAX_GROUP_BYTES:
            item = self._items[0]
            if item.event is None or (last and item.seq != last + 1):
                break
            self._items.popleft()
            frames.append(item.frame or self._delta_frame(item, item.event))
            first, last = first or item.seq, item.seq
            size += item.size
            ends = is_terminal(item.event)
        return (Group(first, last, b"".join(frames), ends), size) if frames else None

    def _delta_frame(self, item: _Item, event: Event) -> bytes:
        if isinstance(event, MessageDelta | ReasoningDelta) and item.texts is not None and len(item.texts) > 1:
            event = replace(event, text="".join(item.texts))
        return frame(self.run_id, item.seq, item.at, event)

    async def flushed(self) -> None:
        """Wait until all that may be shown is in the log, unless Redis is away. LeaseLost: this writer was refused."""
        while self._flushing is not None:
            if not await self._log.settled(self._flushing):
                return
        if self._refused:
            raise LeaseLost

    def close(self) -> None:
        self._log.hub.close_local(self.run_id)
