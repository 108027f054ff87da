"""What a process needs of its agents, put together: triggers, cron, children, and what sessions take from them."""

import asyncpg

from app.agents import repository
from app.agents.children import Children
from app.agents.instructions import completed
from app.agents.scheduler import Scheduler
from app.agents.triggers import Triggers
from app.infra.database import Pool
from app.infra.errors import Conflict, NotFound
from app.infra.telemetry import log
from app.loop.messages import ACTIVE_STATUSES, RunStatus
from app.runs.resolve import Resolver
from app.runs.service import RunService
from app.scope import Reference
from app.sessions.models import Session


class AgentService:
    """One per process. `failures_before_pause` 0: agents are never paused."""

    def __init__(self, pool: Pool, runs: RunService, resolver: Resolver, failures_before_pause: int) -> None:
        self._pool, self._runs, self._failures = pool, runs, failures_before_pause
        self.triggers = Triggers(runs, resolver)
        self.scheduler = Scheduler(pool, self.triggers)
        self.children = Children(pool, runs, resolver)

    async def run_ended(self, run: asyncpg.Record) -> None:
        """What follows from the end of a run of an agent, or of one that works for another."""
        if run["status"] in ACTIVE_STATUSES:
            return
        if run["parent_run_id"] is not None:
            await self.children.tell_parent(run)
        elif run["session_id"] is None and run["status"] == RunStatus.FAILED and self._failures:
            reason = await repository.pause_if_failing(self._pool, run["agent_id"], self._failures)
            if reason is not None:
                log.warning("agent_paused", agent_id=run["agent_id"], reason=reason)

    async def check(self, workspace_id: str, agent_id: str, tenant: Reference) -> None:
        """Raises NotFound for an agent that a session of this tenant cannot have."""
        agent = await repository.find(self._pool, workspace_id, agent_id)
        if agent.tenant_type is not None and (agent.tenant_type, agent.tenant_id) != (tenant.type, tenant.id):
            raise NotFound("There is no such agent.")

    async def complete(self, session: Session) -> Session:
        """A session with what its agent says. Raises Conflict when the agent was deleted: without it the session would
        run on other instructions and with more tools."""
        if session.agent_id is None:
            return session
        try:
            agent = await repository.find(self._pool, session.workspace_id, session.agent_id)
        except NotFound:
            raise Conflict("The session's agent was deleted.", code="agent_deleted") from None
        return completed(session, agent)

    async def cancel_queued(self, agent_id: str) -> None:
        """After an agent was deleted: what has not begun does not begin."""
        rows = await self._pool.fetch(
            "SELECT * FROM runs WHERE agent_id = $1 AND status = 'queued' AND session_id IS NULL", agent_id
        )
        for row in rows:
            await self._runs.cancel(row)
