"""Cron: the agents whose next slot has come. Any number of processes may look at once; a slot is settled by one of them."""

from datetime import datetime
from typing import Any

import asyncpg

from app.agents import repository
from app.agents.instructions import NO_INPUT
from app.agents.models import Agent
from app.agents.schedule import COUNTED, Due, Schedule
from app.agents.triggers import Occasion, Triggered, Triggers, skip
from app.infra.database import Connection, Pool
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import log

_DUE = """
SELECT *, coalesce($1::timestamptz, now()) AS looked_at FROM agents
 WHERE active AND next_at <= coalesce($1::timestamptz, now())
 ORDER BY next_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
"""
_SETTLE = "UPDATE agents SET cron_after = $2, next_at = $3, cron_run_id = coalesce($4, cron_run_id) WHERE id = $1"
_IS_ACTIVE = "SELECT true FROM runs WHERE id = $1 AND status IN ('queued', 'running', 'waiting')"


class Scheduler:
    """One per process; it keeps nothing."""

    def __init__(self, pool: Pool, triggers: Triggers) -> None:
        self._pool, self._triggers = pool, triggers

    async def start_due(self, now: datetime | None = None) -> None:
        """Settle the slots that have come: by the database's clock, or as if it was `now`."""
        while (triggered := await self._settle_one(now)) is not None:
            await self._triggers.set_going(triggered)

    async def _settle_one(self, now: datetime | None) -> Triggered | None:
        """One agent's slots, in one transaction; None when no agent is due that nobody else has in hand."""
        async with self._pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(_DUE, now)
            if row is None:
                return None
            triggered = Triggered()
            try:
                async with connection.transaction():
                    await self._settle(connection, row, triggered)
            except Exception as error:
                if is_out_of_reach(error):
                    raise
                # one agent's trouble must not keep the others from their slots
                log.exception("schedule_failed", agent_id=row["id"])
                query = "UPDATE agents SET next_at = greatest(next_at, now()) + interval '1 minute' WHERE id = $1"
                await connection.execute(query, row["id"])
                return Triggered()
            return triggered

    async def _settle(self, db: Connection, row: asyncpg.Record, triggered: Triggered) -> None:
        agent, now = repository.agent_of(row), row["looked_at"]
        assert agent.cron is not None
        schedule = Schedule(agent.cron, agent.timezone)
        due = schedule.due(agent.cron_after or agent.created_at, now)
        if due is not None:
            await self._fire(db, agent, due, now, triggered)
        run_id = triggered.fired[0]["run_id"] if triggered.fired else None
        settled = agent.cron_after if due is None else due.slot
        await db.execute(_SETTLE, agent.id, settled, schedule.next_after(now), run_id)

    async def _fire(self, db: Connection, agent: Agent, due: Due, now: datetime, triggered: Triggered) -> None:
        written: dict[str, Any] = {
            "kind": "cron", "slot": due.slot, "tenant_type": agent.tenant_type, "tenant_id": agent.tenant_id, "at": now,
            "detail": _missed(due.missed),
        }  # fmt: skip
        occasion = Occasion(agent, written, agent.input or NO_INPUT, {})
        if agent.cron_run_id is not None and await db.fetchval(_IS_ACTIVE, agent.cron_run_id):
            await skip(db, triggered, occasion, "overlap", f"{agent.cron_run_id} is still active")
            return
        await self._triggers.start(db, triggered, occasion)


def _missed(missed: int) -> str | None:
    if missed == 0:
        return None
    return f"stands for {missed if missed < COUNTED else f'{COUNTED} or more'} missed slots before it too"
