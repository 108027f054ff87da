"""PostgreSQL, twice: SQLModel for what people configure, plain asyncpg for what runs write all the time.

A transaction opens and closes at the door (`transaction`), and nobody else commits. The hot statements of a run are each
one round trip and one transaction of their own.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import asyncpg
import orjson
from asyncpg import Connection as Connection
from asyncpg import Pool as Pool
from sqlalchemy import AsyncAdaptedQueuePool, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlmodel.ext.asyncio.session import AsyncSession

from app.infra.reach import is_out_of_reach
from app.infra.settings import SettingsError
from app.infra.telemetry import log

_ENGINE_SIZE = 5
_ENGINE_OVERFLOW = 5
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0


class Database:
    def __init__(self, engine: AsyncEngine, pool: Pool) -> None:
        self.engine = engine
        self.pool = pool

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """One transaction: committed at the end, rolled back when anything is raised."""
        async with AsyncSession(self.engine, expire_on_commit=False) as db, db.begin():
            yield db

    def pool_sizes(self) -> dict[str, tuple[int, int, int]]:
        """Of each pool the connections in use, those idle, and how many it may have."""
        idle = self.pool.get_idle_size()
        sizes = {"runs": (self.pool.get_size() - idle, idle, self.pool.get_max_size())}
        if isinstance(queue := self.engine.pool, AsyncAdaptedQueuePool):
            sizes["configuration"] = (queue.checkedout(), queue.checkedin(), _ENGINE_SIZE + _ENGINE_OVERFLOW)
        return sizes

    async def close(self) -> None:
        await self.pool.close()
        await self.engine.dispose()


async def connect(
    database_url: str, *, pool_size: int = 10, statement_seconds: float | None = None, wait_seconds: float = 0.0
) -> Database:
    """Open both pools. `database_url` is `postgresql://…`; raises SettingsError when there is no way in.

    A server that is not there yet, or not any more, is waited for as long as `wait_seconds`: services start in any order.
    A statement that has no answer after `statement_seconds` raises TimeoutError and its connection is not used again: a
    server that stands still, or a network that swallows everything, does not hold up who waits for ever. None: no limit.
    """
    patience = {} if statement_seconds is None else {"command_timeout": statement_seconds, "timeout": statement_seconds}
    engine = create_async_engine(
        sqlalchemy_url(database_url),
        pool_size=_ENGINE_SIZE,
        max_overflow=_ENGINE_OVERFLOW,
        pool_pre_ping=True,  # a connection from before a restart is not used again; asyncpg's pool sees it by itself
        json_serializer=_text,
        json_deserializer=orjson.loads,
        connect_args=patience,
    )

    async def open_pool() -> Pool:
        return await asyncpg.create_pool(
            plain_url(database_url),
            min_size=1,
            max_size=pool_size,
            init=_prepare,
            reset=_nothing,
            # the statements of a run are planned once: planning them takes longer than running them
            server_settings={"plan_cache_mode": "force_generic_plan", "jit": "off"},
            **patience,
        )

    return Database(engine, await _reached(open_pool, wait_seconds))


async def _reached(open_pool: Callable[[], Awaitable[Pool]], wait_seconds: float) -> Pool:
    give_up_at, pause = monotonic() + wait_seconds, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await open_pool()
        except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError):
            raise SettingsError("DATABASE_URL: the server lets nobody in with it") from None
        except Exception as error:
            if not is_out_of_reach(error):
                raise
            if monotonic() + pause > give_up_at:
                raise SettingsError(f"DATABASE_URL: no PostgreSQL answers there ({type(error).__name__})") from None
            log.warning("database_not_there_yet", error=type(error).__name__)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


@asynccontextmanager
async def in_transaction(db: Connection | Pool) -> AsyncIterator[Connection]:
    """A connection in a transaction: that of `db`, or a new one where `db` is the pool."""
    if not isinstance(db, Pool):
        yield db
        return
    async with db.acquire() as connection, connection.transaction():
        yield connection


def plain_url(database_url: str) -> str:
    """`postgresql+asyncpg://…` and `postgres://…` as asyncpg wants them."""
    scheme, rest = database_url.split("://", 1)
    return f"{scheme.split('+')[0]}://{rest}"


def sqlalchemy_url(database_url: str) -> str:
    return "postgresql+asyncpg://" + database_url.split("://", 1)[1]


async def driver_connection(db: AsyncSession) -> Connection:
    """The asyncpg connection of a transaction, for statements of our own within it."""
    connection = await db.connection()
    await connection.execute(text("SELECT 1"))  # SQLAlchemy begins with its own first statement only
    return (await connection.get_raw_connection()).driver_connection


async def _nothing(_: Any) -> None:
    """In the place of asyncpg's reset, a round trip after every statement: nothing of ours outlives its transaction."""


async def _prepare(connection: Any) -> None:
    await connection.set_type_codec("jsonb", encoder=_text, decoder=orjson.loads, schema="pg_catalog")


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()
