"""Workspaces and keys in the database."""

from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from app.auth.models import ApiKey, KeyCreate, Workspace
from app.infra import clock, ids
from app.infra.crypto import fingerprint, new_key
from app.infra.errors import Invalid, NotFound
from app.web import Page


async def create_workspace(db: AsyncSession, name: str) -> Workspace:
    row = Workspace(id=ids.new(ids.WORKSPACE), name=name, created_at=clock.now())
    db.add(row)
    return row


async def list_workspaces(db: AsyncSession, page: Page) -> list[Workspace]:
    query = select(Workspace).order_by(col(Workspace.id).desc()).limit(page.limit + 1)
    if page.cursor is not None:
        query = query.where(Workspace.id < page.cursor)
    return list((await db.exec(query)).all())


async def create_key(db: AsyncSession, wanted: KeyCreate) -> tuple[ApiKey, str]:
    """The row, and the key itself, which is kept nowhere. Raises NotFound for a workspace that does not exist."""
    if (wanted.kind == "service") != (wanted.workspace_id is not None):
        reason = "needed for a service key" if wanted.kind == "service" else "an admin key has no workspace"
        raise Invalid(f"workspace_id: {reason}.", errors=[(("body", "workspace_id"), reason)])
    if wanted.workspace_id is not None and await db.get(Workspace, wanted.workspace_id) is None:
        raise NotFound("There is no such workspace.")
    key = new_key(wanted.kind)
    row = ApiKey(
        id=ids.new(ids.KEY),
        workspace_id=wanted.workspace_id,
        kind=wanted.kind,
        name=wanted.name,
        hash=fingerprint(key),
        created_at=clock.now(),
    )
    db.add(row)
    return row, key


async def list_keys(db: AsyncSession, page: Page) -> list[ApiKey]:
    query = select(ApiKey).order_by(col(ApiKey.id).desc()).limit(page.limit + 1)
    if page.cursor is not None:
        query = query.where(ApiKey.id < page.cursor)
    return list((await db.exec(query)).all())


async def delete_key(db: AsyncSession, key_id: str) -> None:
    row = await db.get(ApiKey, key_id)
    if row is None:
        raise NotFound()
    await db.delete(row)
