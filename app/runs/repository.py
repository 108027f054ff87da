"""Runs in the database: starting one, finding, listing, tracing. Everything within a workspace."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import asyncpg

from app.events.writer import AHEAD
from app.infra import clock, ids
from app.infra.database import Connection, Pool
from app.infra.errors import NotFound
from app.loop.messages import ACTIVE_STATUSES
from app.run_options import AGENT_PREFIX
from app.runs import statements
from app.runs.resolve import Known
from app.scope import Reference
from app.web import Page


async def known(db: Connection | Pool, workspace_id: str) -> Known:
    """The active tools, the active agents and the providers of a workspace, in one round trip."""
    rows = await db.fetch(
        "SELECT name, NULL AS kind FROM tools WHERE workspace_id = $1 AND active"
        " UNION ALL SELECT name, 'agent' FROM agents WHERE workspace_id = $1 AND active"
        " UNION ALL SELECT name, kind FROM providers WHERE workspace_id = $1 ORDER BY name",
        workspace_id,
    )
    tools = [row["name"] for row in rows if row["kind"] is None]
    agents = frozenset(AGENT_PREFIX + row["name"] for row in rows if row["kind"] == "agent")
    providers = {row["name"]: row["kind"] for row in rows if row["kind"] not in (None, "agent")}
    return Known(tools, providers, agents)


async def start_alone(
    db: Connection | Pool, run: dict[str, Any], claim: str, lease_seconds: float, created_at: datetime
) -> asyncpg.Record:
    return await db.fetchrow(statements.START_ALONE, run, claim, lease_seconds, created_at, AHEAD)


async def start_in_session(
    db: Connection | Pool,
    run: dict[str, Any],
    claim: str,
    lease_seconds: float,
    created_at: datetime,
    message: dict[str, Any] | None,
) -> asyncpg.Record | None:
    """Store a started run and its user's message at once; None when the session has an active run."""
    return await db.fetchrow(
        statements.START_IN_SESSION, run, claim, lease_seconds, created_at, run["session_id"], message, AHEAD
    )


async def queue(db: Connection | Pool, run: dict[str, Any], created_at: datetime) -> asyncpg.Record:
    return await db.fetchrow(statements.QUEUE, run, created_at, AHEAD)


async def start_child(
    db: Connection | Pool, run: dict[str, Any], claim: str, lease_seconds: float, created_at: datetime
) -> asyncpg.Record | None:
    """None when the run was started before, by an earlier owner of its parent."""
    return await db.fetchrow(statements.START_CHILD, run, claim, lease_seconds, created_at, AHEAD)


async def queue_until(
    db: Connection | Pool, run: dict[str, Any], created_at: datetime, wake_at: datetime
) -> asyncpg.Record | None:
    """Store a run that starts at a moment; None when one of the same `join_key` is queued already."""
    return await db.fetchrow(statements.QUEUE_UNTIL, run, created_at, wake_at, AHEAD)


async def join(db: Connection | Pool, run: dict[str, Any], quiet_seconds: float) -> asyncpg.Record | None:
    """Put a run in the place of the one that is queued under its `join_key`; None when there is none to join."""
    return await db.fetchrow(statements.JOIN, run, quiet_seconds)


async def lock_session(db: Connection, session_id: str) -> None:
    """Until the transaction ends nobody else starts a run there. Raises NotFound when it is gone."""
    if not await db.fetchval("SELECT true FROM sessions WHERE id = $1 FOR UPDATE", session_id):
        raise NotFound()


async def active_runs(db: Connection | Pool, session_id: str) -> list[asyncpg.Record]:
    """The runs of a session that have not ended, the oldest first."""
    rows: list[asyncpg.Record] = await db.fetch(
        "SELECT * FROM runs WHERE session_id = $1 AND status = ANY($2) ORDER BY id", session_id, list(ACTIVE_STATUSES)
    )
    return rows


async def find(pool: Pool, workspace_id: str, run_id: str) -> asyncpg.Record:
    """One run; raises NotFound."""
    if ids.is_id(run_id, ids.RUN):
        row = await pool.fetchrow("SELECT * FROM runs WHERE id = $1 AND workspace_id = $2", run_id, workspace_id)
        if row is not None:
            return row
    raise NotFound()


async def reload(pool: Pool, run_id: str) -> asyncpg.Record:
    """The run as it is now; raises NotFound when it was erased."""
    row = await pool.fetchrow("SELECT * FROM runs WHERE id = $1", run_id)
    if row is None:
        raise NotFound()
    return row


async def list_runs(
    pool: Pool,
    workspace_id: str,
    page: Page,
    filters: Mapping[str, str | None],
    tenant: Reference | None,
) -> list[asyncpg.Record]:
    """Newest first; `filters` are columns and what they must be (None: any)."""
    conditions, values = ["workspace_id = $1"], [workspace_id]
    wanted = dict(filters)
    if tenant is not None:
        wanted |= {"tenant_type": tenant.type, "tenant_id": tenant.id}
    for column, value in wanted.items():
        if value is not None:
            values.append(value)
            conditions.append(f"{column} = ${len(values)}")
    if page.cursor is not None:
        values.append(page.cursor)
        conditions.append(f"id < ${len(values)}")
    query = f"SELECT * FROM runs WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT {page.limit + 1}"
    rows: list[asyncpg.Record] = await pool.fetch(query, *values)
    return rows


async def trace(pool: Pool, run_id: str) -> list[dict[str, Any]]:
    """The iterations of a run: every attempt at a model call, and every tool call with what came of it."""
    iterations = await pool.fetch("SELECT * FROM iterations WHERE run_id = $1 ORDER BY iteration", run_id)
    calls = await pool.fetch("SELECT * FROM tool_calls WHERE run_id = $1 ORDER BY iteration, index", run_id)
    return [
        {
            "iteration": row["iteration"],
            "model_calls": [_attempt(attempt) for attempt in row["model_calls"]],
            "tool_calls": [_traced(call) for call in calls if call["iteration"] == row["iteration"]],
        }
        for row in iterations
    ]


def _attempt(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stored.items() if name != "paused_seconds"}


def _traced(call: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"call_id": call["id"], "tool": call["tool"]}
    shown["arguments"] = call["raw_arguments"] if call["arguments"] is None else call["arguments"]
    for name in ("result", "content", "outcome", "status", "cause", "seconds", "attempts"):
        shown[name] = call[name]
    shown["answered_at"] = None if call["answered_at"] is None else clock.rfc3339(call["answered_at"])
    return shown


async def stored_replies(pool: Pool, run_id: str) -> list[dict[str, Any]]:
    rows = await pool.fetch(
        "SELECT reply FROM iterations WHERE run_id = $1 AND reply IS NOT NULL ORDER BY iteration", run_id
    )
    return [row["reply"] for row in rows]
