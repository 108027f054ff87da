"""The Redis (or Valkey) client of a process. Blocking reads must not time out, so nothing has a read time-out here."""

from redis.asyncio import Redis


def connect(redis_url: str) -> Redis:
    """Connects at the first command; raises redis-py's own errors from there on."""
    client: Redis = Redis.from_url(redis_url, socket_timeout=None, socket_connect_timeout=5.0, health_check_interval=30)
    return client
