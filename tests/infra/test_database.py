"""A start with a database that is not there (yet): services start in any order."""

import asyncio
from urllib.parse import urlsplit

import pytest

from app.infra.database import connect
from app.infra.settings import Settings, SettingsError
from tests.faults.proxy import Proxy
from tests.ports import free_port


class Late(Proxy):
    """A way to the database that leads nowhere for the first one who comes."""

    def __init__(self, target: int) -> None:
        super().__init__(0)
        self._later, self.refused = target, 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.refused:
            self.refused += 1
            writer.transport.abort()
            self.target = self._later
            return
        await super()._accept(reader, writer)


class TestDatabaseThatIsNotThere:
    async def test_it_is_waited_for(self, settings: Settings) -> None:
        server = urlsplit(settings.database_url or "")
        way = Late(server.port or 5432)
        await way.listen()
        there = server._replace(netloc=server.netloc.replace(f":{server.port}", f":{way.port}"))
        database = await connect(there.geturl(), wait_seconds=30)
        try:
            assert await database.pool.fetchval("SELECT 1") == 1
        finally:
            await database.close()
            await way.close()
        assert way.refused == 1

    async def test_after_that_time_the_start_names_the_setting(self) -> None:
        with pytest.raises(SettingsError, match=r"^DATABASE_URL: no PostgreSQL answers there \(\w+\)$"):
            await connect(f"postgresql://someone:secret@127.0.0.1:{free_port()}/x")

    async def test_one_that_lets_nobody_in_is_not_waited_for(self, settings: Settings) -> None:
        assert settings.database_url is not None
        url, _, _ = settings.database_url.rpartition("/")
        with pytest.raises(SettingsError, match=r"^DATABASE_URL: the server lets nobody in with it$"):
            await connect(f"{url}/no_such_database", wait_seconds=30)
