"""What is read off anew whenever the metrics are asked for: the stores, and the pools to them."""

import asyncio

from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.infra.database import Database
from app.infra.telemetry import POOL_CONNECTIONS, POOL_MOST, REDIS_UP

_PATIENCE_SECONDS = 2.0


async def read_redis(redis: Redis) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await redis.ping()
    except (OSError, RedisError):  # TimeoutError is an OSError
        REDIS_UP.set(0)
    else:
        REDIS_UP.set(1)


def read_pools(database: Database) -> None:
    for name, (used, idle, most) in database.pool_sizes().items():
        POOL_CONNECTIONS.labels(name, "used").set(used)
        POOL_CONNECTIONS.labels(name, "idle").set(idle)
        POOL_MOST.labels(name).set(most)
