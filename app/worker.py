"""Every background job and cron on one page. arq only wakes them: what must be done stands in the database.

A worker also carries on runs that nobody works on, as every API process does. Jobs need a worker: `rondo up` runs one,
beside `rondo serve` start `rondo worker`.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

from arq import cron, func
from prometheus_client import start_http_server
from redis.exceptions import RedisError

from app.agents.repository import forget_firings
from app.idempotency import forget_expired
from app.infra.queue import WakingWorker
from app.infra.settings import Settings, SettingsError
from app.infra.telemetry import JOBS, log, registry
from app.memories.distillations import Trigger
from app.process import Process, open_process
from app.redaction.repository import forget_unused
from app.runs import compressor, distiller
from app.sessions.tokens import forget_expired_tokens
from app.subscriptions.repository import forget as forget_deliveries

_RESTART_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
_QUARTERS = {0, 15, 30, 45}


async def compress(context: dict[str, Any], session_id: str) -> None:
    """Summarise the older turns of a session that is due."""
    await _process(context).compressor.compress(session_id)


async def sweep_compressions(context: dict[str, Any]) -> None:
    """Wake what is due and lost its wake-up, or its worker."""
    await _process(context).compressor.sweep()


async def distil(context: dict[str, Any], session_id: str, trigger: str) -> None:
    """Draw memories from what a session has that is new."""
    await _process(context).distiller.distil(session_id, Trigger(trigger))


async def sweep_distillations(context: dict[str, Any]) -> None:
    """Wake the sessions that are at rest with something new, and those that wait for another try."""
    process = _process(context)
    await process.distiller.sweep(60.0 * process.settings.distill_idle_minutes)


async def forget_what_expired(context: dict[str, Any]) -> None:
    """Idempotency keys after their day, client tokens after their time, firings after `firing_days`, settled deliveries
    after `delivery_days`, vaults that no run has come to use."""
    process = _process(context)
    keys = await forget_expired(process.database.pool, process.settings.idempotency_ttl_seconds)
    await forget_expired_tokens(process.database.pool)
    await forget_unused(process.database.pool)
    await forget_firings(process.database.pool, process.settings.firing_days)
    await forget_deliveries(process.database.pool, process.settings.delivery_days)
    log.info("forgot_expired", idempotency_keys=keys)


def _counted(job: Callable[..., Awaitable[None]]) -> Any:
    """The job, counted by how it ended."""

    @wraps(job)
    async def run_counted(context: dict[str, Any], *arguments: Any) -> None:
        try:
            await job(context, *arguments)
        except BaseException:
            JOBS.labels(job.__name__, "failed").inc()
            raise
        JOBS.labels(job.__name__, "done").inc()

    return run_counted


def new_worker(process: Process, **options: Any) -> WakingWorker:
    """A worker of this process; `async_run` works until it is cancelled."""
    assert process.settings.redis_url is not None
    return WakingWorker(
        process.settings.redis_url,
        [
            func(_counted(compress), name=compressor.JOB, max_tries=5),
            func(_counted(distil), name=distiller.JOB, max_tries=5),
        ],
        [
            cron(_counted(sweep_compressions), second=_QUARTERS, keep_result=0),
            cron(_counted(sweep_distillations), second=40, keep_result=0),
            cron(_counted(forget_what_expired), minute={7, 37}, keep_result=0),
        ],
        {"process": process},
        **options,
    )


def _process(context: dict[str, Any]) -> Process:
    found: Process = context["process"]
    return found


def run(settings: Settings) -> int:
    """Work until SIGTERM or SIGINT."""
    asyncio.run(_work(settings))
    return 0


async def _work(settings: Settings) -> None:
    if settings.redis_url is None:
        raise SettingsError("REDIS_URL is needed here (`rondo up` starts its own)")
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_process(settings) as process:
        process.supervisor.start()
        stack = ExitStack()
        if settings.worker_metrics_port is not None:
            server, _ = start_http_server(settings.worker_metrics_port, settings.host, registry)
            stack.callback(server.shutdown)
        jobs = asyncio.create_task(_wake_for_ever(process), name="jobs")
        await stop.wait()
        log.info("worker_stops")
        process.leave()
        jobs.cancel()
        await asyncio.gather(jobs, return_exceptions=True)
        await process.drain()
        stack.close()


async def _wake_for_ever(process: Process) -> None:
    """arq ends when Redis is gone for long, so it is started again; what nobody works on is carried on meanwhile."""
    while True:
        worker = None
        try:
            await process.event_log.line.until_up()
            worker = new_worker(process, handle_signals=False)
            await worker.async_run()
        except (RedisError, OSError) as error:
            log.warning("jobs_unreachable", error=type(error).__name__)
            await asyncio.sleep(_RESTART_SECONDS)
        finally:
            if worker is not None:
                await _closed(worker)


async def _closed(worker: WakingWorker) -> None:
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await worker.close()
    except (RedisError, OSError) as error:
        log.warning("jobs_unreachable", error=type(error).__name__)


def environment(settings: Settings) -> dict[str, str]:
    """The environment of a worker beside this process, on the same servers."""
    assert settings.database_url is not None
    assert settings.redis_url is not None
    assert settings.encryption_keys is not None
    return {
        **os.environ,
        "DATABASE_URL": settings.database_url,
        "REDIS_URL": settings.redis_url,
        "RONDO_ENCRYPTION_KEYS": settings.encryption_keys,
    }
