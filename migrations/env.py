"""Alembic's entry. It runs on a connection that `app.migrations` hands over, or on one that it opens from DATABASE_URL."""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlmodel import SQLModel

import app.tables  # noqa: F401  (fills SQLModel.metadata)
from app.infra.database import sqlalchemy_url


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=SQLModel.metadata, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


async def run_alone() -> None:
    engine = create_async_engine(sqlalchemy_url(os.environ["DATABASE_URL"]))
    async with engine.connect() as connection:
        await connection.run_sync(run)
        await connection.commit()
    await engine.dispose()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    asyncio.run(run_alone())
