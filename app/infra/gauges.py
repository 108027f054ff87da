"""What is read off anew whenever the metrics are asked for: the stores, and the pools to them."""

from app.infra.database import Database
from app.infra.redis import Line
from app.infra.telemetry import POOL_CONNECTIONS, POOL_MOST, REDIS_UP


async def read_redis(line: Line) -> None:
    REDIS_UP.set(await line.look())


def read_pools(database: Database) -> None:
    for name, (used, idle, most) in database.pool_sizes().items():
        POOL_CONNECTIONS.labels(name, "used").set(used)
        POOL_CONNECTIONS.labels(name, "idle").set(idle)
        POOL_MOST.labels(name).set(most)
