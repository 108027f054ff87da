"""Bringing the schema up to date. Several processes may try at once: one does it, the others wait and find it done."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

_LOCK = 7_266_546_001
_FOLDER = Path(__file__).resolve().parent.parent / "migrations"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    return config


def newest() -> str:
    """The revision that this code was written for."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


async def current(engine: AsyncEngine) -> str | None:
    """The revision of the database; None when it is empty."""
    async with engine.connect() as connection:
        if await connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
            return None
        revision: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
        return revision


async def upgrade(engine: AsyncEngine) -> None:
    """Upgrade to the newest revision, in one transaction, under an advisory lock."""
    async with engine.begin() as connection:
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        await connection.run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
