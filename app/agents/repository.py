"""Agents and firings in the database, everything within a workspace."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import asyncpg
from sqlalchemy.exc import IntegrityError
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from app.agents.models import Agent, Firing
from app.agents.schedule import BadSchedule, read_schedule, zone
from app.infra import clock, ids
from app.infra.database import Connection, Pool
from app.infra.errors import Conflict, Invalid, NotFound
from app.scope import Reference
from app.web import Page

FIRING = "fir_"
_FIRING_FIELDS = tuple(Firing.model_fields)
_INSERT_FIRING = "INSERT INTO firings ({}) VALUES ({})".format(
    ", ".join(_FIRING_FIELDS), ", ".join(f"${number}" for number in range(1, len(_FIRING_FIELDS) + 1))
)

_COUNT = """
INSERT INTO agent_days (agent_id, tenant_type, tenant_id, day, count) SELECT $1, $2, $3, $4, 1 WHERE $5 > 0
ON CONFLICT (agent_id, tenant_type, tenant_id, day) DO UPDATE SET count = agent_days.count + 1 WHERE agent_days.count < $5
RETURNING count
"""
_GIVE_BACK = (
    "UPDATE agent_days SET count = count - 1 WHERE agent_id = $1 AND tenant_type = $2 AND tenant_id = $3 AND day = $4"
)

_PAUSE = """
WITH lately AS (
  SELECT id, error_code FROM runs
   WHERE agent_id = $1 AND session_id IS NULL AND parent_run_id IS NULL AND finished_at IS NOT NULL
     AND created_at >= (SELECT activated_at FROM agents WHERE id = $1)
     AND error_code IS DISTINCT FROM 'provider_unavailable'
   ORDER BY id DESC LIMIT $2::int)
UPDATE agents SET active = false, next_at = NULL, paused_at = now(), updated_at = now(), paused_reason = $2::int::text ||
         ' runs in a row have failed, the last one with ' || (SELECT error_code FROM lately ORDER BY id DESC LIMIT 1) || '.'
 WHERE id = $1 AND active AND (SELECT count(error_code) FROM lately) = $2::int
