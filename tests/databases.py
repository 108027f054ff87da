"""A database of a test's own, for what looks at all that a service does, or would be disturbed by others at work."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import asyncpg

from app import migrations
from app.auth.tokens import ensure_keys
from app.infra.database import connect
from app.infra.settings import Settings


@asynccontextmanager
async def own_database(settings: Settings, name: str) -> AsyncIterator[Settings]:
    """The settings on a new database that is up to date and has the keys of the settings."""
    async with empty_database(settings, name) as url:
        database = await connect(url)
        try:
            await migrations.upgrade(database.engine)
            await ensure_keys(database.pool, settings)
        finally:
            await database.close()
        yield settings.model_copy(update={"database_url": url})


@asynccontextmanager
async def empty_database(settings: Settings, name: str) -> AsyncIterator[str]:
    """The URL of a new database without tables; dropped at the end."""
    assert settings.database_url is not None
    await _execute(settings.database_url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name}")
    try:
        yield urlsplit(settings.database_url)._replace(path=f"/{name}").geturl()
    finally:
        await _execute(settings.database_url, f"DROP DATABASE {name} WITH (FORCE)")


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
