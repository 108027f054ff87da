"""Runs: starting, following, cancelling, reading."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

import asyncpg
from fastapi import APIRouter, Depends, Query, Request, Response

from app.events.sse import event_stream
from app.infra.database import Connection, Pool, in_transaction
from app.infra.errors import Conflict, Forbidden, Invalid, NotFound
from app.loop.messages import RunStatus
from app.memories import distillations
from app.memories.distillations import Trigger
from app.providers.scripted import script_of
from app.redaction.answers import restored
from app.runs import repository, waiting
from app.runs.compressor import Compressor
from app.runs.distiller import Distiller
from app.runs.preview import preview
from app.runs.read_shapes import PromptRead, ScriptRead, TraceRead
from app.runs.redacted_inputs import mismatch_shown, redacted_decisions, redacted_import, redacted_results
from app.runs.redacting import Redactions
from app.runs.resolve import Resolved, Resolver
from app.runs.service import RunService
from app.runs.shapes import CLIENT_FIELDS, RunCreate, RunRead, SessionRunCreate, Wanted
from app.runs.stored import reply_of
from app.scope import parse_reference
from app.sessions import repository as sessions
from app.sessions import summaries
from app.sessions.endpoints import SessionInPath
from app.sessions.history import content_tokens
from app.sessions.models import Imported, MessagesImport, Session, message_json
from app.shapes import JsonObject, Listing
from app.tools import repository as tools
from app.web import (
    Caller,
    Follower,
    HotDb,
    Idempotent,
    Paged,
    Reader,
    Service,
    Starter,
    Streaming,
    body,
    json_response,
    listed,
    pool,
)

router = APIRouter(prefix="/v1", tags=["runs"])


def _service(request: Request) -> RunService:
    found: RunService = request.app.state.runs
    return found


def _resolver(request: Request) -> Resolver:
    found: Resolver = request.app.state.resolver
    return found


def _redactions(request: Request) -> Redactions:
    found: Redactions = request.app.state.redactions
    return found


def _compressor(request: Request) -> Compressor:
    found: Compressor = request.app.state.compressor
    return found


def _distiller(request: Request) -> Distiller:
    found: Distiller = request.app.state.distiller
    return found


async def _completed(request: Request, session: SessionInPath) -> Session:
    complete: Complete = request.app.state.complete_session
    return await complete(session)


Complete = Callable[[Session], Awaitable[Session]]
"""Gives a session what its agent says, wherever the session says nothing itself."""
SessionOfRun = Annotated[Session, Depends(_completed)]
Runs = Annotated[RunService, Depends(_service)]
Resolving = Annotated[Resolver, Depends(_resolver)]


async def _run(request: Request, run_id: str) -> asyncpg.Record:
    caller: Caller = request.state.caller
    row = await repository.find(pool(request), caller.workspace_id, run_id)
    if not caller.may_see_session(row["session_id"]):
        raise NotFound()
    return row


RunInPath = Annotated[Any, Depends(_run)]
"""The run that the path names, if the caller may know of it. Must stand after the caller."""


@router.post(
    "/sessions/{session_id}/runs",
    response_model=RunRead,
    responses={202: {"model": RunRead, "description": "`background`: the run as it starts"}},
)
async def start_in_session(
    caller: Starter,
    session: SessionOfRun,
    wanted: Annotated[SessionRunCreate, body(SessionRunCreate)],
    once: Idempotent,
    runs: Runs,
    resolver: Resolving,
    hot: HotDb,
    place: Streaming,
) -> Response:
    if caller.kind == "client" and not wanted.model_fields_set <= CLIENT_FIELDS:
        raise Forbidden("A client token may say input, stream, background, on_conflict and metadata only.")

    async def resolve() -> Resolved:
        return resolver.in_session(session, wanted, await repository.known(hot, caller.workspace_id))

    how = wanted.model_dump(include={"stream", "background"}, exclude_none=True)
    return await _start(runs, resolve, once, place, {**(session.config or {}), **how})


@router.post(
    "/runs",
    response_model=RunRead,
    responses={202: {"model": RunRead, "description": "`background`: the run as it starts"}},
)
async def start_alone(
    caller: Service,
    wanted: Annotated[RunCreate, body(RunCreate)],
    once: Idempotent,
    runs: Runs,
    resolver: Resolving,
    hot: HotDb,
    place: Streaming,
) -> Response:
    async def resolve() -> Resolved:
        return resolver.alone(caller.workspace_id, wanted, await repository.known(hot, caller.workspace_id))

    return await _start(runs, resolve, once, place, wanted.model_dump(include={"stream", "background"}))


async def _start(runs: RunService, resolve: Any, once: Idempotent, place: Streaming, how: dict[str, Any]) -> Response:
    async def resolve_with_a_place() -> Resolved:
        """After idempotency was looked at, and before anything is accepted."""
        if how.get("stream"):
            place.take()
        resolved: Resolved = await resolve()
        return resolved

    started = await runs.start(resolve_with_a_place, once.idempotency)
    headers = {"Idempotent-Replayed": "true"} if started.replayed else {}
    if how.get("stream"):
        place.take()
        return event_stream(runs.frames(started.row, 0), {**headers, "Rondo-Run": started.row["id"]})
    if how.get("background"):
        return json_response(await runs.shown(started.row), 202, headers)
    return json_response(await runs.shown(await runs.wait(started.row)), 200, headers)


@router.get("/runs", response_model=Listing[RunRead])
async def list_runs(
    caller: Reader,
    page: Paged,
    hot: HotDb,
    runs: Runs,
    session_id: Annotated[str | None, Query()] = None,
    agent_id: Annotated[str | None, Query()] = None,
    parent_run_id: Annotated[str | None, Query()] = None,
    status: Annotated[RunStatus | None, Query()] = None,
    tenant: Annotated[str | None, Query()] = None,
) -> Response:
    if caller.session_id is not None:
        if session_id not in (None, caller.session_id):
            raise NotFound()
        session_id = caller.session_id
    elif session_id is not None:
        await sessions.find(hot, caller.workspace_id, session_id)
    try:
        reference = None if tenant is None else parse_reference(tenant)
    except ValueError:
        raise Invalid(errors=[(("query", "tenant"), "TYPE:ID is expected")]) from None
    filters = {"session_id": session_id, "agent_id": agent_id, "parent_run_id": parent_run_id, "status": status}
    rows, cursor = page.cut(
        await repository.list_runs(hot, caller.workspace_id, page, filters, reference), lambda row: row["id"]
    )
    return listed(await runs.shown_list(rows), cursor)


@router.get("/runs/{run_id}", response_model=RunRead)
async def get_run(caller: Reader, run: RunInPath, runs: Runs) -> Response:
    return json_response(await runs.shown(run))


@router.get("/runs/{run_id}/events")
async def follow_run(
    request: Request,
    caller: Follower,
    run: RunInPath,
    runs: Runs,
    place: Streaming,
    after: Annotated[str | None, Query()] = None,
) -> Response:
    seq = _seq(request.headers.get("last-event-id") or after)
    await runs.check_seq(run, seq)
    if run["last_seq"] is not None and seq >= run["last_seq"]:
        return Response(status_code=204)
    place.take()
    return event_stream(runs.frames(run, seq))


def _seq(text: str | None) -> int:
    if not text:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise Invalid("That is no event id.", errors=[(("header", "Last-Event-ID"), "a number from 0 on is expected")])
    return int(text)


@router.get("/runs/{run_id}/trace", response_model=TraceRead)
async def get_trace(request: Request, caller: Reader, run: RunInPath, hot: HotDb) -> Response:
    traced = {"iterations": await repository.trace(hot, run["id"])}
    return json_response(await restored(request.app.state.vaults, traced, run["vault"]))


@router.get("/runs/{run_id}/script", response_model=ScriptRead)
async def get_script(request: Request, caller: Service, run: RunInPath, hot: HotDb) -> Response:
    replies = [reply_of(stored) for stored in await repository.stored_replies(hot, run["id"])]
    return json_response(await restored(request.app.state.vaults, {"script": script_of(replies)}, run["vault"]))


@router.post("/runs/{run_id}/cancel", response_model=RunRead)
async def cancel_run(caller: Starter, run: RunInPath, runs: Runs) -> Response:
    return json_response(await runs.shown(await runs.cancel(run)))


@router.post("/runs/{run_id}/approvals", response_model=RunRead)
async def decide(
    caller: Service, run: RunInPath, given: Annotated[waiting.Approvals, body(waiting.Approvals)], runs: Runs
) -> Response:
    kept = await redacted_decisions(runs.redactions, run, given)
    async with mismatch_shown(runs.redactions, run):
        answered = await waiting.approve(runs.pool, run["id"], given, kept)
    return json_response(await runs.shown(await runs.carry_on(*answered)))


@router.post("/runs/{run_id}/tool-results", response_model=RunRead)
async def give_results(
    caller: Service, run: RunInPath, given: Annotated[waiting.ToolResults, body(waiting.ToolResults)], runs: Runs
) -> Response:
    kept = await redacted_results(runs.redactions, runs.pool, run, given)
    async with mismatch_shown(runs.redactions, run):
        answered = await waiting.supply(runs.pool, run["id"], kept)
    return json_response(await runs.shown(await runs.carry_on(*answered)))


@router.get("/sessions/{session_id}/prompt", response_model=PromptRead)
async def preview_prompt(
    request: Request,
    caller: Service,
    session: SessionOfRun,
    resolver: Resolving,
    hot: HotDb,
    input: Annotated[str | None, Query()] = None,
) -> Response:
    turn, names = resolver.next_turn(session, input), resolver.tools_of(session)
    run = resolver.run_of(session, await tools.active_names(hot, caller.workspace_id) if names is None else names)
    offering = await request.app.state.toolbox_for(run)
    applies = resolver.redaction_of(session)
    trial = None if applies is None else await _redactions(request).trial(session, applies)
    return json_response(await preview(request.app.state.prompts, turn, offering.offered, trial))


@router.post("/sessions/{session_id}/messages", status_code=201, response_model=Imported)
async def import_messages(
    request: Request,
    caller: Service,
    session: SessionOfRun,
    wanted: Annotated[MessagesImport, body(MessagesImport)],
    once: Idempotent,
    resolver: Resolving,
    hot: HotDb,
) -> Response:
    for index, message in enumerate(wanted.messages):
        if not message.content.strip():
            raise Invalid(errors=[(("body", "messages", index, "content"), "must not be blank")])
    applies = resolver.redaction_of(session)
    messages = await redacted_import(_redactions(request), session, applies, wanted.messages)
    owner = None if applies is None else session.id
    tokens = [await content_tokens(message.content) for message in messages]
    is_over = False

    async def make(db: Connection | Pool) -> dict[str, Any]:
        nonlocal is_over
        async with in_transaction(db) as connection:
            rows = await sessions.import_messages(connection, session.id, messages, tokens)
            is_over = await summaries.mark_if_over(connection, session.id, resolver.history_of(session))
        return {"data": await restored(request.app.state.vaults, [message_json(row) for row in rows], owner)}

    answer = await once.create_hot(hot, make)
    if is_over:
        await _compressor(request).wake(session.id)
    return answer


@router.post("/sessions/{session_id}/compress", status_code=202, response_model=Wanted)
async def compress_session(
    request: Request, caller: Service, session: SessionOfRun, once: Idempotent, resolver: Resolving, hot: HotDb
) -> Response:
    """Have the older turns summarised now instead of when the history is over its budget. A worker does it."""
    options = replace(resolver.history_of(session), force=True)

    async def mark(db: Connection | Pool) -> JsonObject:
        await summaries.mark(db, session.id, options)
        return {"session_id": session.id, "status": "queued"}

    answer = await once.create_hot(hot, mark, 202)
    await _compressor(request).wake(session.id)
    return answer


@router.post("/sessions/{session_id}/distill", status_code=202, response_model=Wanted)
async def distil_session(
    request: Request, caller: Service, session: SessionOfRun, once: Idempotent, resolver: Resolving, hot: HotDb
) -> Response:
    """Have memories drawn from what is new, now instead of when the session is at rest. A worker does it."""
    if not resolver.distil_options(session, ()).write:
        raise Conflict("Memories are not written for this session (memory.write).", code="memory_write_off")

    async def mark(db: Connection | Pool) -> JsonObject:
        await distillations.ask(db, session.id)
        return {"session_id": session.id, "status": "queued"}

    answer = await once.create_hot(hot, mark, 202)
    await _distiller(request).wake(session.id, Trigger.REQUEST)
    return answer


@router.delete("/sessions/{session_id}", status_code=204)
async def delete_session(caller: Service, session: SessionInPath, runs: Runs, hot: HotDb) -> None:
    await runs.forget(await sessions.delete(hot, caller.workspace_id, session.id))
