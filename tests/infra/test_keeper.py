"""Children that die are started again on the same port and data, and not for ever."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.infra.embedded import keeper
from app.infra.embedded.keeper import keep_alive
from app.infra.embedded.launcher import EmbeddedServers
from app.infra.embedded.processes import EmbeddedServersError
from app.infra.settings import Settings


class Child:
    """One that dies as soon as it is started, `deaths` times."""

    name = "The child"

    def __init__(self, deaths: int) -> None:
        self.is_alive, self.starts, self._deaths = False, 0, deaths

    async def start_again(self) -> None:
        self.starts += 1
        self.is_alive = self.starts >= self._deaths


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(keeper, "_FIRST_PAUSE_SECONDS", 0.001)


@pytest.mark.usefixtures("quick")
class TestKeepAlive:
    async def test_who_dies_a_few_times_is_started_each_time(self) -> None:
        child = Child(deaths=keeper.MAX_DEATHS - 1)
        keeping = asyncio.create_task(keep_alive([child]))
        async with asyncio.timeout(5):
            while not child.is_alive:
                await asyncio.sleep(0.001)
        keeping.cancel()
        assert child.starts == keeper.MAX_DEATHS - 1

    async def test_who_dies_over_and_over_ends_it_and_is_named(self) -> None:
        child = Child(deaths=100)
        with pytest.raises(EmbeddedServersError, match="The child died 6 times within 60 seconds"):
            await asyncio.wait_for(keep_alive([child]), 5)
        assert child.starts == keeper.MAX_DEATHS - 1


@pytest.fixture
async def servers() -> AsyncIterator[tuple[EmbeddedServers, Path]]:
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="rondo-keeper-", dir=shm if os.access(shm, os.W_OK) else None))
    embedded = EmbeddedServers(Settings(data_dir=folder), fast=True)
    embedded.start()
    keeping = asyncio.create_task(keep_alive(embedded.children))
    try:
        yield embedded, folder
    finally:
        keeping.cancel()
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


class TestServers:
    async def test_are_there_again_at_the_same_address_with_their_data(self, servers: tuple[EmbeddedServers, Path]) -> None:
        embedded, folder = servers
        urls = embedded.start()
        connection = await asyncpg.connect(urls.database_url)
        await connection.execute("CREATE TABLE kept (n int)")
        await connection.execute("CHECKPOINT")
        await connection.close()
        async with Redis.from_url(urls.redis_url) as redis:
            await redis.set("kept", "1")
        for file in ("postgres/data/postmaster.pid", "valkey/server.pid"):
            os.kill(int((folder / file).read_text().split("\n", 1)[0]), signal.SIGKILL)
        async with asyncio.timeout(20):
            while not await both_answer(urls.database_url, urls.redis_url):
                await asyncio.sleep(0.05)


async def both_answer(database_url: str, redis_url: str) -> bool:
    with suppress(OSError, RedisError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection = await asyncpg.connect(database_url)
        try:
            assert await connection.fetchval("SELECT count(*) FROM kept") == 0
        finally:
            await connection.close()
        async with Redis.from_url(redis_url) as redis:
            return bool(await redis.get("kept") == b"1")
    return False
