"""How often a key may ask: a token bucket in Redis, filled and emptied by one script, so that all processes share it.

A bucket is kept as the one moment at which it will be full again, which says as much as a level and its time would.
"""

import asyncio
import time
from typing import Any

from app.infra.redis import Line, RedisAway
from app.infra.telemetry import log

# KEYS[1] bucket; ARGV[1] microseconds in which one token comes, ARGV[2] tokens it holds. Returns the microseconds to wait.
# The clock is that of Redis; should it have gone back, a bucket is never thought emptier than empty.
_SPEND = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local full_at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or now))
full_at = math.min(full_at, now + burst * interval)
local wait = full_at - now - (burst - 1) * interval
if wait > 0 then return math.ceil(wait) end
full_at = full_at + interval
redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1000)
return 0
"""
_PATIENCE_SECONDS = 0.25
_BLIND_SECONDS = 1.0


class TokenBuckets:
    """`per_second` tokens come, `burst` are there at most (default: those of two seconds, one at least)."""

    def __init__(self, line: Line, per_second: float, burst: int | None = None) -> None:
        self._line = line
        self._script: Any = line.redis.register_script(_SPEND)
        self._interval = 1_000_000 / per_second
        self._burst = burst or max(1, round(2 * per_second))
        self._blind_until = 0.0

    async def spend(self, name: str) -> float:
        """Take a token of this bucket: 0, or the seconds until there is one.

        A Redis that fails or is slow lets everything pass, and is left alone for a second: a limit is there to keep the
        service up, and must not be what brings it down.
        """
        if time.monotonic() < self._blind_until:
            return 0.0
        keys, args = [f"rondo:rate:{name}"], [self._interval, self._burst]
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                microseconds = await self._line.ask(lambda: self._script(keys=keys, args=args))
        except (RedisAway, TimeoutError) as error:
            self._blind_until = time.monotonic() + _BLIND_SECONDS
            log.warning("rate_limit_unreachable", error=type(error).__name__)
            return 0.0
        return int(microseconds) / 1_000_000
