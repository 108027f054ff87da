"""Tools in the database, within a workspace. Secrets and headers are opened here and nowhere else."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from app.infra import clock
from app.infra.crypto import Crypto
from app.infra.database import Pool
from app.infra.errors import NotFound
from app.outbound.signing import new_secret
from app.tools.models import Tool
from app.web import Page

OLD_SECRET_LASTS = timedelta(hours=24)


async def put(
    db: AsyncSession, crypto: Crypto, workspace_id: str, name: str, values: dict[str, Any]
) -> tuple[Tool, str | None]:
    """Create or replace. A new tool gets a secret, which is returned; a replaced one keeps its own."""
    now = clock.now()
    headers = values.pop("headers")
    values["headers"] = _seal(crypto, workspace_id, name, orjson.dumps(headers)) if headers else None
    row = await db.get(Tool, (workspace_id, name), with_for_update=True)
    if row is not None:
        for field, value in values.items():
            setattr(row, field, value)
        row.updated_at = now
        return row, None
    secret = new_secret()
    sealed = _seal(crypto, workspace_id, name, secret.encode())
    row = Tool(workspace_id=workspace_id, name=name, secret=sealed, created_at=now, updated_at=now, **values)
    db.add(row)
    return row, secret


async def get(db: AsyncSession, workspace_id: str, name: str) -> Tool:
    row = await db.get(Tool, (workspace_id, name))
    if row is None:
        raise NotFound()
    return row


async def list_tools(db: AsyncSession, workspace_id: str, page: Page) -> list[Tool]:
    """Newest first."""
    query = select(Tool).where(Tool.workspace_id == workspace_id)
    if page.cursor is not None:
        moment, _, name = page.cursor.partition("|")
        before = datetime.fromisoformat(moment)
        query = query.where((col(Tool.created_at) < before) | ((col(Tool.created_at) == before) & (col(Tool.name) < name)))
    query = query.order_by(col(Tool.created_at).desc(), col(Tool.name).desc())
    return list((await db.exec(query.limit(page.limit + 1))).all())


def cursor_of(row: Tool) -> str:
    return f"{row.created_at.isoformat()}|{row.name}"


async def rotate_secret(db: AsyncSession, crypto: Crypto, row: Tool) -> str:
    """A new secret; the old one goes on signing beside it for a day."""
    secret = new_secret()
    row.old_secret, row.old_secret_until = row.secret, clock.now() + OLD_SECRET_LASTS
    row.secret = _seal(crypto, row.workspace_id, row.name, secret.encode())
    row.updated_at = clock.now()
    return secret


def open_headers(crypto: Crypto, row: Any) -> dict[str, str]:
    sealed = row["headers"] if hasattr(row, "keys") else row.headers
    workspace_id, name = (row["workspace_id"], row["name"]) if hasattr(row, "keys") else (row.workspace_id, row.name)
    if sealed is None:
        return {}
    headers: dict[str, str] = orjson.loads(crypto.open(sealed, bound_to=_place(workspace_id, name)))
    return headers


def open_secrets(crypto: Crypto, row: Any) -> tuple[str, ...]:
    """The secrets that sign now: the newest first, and the one before while it lasts."""
    place = _place(row["workspace_id"], row["name"])
    secrets = [crypto.open(row["secret"], bound_to=place).decode()]
    if row["old_secret"] is not None and row["old_secret_until"] > clock.now():
        secrets.append(crypto.open(row["old_secret"], bound_to=place).decode())
    return tuple(secrets)


async def find(pool: Pool, workspace_id: str, name: str) -> Any:
    """One tool's record; raises NotFound."""
    row = await pool.fetchrow("SELECT * FROM tools WHERE workspace_id = $1 AND name = $2", workspace_id, name)
    if row is None:
        raise NotFound()
    return row


async def active_names(pool: Pool, workspace_id: str) -> list[str]:
    rows = await pool.fetch("SELECT name FROM tools WHERE workspace_id = $1 AND active ORDER BY name", workspace_id)
    return [row["name"] for row in rows]


async def read_active(pool: Pool, workspace_id: str, names: Sequence[str]) -> list[Any]:
    """The rows of these tools that are active, in the order of the names."""
    rows = await pool.fetch(
        "SELECT * FROM tools WHERE workspace_id = $1 AND name = ANY($2) AND active", workspace_id, list(names)
    )
    by_name = {row["name"]: row for row in rows}
    return [by_name[name] for name in names if name in by_name]


def _place(workspace_id: str, name: str) -> str:
    return f"tool:{workspace_id}:{name}"


def _seal(crypto: Crypto, workspace_id: str, name: str, plain: bytes) -> bytes:
    return crypto.seal(plain, bound_to=_place(workspace_id, name))
