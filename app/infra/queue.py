"""Waking background jobs with arq. A job is a wake-up only: what must be done stands in the database, so one that is lost
costs time and never work, and one that comes twice finds nothing to do.

arq's own worker looks at its queue twice a second, and takes a dead worker's job over after the longest time-out of all
jobs. `WakingWorker` is rung for every job, and holds a job by a short lease that it renews.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import orjson
from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix
from arq.cron import CronJob
from arq.worker import Function, Worker
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError, RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from app.infra.telemetry import log

QUEUE = "rondo:jobs"
_BELL = "rondo:jobs:bell"
_BELLS_KEPT = 100
_WAKE_SECONDS = 2.0
_LEASE_SECONDS = 10.0
_AGAIN_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
JOB_SECONDS = 3600.0


class JobQueue:
    """Wakes jobs by name. The client connects at the first use."""

    def __init__(self, redis_url: str) -> None:
        self._redis = _client(redis_url, socket_connect_timeout=_WAKE_SECONDS)

    async def wake(self, job: str, *arguments: str, delay_seconds: float = 0.0) -> None:
        """Have a worker run a job, now or later. Never fails and takes two seconds at most: a sweep finds what is lost."""
        try:
            async with asyncio.timeout(_WAKE_SECONDS):
                await self._redis.enqueue_job(job, *arguments, _defer_by=delay_seconds or None)
                if not delay_seconds:
                    async with self._redis.pipeline(transaction=False) as pipe:
                        pipe.lpush(_BELL, b"1")
                        pipe.ltrim(_BELL, 0, _BELLS_KEPT - 1)
                        await pipe.execute()
        except (RedisError, OSError) as error:
            log.warning("wake_lost", job=job, error=type(error).__name__)

    async def close(self) -> None:
        await self._redis.aclose()


class WakingWorker(Worker):
    """arq's worker on our settings. It outlives a Redis that is gone for a while, and waits for it from the start."""

    def __init__(
        self, redis_url: str, functions: Sequence[Function], crons: Sequence[CronJob], context: dict[str, Any], **more: Any
    ) -> None:
        retry = Retry(ExponentialBackoff(cap=1, base=0.05), 40)
        redis = _client(
            redis_url, socket_connect_timeout=5.0, retry=retry, retry_on_error=[ConnectionError, RedisTimeout, OSError]
        )
        super().__init__(
            functions, cron_jobs=crons, redis_pool=redis, queue_name=QUEUE, ctx=context, keep_result=0,
            job_timeout=JOB_SECONDS, job_serializer=_packed, job_deserializer=orjson.loads, **more,
        )  # fmt: skip
        self.in_progress_timeout_s = _LEASE_SECONDS
        self._freed = asyncio.Event()
        self._closing = False

    async def main(self) -> None:
        renewing = asyncio.create_task(self._renew_leases())
        try:
            while not self._closing:
                with self._surviving("worker_unreachable"):
                    await self._poll_iteration()
                    await self._rung()
                    continue
                await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            renewing.cancel()

    async def close(self) -> None:
        """End what is under way, which will be done again, and the connections."""
        self._closing = True
        with contextlib.suppress(TimeoutError), self._surviving("worker_closes_unreachable"):
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self.main_task is not None and not self.main_task.done():
                    self._freed.set()
                    await self.pool.execute_command("LPUSH", _BELL, b"1")  # type: ignore[no-untyped-call]
                    await asyncio.wait((self.main_task,))
                while under_way := [task for task in self.tasks.values() if not task.done()]:
                    for task in self.job_tasks.values():  # what is around a job then puts it back into the queue
                        task.cancel()
                    await asyncio.wait(under_way, timeout=_CLOSE_SECONDS / 50)
        for task in [*self.tasks.values(), *([self.main_task] if self.main_task else [])]:
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await self.pool.aclose()

    async def _rung(self) -> None:
        """Until there is something to look at: a job was woken, a place is free again, or the usual delay is over."""
        if self.job_counter < self.max_jobs:
            await self.pool.execute_command("BLPOP", _BELL, self.poll_delay_s)  # type: ignore[no-untyped-call]
            return
        self._freed.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._freed.wait(), self.poll_delay_s)

    def _release_sem_dec_counter_on_complete(self) -> None:
        super()._release_sem_dec_counter_on_complete()
        self._freed.set()

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(_LEASE_SECONDS / 4)
            with self._surviving("worker_cannot_renew"):
                async with self.pool.pipeline(transaction=False) as pipe:
                    for key in [in_progress_key_prefix + name for name in self.tasks]:
                        pipe.pexpire(key, int(_LEASE_SECONDS * 1000))
                    await pipe.execute()

    @contextlib.contextmanager
    def _surviving(self, event: str) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            log.warning(event, error=type(error).__name__)


def _client(redis_url: str, **options: Any) -> ArqRedis:
    client: ArqRedis = ArqRedis.from_url(redis_url, **options)
    client.job_serializer, client.job_deserializer = _packed, orjson.loads
    client.default_queue_name = QUEUE
    return client


_packed = partial(orjson.dumps, default=repr)
