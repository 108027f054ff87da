"""Every background job and cron on one page. arq only wakes them: what must be done stands in the database.

A worker also carries on runs that nobody works on, as every API process does.
"""

import asyncio
import os
from typing import Any

from arq import cron
from arq.connections import RedisSettings
from arq.worker import Worker

from app.agents.repository import forget_firings
from app.idempotency import forget_expired
from app.infra.settings import Settings, SettingsError
from app.infra.telemetry import log
from app.process import Process, open_process
from app.sessions.tokens import forget_expired_tokens


async def forget_what_expired(context: dict[str, Any]) -> None:
    """Idempotency keys after their day, client tokens after their time, firings after `firing_days`."""
    process: Process = context["process"]
    keys = await forget_expired(process.database.pool, process.settings.idempotency_ttl_seconds)
    await forget_expired_tokens(process.database.pool)
    await forget_firings(process.database.pool, process.settings.firing_days)
    log.info("forgot_expired", idempotency_keys=keys)


def run(settings: Settings) -> int:
    """Work until SIGTERM or SIGINT."""
    asyncio.run(_work(settings))
    return 0


async def _work(settings: Settings) -> None:
    if settings.redis_url is None:
        raise SettingsError("REDIS_URL is needed here (`rondo up` starts its own)")
    async with open_process(settings) as process:
        process.supervisor.start()
        worker = Worker(
            functions=[],
            cron_jobs=[
                cron(
                    forget_what_expired,  # type: ignore[arg-type]
                    minute={7, 37},
                    run_at_startup=False,
                    keep_result=0,
                )
            ],
            redis_settings=RedisSettings.from_dsn(settings.redis_url),
            queue_name="rondo:jobs",
            keep_result=0,
            ctx={"process": process},
        )
        try:
            await worker.async_run()
        except asyncio.CancelledError:
            log.info("worker_stops")
        finally:
            await worker.close()
            await process.drain()


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
