"""Workspaces and keys: for admins only."""

from typing import Annotated

from fastapi import APIRouter, Response

from app.auth import repository
from app.auth.models import KeyCreate, KeyCreated, KeyRead, WorkspaceCreate, WorkspaceRead
from app.bodies import body
from app.shapes import Listing
from app.web import Admin, Db, Idempotent, Paged, listed

router = APIRouter(prefix="/v1", tags=["workspaces and keys"])


@router.post("/workspaces", status_code=201, response_model=WorkspaceRead)
async def create_workspace(
    caller: Admin, wanted: Annotated[WorkspaceCreate, body(WorkspaceCreate)], once: Idempotent, db: Db
) -> Response:
    async def make() -> WorkspaceRead:
        return WorkspaceRead.of(await repository.create_workspace(db, wanted.name))

    return await once.create(db, make)


@router.get("/workspaces", response_model=Listing[WorkspaceRead])
async def list_workspaces(caller: Admin, page: Paged, db: Db) -> Response:
    rows, cursor = page.cut(await repository.list_workspaces(db, page), lambda row: row.id)
    return listed([WorkspaceRead.of(row).model_dump() for row in rows], cursor)


@router.post("/keys", status_code=201, response_model=KeyCreated)
async def create_key(caller: Admin, wanted: Annotated[KeyCreate, body(KeyCreate)], once: Idempotent, db: Db) -> Response:
    async def make() -> KeyCreated:
        row, key = await repository.create_key(db, wanted)
        return KeyCreated(**KeyRead.of(row).model_dump(), key=key)

    return await once.create(db, make)


@router.get("/keys", response_model=Listing[KeyRead])
async def list_keys(caller: Admin, page: Paged, db: Db) -> Response:
    rows, cursor = page.cut(await repository.list_keys(db, page), lambda row: row.id)
    return listed([KeyRead.of(row).model_dump() for row in rows], cursor)


@router.delete("/keys/{key_id}", status_code=204)
async def delete_key(caller: Admin, key_id: str, db: Db) -> None:
    await repository.delete_key(db, key_id)
