"""What starts an agent: events, its cron, people. Everything stands in the database before anything is answered.

A trigger makes the run at once, queued until it is due, in the transaction that counts it and writes the firing. So the
debounce, the ceiling and the depth hold for any number of processes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import orjson

from app.agents import repository
from app.agents.instructions import NO_INPUT, event_input, options_of
from app.agents.models import Agent
from app.agents.schedule import zone
from app.agents.shapes import AgentRunCreate, TriggerCreate
from app.infra import clock, ids
from app.infra.database import Connection
from app.infra.errors import Conflict, Invalid, NotFound
from app.runs import repository as runs
from app.runs.resolve import Known, Resolver
from app.runs.service import RunService
from app.scope import Reference, Scope

MAX_DEPTH = 3
"""So many times may one run cause the next by an event."""
_TRIES = 5


@dataclass(slots=True)
class Triggered:
    """What came of a trigger; `queued` are the runs that are to be set going once it is committed."""

    fired: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    queued: list[asyncpg.Record] = field(default_factory=list)
    known: Known | None = None

    def as_json(self) -> dict[str, Any]:
        return {"fired": self.fired, "skipped": self.skipped}


@dataclass(frozen=True, slots=True)
class Occasion:
    """One event or cron slot for one agent. `firing` is what is written of it, whatever comes of it; `told` is the first
    user's message, `context` what its tools get."""

    agent: Agent
    firing: Mapping[str, Any]
    told: Any
    context: Mapping[str, Any]
    depth: int = 0
    quiet_seconds: float = 0.0

    @property
    def now(self) -> datetime:
        moment: datetime = self.firing["at"]
        return moment

    @property
    def tenant(self) -> tuple[str, str]:
        return self.firing["tenant_type"], self.firing["tenant_id"]

    @property
    def join_key(self) -> str | None:
        """Of the runs that events within the quiet time join; none without a quiet time."""
        if self.quiet_seconds == 0:
            return None
        about = [self.firing[name] for name in ("event", "tenant_type", "tenant_id", "subject_type", "subject_id")]
        return hashlib.sha256(orjson.dumps([self.agent.id, *about])).hexdigest()