RETURNING paused_reason
"""


def agent_of(row: Mapping[str, Any]) -> Agent:
    """A record of the table as its model."""
    return Agent(**{name: row[name] for name in Agent.model_fields})


async def find(pool: Connection | Pool, workspace_id: str, agent_id: str) -> Agent:
    """Raises NotFound."""
    row = None
    if ids.is_id(agent_id, ids.AGENT):
        row = await pool.fetchrow("SELECT * FROM agents WHERE id = $1 AND workspace_id = $2", agent_id, workspace_id)
    if row is None:
        raise NotFound("There is no such agent.")
    return agent_of(row)


async def create(db: AsyncSession, workspace_id: str, values: dict[str, Any]) -> Agent:
    """Raises Conflict (`agent_exists`) for a name that is taken, and Invalid for a schedule that cannot be."""
    now = clock.now()
    moments: dict[str, Any] = {"created_at": now, "updated_at": now, "activated_at": now}
    row = Agent(id=ids.new(ids.AGENT), workspace_id=workspace_id, **moments, **values)
    _set_schedule(row, now)
    db.add(row)
    await _flushed(db)
    return row


async def update(db: AsyncSession, agent: Agent, values: dict[str, Any]) -> Agent:
    """Change what `values` names. Slots are reckoned anew from now when the schedule changes or the agent is activated."""
    row = await db.get(Agent, agent.id, with_for_update=True)
    if row is None:
        raise NotFound()
    now, was = clock.now(), (row.cron, row.timezone, row.active)
    for name, value in values.items():
        setattr(row, name, value)
    if values.get("active"):
        row.paused_at = row.paused_reason = None
        if not was[2]:
            row.activated_at = now
    if was != (row.cron, row.timezone, row.active):
        _set_schedule(row, now)
    row.updated_at = now
    await _flushed(db)
    return row


def _set_schedule(row: Agent, now: datetime) -> None:
    """Reckon cron from now on. Raises Invalid for a time zone or an expression that cannot be."""
    row.cron_after, row.next_at = now, None
    try:
        zone(row.timezone)
    except BadSchedule as error:
        raise _bad("timezone", str(error)) from None
    if row.cron is None:
        return
    if row.tenant_type is None:
        raise _bad("tenant", "an agent with cron needs one")
    try:
        schedule = read_schedule(row.cron, row.timezone, now)
    except BadSchedule as error:
        raise _bad("cron", str(error)) from None
    row.next_at = schedule.next_after(now) if row.active else None


def _bad(field: str, why: str) -> Invalid:
    return Invalid(f"{field}: {why}.", errors=[(("body", field), why)])


async def _flushed(db: AsyncSession) -> None:
    try:
        await db.flush()
    except IntegrityError as error:
        if "agents_workspace_name" not in str(error.orig):
            raise
        raise Conflict("There is an agent of that name.", code="agent_exists") from None


async def delete(pool: Pool, agent: Agent) -> None:
    """With its firings; its runs stay."""
    if not await pool.fetchval("DELETE FROM agents WHERE id = $1 RETURNING true", agent.id):
        raise NotFound()


async def list_agents(db: AsyncSession, workspace_id: str, page: Page, tenant: Reference | None) -> list[Agent]:
    """Newest first."""
    query = select(Agent).where(Agent.workspace_id == workspace_id)
    if tenant is not None:
        query = query.where(Agent.tenant_type == tenant.type, Agent.tenant_id == tenant.id)
    if page.cursor is not None:
        query = query.where(Agent.id < page.cursor)
    return list((await db.exec(query.order_by(col(Agent.id).desc()).limit(page.limit + 1))).all())


async def listening(db: Connection, workspace_id: str, event: str, tenant: Reference) -> list[tuple[Agent, datetime]]:
    """The agents that an event of a tenant concerns, with the time of the database's clock.

    None of them can be deleted before the transaction has ended.
    """
    rows = await db.fetch(
        "SELECT *, now() AS looked_at FROM agents WHERE workspace_id = $1 AND event_triggers ? $2"
        " AND (tenant_type IS NULL OR (tenant_type = $3 AND tenant_id = $4)) ORDER BY id FOR KEY SHARE",
        workspace_id, event, tenant.type, tenant.id,
    )  # fmt: skip
    return [(agent_of(row), row["looked_at"]) for row in rows]


# ---- what happened


async def keep_firing(db: Connection | Pool, agent_id: str, **values: Any) -> None:
    row = {"id": ids.new(FIRING), "agent_id": agent_id, **values}
    await db.execute(_INSERT_FIRING, *(row.get(name) for name in _FIRING_FIELDS))


async def list_firings(pool: Pool, agent_id: str, page: Page) -> list[asyncpg.Record]:
    """Newest first."""
    rows: list[asyncpg.Record] = await pool.fetch(
        "SELECT * FROM firings WHERE agent_id = $1 AND ($2::text IS NULL OR id < $2) ORDER BY id DESC LIMIT $3",
        agent_id, page.cursor, page.limit + 1,
    )  # fmt: skip
    return rows


async def forget_firings(pool: Pool, days: int) -> None:
    """Firings older than that many days, and the counts of days long gone."""
    await pool.execute("DELETE FROM firings WHERE at < now() - make_interval(days => $1)", days)
    await pool.execute("DELETE FROM agent_days WHERE day < current_date - 3")


# ---- how many runs a day has had


async def count_run(db: Connection, agent: Agent, tenant: tuple[str, str], day: date) -> bool:
    """Count one run more, unless the day has had all it may. Holds the day's row until the transaction has ended."""
    return await db.fetchval(_COUNT, agent.id, *tenant, day, agent.max_tasks_per_day) is not None


async def give_back(db: Connection, agent: Agent, tenant: tuple[str, str], day: date) -> None:
    await db.execute(_GIVE_BACK, agent.id, *tenant, day)


# ---- agents that always fail


async def pause_if_failing(pool: Pool, agent_id: str, failures: int) -> str | None:
    """Pause an agent whose last runs have all failed, and say so in its firings; the reason when it was paused now.

    Runs that failed since no model could be reached are left out: that passes by itself.
    """
    async with pool.acquire() as connection, connection.transaction():
        reason: str | None = await connection.fetchval(_PAUSE, agent_id, failures)
        if reason is not None:
            now = clock.now()
            await keep_firing(connection, agent_id, kind="pause", outcome="paused", reason="failures", detail=reason, at=now)
        return reason
