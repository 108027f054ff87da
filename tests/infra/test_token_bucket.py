"""The bucket of a key, on the real Redis."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from app.infra import ids
from app.infra.redis import Line, connect
from app.infra.settings import Settings
from app.infra.token_bucket import TokenBuckets


@pytest.fixture
async def redis(settings: Settings) -> AsyncIterator[Redis]:
    assert settings.redis_url is not None
    client = connect(settings.redis_url, 2.0)
    yield client
    await client.aclose()


class TestTokenBuckets:
    async def test_a_burst_passes_and_the_next_one_is_told_how_long_to_wait(self, redis: Redis) -> None:
        buckets, name = TokenBuckets(Line(redis), 20, 3), ids.new("test_")
        assert [await buckets.spend(name) for _ in range(3)] == [0, 0, 0]
        seconds = await buckets.spend(name)
        assert 0 < seconds <= 0.05
        await asyncio.sleep(seconds)
        assert await buckets.spend(name) == 0

    async def test_what_is_refused_takes_nothing(self, redis: Redis) -> None:
        buckets, name = TokenBuckets(Line(redis), 0.1, 1), ids.new("test_")
        await buckets.spend(name)
        first = await buckets.spend(name)
        assert 0 < await buckets.spend(name) <= first

    async def test_many_at_once_get_no_more_than_there_is(self, redis: Redis) -> None:
        buckets, name = TokenBuckets(Line(redis), 0.01, 10), ids.new("test_")
        waits = await asyncio.gather(*(buckets.spend(name) for _ in range(50)))
        assert waits.count(0) == 10

    async def test_names_have_buckets_of_their_own_that_redis_forgets(self, redis: Redis) -> None:
        buckets, name = TokenBuckets(Line(redis), 10, 5), ids.new("test_")
        await buckets.spend(name)
        assert await buckets.spend(ids.new("test_")) == 0
        assert 0 < await redis.pttl(f"rondo:rate:{name}") <= 1_100

    async def test_a_clock_that_went_back_makes_nobody_wait_for_it(self, redis: Redis) -> None:
        buckets, name = TokenBuckets(Line(redis), 10, 5), ids.new("test_")
        await redis.set(f"rondo:rate:{name}", int((time.time() + 3600) * 1_000_000))
        assert 0 < await buckets.spend(name) <= 0.1

    async def test_a_dead_redis_lets_everything_pass_and_holds_nothing_up(self) -> None:
        client = connect("redis://127.0.0.1:1/0", 2.0)
        buckets = TokenBuckets(Line(client), 0.01, 1)
        started = time.monotonic()
        assert [await buckets.spend("x") for _ in range(200)] == [0] * 200
        assert time.monotonic() - started < 1
        await client.aclose()