class Triggers:
    """One per process; it keeps nothing. Its methods write in the caller's transaction."""

    def __init__(self, service: RunService, resolver: Resolver) -> None:
        self._service, self._resolver = service, resolver

    async def set_going(self, triggered: Triggered) -> None:
        """After the commit: start what is due, here if there is room."""
        for row in triggered.queued:
            await self._service.set_going(row)

    async def event(self, db: Connection, workspace_id: str, given: TriggerCreate) -> Triggered:
        """Fire every agent that the event concerns. Raises NotFound for a cause that is no run of the workspace."""
        depth = await _depth(db, workspace_id, given.cause_run_id)
        triggered = Triggered()
        written = {"kind": "event", "event": given.event, "cause_run_id": given.cause_run_id, **given.scope.as_columns()}
        for agent, now in await repository.listening(db, workspace_id, given.event, given.tenant):
            told = event_input(agent.input, given.event, given.payload)
            occasion = Occasion(agent, {**written, "at": now}, told, given.context or {}, depth, agent.debounce_seconds)
            if not agent.active:
                await skip(db, triggered, occasion, "inactive", agent.paused_reason)
            elif depth > MAX_DEPTH:
                await skip(db, triggered, occasion, "causality", f"depth {depth}")
            else:
                await self.start(db, triggered, occasion)
        return triggered

    async def start(self, db: Connection, triggered: Triggered, occasion: Occasion) -> None:
        """Queue a run within the day's ceiling, or join one that is queued; or skip it, with a firing that says why."""
        agent, now = occasion.agent, occasion.now
        day = now.astimezone(zone(agent.timezone)).date()
        row: dict[str, Any] | None = None
        try:
            for _ in range(_TRIES):
                if occasion.quiet_seconds:
                    row = row or await self._row(db, triggered, occasion)
                    if await self._joined(db, triggered, occasion, row):
                        return
                if not await repository.count_run(db, agent, occasion.tenant, day):
                    # whoever had the last one of the day may have committed only now
                    if row is None or not await self._joined(db, triggered, occasion, row):
                        await skip(db, triggered, occasion, "daily_ceiling", f"{agent.max_tasks_per_day} runs on {day}")
                    return
                row = row or await self._row(db, triggered, occasion)
                if await self._queued(db, triggered, occasion, row):
                    return
                await repository.give_back(db, agent, occasion.tenant, day)
        except Invalid as error:
            if row is None and not occasion.quiet_seconds:
                await repository.give_back(db, agent, occasion.tenant, day)
            await skip(db, triggered, occasion, "invalid", error.detail)
            return
        raise Conflict("The agent is too busy.", code="agent_busy")

    async def _row(self, db: Connection, triggered: Triggered, occasion: Occasion) -> dict[str, Any]:
        """The run as it is to be stored. Raises Invalid for an agent that cannot run as it is."""
        agent = occasion.agent
        if triggered.known is None:
            triggered.known = await runs.known(db, agent.workspace_id)
        scope = {name: occasion.firing.get(name) for name in SCOPE_COLUMNS}
        row = self._resolver.of_agent(options_of(agent), scope, occasion.told, occasion.context, triggered.known)
        await self._service.redactions.accept(row, db)
        return row | {"depth": occasion.depth, "join_key": occasion.join_key}

    async def _queued(self, db: Connection, triggered: Triggered, occasion: Occasion, row: dict[str, Any]) -> bool:
        """False when another run was queued at this very moment that it must join."""
        agent, due_at = occasion.agent, occasion.now + timedelta(seconds=occasion.quiet_seconds)
        made = await runs.queue_until(db, row, occasion.now, due_at)
        if made is None:
            return False
        firing = {**occasion.firing, "outcome": "fired", "run_id": made["id"], "due_at": due_at}
        await repository.keep_firing(db, agent.id, **firing)
        triggered.fired.append({"agent_id": agent.id, "run_id": made["id"], "due_at": clock.rfc3339(due_at)})
        triggered.queued.append(made)
        return True

    async def _joined(self, db: Connection, triggered: Triggered, occasion: Occasion, row: dict[str, Any]) -> bool:
        joined = await runs.join(db, row, occasion.quiet_seconds)
        if joined is None:
            return False
        await skip(db, triggered, occasion, "debounced", None, run_id=joined["id"], due_at=joined["wake_at"])
        return True

    async def manual(self, db: Connection, agent: Agent, given: AgentRunCreate) -> asyncpg.Record:
        """Queue a run that somebody asked for; it is not counted. Raises Conflict for an agent that is not active."""
        if not agent.active:
            raise Conflict("The agent is not active.", code="agent_inactive")
        scope = _scope_of(agent, given)
        now = await db.fetchval("SELECT now()")
        known = await runs.known(db, agent.workspace_id)
        told = given.model_dump(mode="json", exclude_unset=True).get("input") or agent.input or NO_INPUT
        row = self._resolver.of_agent(options_of(agent), scope, told, given.context or {}, known)
        await self._service.redactions.accept(row, db)
        made = await runs.queue_until(db, row, now, now)
        assert made is not None
        written = {"kind": "manual", "outcome": "fired", "run_id": made["id"], "due_at": now, "at": now, **scope}
        await repository.keep_firing(db, agent.id, **written)
        return made


SCOPE_COLUMNS = tuple(f"{name}_{part}" for name in ("tenant", "subject", "member") for part in ("type", "id"))


async def skip(
    db: Connection, triggered: Triggered, occasion: Occasion, reason: str, detail: str | None, **more: Any
) -> None:
    """Write that an agent was not started, and why."""
    firing = {**occasion.firing, "outcome": "skipped", "reason": reason, "detail": detail, **more}
    await repository.keep_firing(db, occasion.agent.id, **firing)
    shown = {"agent_id": occasion.agent.id, "reason": reason}
    triggered.skipped.append(shown | ({"run_id": more["run_id"]} if "run_id" in more else {}))


async def _depth(db: Connection, workspace_id: str, cause_run_id: str | None) -> int:
    """How many events stand behind an event: 0 for one that no run has caused."""
    if cause_run_id is None:
        return 0
    depth: int | None = None
    if ids.is_id(cause_run_id, ids.RUN):
        query = "SELECT depth FROM runs WHERE id = $1 AND workspace_id = $2"
        depth = await db.fetchval(query, cause_run_id, workspace_id)
    if depth is None:
        raise NotFound("There is no such run.")
    return depth + 1


def _scope_of(agent: Agent, given: AgentRunCreate) -> dict[str, str | None]:
    """The scope of a manual run. Raises Invalid without a tenant, or with another one than the agent's."""
    own = None if agent.tenant_type is None else Reference(type=agent.tenant_type, id=agent.tenant_id or "")
    tenant = given.tenant or own
    if tenant is None:
        raise Invalid("A tenant is needed.", errors=[(("body", "tenant"), "neither here nor on the agent")])
    if own is not None and tenant != own:
        raise Invalid("The agent is another tenant's.", errors=[(("body", "tenant"), "not the agent's own")])
    scope = Scope(tenant=tenant, subject=given.subject, member=given.member)
    scope.check()
    return scope.as_columns()
