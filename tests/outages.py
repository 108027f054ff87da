"""Servers of one's own, to be stopped, hung, emptied and started again under a service that runs on them."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from redis.asyncio import Redis

from app import migrations
from app.auth.tokens import ensure_keys
from app.infra.database import connect
from app.infra.embedded.launcher import EmbeddedServers
from app.infra.embedded.server import Server
from app.infra.settings import Settings
from app.infra.telemetry import configure_logging


class Outages:
    """A PostgreSQL and a Valkey, and settings of a service on them."""

    def __init__(self, settings: Settings, folder: Path, servers: EmbeddedServers) -> None:
        urls = servers.start()
        self.settings = settings.model_copy(
            update={
                "database_url": urls.database_url,
                "redis_url": urls.redis_url,
                "redis_timeout_seconds": 0.3,
            }
        )
        self.folder = folder
        self.redis, self.postgres = sorted(servers.children, key=lambda child: child.name, reverse=True)

    def pid(self, server: Server) -> int:
        file = "valkey/server.pid" if server is self.redis else "postgres/data/postmaster.pid"
        return int((self.folder / file).read_text().split("\n", 1)[0])

    async def stop(self, server: Server) -> None:
        server.ask_to_stop()
        await asyncio.to_thread(server.wait_until_stopped)

    async def kill(self, server: Server) -> None:
        os.kill(self.pid(server), signal.SIGKILL)
        await asyncio.to_thread(server.wait_until_stopped)

    async def start(self, server: Server) -> None:
        await server.start_again()

    @asynccontextmanager
    async def without_redis(self, *, hung: bool = False) -> AsyncIterator[None]:
        """Redis is stopped, or stands still so that it takes connections and never answers."""
        if hung:
            os.kill(self.pid(self.redis), signal.SIGSTOP)
        else:
            await self.stop(self.redis)
        try:
            yield
        finally:
            if hung:
                os.kill(self.pid(self.redis), signal.SIGCONT)
            else:
                await self.start(self.redis)

    async def empty_redis(self) -> None:
        assert self.settings.redis_url is not None
        async with Redis.from_url(self.settings.redis_url) as redis:
            await redis.flushall()

    async def rows(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        assert self.settings.database_url is not None
        connection = await asyncpg.connect(self.settings.database_url)
        try:
            rows: list[asyncpg.Record] = await connection.fetch(query, *arguments)
        finally:
            await connection.close()
        return rows


@asynccontextmanager
async def outages_on(settings: Settings) -> AsyncIterator[Outages]:
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="rondo-outages-", dir=shm if os.access(shm, os.W_OK) else None))
    configure_logging("warning", "json")
    servers = EmbeddedServers(Settings(data_dir=folder))  # not fast ones: what was committed survives a kill
    try:
        outages = Outages(settings, folder, servers)
        database = await connect(outages.settings.database_url or "")
        await migrations.upgrade(database.engine)
        await ensure_keys(database.pool, outages.settings)
        await database.close()
        yield outages
    finally:
        servers.stop()
        shutil.rmtree(folder, ignore_errors=True)
