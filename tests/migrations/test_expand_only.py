"""A release's migrations run while processes of the release before still work, so they only ever add.

Every revision after the first is compared with the one before it, as PostgreSQL has them: whatever the older code reads is
still there and as it was, and whatever it inserts, into the columns it knows, is still taken.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import asyncpg
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from app import migrations
from app.infra.database import sqlalchemy_url
from app.infra.settings import Settings
from tests.databases import empty_database


@dataclass(frozen=True)
class Column:
    type: str
    nullable: bool
    default: str | None = None


@dataclass(frozen=True)
class Schema:
    """`columns` by table and name; `rules` (constraints and unique indices) by name, with their table and definition."""

    columns: dict[tuple[str, str], Column] = field(default_factory=dict)
    rules: dict[str, tuple[str, str]] = field(default_factory=dict)


def breaks(before: Schema, after: Schema) -> list[str]:
    """What would make code that was written for `before` fail on `after`."""
    tables = {table for table, _ in before.columns}
    found = []
    for (table, name), column in before.columns.items():
        now = after.columns.get((table, name))
        if now is None:
            found.append(f"{table}.{name} is gone")
        elif now.type != column.type and not _is_wider(column.type, now.type):
            found.append(f"{table}.{name} was {column.type} and is {now.type}")
        elif column.nullable and not now.nullable:
            found.append(f"{table}.{name} may no longer be null")
        elif column.default is not None and now.default is None:
            found.append(f"{table}.{name} has lost its default")
    for (table, name), column in after.columns.items():
        is_new = table in tables and (table, name) not in before.columns
        if is_new and not column.nullable and column.default is None:
            found.append(f"{table}.{name} is new, not null, and has no default")
    for name, (table, definition) in after.rules.items():
        if table in tables and before.rules.get(name) != (table, definition) and not _is_of_new(before, table, definition):
            found.append(f"{table} has a new rule: {name} {definition}")
    for name, (table, definition) in before.rules.items():
        if name not in after.rules and definition.startswith(("PRIMARY KEY", "UNIQUE", "btree")):
            found.append(f"{table} has lost {name}, which an ON CONFLICT may name")
    return found


def _is_of_new(before: Schema, table: str, definition: str) -> bool:
    """Whether a unique index is over new columns alone: null in all that older code writes, and nulls never collide."""
    over = re.match(r"btree \(([^()]+)\)", definition)
    return over is not None and all((table, name.strip()) not in before.columns for name in over.group(1).split(","))


_WIDER = {("character varying", "text"), ("text", "character varying"), ("integer", "bigint"), ("real", "double precision")}


def _is_wider(before: str, after: str) -> bool:
    return (before, after) in _WIDER


_COLUMNS = """
SELECT c.table_name, c.column_name, c.data_type || coalesce('(' || c.character_maximum_length || ')', '') AS type,
       c.is_nullable = 'YES' AS nullable, coalesce(c.column_default, c.identity_generation) AS default
  FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
 WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.table_name <> 'alembic_version'
"""
_RULES = """
SELECT conname AS name, conrelid::regclass::text AS table_name, pg_get_constraintdef(oid) AS definition
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 AND contype <> 'n'
UNION
SELECT indexname, tablename, regexp_replace(indexdef, '^.* USING ', '')
  FROM pg_indexes WHERE schemaname = 'public' AND indexdef LIKE 'CREATE UNIQUE%'
   AND indexname NOT IN (SELECT conname FROM pg_constraint)
