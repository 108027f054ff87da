"""The Redis (or Valkey) of a process, and whether it answers at the moment.

Nothing of a run stands in Redis alone, so nobody waits long for it: a command that fails, or is not answered in time, cuts
the line, and all others then fail at once until a ping, sent every second, is answered again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import hiredis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError, NoScriptError, RedisError, ResponseError

from app.infra.telemetry import log

Answer = TypeVar("Answer")
_PING_EVERY_SECONDS = 1.0


class RedisAway(Exception):
    """Redis does not answer for now. Do without it; what must be done stands in the rows."""


def connect(redis_url: str, timeout_seconds: float) -> Redis:
    """Connects at the first command; raises redis-py's own errors from there on. Reads that may take longer say so."""
    client: Redis = Redis.from_url(
        redis_url, socket_timeout=timeout_seconds, socket_connect_timeout=timeout_seconds, health_check_interval=30
    )
    return client


Command = tuple[str | int | float | bytes | memoryview, ...]


class Exchange:
    """A connection for commands that are sent all the time: many go together, packed at once, under one timer.

    redis-py's pipeline looks at the socket, starts a task and sets several timers for each round trip, which costs more than
    all else that a shown delta does. Commands must not mind being sent twice.
    """

    def __init__(self, redis: Redis) -> None:
        pool = redis.connection_pool
        self._timeout_seconds = pool.connection_kwargs.get("socket_timeout")
        without_timers = {"socket_timeout": None, "health_check_interval": 0}
        self._connection = pool.connection_class(**{**pool.connection_kwargs, **without_timers})

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """The answers. Raises what redis-py raises, the first ResponseError after all answers were read."""
        packed = b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]
        is_kept = self._connection.is_connected
        try:
            return await self._exchange(packed, len(commands))
        except ConnectionError:
            if not is_kept:
                raise
        return await self._exchange(packed, len(commands))  # the server has closed a connection that was idle for long

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    async def _exchange(self, packed: bytes, count: int) -> list[Any]:
        connection = self._connection
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await connection.connect()  # type: ignore[no-untyped-call]
                await connection.send_packed_command(packed, check_health=False)
                answers = [await self._answer() for _ in range(count)]
        except BaseException:
            await connection.disconnect(nowait=True)  # an answer that comes later must not be taken for another's
            raise
        for answer in answers:
            if isinstance(answer, ResponseError):
                raise answer
        return answers

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error


class Line:
    """The way to Redis, up or down. `on_change` are told (synchronously) when it has become the one or the other."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.on_change: list[Callable[[], None]] = []
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._up.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="redis-line")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def ask(self, command: Callable[[], Awaitable[Answer]]) -> Answer:
        """The command's answer. RedisAway: the line is down, or this command has cut it. NoScriptError comes through."""
        if not self.is_up:
            raise RedisAway
        try:
            return await command()
        except NoScriptError:
            raise
        except (RedisError, OSError) as error:
            self.cut(error)
            raise RedisAway from error

    def cut(self, error: BaseException) -> None:
        """A command has failed."""
        if self.is_up:
            log.warning("redis_away", error=type(error).__name__)
            self._set(self._down, self._up)

    async def until_up(self) -> None:
        await self._up.wait()

    async def until_down(self) -> None:
        await self._down.wait()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_PING_EVERY_SECONDS)
            await self.look()

    async def look(self) -> bool:
        """Whether Redis answers a ping now; the line is then up."""
        try:
            await self.redis.ping()
        except (RedisError, OSError) as error:
            self.cut(error)
        else:
            if not self.is_up:
                log.info("redis_back")
                self._set(self._up, self._down)
        return self.is_up

    def _set(self, now: asyncio.Event, before: asyncio.Event) -> None:
        before.clear()
        now.set()
        for tell in self.on_change:
            tell()
