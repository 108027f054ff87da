"""Agents, their runs and firings, and the events that start them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import asyncpg
from fastapi import APIRouter, Depends, Query, Request, Response

from app.agents import repository
from app.agents.models import Agent
from app.agents.service import AgentService
from app.agents.shapes import (
    AgentCreate,
    AgentPatch,
    AgentRead,
    AgentRunCreate,
    TriggerAnswer,
    TriggerCreate,
    agent_json,
    firing_json,
)
from app.agents.triggers import Triggered
from app.bodies import body
from app.infra.database import Connection, Pool
from app.infra.errors import Invalid
from app.redaction.config import kept, shown
from app.runs import repository as runs
from app.runs.resolve import check_tools
from app.runs.shapes import RunRead
from app.scope import Reference, parse_reference
from app.web import Caller, Db, HotDb, Idempotent, Paged, Service, json_response, listed, pool

router = APIRouter(prefix="/v1", tags=["agents"])


async def _service(request: Request) -> AgentService:
    found: AgentService = request.app.state.agents
    return found


Agents = Annotated[AgentService, Depends(_service)]


async def _agent(request: Request, agent_id: str) -> Agent:
    return await repository.find(pool(request), request.state.caller.workspace_id, agent_id)


AgentInPath = Annotated[Agent, Depends(_agent)]
"""The agent that the path names. Must stand after the caller."""


async def _tenant(tenant: Annotated[str | None, Query()] = None) -> Reference | None:
    try:
        return None if tenant is None else parse_reference(tenant)
    except ValueError:
        raise Invalid(errors=[(("query", "tenant"), "TYPE:ID is expected")]) from None


Tenant = Annotated[Reference | None, Depends(_tenant)]


@router.post("/agents", status_code=201, response_model=AgentRead)
async def create_agent(
    request: Request,
    caller: Service,
    wanted: Annotated[AgentCreate, body(AgentCreate)],
    once: Idempotent,
    db: Db,
    hot: HotDb,
) -> Response:
    values = _columns(request, caller, wanted)
    tenant = wanted.tenant
    values |= {"tenant_type": tenant.type if tenant else None, "tenant_id": tenant.id if tenant else None}

    async def make() -> dict[str, Any]:
        await _check_tools(hot, caller.workspace_id, wanted)
        return _shown(request, await repository.create(db, caller.workspace_id, values))

    return await once.create(db, make)


def _shown(request: Request, row: Agent) -> dict[str, Any]:
    return agent_json(row, shown(request.app.state.crypto, row.workspace_id, row.redaction))


def _columns(request: Request, caller: Caller, wanted: AgentCreate | AgentPatch) -> dict[str, Any]:
    """What was named; a new agent without `event_triggers` has none."""
    named = wanted.as_columns()
    if "redaction" in wanted.model_fields_set:
        named["redaction"] = kept(request.app.state.crypto, caller.workspace_id, wanted.redaction)
    return {"event_triggers": [], **named} if isinstance(wanted, AgentCreate) else named


async def _check_tools(hot: Pool, workspace_id: str, wanted: AgentCreate | AgentPatch) -> None:
    """Nobody looks on when an agent runs, so a wrong name is told to the one who writes it. It may name itself."""
    if wanted.allowed_tools:
        known = await runs.known(hot, workspace_id)
        named = [tool for tool in wanted.allowed_tools if tool != f"agent:{wanted.name}"]
        check_tools("allowed_tools", named, known)


@router.get("/agents")
async def list_agents(request: Request, caller: Service, page: Paged, tenant: Tenant, db: Db) -> Response:
    rows, cursor = page.cut(await repository.list_agents(db, caller.workspace_id, page, tenant), lambda row: row.id)
    return listed([_shown(request, row) for row in rows], cursor)


@router.get("/agents/{agent_id}", response_model=AgentRead)
async def get_agent(request: Request, caller: Service, agent: AgentInPath) -> Response:
    return json_response(_shown(request, agent))


@router.patch("/agents/{agent_id}", response_model=AgentRead)
async def change_agent(
    request: Request,
    caller: Service,
    agent: AgentInPath,
    wanted: Annotated[AgentPatch, body(AgentPatch)],
    db: Db,
    hot: HotDb,
) -> Response:
    await _check_tools(hot, caller.workspace_id, wanted)
    values = _columns(request, caller, wanted)
    return json_response(_shown(request, await repository.update(db, agent, values)))


@router.delete("/agents/{agent_id}", status_code=204)
async def delete_agent(request: Request, caller: Service, agent: AgentInPath, agents: Agents) -> None:
    """With its firings. What has not begun is cancelled; what is under way goes on; its runs stay."""
    await repository.delete(pool(request), agent)
    await agents.cancel_queued(agent.id)


@router.post("/agents/{agent_id}/runs", status_code=202, response_model=RunRead)
async def start_run(
    request: Request,
    caller: Service,
    agent: AgentInPath,
    wanted: Annotated[AgentRunCreate, body(AgentRunCreate)],
    once: Idempotent,
    agents: Agents,
    hot: HotDb,
) -> Response:
    queued: list[asyncpg.Record] = []

    async def make(db: Connection | Pool) -> Any:
        async with _in_transaction(db) as connection:
            row = await agents.triggers.manual(connection, agent, wanted)
        queued.append(row)
        return await request.app.state.runs.shown(row)

    response = await once.create_hot(hot, make, 202)
    await agents.triggers.set_going(Triggered(queued=queued))
    return response


@router.get("/agents/{agent_id}/runs")
async def list_runs(request: Request, caller: Service, agent: AgentInPath, page: Paged, hot: HotDb) -> Response:
    found = await runs.list_runs(hot, caller.workspace_id, page, {"agent_id": agent.id}, None)
    rows, cursor = page.cut(found, lambda row: row["id"])
    return listed(await request.app.state.runs.shown_list(rows), cursor)


@router.get("/agents/{agent_id}/firings")
async def list_firings(caller: Service, agent: AgentInPath, page: Paged, hot: HotDb) -> Response:
    rows, cursor = page.cut(await repository.list_firings(hot, agent.id, page), lambda row: row["id"])
    return listed([firing_json(row) for row in rows], cursor)


@router.post("/triggers", status_code=202, response_model=TriggerAnswer)
async def trigger(
    caller: Service,
    wanted: Annotated[TriggerCreate, body(TriggerCreate)],
    once: Idempotent,
    agents: Agents,
    hot: HotDb,
) -> Response:
    wanted.scope.check()
    made: list[Triggered] = []

    async def make(db: Connection | Pool) -> dict[str, Any]:
        async with _in_transaction(db) as connection:
            triggered = await agents.triggers.event(connection, caller.workspace_id, wanted)
        made.append(triggered)
        return triggered.as_json()

    response = await once.create_hot(hot, make, 202)
    for triggered in made:
        await agents.triggers.set_going(triggered)
    return response


@asynccontextmanager
async def _in_transaction(db: Connection | Pool) -> AsyncIterator[Connection]:
    """The transaction that is open already, or one of its own."""
    if isinstance(db, Pool):
        async with db.acquire() as connection, connection.transaction():
            yield connection
    else:
        yield db
