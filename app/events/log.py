"""The event log of runs: appended to before anybody is shown an event, followed live from any replica.

Each run is a Redis stream. An entry is a group of frames under the id `LAST_SEQ-0`, so that a reader asks for what comes
after a seq. One appender per process writes the waiting groups of all its runs in one pipeline; while it is under way the
next events gather. A script refuses a writer of an older epoch than the log has seen.

While Redis is away the waiting groups stay in memory, within bounds (`writer.py` keeps them), and readers get `RedisAway`:
they turn to the rows.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from redis.exceptions import NoScriptError

from app.events.frames import Group
from app.events.hub import GONE, WORDS, Channel, Hub, channel_name, decode_group, encode_head
from app.infra.redis import Command, Exchange, Line, RedisAway
from app.infra.telemetry import EVENT_APPENDS, EVENT_LAG_SECONDS, STALE_WRITES_REFUSED, log

_APPEND = """
local held = tonumber(redis.call('GET', KEYS[2]) or '-1')
local epoch = tonumber(ARGV[1])
if held > epoch then return 'stale' end
if held < epoch then redis.call('SET', KEYS[2], ARGV[1]) end
local added = redis.pcall('XADD', KEYS[1], ARGV[2] .. '-0', 'head', ARGV[3], 'frames', ARGV[4])
if type(added) == 'table' and added.err then
  local top = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
  if top[1] and top[1][1] == ARGV[2] .. '-0' then return 'again' end
  if top[1] then return 'late' end
  return added.err
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('PUBLISH', KEYS[3], ARGV[3] .. '\\n' .. ARGV[4])
return 'ok'
"""

_FENCE = """
local held = tonumber(redis.call('GET', KEYS[1]) or '-1')
if held > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_BUSY_SECONDS = 0.002
_GATHER_TURNS, _LONGEST_GATHERING_SECONDS = 5, 0.05

_APPEND_SHA = hashlib.sha1(_APPEND.encode(), usedforsecurity=False).hexdigest()
_READ_COUNT = 200


def stream_key(run_id: str) -> str:
    return f"rondo:events:{{{run_id}}}"


def _epoch_key(run_id: str) -> str:
    return f"rondo:epoch:{{{run_id}}}"


async def _gathering() -> None:
    """Let what is ready now go with it; in a busy process also what comes in some turns of its loop.

    So an idle process shows each delta at once, and one that has more to do than it can shows fewer and longer ones.
    """
    since = monotonic()
    await asyncio.sleep(0)
    turn_seconds = monotonic() - since
    if turn_seconds > _BUSY_SECONDS:
        await asyncio.sleep(min(_GATHER_TURNS * turn_seconds, _LONGEST_GATHERING_SECONDS))


@dataclass(slots=True)
class _Append:
    run_id: str
    epoch: int
    group: Group
    done: "asyncio.Future[bool]"
    since: float = field(default_factory=monotonic)


@dataclass(slots=True)
class Room:
    """How many bytes of events may wait in memory while the log is behind: of one run, and of all runs together."""

    per_run: int
    total: int
    used: int = 0


