"""What a waiting run waits for: decisions about calls, and results that come from outside. Stored, then carried on."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import asyncpg
import orjson
from pydantic import Field, StringConstraints, model_validator

from app.infra.database import Connection, Pool
from app.infra.errors import Conflict, Invalid
from app.loop.messages import PendingReason, RunStatus
from app.runs import statements
from app.shapes import JsonObject, Shape
from app.tools import repository as tools
from app.tools.schema import compiled

CallId = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class Decision(Shape):
    """`call_id` `*` stands for all calls that no other decision names."""

    call_id: CallId
    decision: Literal["approve", "edit", "reject"]
    arguments: JsonObject | None = None
    reason: Annotated[str, StringConstraints(max_length=2000)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Decision":
        if (self.decision == "edit") != (self.arguments is not None):
            raise ValueError("arguments come with the decision edit, and with no other")
        if self.reason is not None and self.decision != "reject":
            raise ValueError("a reason comes with the decision reject only")
        if self.decision == "edit" and self.call_id == "*":
            raise ValueError("an edit names its call")
        return self

    def resolution(self) -> JsonObject:
        if self.decision == "reject":
            reason = self.reason.strip() if self.reason else ""
            return {"kind": "reject", "reason": reason or None}
        return {"kind": "approve", "arguments": self.arguments}


class Approvals(Shape):
    decisions: Annotated[list[Decision], Field(min_length=1, max_length=200)]


class GivenResult(Shape):
    """Either `result`, any JSON, or `error`, a text that the model shall read."""

    call_id: CallId
    result: Any = None
    error: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None

    @model_validator(mode="after")
    def _one(self) -> "GivenResult":
        if ("result" in self.model_fields_set) == (self.error is not None):
            raise ValueError("either result or error is needed")
        return self

    def resolution(self) -> JsonObject:
        if self.error is not None:
            return {"kind": "error", "error": self.error}
        return {"kind": "result", "result": self.result}


class ToolResults(Shape):
    results: Annotated[list[GivenResult], Field(min_length=1, max_length=200)]


async def approve(pool: Pool, run_id: str, given: Approvals, kept: Approvals | None = None) -> tuple[asyncpg.Record, bool]:
    """Keep the decisions about all calls that wait for one. Returns the run, and True: it may go on. `kept` is what is
    stored in their place: the same, redacted.

    Raises Conflict (`pending_mismatch`) when the decisions do not name exactly what waits.
    """
    async with pool.acquire() as connection, connection.transaction():
        run = await _lock(connection, run_id)
        waiting = [item for item in _pending(run) if item["reason"] == PendingReason.APPROVAL]
        named = {decision.call_id: decision for decision in given.decisions}
        default = named.pop("*", None)
        ids = [item["call_id"] for item in waiting]
        if not ids or len(given.decisions) != len(named) + (default is not None) or not named.keys() <= set(ids):
            raise _mismatch(run)
        if default is None and named.keys() != set(ids):
            raise _mismatch(run)
        await _check_edits(pool, run, waiting, named)
        stored = {decision.call_id: decision for decision in (kept or given).decisions}
        decided = {call_id: stored.get(call_id, stored.get("*")) for call_id in ids}
        await connection.execute(
            statements.RESOLVE, run_id, {key: value.resolution() for key, value in decided.items() if value is not None}
        )
        return await connection.fetchrow(statements.RELEASE, run_id), True


async def supply(pool: Pool, run_id: str, given: ToolResults) -> tuple[asyncpg.Record, bool]:
    """Keep results from outside. Returns the run, and whether it has all that it waited for.

    A result may come before the run has begun to wait for it. One that was given before is taken again and changes
    nothing; another one, or one for a call that does not wait, raises Conflict (`pending_mismatch`).
    """
    async with pool.acquire() as connection, connection.transaction():
        run = await _lock(connection, run_id)
        pending = _pending(run)
        open_ids = {item["call_id"] for item in pending if item["reason"] != PendingReason.APPROVAL}
        if run["status"] == RunStatus.RUNNING:
            open_ids = await _open_calls(connection, run_id)
        fresh: dict[str, JsonObject] = {}
        for result in given.results:
            resolution = result.resolution()
            if result.call_id in open_ids and fresh.get(result.call_id, resolution) == resolution:
                fresh[result.call_id] = resolution
            elif not await _was_given(connection, run_id, result.call_id, resolution):
                raise _mismatch(run)
        if not fresh:
            return run, False
        await connection.execute(statements.RESOLVE, run_id, fresh)
        if run["status"] == RunStatus.RUNNING:
            return run, False
        rest = [item for item in pending if item["call_id"] not in fresh]
        if rest:
            return await connection.fetchrow(statements.STILL_PENDING, run_id, rest), False
        return await connection.fetchrow(statements.RELEASE, run_id), True


async def came_early(pool: Pool, run_id: str) -> bool:
    """After a run has begun to wait: whether all that it waits for was given meanwhile, so that it goes on.

    Until it was looked at, a run wakes after some seconds: so one whose owner died in between is looked at by another.
    """
    async with pool.acquire() as connection, connection.transaction():
        run = await _lock(connection, run_id)
        pending = _pending(run) if run is not None else []
        rows = await connection.fetch(
            "SELECT id FROM tool_calls WHERE run_id = $1 AND answered_at IS NULL"
            " AND resolution->>'kind' IN ('result', 'error')",
            run_id,
        )
        given = {row["id"] for row in rows}
        rest = [item for item in pending if item["call_id"] not in given]
        if not pending:
            return False
        await (connection.execute(statements.WAIT, run_id, rest) if rest else connection.execute(statements.RELEASE, run_id))
        return not rest


async def _open_calls(connection: Connection, run_id: str) -> set[str]:
    """Calls of a run at work that have no result, and do not wait for somebody's decision."""
    rows = await connection.fetch(
        "SELECT id FROM tool_calls WHERE run_id = $1 AND answered_at IS NULL AND resolution IS NULL"
        " AND pending_reason IS DISTINCT FROM 'approval'",
        run_id,
    )
    return {row["id"] for row in rows}


