"""A workspace's providers in the database. Keys and headers are opened here and nowhere else."""

from collections.abc import Iterable
from typing import Any

import orjson
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from app.custom_providers.models import CustomProvider, ProviderPut
from app.infra import clock
from app.infra.crypto import Crypto
from app.infra.database import Pool
from app.infra.errors import NotFound
from app.providers.catalog import Account
from app.web import Page


async def put(
    db: AsyncSession, crypto: Crypto, workspace_id: str, name: str, wanted: ProviderPut
) -> tuple[CustomProvider, bool]:
    """Create or replace; True when it is new."""
    place, now = _place(workspace_id, name), clock.now()
    values: dict[str, Any] = {
        "kind": wanted.kind,
        "base_url": wanted.base_url.rstrip("/"),
        "api_key": crypto.seal(wanted.api_key.encode(), bound_to=place),
        "headers": crypto.seal(orjson.dumps(wanted.headers), bound_to=place) if wanted.headers else None,
        "options": wanted.options,
        "updated_at": now,
    }
    row = await db.get(CustomProvider, (workspace_id, name), with_for_update=True)
    if row is None:
        row = CustomProvider(workspace_id=workspace_id, name=name, created_at=now, **values)
        db.add(row)
        return row, True
    for field, value in values.items():
        setattr(row, field, value)
    return row, False


async def get(db: AsyncSession, workspace_id: str, name: str) -> CustomProvider:
    row = await db.get(CustomProvider, (workspace_id, name))
    if row is None:
        raise NotFound()
    return row


async def list_providers(db: AsyncSession, workspace_id: str, page: Page) -> list[CustomProvider]:
    """By name."""
    query = select(CustomProvider).where(CustomProvider.workspace_id == workspace_id)
    if page.cursor is not None:
        query = query.where(col(CustomProvider.name) > page.cursor)
    return list((await db.exec(query.order_by(col(CustomProvider.name)).limit(page.limit + 1))).all())


def header_names(crypto: Crypto, row: CustomProvider) -> list[str]:
    if row.headers is None:
        return []
    return sorted(orjson.loads(crypto.open(row.headers, bound_to=_place(row.workspace_id, row.name))))


async def accounts(pool: Pool, crypto: Crypto, workspace_id: str, names: Iterable[str]) -> dict[str, Account]:
    """Those of these providers that the workspace has, ready to be asked."""
    rows = await pool.fetch("SELECT * FROM providers WHERE workspace_id = $1 AND name = ANY($2)", workspace_id, list(names))
    found: dict[str, Account] = {}
    for row in rows:
        place = _place(workspace_id, row["name"])
        headers = {} if row["headers"] is None else orjson.loads(crypto.open(row["headers"], bound_to=place))
        key = crypto.open(row["api_key"], bound_to=place).decode()
        found[row["name"]] = Account(row["name"], row["kind"], row["base_url"], key, headers, row["options"] or {})
    return found


def _place(workspace_id: str, name: str) -> str:
    return f"provider:{workspace_id}:{name}"
