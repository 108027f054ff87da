"""Agents as tools: a call of `agent_NAME` runs that agent as a child of the run that made the call.

A child is a run of its own, with its own events and trace, found by `parent_run_id`. Its id is derived from the call's, so
that whoever carries the parent on finds the child again. It ends before its parent does, and a parent whose child waits
(for an approval, say) waits too. What must happen between the two and was lost with a process, `mend` finds.
"""

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

import asyncpg

from app.agents import repository
from app.agents.instructions import options_of
from app.agents.models import Agent
from app.agents.triggers import SCOPE_COLUMNS
from app.infra import ids
from app.infra.database import Pool
from app.infra.errors import Conflict, Invalid, NotFound
from app.infra.telemetry import TOOL_CALLS, log
from app.loop.messages import ACTIVE_STATUSES, PendingCall, PendingReason, RunStatus, ToolCall, ToolOutcome, ToolResult
from app.loop.ports import OfferedTool
from app.loop.tool_calls import unavailable
from app.redaction.restorer import restore_json
from app.run_options import AGENT_PREFIX, offered_name
from app.runs import repository as runs
from app.runs import waiting
from app.runs.joined import RunTools
from app.runs.redacting import inherited
from app.runs.resolve import Resolver
from app.runs.service import RunService
from app.tools.schema import compiled

MAX_NESTING = 3
"""A child of a child of a child has no agents among its tools."""
_SCHEMA = (
    '{"type":"object","properties":{"task":{"type":"string","minLength":1,"description":"What it shall do, with all that it '
    'needs to know: it sees nothing of this conversation."}},"required":["task"],"additionalProperties":false}'
)
_READ = """
SELECT * FROM agents WHERE workspace_id = $1 AND name = ANY($2) AND active
   AND (tenant_type IS NULL OR (tenant_type = $3 AND tenant_id = $4)) ORDER BY name
"""
_ACTIVE_CHILDREN = "SELECT * FROM runs WHERE parent_run_id = $1 AND status = ANY($2)"
_FORGOTTEN = """
SELECT child.* FROM runs AS child JOIN runs AS parent ON parent.id = child.parent_run_id
 WHERE child.status IN ('queued', 'running', 'waiting') AND child.cancel_requested_at IS NULL
   AND parent.status NOT IN ('queued', 'running', 'waiting')
"""
_UNHEARD = """
SELECT child.* FROM runs AS parent JOIN runs AS child ON child.parent_run_id = parent.id
  JOIN tool_calls AS call ON call.run_id = parent.id AND call.id = child.request->>'parent_call_id'
 WHERE parent.status = 'waiting' AND child.status NOT IN ('queued', 'running', 'waiting')
   AND call.answered_at IS NULL AND call.resolution IS NULL
"""
_WAITS_FOR = (
    "SELECT true FROM tool_calls WHERE run_id = $1 AND id = $2 AND pending_reason IS NOT NULL AND answered_at IS NULL"
)


class AgentTools:
    """The Tools port of a run: its other tools, and the agents that it may use."""

    def __init__(self, children: "Children", inner: RunTools, run: Mapping[str, Any], agents: list[Agent]) -> None:
        self._children, self._inner, self._run = children, inner, run
        self._agents = {offered_name(AGENT_PREFIX + agent.name): agent for agent in agents}
        self.offered = inner.offered + tuple(_offered(name, agent) for name, agent in self._agents.items())
        self.at_most_once, self.redactions = inner.at_most_once, inner.redactions

    async def call(self, call: ToolCall) -> ToolResult | PendingCall:
        agent = self._agents.get(call.name)
        if agent is None:
            return await self._inner.call(call)
        result = await self._children.call(self._run, agent, call)
        if isinstance(result, ToolResult):
            TOOL_CALLS.labels(result.outcome).inc()
        return result

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        if call.name in self._agents:
            result = replace(result, tokens=await self._children.tokens_of(call))
        return await self._inner.received(call, result)


def _offered(name: str, agent: Agent) -> OfferedTool:
    schema = compiled(_SCHEMA)
    return OfferedTool(name, f"Hands a task to the agent {agent.name} and gives its answer.", schema.schema, schema.check)


