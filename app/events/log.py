"""The event log of runs: appended to before anybody is shown an event, followed live from any replica.

Each run is a Redis stream. An entry is a group of frames under the id `LAST_SEQ-0`, so that a reader asks for what comes
after a seq. One appender per process writes the waiting groups of all its runs in one pipeline; while it is under way the
next events gather. A script refuses a writer of an older epoch than the log has seen.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from app.events.frames import Group
from app.events.hub import Channel, Hub, channel_name, decode_group, encode_head
from app.infra.telemetry import EVENT_APPENDS, log

_APPEND = """
local held = tonumber(redis.call('GET', KEYS[2]) or '-1')
local epoch = tonumber(ARGV[1])
if held > epoch then return 'stale' end
if held < epoch then redis.call('SET', KEYS[2], ARGV[1]) end
local added = redis.pcall('XADD', KEYS[1], ARGV[2] .. '-0', 'head', ARGV[3], 'frames', ARGV[4])
if type(added) == 'table' and added.err then
  local top = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
  if top[1] and top[1][1] == ARGV[2] .. '-0' then return 'again' end
  return added.err
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('PUBLISH', KEYS[3], ARGV[3] .. '\\n' .. ARGV[4])
return 'ok'
"""

_APPEND_SHA = hashlib.sha1(_APPEND.encode(), usedforsecurity=False).hexdigest()
_READ_COUNT = 200


def stream_key(run_id: str) -> str:
    return f"rondo:events:{{{run_id}}}"


def _epoch_key(run_id: str) -> str:
    return f"rondo:epoch:{{{run_id}}}"


@dataclass(slots=True)
class _Append:
    run_id: str
    epoch: int
    group: Group
    done: "asyncio.Future[bool]"


class EventLog:
    """One per process. `append` and `follow` are its two ends."""

    def __init__(self, redis: Redis, hub: Hub, ttl_seconds: int) -> None:
        self.hub = hub
        self._redis = redis
        self._ttl_ms = ttl_seconds * 1000
        self._waiting: list[_Append] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._append_for_ever(), name="event-log")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def append(self, run_id: str, epoch: int, group: Group) -> "asyncio.Future[bool]":
        """Write a group; done with True when it is in the log, with False when a newer owner is writing it."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(_Append(run_id, epoch, group, done))
        self._wake.set()
        return done

    async def _append_for_ever(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            try:
                answers = await self._write(batch)
                failures = 0
            except Exception as error:  # nothing may end the one task that all runs of the process wait for
                self._waiting = batch + self._waiting
                self._wake.set()
                failures += 1
                unreachable = isinstance(error, RedisError | OSError)
                log.warning("event_log_unreachable", failures=failures, exc_info=None if unreachable else error)
                await asyncio.sleep(min(0.05 * 2 ** min(failures, 5), 1.0))
                continue
            for item, answer in zip(batch, answers, strict=True):
                self._settle(item, answer)

    async def _write(self, batch: list[_Append]) -> list[bytes]:
        """One round trip; two more when Redis has forgotten the script."""
        try:
            return await self._evaluate(batch)
        except NoScriptError:
            await self._redis.script_load(_APPEND)
            return await self._evaluate(batch)

    async def _evaluate(self, batch: list[_Append]) -> list[bytes]:
        pipeline = self._redis.pipeline(transaction=False)
        for item in batch:
            group = item.group
            arguments: list[Any] = [
                stream_key(item.run_id), _epoch_key(item.run_id), channel_name(item.run_id),
                item.epoch, group.last, encode_head(group), group.frames, self._ttl_ms,
            ]  # fmt: skip
            pipeline.evalsha(_APPEND_SHA, 3, *arguments)
        answers: list[bytes] = await pipeline.execute()
        return answers

    def _settle(self, item: _Append, answer: bytes) -> None:
        EVENT_APPENDS.inc()
        written = answer in (b"ok", b"again")
        if written:
            self.hub.deliver(item.run_id, item.group)
        else:
            log.warning("event_log_refused", run_id=item.run_id, epoch=item.epoch, answer=answer.decode(errors="replace"))
        if not item.done.done():
            item.done.set_result(written)

    async def read(self, run_id: str, after: int) -> list[Group]:
        """Some groups after a seq, in order; empty when there are none (yet)."""
        entries = await self._redis.xrange(stream_key(run_id), min=f"({after}-0", max="+", count=_READ_COUNT)
        return [decode_group(fields[b"head"], fields[b"frames"]) for _, fields in entries]

    async def read_all(self, run_id: str) -> list[Group]:
        groups: list[Group] = []
        while more := await self.read(run_id, groups[-1].last if groups else 0):
            groups += more
        return groups

    async def top(self, run_id: str) -> int:
        """The greatest seq in the log; 0 when it has nothing of this run."""
        newest = await self._redis.xrevrange(stream_key(run_id), count=1)
        return int(newest[0][0].split(b"-")[0]) if newest else 0

    async def forget(self, run_ids: list[str]) -> None:
        if run_ids:
            keys = [key for run_id in run_ids for key in (stream_key(run_id), _epoch_key(run_id))]
            await self._redis.unlink(*keys)

    async def follow(self, run_id: str, after: int, idle_seconds: float) -> AsyncIterator[Group | None]:
        """Groups after a seq as they come, until the run's end or this process's; None after `idle_seconds` without any.

        A group that does not begin where the one before ended tells that the log has lost what was between.
        """
        async with self.hub.join(run_id) as channel:
            cursor, caught_up_with = after, -1
            while not self.hub.closing:
                generation = channel.generation
                if caught_up_with == generation:
                    groups = channel.since(cursor)
                    if groups is None:
                        caught_up_with = -1
                        continue
                else:
                    groups = await self._earlier(run_id, cursor, channel)
                    caught_up_with = -1 if groups else generation
                for group in groups:
                    if group.last > cursor:
                        yield group.after(cursor)
                        cursor = group.last
                    if group.ends:
                        return
                if not groups and channel.generation == generation and not await channel.wait(cursor, idle_seconds):
                    caught_up_with = -1  # reads the stream once more, in case a notice was lost
                    yield None

    async def _earlier(self, run_id: str, cursor: int, channel: Channel) -> list[Group]:
        """Groups after the cursor, from memory where this process writes the run, else from the stream."""
        remembered = channel.since(cursor) if channel.is_local else None
        return await self.read(run_id, cursor) if remembered is None else remembered
