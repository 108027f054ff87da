"""Who follows which run in this process. Followers of a run share one channel, and all channels one Redis connection.

A channel keeps the latest groups of its run in memory, within a bound. A follower has nothing but a cursor: when it comes
too late for the memory, it reads the stream. So a slow client costs no memory.

The same connection carries short words from process to process (`WORDS`): they only save waiting, so any may be lost.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from app.events.frames import Group
from app.infra.redis import Line
from app.infra.telemetry import log

_MEMORY_BYTES = 256 * 1024
_READ_SECONDS = 20.0
WORDS = "rondo:words"
GONE = b"gone"
"""In the place of a group: the run was erased."""


def channel_name(run_id: str) -> str:
    return f"rondo:live:{run_id}"


def encode_head(group: Group) -> bytes:
    return b"%d %d %d" % (group.first, group.last, group.ends)


def decode_group(head: bytes, frames: bytes) -> Group:
    first, last, ends = head.split(b" ")
    return Group(int(first), int(last), frames, ends == b"1")


class Channel:
    """`generation` grows whenever groups may have been missed; a follower then reads the stream again."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.followers = 0
        self.is_local = False
        self.is_gone = False
        self.generation = 0
        self.subscribed = asyncio.Event()
        self._recent: deque[Group] = deque()
        self._bytes = 0
        self._top = 0
        self._waiters: list[asyncio.Future[bool]] = []

    def add(self, group: Group) -> None:
        if group.last <= self._top:
            return
        self._recent.append(group)
        self._bytes += len(group.frames)
        self._top = group.last
        while self._bytes > _MEMORY_BYTES and len(self._recent) > 1:
            self._bytes -= len(self._recent.popleft().frames)
        self.notify()

    def missed(self) -> None:
        self.generation += 1
        self.notify()

    def gone(self) -> None:
        self.is_gone = True
        self.notify()

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _set(waiter, True)

    def since(self, cursor: int) -> list[Group] | None:
        """The groups after a seq; None when the memory does not reach back so far."""
        groups: list[Group] = []
        for group in reversed(self._recent):  # what a follower has not seen yet is nearly always the last one
            if group.last <= cursor:
                break
            groups.append(group)
        groups.reverse()
        return groups if not groups or groups[0].first <= cursor + 1 else None

    async def wait(self, cursor: int, seconds: float) -> bool:
        """Wait until there is more than `cursor`, or anything else to look at; False when the time is up."""
        return self._top > cursor or await self.changed(seconds)

    async def changed(self, seconds: float) -> bool:
        """Wait for whatever comes next; False when the time is up."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        self._waiters.append(woken)
        timer = loop.call_later(seconds, _set, woken, False)
        try:
            return await woken
        finally:
            timer.cancel()


class Hub:
    """The channels of this process, and the one subscription to what other processes write."""

    def __init__(self, line: Line) -> None:
        self.closing = False
        self._line = line
        self._channels: dict[str, Channel] = {}
        self._pubsub: PubSub | None = None
        self._task: asyncio.Task[None] | None = None
        self._hear: Callable[[str], None] = lambda _: None
        self._commands = asyncio.Lock()
        """One command at a time: two first ones at once would each open a connection, and one of them be forgotten."""
        line.on_change.append(self._line_changed)

    def start(self, hear: Callable[[str], None]) -> None:
        """Listen for the words of other processes and, while there are followers, for what they follow."""
        self._hear = hear
        self._pubsub = self._line.redis.pubsub()
        self._task = asyncio.create_task(self._listen(), name="event-hub")

    def close_streams(self) -> None:
        """End all followers: their clients come back to another process with their last id."""
        self.closing = True
        self._notify_all()

    def _line_changed(self) -> None:
        """Followers turn to the rows while Redis is away, and read the stream again when it is back."""
        for channel in self._channels.values():
            channel.missed()

    def _notify_all(self) -> None:
        for channel in self._channels.values():
            channel.notify()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._pubsub is not None:
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]

    def deliver(self, run_id: str, group: Group) -> None:
        """Hand a group that this process wrote to its own followers."""
        channel = self._channels.get(run_id)
        if channel is not None:
            channel.add(group)

    def gone(self, run_id: str) -> None:
        """The run was erased: its followers here end."""
        if (channel := self._channels.get(run_id)) is not None:
            channel.gone()

    def open_local(self, run_id: str) -> None:
        """This process is going to write the run's log: its followers are served from memory."""
        channel = self._channels.setdefault(run_id, Channel(run_id))
        channel.is_local = True

    def close_local(self, run_id: str) -> None:
        """This process writes no more. Followers that are left (of a run that goes on elsewhere) turn to Redis."""
        channel = self._channels.get(run_id)
        if channel is None:
            return
        channel.is_local = False
        if channel.followers == 0:
            del self._channels[run_id]
        else:
            _later(self._subscribe(channel))

    @asynccontextmanager
    async def join(self, run_id: str) -> AsyncIterator[Channel]:
        """Follow a run. The channel's generation grows when its subscription stands: what is read after that has no gap."""
        channel = self._channels.setdefault(run_id, Channel(run_id))
        channel.followers += 1
        try:
            if not channel.is_local:
                await self._subscribe(channel)
            yield channel
        finally:
            channel.followers -= 1
            if channel.followers == 0 and not channel.is_local and self._channels.get(run_id) is channel:
                del self._channels[run_id]
                _later(self._unsubscribe(run_id))

    async def _subscribe(self, channel: Channel) -> None:
        """Where that fails, the listener subscribes anew when it has reconnected."""
        async with self._commands:
            if self._pubsub is None or channel.subscribed.is_set() or not self._line.is_up:
                return
            try:
                await self._pubsub.subscribe(channel_name(channel.run_id))
            except (RedisError, OSError, RuntimeError) as error:
                self._line.cut(error)

    async def _unsubscribe(self, run_id: str) -> None:
        async with self._commands:
            if run_id in self._channels or self._pubsub is None or not self._line.is_up:
                return
            try:
                await self._pubsub.unsubscribe(channel_name(run_id))
            except (RedisError, OSError, RuntimeError) as error:
                self._line.cut(error)

    async def _listen(self) -> None:
        failures = 0
        while True:
            assert self._pubsub is not None
            try:
                if not self._pubsub.subscribed:
                    await self._resubscribe()
                message = await self._pubsub.get_message(ignore_subscribe_messages=False, timeout=_READ_SECONDS)
                failures = 0
                if message is not None:
                    self._take(message)
            except (RedisError, OSError, RuntimeError) as error:
                failures += 1
                log.warning("event_hub_unreachable", error=type(error).__name__, failures=failures)
                await asyncio.sleep(min(0.05 * 2 ** min(failures, 5), 1.0))
                await self._reconnect()

    def _take(self, message: dict[str, Any]) -> None:
        name = message["channel"].decode()
        if name == WORDS:
            if message["type"] == "message":
                self._hear(message["data"].decode())
            return
        channel = self._channels.get(name.rpartition(":")[2])
        if channel is None:
            return
        if message["type"] == "subscribe":
            channel.subscribed.set()
            channel.missed()
        elif message["type"] == "message" and message["data"] == GONE:
            channel.gone()
        elif message["type"] == "message":
            head, _, frames = message["data"].partition(b"\n")
            channel.add(decode_group(head, frames))

    async def _reconnect(self) -> None:
        """A new connection; every channel is subscribed anew, and its followers read what they missed."""
        async with self._commands:
            if self._pubsub is not None:
                await self._pubsub.aclose()  # type: ignore[no-untyped-call]
            self._pubsub = self._line.redis.pubsub()
            for channel in self._channels.values():
                channel.subscribed.clear()

    async def _resubscribe(self) -> None:
        assert self._pubsub is not None
        names = [channel_name(channel.run_id) for channel in self._channels.values() if not channel.is_local]
        async with self._commands:
            await self._pubsub.subscribe(WORDS, *names)


def _set(future: "asyncio.Future[bool]", value: bool) -> None:
    if not future.done():
        future.set_result(value)


_background: set[asyncio.Task[None]] = set()


def _later(work: object) -> None:
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    _background.add(task)
    task.add_done_callback(_background.discard)
