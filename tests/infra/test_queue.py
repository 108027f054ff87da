"""Waking jobs: at once, by a bell; held by a short lease; and never the caller's trouble."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from arq import func
from arq.constants import in_progress_key_prefix
from redis.asyncio import Redis

from app.infra import queue
from app.infra.embedded.launcher import Servers
from app.infra.queue import JobQueue, WakingWorker


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of our own."""
    monkeypatch.setattr(queue, "QUEUE", "rondo:test-jobs")
    monkeypatch.setattr(queue, "_BELL", "rondo:test-bell")


@asynccontextmanager
async def working(redis_url: str, job: Callable[..., Any], **options: Any) -> AsyncIterator[WakingWorker]:
    worker = WakingWorker(redis_url, [func(job, name="job")], [], {}, handle_signals=False, **options)
    task = asyncio.create_task(worker.async_run())
    try:
        yield worker
    finally:
        await worker.close()
        await task


@pytest.mark.usefixtures("named")
class TestWaking:
    async def test_a_job_starts_long_before_the_queue_would_be_looked_at(self, servers: Servers) -> None:
        done: asyncio.Queue[str] = asyncio.Queue()

        async def job(context: dict[str, Any], name: str) -> None:
            await done.put(name)

        waking = JobQueue(servers.redis_url)
        async with working(servers.redis_url, job, poll_delay=20):
            await waking.wake("job", "first")
            assert await asyncio.wait_for(done.get(), 5) == "first"
            started = time.monotonic()
            for number in range(20):
                await waking.wake("job", str(number))
            assert sorted([await asyncio.wait_for(done.get(), 5) for _ in range(20)]) == sorted(map(str, range(20)))
            assert time.monotonic() - started < 5
        await waking.close()

    async def test_a_full_worker_goes_on_as_soon_as_a_place_is_free(self, servers: Servers) -> None:
        done: asyncio.Queue[str] = asyncio.Queue()

        async def job(context: dict[str, Any], name: str) -> None:
            await done.put(name)

        waking = JobQueue(servers.redis_url)
        async with working(servers.redis_url, job, poll_delay=20, max_jobs=1):
            for number in range(5):
                await waking.wake("job", str(number))
            for _ in range(5):
                await asyncio.wait_for(done.get(), 5)
        await waking.close()

    async def test_a_job_under_way_is_held_by_a_short_lease(self, servers: Servers) -> None:
        begun, going_on = asyncio.Event(), asyncio.Event()

        async def job(context: dict[str, Any]) -> None:
            begun.set()
            await going_on.wait()

        waking = JobQueue(servers.redis_url)
        redis = Redis.from_url(servers.redis_url)
        async with working(servers.redis_url, job) as worker:
            await waking.wake("job")
            await asyncio.wait_for(begun.wait(), 5)
            left = [await redis.pttl(in_progress_key_prefix + name) for name in worker.tasks]
            assert left
            assert all(0 < milliseconds <= 10_000 for milliseconds in left)
            going_on.set()
        await redis.aclose()
        await waking.close()

    async def test_a_redis_that_is_gone_fails_nobody(self) -> None:
        waking = JobQueue("redis://127.0.0.1:1")
        await asyncio.wait_for(waking.wake("job", "x"), 5)
        await waking.close()

    async def test_a_worker_outlives_a_redis_that_is_gone(self, servers: Servers) -> None:
        done = asyncio.Event()

        async def job(context: dict[str, Any]) -> None:
            done.set()

        async with working(servers.redis_url, job) as worker:
            original = worker._poll_iteration
            failed = asyncio.Event()

            async def gone() -> None:
                failed.set()
                raise ConnectionError

            worker._poll_iteration = gone  # type: ignore[method-assign]
            await asyncio.wait_for(failed.wait(), 5)
            worker._poll_iteration = original  # type: ignore[method-assign]
            waking = JobQueue(servers.redis_url)
            await waking.wake("job")
            await asyncio.wait_for(done.wait(), 5)
            await waking.close()