class EventLog:
    """One per process. `append` and `follow` are its two ends."""

    def __init__(self, line: Line, hub: Hub, ttl_seconds: int, room: Room) -> None:
        self.hub, self.line, self.room = hub, line, room
        self._redis, self._exchange = line.redis, Exchange(line.redis)
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
        await self._exchange.close()

    def append(self, run_id: str, epoch: int, group: Group) -> "asyncio.Future[bool]":
        """Write a group; done with True when it is in the log, with False when a newer owner is writing it."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(_Append(run_id, epoch, group, done))
        self._wake.set()
        return done

    async def settled(self, written: "asyncio.Future[Any]") -> bool:
        """Wait for something that was to be written; False when Redis is away, so that it is not waited for."""
        if not written.done() and self.line.is_up:
            away = asyncio.ensure_future(self.line.until_down())
            await asyncio.wait((written, away), return_when=asyncio.FIRST_COMPLETED)
            away.cancel()
        return written.done()

    async def _append_for_ever(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            await self.line.until_up()
            await _gathering()
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            try:
                answers = await self._write(batch)
                failures = 0
            except Exception as error:  # nothing may end the one task that all runs of the process wait for
                self._waiting = batch + self._waiting
                self._wake.set()
                failures += 1
                unreachable = isinstance(error, RedisAway)
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
            await self.line.ask(lambda: self._redis.script_load(_APPEND))
            return await self._evaluate(batch)

    async def _evaluate(self, batch: list[_Append]) -> list[bytes]:
        commands: list[Command] = [
            ("EVALSHA", _APPEND_SHA, 3, stream_key(item.run_id), _epoch_key(item.run_id), channel_name(item.run_id),
             item.epoch, item.group.last, encode_head(item.group), item.group.frames, self._ttl_ms)
            for item in batch
        ]  # fmt: skip
        return await self.line.ask(lambda: self._exchange.send(commands))

    def _settle(self, item: _Append, answer: bytes) -> None:
        """`late`: the log has gone on beyond the group, which readers then take from the rows."""
        EVENT_APPENDS.inc()
        EVENT_LAG_SECONDS.observe(monotonic() - item.since)
        refused = answer not in (b"ok", b"again", b"late")
        if refused:
            STALE_WRITES_REFUSED.labels("event").inc()
            log.warning("event_log_refused", run_id=item.run_id, epoch=item.epoch, answer=answer.decode(errors="replace"))
        elif answer != b"late":
            self.hub.deliver(item.run_id, item.group)
        if not item.done.done():
            item.done.set_result(not refused)

    async def fence(self, run_id: str, epoch: int) -> bool:
        """Refuse writers of older epochs from now on; False when a newer owner has done so before. Raises RedisAway."""
        arguments = (_epoch_key(run_id), str(epoch), str(self._ttl_ms))
        answer: int = await self.line.ask(
            lambda: self._redis.execute_command("EVAL", _FENCE, 1, *arguments)  # type: ignore[no-untyped-call]
        )
        if not answer:
            STALE_WRITES_REFUSED.labels("event").inc()
            log.warning("event_log_refused", run_id=run_id, epoch=epoch, answer="fenced")
        return bool(answer)

    async def read(self, run_id: str, after: int) -> list[Group]:
        """Some groups after a seq, in order; empty when there are none (yet). Raises RedisAway."""
        entries = await self.line.ask(
            lambda: self._redis.xrange(stream_key(run_id), min=f"({after}-0", max="+", count=_READ_COUNT)
        )
        return [decode_group(fields[b"head"], fields[b"frames"]) for _, fields in entries]

    async def read_all(self, run_id: str) -> list[Group]:
        groups: list[Group] = []
        while more := await self.read(run_id, groups[-1].last if groups else 0):
            groups += more
        return groups

    async def top(self, run_id: str) -> int:
        """The greatest seq in the log; 0 when it has nothing of this run. Raises RedisAway."""
        newest = await self.line.ask(lambda: self._redis.xrevrange(stream_key(run_id), count=1))
        return int(newest[0][0].split(b"-")[0]) if newest else 0

    async def forget(self, run_ids: list[str]) -> None:
        """Erase the logs of these runs, and let their followers go, wherever they are."""
        for run_id in run_ids:
            self.hub.gone(run_id)
        keys = [key for run_id in run_ids for key in (stream_key(run_id), _epoch_key(run_id))]
        if keys:
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.unlink(*keys)
            for run_id in run_ids:
                pipeline.publish(channel_name(run_id), GONE)
            await self.line.ask(pipeline.execute)

    async def tell(self, word: str) -> None:
        """Say a word to all processes. It only saves waiting: while Redis is away nobody hears it."""
        try:
            await self.line.ask(lambda: self._redis.publish(WORDS, word))
        except RedisAway:
            log.debug("word_unheard", word=word)

    @asynccontextmanager
    async def follow(self, run_id: str, after: int) -> "AsyncIterator[Following]":
        async with self.hub.join(run_id) as channel:
            yield Following(self, channel, after)


class Following:
    """One follower's way through the log of a run."""

    def __init__(self, log: EventLog, channel: Channel, cursor: int) -> None:
        self._log, self._channel = log, channel
        self._cursor, self._caught_up_with = cursor, -1

    @property
    def is_over(self) -> bool:
        """This process goes down, or the run was erased."""
        return self._log.hub.closing or self._channel.is_gone

    @property
    def is_closing(self) -> bool:
        return self._log.hub.closing

    def go_to(self, cursor: int) -> None:
        """Go on after this seq."""
        self._cursor, self._caught_up_with = cursor, -1

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the moment when something changes."""
        await self._channel.changed(seconds)

    async def next(self, seconds: float) -> list[Group]:
        """The groups that come next, in order; none when nothing has come in this time, or it is over.

        A group that does not begin where the one before ended tells that the log has lost what was between. Raises
        RedisAway.
        """
        until = asyncio.get_running_loop().time() + seconds
        while not self.is_over:
            generation = self._channel.generation
            groups = await self._more(generation)
            if groups is None:
                continue
            if groups:
                fresh = [group.after(self._cursor) for group in groups if group.last > self._cursor]
                self._cursor = max(self._cursor, groups[-1].last)
                if fresh:
                    return fresh
                continue
            left = until - asyncio.get_running_loop().time()
            if left <= 0 or (self._channel.generation == generation and not await self._channel.wait(self._cursor, left)):
                self._caught_up_with = -1  # reads the stream once more, in case a notice was lost
                break
        return []

    async def _more(self, generation: int) -> list[Group] | None:
        """Groups after the cursor; None when the memory does not reach back, so that the stream is to be read."""
        if not self._log.line.is_up:
            raise RedisAway
        if self._caught_up_with == generation:
            groups = self._channel.since(self._cursor)
            if groups is None:
                self._caught_up_with = -1
            return groups
        # from memory where this process writes the run, else from the stream
        remembered = self._channel.since(self._cursor) if self._channel.is_local else None
        found = await self._log.read(self._channel.run_id, self._cursor) if remembered is None else remembered
        self._caught_up_with = -1 if found else generation
        return found
