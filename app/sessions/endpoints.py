"""Sessions, their messages and their client tokens."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from app.bodies import body
from app.infra import clock
from app.infra.database import Connection, Pool
from app.infra.errors import Conflict, NotFound
from app.redaction.answers import restored
from app.redaction.config import kept, shown
from app.scope import Reference
from app.sessions import repository, tokens
from app.sessions.models import (
    MessageRead,
    Session,
    SessionCreate,
    SessionFields,
    SessionRead,
    message_json,
    session_json,
)
from app.shapes import Listing
from app.web import Axes, Caller, Db, HotDb, Idempotent, Paged, Reader, Service, json_response, listed, pool

router = APIRouter(prefix="/v1", tags=["sessions"])

CheckAgent = Callable[[str, str, Reference], Awaitable[None]]
"""Raises NotFound for an agent that a workspace's session of this tenant cannot have."""


async def _session(request: Request, session_id: str) -> Session:
    caller = request.state.caller
    if not caller.may_see_session(session_id):
        raise NotFound()
    return await repository.find(pool(request), caller.workspace_id, session_id)


SessionInPath = Annotated[Session, Depends(_session)]
"""The session that the path names, if the caller may know of it. Must stand after the caller."""


@router.post("/sessions", status_code=201, response_model=SessionRead)
async def create_session(
    request: Request, caller: Service, wanted: Annotated[SessionCreate, body(SessionCreate)], once: Idempotent, hot: HotDb
) -> Response:
    if wanted.agent_id is not None:
        check_agent: CheckAgent = request.app.state.check_agent
        await check_agent(caller.workspace_id, wanted.agent_id, wanted.tenant)
    wanted.scope.check()
    named = wanted.as_columns()
    values = {name: value for name, value in named.items() if name not in ("tenant", "subject", "member")}
    values |= _redaction(request, caller, wanted)

    async def make(db: Connection | Pool) -> dict[str, Any]:
        row = await repository.create(db, caller.workspace_id, {**values, **wanted.scope.as_columns()})
        return _shown(request, caller, row)

    return await once.create_hot(hot, make)


def _redaction(request: Request, caller: Caller, wanted: SessionFields) -> dict[str, Any]:
    """The field as the table keeps it, where it was named."""
    if "redaction" not in wanted.model_fields_set:
        return {}
    return {"redaction": kept(request.app.state.crypto, caller.workspace_id, wanted.redaction)}


def _shown(request: Request, caller: Caller, row: Session) -> dict[str, Any]:
    """The dictionary is for the service alone: a client token sees that there is redaction, not of what."""
    redaction = shown(request.app.state.crypto, row.workspace_id, row.redaction)
    if redaction is not None and caller.kind == "client":
        redaction["dictionary"] = []
    return session_json(row, redaction)


@router.get("/sessions", response_model=Listing[SessionRead])
async def list_sessions(
    request: Request, caller: Service, named: Axes, page: Paged, db: Db, agent_id: Annotated[str | None, Query()] = None
) -> Response:
    rows = await repository.list_sessions(db, caller.workspace_id, page, named, agent_id)
    rows, cursor = page.cut(rows, lambda row: row.id)
    return listed([_shown(request, caller, row) for row in rows], cursor)


@router.get("/sessions/{session_id}", response_model=SessionRead)
async def get_session(request: Request, caller: Reader, session: SessionInPath) -> Response:
    return json_response(_shown(request, caller, session))


@router.patch("/sessions/{session_id}", response_model=SessionRead)
async def change_session(
    request: Request,
    caller: Service,
    session: SessionInPath,
    wanted: Annotated[SessionFields, body(SessionFields)],
    db: Db,
) -> Response:
    if session.has_vault and wanted.redaction is not None and wanted.redaction.enabled is False:
        raise Conflict("Values of this session stand in tokens, so that it goes on being redacted.", code="redaction_in_use")
    row = await repository.update(db, session, {**wanted.as_columns(), **_redaction(request, caller, wanted)})
    return json_response(_shown(request, caller, row))


@router.get("/sessions/{session_id}/messages", response_model=Listing[MessageRead])
async def list_messages(request: Request, caller: Reader, session: SessionInPath, page: Paged, hot: HotDb) -> Response:
    rows = await repository.list_messages(hot, session.id, page)
    rows, cursor = page.cut(rows, lambda row: row["position"])
    owner = session.id if session.has_vault else None
    return listed(await restored(request.app.state.vaults, [message_json(row) for row in rows], owner), cursor)


@router.post("/sessions/{session_id}/tokens", status_code=201, response_model=tokens.TokenCreated)
async def create_token(
    caller: Service,
    session: SessionInPath,
    wanted: Annotated[tokens.TokenCreate, body(tokens.TokenCreate)],
    once: Idempotent,
    db: Db,
) -> Response:
    async def make() -> tokens.TokenCreated:
        row, token = await tokens.create_token(db, session, wanted)
        return tokens.TokenCreated(token=token, expires_at=clock.rfc3339(row.expires_at))

    return await once.create(db, make)
