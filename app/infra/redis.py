"""The Redis (or Valkey) of a process, and whether it answers at the moment.

Nothing of a run stands in Redis alone, so nobody waits long for it: a command that fails, or is not answered in time, cuts
the line, and all others then fail at once until a ping, sent every second, is answered again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

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