async def _lock(connection: Connection, run_id: str) -> asyncpg.Record:
    return await connection.fetchrow("SELECT * FROM runs WHERE id = $1 FOR UPDATE", run_id)


def _pending(run: Mapping[str, Any]) -> list[JsonObject]:
    """What it waits for; nothing once somebody has claimed it in order to end it."""
    return run["pending"] or [] if run["status"] == RunStatus.WAITING and run["claim"] is None else []


async def _was_given(connection: Connection, run_id: str, call_id: str, resolution: JsonObject) -> bool:
    stored = await connection.fetchval("SELECT resolution FROM tool_calls WHERE run_id = $1 AND id = $2", run_id, call_id)
    return stored is not None and stored == resolution


def _mismatch(run: Mapping[str, Any]) -> Conflict:
    return Conflict(
        "These are not the calls that the run waits for.", code="pending_mismatch", extra={"pending": _pending(run)}
    )


async def _check_edits(pool: Pool, run: Mapping[str, Any], waiting: list[JsonObject], named: Mapping[str, Decision]) -> None:
    """Edited arguments must fit the tool's schema: nobody is asked a second time."""
    names = {item["call_id"]: item["tool"] for item in waiting}
    edits = {call_id: decision for call_id, decision in named.items() if decision.arguments is not None}
    if not edits:
        return
    rows = await tools.read_active(pool, run["workspace_id"], [names[call_id] for call_id in edits])
    schemas = {row["name"]: row["parameters"] for row in rows}
    for call_id, decision in edits.items():
        schema = schemas.get(names[call_id])
        text = None if schema is None else orjson.dumps(schema).decode()
        problems = () if text is None else compiled(text).check(decision.arguments or {}).problems
        if problems:
            places = [(("body", "decisions", call_id, "arguments"), problem) for problem in problems]
            raise Invalid("The edited arguments do not fit the tool.", errors=places)