"""


async def read_schema(url: str) -> Schema:
    connection = await asyncpg.connect(url)
    try:
        columns = {
            (row["table_name"], row["column_name"]): Column(row["type"], row["nullable"], row["default"])
            for row in await connection.fetch(_COLUMNS)
        }
        rules = {row["name"]: (row["table_name"], row["definition"]) for row in await connection.fetch(_RULES)}
    finally:
        await connection.close()
    return Schema(columns, {name: rule for name, rule in rules.items() if rule[0] != "alembic_version"})


def revisions() -> list[str]:
    """The oldest first."""
    scripts = ScriptDirectory.from_config(migrations._config())
    return [script.revision for script in scripts.walk_revisions()][::-1]


@pytest.fixture(scope="module")
async def history(settings: Settings) -> AsyncIterator[dict[str, Schema]]:
    """The schema at each revision, each made from the one before it."""
    async with empty_database(settings, "expanding") as url:
        engine = create_async_engine(sqlalchemy_url(url))
        made = {}
        for revision in revisions():

            def upgrade(connection: Connection, to: str = revision) -> None:
                config = migrations._config()
                config.attributes["connection"] = connection
                command.upgrade(config, to)

            async with engine.begin() as connection:
                await connection.run_sync(upgrade)
            made[revision] = await read_schema(url)
        await engine.dispose()
        yield made


class TestEveryRevision:
    async def test_the_release_before_survives_it(self, history: dict[str, Schema]) -> None:
        ordered = list(history.items())
        assert len(ordered[0][1].columns) > 50
        assert ordered[-1][0] == migrations.newest()
        pairs = pairwise(ordered)
        assert {name: found for (_, before), (name, after) in pairs if (found := breaks(before, after))} == {}

    def test_there_is_one_line_of_them(self) -> None:
        scripts = ScriptDirectory.from_config(migrations._config())
        assert len(scripts.get_heads()) == 1
        assert not any(script.is_branch_point for script in scripts.walk_revisions())


BEFORE = Schema(
    {("runs", "id"): Column("text", False), ("runs", "model"): Column("text", True, "'x'::text")},
    {"runs_pkey": ("runs", "PRIMARY KEY (id)")},
)


def changed(columns: dict[tuple[str, str], Any], **rules: tuple[str, str]) -> Schema:
    """The schema with these columns added or, where None is given, taken away."""
    kept = {place: column for place, column in {**BEFORE.columns, **columns}.items() if column is not None}
    return replace(BEFORE, columns=kept, rules={**BEFORE.rules, **rules})


class TestTheComparison:
    @pytest.mark.parametrize(
        "after",
        [
            changed({("runs", "model"): None}),
            changed({("runs", "model"): None, ("runs", "models"): Column("text", True)}),
            changed({("runs", "id"): None, ("runs", "model"): None}),
            changed({("runs", "model"): Column("text", False, "'x'::text")}),
            changed({("runs", "model"): Column("text", True)}),
            changed({("runs", "id"): Column("character varying(36)", False)}),
            changed({("runs", "id"): Column("uuid", False)}),
            changed({("runs", "more"): Column("text", False)}),
            changed({}, runs_model_key=("runs", "UNIQUE (model)")),
            changed({}, runs_check=("runs", "CHECK (model <> '')")),
            changed({}, runs_pkey=("runs", "PRIMARY KEY (id, model)")),
            changed({("runs", "key"): Column("text", True)}, runs_key=("runs", "btree (key, model)")),
            replace(BEFORE, rules={}),
        ],
    )
    def test_what_older_code_cannot_live_with_is_found(self, after: Schema) -> None:
        assert breaks(BEFORE, after)

    @pytest.mark.parametrize(
        "after",
        [
            BEFORE,
            changed({("runs", "more"): Column("text", True)}),
            changed({("runs", "more"): Column("integer", False, "0")}),
            changed({("agents", "id"): Column("text", False)}, agents_pkey=("agents", "PRIMARY KEY (id)")),
            changed({("runs", "id"): Column("text", True)}),
            changed({("runs", "key"): Column("text", True)}, runs_key=("runs", "btree (key) WHERE (key IS NOT NULL)")),
        ],
    )
    def test_what_only_adds_passes(self, after: Schema) -> None:
        assert breaks(BEFORE, after) == []
