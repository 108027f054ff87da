"""What an endpoint of runs may ask for, beside what `app/web.py` has."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import asyncpg
from fastapi import Depends, Query, Request

from app.infra.errors import NotFound
from app.runs import repository
from app.runs.chat_streams import Asked, Protocol
from app.runs.resolve import Resolver
from app.runs.service import RunService
from app.sessions.endpoints import SessionInPath
from app.sessions.models import Session
from app.web import Caller, pool


async def _service(request: Request) -> RunService:
    found: RunService = request.app.state.runs
    return found


async def _resolver(request: Request) -> Resolver:
    found: Resolver = request.app.state.resolver
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


async def _asked(
    protocol: Annotated[Protocol | None, Query()] = None,
    sdk: Annotated[int | None, Query(description="major version of the client: 5, 6, 7 of ai-sdk; 0, 1 of ag-ui")] = None,
) -> Asked:
    return Asked(protocol, sdk)


Speaking = Annotated[Asked, Depends(_asked)]
"""In which protocol a stream is wanted."""
