"""Runs: starting, following, cancelling, reading."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.bodies import body
from app.events.sse import event_stream
from app.infra.errors import Forbidden, Invalid, NotFound
from app.loop.messages import RunStatus
from app.providers.scripted import script_of
from app.redaction.answers import restored
from app.runs import repository, waiting
from app.runs.chat_streams import Asked, in_dialect
from app.runs.dependencies import Resolving, RunInPath, Runs, SessionOfRun, Speaking
from app.runs.read_shapes import ScriptRead, TraceRead
from app.runs.redacted_inputs import mismatch_shown, redacted_decisions, redacted_results
from app.runs.resolve import Resolved
from app.runs.service import RunService
from app.runs.shapes import CLIENT_FIELDS, RunCreate, RunRead, SessionRunCreate
from app.runs.stored import reply_of
from app.scope import parse_reference
from app.sessions import repository as sessions
from app.shapes import Listing
from app.web import Follower, HotDb, Idempotent, Paged, Reader, Service, Starter, Streaming, json_response, listed

router = APIRouter(prefix="/v1", tags=["runs"])


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
    speaking: Speaking,
) -> Response:
    if caller.kind == "client" and not wanted.model_fields_set <= CLIENT_FIELDS:
        raise Forbidden("A client token may say input, stream, background, on_conflict and metadata only.")

    async def resolve() -> Resolved:
        return resolver.in_session(session, wanted, await repository.known(hot, caller.workspace_id))

    how = wanted.model_dump(include={"stream", "background"}, exclude_none=True)
    return await _start(runs, resolve, once, place, speaking, {**(session.config or {}), **how})


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
    speaking: Speaking,
) -> Response:
    async def resolve() -> Resolved:
        return resolver.alone(caller.workspace_id, wanted, await repository.known(hot, caller.workspace_id))

    return await _start(runs, resolve, once, place, speaking, wanted.model_dump(include={"stream", "background"}))


async def _start(
    runs: RunService, resolve: Any, once: Idempotent, place: Streaming, speaking: Asked, how: dict[str, Any]
) -> Response:
    if speaking.protocol is not None and not how.get("stream"):
        raise Invalid(errors=[(("query", "protocol"), "is for streams: `stream` must be true")])

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
        headers["Rondo-Run"] = started.row["id"]
        return _events(runs, started.row, 0, speaking, headers, attaches=False)
    if how.get("background"):
        return json_response(await runs.shown(started.row), 202, headers)
    return json_response(await runs.shown(await runs.wait(started.row)), 200, headers)


def _events(runs: RunService, run: Any, after: int, speaking: Asked, headers: dict[str, str], *, attaches: bool) -> Response:
    dialect = speaking.dialect(runs, run, attaches=attaches)
    if dialect is None:
        return event_stream(runs.frames(run, after), headers)
    return event_stream(in_dialect(runs, run, after, dialect), {**headers, **dialect.headers})


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
    speaking: Speaking,
    after: Annotated[str | None, Query()] = None,
) -> Response:
    seq = _seq(request.headers.get("last-event-id") or after)
    await runs.check_seq(run, seq)
    if run["last_seq"] is not None and seq >= run["last_seq"]:
        return Response(status_code=204)
    place.take()
    return _events(runs, run, seq, speaking, {}, attaches=True)


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
