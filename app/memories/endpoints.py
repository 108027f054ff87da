"""Memories: notes that are weighed and sent below the system prompt."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from app.bodies import body
from app.infra.database import driver_connection
from app.memories import by_people, repository
from app.memories.shapes import FoundMemories, MemoryCreate, MemoryPatch, MemoryRead, MemorySearch, memory_json
from app.shapes import Listing
from app.web import Axes, Db, HotDb, Idempotent, Paged, Service, json_response, listed, pool

router = APIRouter(prefix="/v1", tags=["memories"])

StatusFilter = Literal["active", "pending", "superseded", "expired", "all"]


async def _memory(request: Request, memory_id: str) -> Any:
    return await repository.find(pool(request), request.state.caller.workspace_id, memory_id)


MemoryInPath = Annotated[Any, Depends(_memory)]
"""The record of the note that the path names. Must stand after the caller."""


@router.post(
    "/memories", status_code=201, response_model=MemoryRead,
    responses={200: {"model": MemoryRead, "description": "A note of this scope says the same; it was confirmed."}},
)  # fmt: skip
async def create_memory(
    caller: Service, wanted: Annotated[MemoryCreate, body(MemoryCreate)], once: Idempotent, db: Db
) -> Response:
    wanted.scope.check()
    values = {name: getattr(wanted, name) for name in ("kind", "importance", "pinned", "expires_at")}

    async def make() -> Response:
        row, is_new = await by_people.write(
            await driver_connection(db), caller.workspace_id, wanted.scope, wanted.content, values, wanted.model_fields_set
        )
        return json_response(memory_json(row), 201 if is_new else 200)

    return await once.create(db, make)


@router.get("/memories", response_model=Listing[MemoryRead])
async def list_memories(
    caller: Service,
    named: Axes,
    page: Paged,
    hot: HotDb,
    status: Annotated[StatusFilter | None, Query()] = None,
    session_id: Annotated[str | None, Query()] = None,
) -> Response:
    rows = await repository.list_memories(hot, caller.workspace_id, page, named, status, session_id)
    rows, cursor = page.cut(rows, lambda row: row["id"])
    return listed([memory_json(row) for row in rows], cursor)


@router.post("/memories/search", response_model=FoundMemories)
async def search_memories(caller: Service, wanted: Annotated[MemorySearch, body(MemorySearch)], hot: HotDb) -> Response:
    wanted.scope.check()
    found = await repository.search(hot, caller.workspace_id, wanted.scope, wanted.query, wanted.limit)
    return listed([{**memory_json(row), **judged} for row, judged in found], None)


@router.get("/memories/{memory_id}", response_model=MemoryRead)
async def get_memory(caller: Service, memory: MemoryInPath) -> Response:
    return json_response(memory_json(memory))


@router.patch("/memories/{memory_id}", response_model=MemoryRead)
async def change_memory(
    caller: Service, memory: MemoryInPath, wanted: Annotated[MemoryPatch, body(MemoryPatch)], db: Db
) -> Response:
    named = {name: getattr(wanted, name) for name in wanted.model_fields_set}
    connection = await driver_connection(db)
    return json_response(memory_json(await by_people.change(connection, caller.workspace_id, memory["id"], named)))


@router.delete("/memories/{memory_id}", status_code=204)
async def delete_memory(caller: Service, memory_id: str, db: Db) -> None:
    await by_people.delete(await driver_connection(db), caller.workspace_id, memory_id)


@router.post("/memories/{memory_id}/approve", response_model=MemoryRead)
async def approve_memory(caller: Service, memory_id: str, db: Db) -> Response:
    row = await by_people.approve(await driver_connection(db), caller.workspace_id, memory_id)
    return json_response(memory_json(row))


@router.post("/memories/{memory_id}/reject", response_model=MemoryRead)
async def reject_memory(caller: Service, memory_id: str, db: Db) -> Response:
    row = await by_people.reject(await driver_connection(db), caller.workspace_id, memory_id)
    return json_response(memory_json(row))
