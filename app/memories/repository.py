"""Memories in the database, read within a workspace."""

from collections.abc import Mapping
from typing import Any

import asyncpg

from app.infra import ids
from app.infra.database import Connection, Pool
from app.infra.errors import NotFound
from app.memories.ranking import prefix_queries, relevance_of, terms, weight_of
from app.memories.recall import candidate
from app.memories.statements import CANDIDATES, IN_SESSION, SHOWN, STATUS
from app.scope import Reference, Scope
from app.shapes import JsonObject
from app.web import Page

_FIND = f"SELECT {SHOWN} FROM memories WHERE id = $1 AND workspace_id = $2"
_SEARCH = CANDIDATES.format(columns=SHOWN)
DEFAULT_STATUSES = ("active", "pending")


async def find(db: Connection | Pool, workspace_id: str, memory_id: str) -> asyncpg.Record:
    """One note as it is shown; raises NotFound."""
    if ids.is_id(memory_id, ids.MEMORY):
        row = await db.fetchrow(_FIND, memory_id, workspace_id)
        if row is not None:
            return row
    raise NotFound()


async def list_memories(
    pool: Pool,
    workspace_id: str,
    page: Page,
    axes: Mapping[str, Reference | None],
    status: str | None,
    session_id: str | None,
) -> list[asyncpg.Record]:
    """Newest first. `axes` as in other lists; `status` one of them, `all`, or None for active and pending ones."""
    values: list[Any] = [workspace_id]

    def place(value: Any) -> str:
        values.append(value)
        return f"${len(values)}"

    conditions = ["workspace_id = $1"]
    for name, reference in axes.items():
        if reference is None:
            conditions.append(f"{name}_type IS NULL")
        else:
            conditions.append(f"{name}_type = {place(reference.type)} AND {name}_id = {place(reference.id)}")
    if status != "all":
        wanted = list(DEFAULT_STATUSES) if status is None else [status]
        conditions.append(f"{STATUS} = ANY({place(wanted)}::text[])")
    if session_id is not None:
        conditions.append(IN_SESSION.format(session_id=place(session_id), workspace_id="$1"))
    if page.cursor is not None:
        conditions.append(f"id < {place(page.cursor)}")
    query = f"SELECT {SHOWN} FROM memories WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT {page.limit + 1}"
    rows: list[asyncpg.Record] = await pool.fetch(query, *values)
    return rows


async def search(
    pool: Pool, workspace_id: str, scope: Scope, query: str, limit: int
) -> list[tuple[asyncpg.Record, JsonObject]]:
    """The notes that apply to a scope and have words of the query, the most relevant first; with how they were judged."""
    words = terms(query)
    rows = await pool.fetch(_SEARCH, workspace_id, *scope.as_columns().values(), words, prefix_queries(words), 0)
    candidates = {row["id"]: candidate(row) for row in rows}
    relevance = relevance_of(list(candidates.values()))
    judged = [
        (row, {"relevance": round(found, 4), "weight": round(weight_of(candidates[row["id"]], found), 4)})
        for row in rows
        for found in [relevance[row["id"]]]
    ]
    judged.sort(key=lambda one: (-one[1]["relevance"], -one[1]["weight"], one[0]["id"]))
    return judged[:limit]
