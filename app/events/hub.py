"""Who follows which run in this process. Followers of a run share one channel, and all channels one Redis connection.

A channel keeps the latest groups of its run in memory, within a bound. A follower has nothing but a cursor: when it comes
too late for the memory, it reads the stream. So a slow client costs no memory.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from app.events.frames import Group
from app.infra.telemetry import log

_MEMORY_BYTES = 256 * 1024


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

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _set(waiter, True)

    def since(self, cursor: int) -> list[Group] | None:
        """The groups after a seq; None when the memory does not reach back so far."""
        if self._top <= cursor:
            return []
        groups = [group for group in self._recent if group.last > cursor]
        return groups if groups[0].first <= cursor + 1 else None

    async def wait(self, cursor: int, seconds: float) -> bool:
        """Wait until there is more than `cursor`, or something may have been missed; False when the time is up."""
        if self._top > cursor:
            return True
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

    def __init__(self, redis: Redis) -> None:
        self.closing = False
        self._redis = redis
        self._channels: dict[str, Channel] = {}
        self._pubsub: PubSub | None = None
        self._task: asyncio.Task[None] | None = None
        self._some = asyncio.Event()
        self._commands = asyncio.Lock()
        """One command at a time: two first ones at once would each open a connection, and one of them be forgotten."""

    def close_streams(self) -> None:
        """End all followers: their clients come back to another process with their last id."""
        self.closing = True
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
            self._start_listening()
            _later(self._subscribe(channel))

    @asynccontextmanager
    async def join(self, run_id: str) -> AsyncIterator[Channel]:
        """Follow a run. The channel's generation grows when its subscription stands: what is read after that has no gap."""
        channel = self._channels.setdefault(run_id, Channel(run_id))
        channel.followers += 1
        try:
            if not channel.is_local:
                self._start_listening()
                await self._subscribe(channel)
            yield channel
        finally:
            channel.followers -= 1
            if channel.followers == 0 and not channel.is_local and self._channels.get(run_id) is channel:
                del self._channels[run_id]
                if self._pubsub is not None:
                    _later(self._unsubscribe(run_id))

    def _start_listening(self) -> None:
        if self._task is None:
            self._pubsub = self._redis.pubsub()
            self._task = asyncio.create_task(self._listen(), name="event-hub")

    async def _subscribe(self, channel: Channel) -> None:
        async with self._commands:
            if self._pubsub is not None and not channel.subscribed.is_set():
                try:
                    await self._pubsub.subscribe(channel_name(channel.run_id))
                except (RedisError, OSError):
                    log.warning("event_hub_unreachable")  # the listener subscribes anew when it has reconnected
                self._some.set()

    async def _unsubscribe(self, run_id: str) -> None:
        async with self._commands:
            if run_id not in self._channels and self._pubsub is not None:
                try:
                    await self._pubsub.unsubscribe(channel_name(run_id))
                except (RedisError, OSError):
                    log.warning("event_hub_unreachable")

    async def _listen(self) -> None:
        failures = 0
        while True:
            await self._some.wait()
            assert self._pubsub is not None
            try:
                if not self._pubsub.subscribed:
                    await self._resubscribe()
                message = await self._pubsub.get_message(ignore_subscribe_messages=False, timeout=None)
                failures = 0
                if message is not None:
                    self._take(message)
            except (RedisError, OSError, RuntimeError) as error:
                failures += 1
                log.warning("event_hub_unreachable", error=type(error).__name__, failures=failures)
                await asyncio.sleep(min(0.05 * 2 ** min(failures, 5), 1.0))
                await self._reconnect()

    def _take(self, message: dict[str, Any]) -> None:
        run_id = message["channel"].decode().rpartition(":")[2]
        channel = self._channels.get(run_id)
        if channel is None:
            return
        if message["type"] == "subscribe":
            channel.subscribed.set()
            channel.missed()
        elif message["type"] == "message":
            head, _, frames = message["data"].partition(b"\n")
            channel.add(decode_group(head, frames))

    async def _reconnect(self) -> None:
        """A new connection; every channel is subscribed anew, and its followers read what they missed."""
        async with self._commands:
            if self._pubsub is not None:
                await self._pubsub.aclose()  # type: ignore[no-untyped-call]
            self._pubsub = self._redis.pubsub()
            for channel in self._channels.values():
                channel.subscribed.clear()

    async def _resubscribe(self) -> None:
        names = [channel_name(channel.run_id) for channel in self._channels.values() if not channel.is_local]
        if not names or self._pubsub is None:
            self._some.clear()
            await self._some.wait()
            return
        async with self._commands:
            await self._pubsub.subscribe(*names)


def _set(future: "asyncio.Future[bool]", value: bool) -> None:
    if not future.done():
        future.set_result(value)


_background: set[asyncio.Task[None]] = set()


def _later(work: object) -> None:
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    _background.add(task)
    task.add_done_callback(_background.discard)