class Children:
    """One per process; it keeps nothing."""

    def __init__(self, pool: Pool, service: RunService, resolver: Resolver) -> None:
        self._pool, self._service, self._resolver = pool, service, resolver

    async def with_agents(self, tools: RunTools, run: Mapping[str, Any]) -> RunTools:
        """The run's tools with the agents among them that are active and may work for its tenant."""
        names = _agent_names(run)
        if not names or _nesting(run) >= MAX_NESTING:
            return tools
        rows = await self._pool.fetch(_READ, run["workspace_id"], names, run["tenant_type"], run["tenant_id"])
        return AgentTools(self, tools, run, [repository.agent_of(row) for row in rows])

    async def call(self, run: Mapping[str, Any], agent: Agent, call: ToolCall) -> ToolResult | PendingCall:
        """Run an agent for a call, or find the run that was started for it before."""
        started = perf_counter()
        try:
            row = await self._row(run, agent, call)
            await self._service.redactions.accept(row)
            child = await self._service.start_child(row)
            child = await self._service.settle(child, run["id"])
        except Invalid as error:
            log.warning("agent_unusable", agent_id=agent.id, call_id=call.id, reason=error.detail)
            return ToolResult(unavailable(call.name), ToolOutcome.FAILED, cause=error.detail)
        except NotFound:
            return ToolResult(unavailable(call.name), ToolOutcome.FAILED, cause="the run was erased")
        if child["status"] == RunStatus.WAITING:
            return PendingCall(call, PendingReason.ASYNC)
        shown = _result_of(child)
        result = restore_json(shown, await self._service.redactions.reading(child)).value
        outcome = ToolOutcome.ERROR if "error" in result else ToolOutcome.OK
        tokens = child["input_tokens"] + child["output_tokens"]
        return ToolResult(result, outcome, perf_counter() - started, attempts=1, tokens=tokens)

    async def tokens_of(self, call: ToolCall) -> int:
        """What the run has spent that was started for a call, its own children's included."""
        query = "SELECT input_tokens + output_tokens FROM runs WHERE id = $1"
        return await self._pool.fetchval(query, _child_id(call)) or 0

    async def _row(self, run: Mapping[str, Any], agent: Agent, call: ToolCall) -> dict[str, Any]:
        known = await runs.known(self._pool, run["workspace_id"])
        scope = {name: run[name] for name in SCOPE_COLUMNS}
        task = (call.arguments or {})["task"]
        row = self._resolver.of_agent(options_of(agent), scope, task, run["request"]["context"], known)
        request = row["request"] | {"nesting": _nesting(run) + 1, "parent_call_id": call.id}
        request["max_tokens_total"] = await self._budget(run, request["max_tokens_total"])
        request["redaction"] = inherited(request["redaction"], run["request"].get("redaction"))
        return row | {
            "id": _child_id(call),
            "parent_run_id": run["id"],
            "vault": run["vault"],
            "depth": run["depth"],
            "metadata": {**row["metadata"], "parent_call_id": call.id},
            "request": request,
        }

    async def _budget(self, run: Mapping[str, Any], own: int | None) -> int | None:
        """A child may spend what is left of its parent's budget, and not more than its own."""
        total = run["request"]["max_tokens_total"]
        if total is None:
            return own
        spent = await self._pool.fetchval("SELECT input_tokens + output_tokens FROM runs WHERE id = $1", run["id"])
        left: int = max(1, total - (spent or 0))
        return left if own is None else min(own, left)

    async def end_all(self, run: Mapping[str, Any]) -> None:
        """Before a run ends: end those that work for it."""
        if _agent_names(run):
            for child in await self._pool.fetch(_ACTIVE_CHILDREN, run["id"], list(ACTIVE_STATUSES)):
                await self._service.cancel(child)

    async def tell_parent(self, child: asyncpg.Record) -> None:
        """A child has ended: if its parent waits for it, it goes on."""
        parent_id, call_id = child["parent_run_id"], child["request"].get("parent_call_id")
        if call_id is None or not await self._pool.fetchval(_WAITS_FOR, parent_id, call_id):
            return
        given = waiting.GivenResult(call_id=call_id, result=_result_of(child))
        try:
            answered = await waiting.supply(self._pool, parent_id, waiting.ToolResults(results=[given]))
        except Conflict:
            return  # somebody else has answered it
        await self._service.carry_on(*answered)

    async def mend(self) -> None:
        """End children whose parent has ended, and tell parents of children that have."""
        for child in await self._pool.fetch(_FORGOTTEN):
            await self._service.cancel(child)
        for child in await self._pool.fetch(_UNHEARD):
            await self.tell_parent(child)


def _child_id(call: ToolCall) -> str:
    return ids.derived(ids.RUN, call.id, "child")


def _agent_names(run: Mapping[str, Any]) -> list[str]:
    names: list[str] = run["request"]["tools"]
    return [name.removeprefix(AGENT_PREFIX) for name in names if name.startswith(AGENT_PREFIX)]


def _nesting(run: Mapping[str, Any]) -> int:
    nesting: int = run["request"].get("nesting", 0)
    return nesting


def _result_of(child: Mapping[str, Any]) -> dict[str, Any]:
    """What the parent's model reads of a child that has ended."""
    shown: dict[str, Any] = {"run_id": child["id"], "status": child["status"]}
    if child["status"] == RunStatus.COMPLETED:
        return {**shown, "output": child["output"] if child["output_parsed"] is None else child["output_parsed"]}
    if child["output"] is not None:
        return {**shown, "finish_reason": child["finish_reason"], "output": child["output"]}
    return {**shown, "finish_reason": child["finish_reason"], "error": "The agent ended without an answer."}
