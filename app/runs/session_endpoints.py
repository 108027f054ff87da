"""What is asked of a session and needs what runs know: its prompt, its import, its summary, its notes, its end."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from app.bodies import body
from app.infra.database import Connection, Pool, in_transaction
from app.infra.errors import Conflict, Invalid
from app.memories import distillations
from app.memories.distillations import Trigger
from app.redaction.answers import restored
from app.runs.compressor import Compressor
from app.runs.dependencies import Resolving, Runs, SessionOfRun
from app.runs.distiller import Distiller
from app.runs.preview import preview
from app.runs.read_shapes import PromptRead
from app.runs.redacted_inputs import redacted_import
from app.runs.redacting import Redactions
from app.runs.shapes import Wanted
from app.sessions import repository as sessions
from app.sessions import summaries
from app.sessions.endpoints import SessionInPath
from app.sessions.history import content_tokens
from app.sessions.models import Imported, MessagesImport, message_json
from app.shapes import JsonObject
from app.tools import repository as tools
from app.web import HotDb, Idempotent, Service, json_response

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["sessions"])


def _redactions(request: Request) -> Redactions:
    found: Redactions = request.app.state.redactions
    return found


def _compressor(request: Request) -> Compressor:
    found: Compressor = request.app.state.compressor
    return found


def _distiller(request: Request) -> Distiller:
    found: Distiller = request.app.state.distiller
    return found


@router.get("/prompt", response_model=PromptRead)
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


@router.post("/messages", status_code=201, response_model=Imported)
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


@router.post("/compress", status_code=202, response_model=Wanted)
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


@router.post("/distill", status_code=202, response_model=Wanted)
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


@router.delete("", status_code=204)
async def delete_session(caller: Service, session: SessionInPath, runs: Runs, hot: HotDb) -> None:
    await runs.forget(await sessions.delete(hot, caller.workspace_id, session.id))
