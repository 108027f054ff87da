"""Sessions and messages in the database. Everything is looked up within a workspace, so that a foreign id is not found."""

from collections.abc import Sequence
from typing import Any

from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from app.infra import clock, ids
from app.infra.database import Connection, Pool
from app.infra.errors import Conflict, NotFound
from app.scope import Reference
from app.sessions.models import ImportedMessage, Session
from app.web import Page

_COLUMNS = ", ".join(
    "metadata AS metadata_" if name == "metadata_" else name for name in Session.model_fields
)  # the attribute `metadata` is SQLModel's own


_INSERT = "INSERT INTO sessions ({}) VALUES ({})".format(
    ", ".join("metadata" if name == "metadata_" else name for name in Session.model_fields),
    ", ".join(f"${number}" for number in range(1, len(Session.model_fields) + 1)),
)


async def find(pool: Pool, workspace_id: str, session_id: str) -> Session:
    """Read one session in one round trip; raises NotFound."""
    if ids.is_id(session_id, ids.SESSION):
        row = await pool.fetchrow(
            f"SELECT {_COLUMNS} FROM sessions WHERE id = $1 AND workspace_id = $2", session_id, workspace_id
        )
        if row is not None:
            return Session(**dict(row))
    raise NotFound()


async def create(db: Connection | Pool, workspace_id: str, values: dict[str, Any]) -> Session:
    """In one round trip; on a connection it joins its transaction."""
    now = clock.now()
    row = Session(id=ids.new(ids.SESSION), workspace_id=workspace_id, created_at=now, updated_at=now, **values)
    await db.execute(_INSERT, *(getattr(row, name) for name in Session.model_fields))
    return row


async def update(db: AsyncSession, session: Session, values: dict[str, Any]) -> Session:
    """Change what `values` names; raises NotFound when the session was deleted meanwhile."""
    row = await db.get(Session, session.id, with_for_update=True)
    if row is None:
        raise NotFound()
    for name, value in values.items():
        setattr(row, name, value)
    row.updated_at = clock.now()
    return row


async def list_sessions(
    db: AsyncSession,
    workspace_id: str,
    page: Page,
    axes: dict[str, Reference | None],
    agent_id: str | None,
) -> list[Session]:
    """Newest first. `axes` holds the axes that are filtered: a reference, or None for sessions without that axis."""
    query = select(Session).where(Session.workspace_id == workspace_id)
    for name, reference in axes.items():
        query = query.where(getattr(Session, f"{name}_type") == (reference.type if reference else None))
        query = query.where(getattr(Session, f"{name}_id") == (reference.id if reference else None))
    if agent_id is not None:
        query = query.where(Session.agent_id == agent_id)
    if page.cursor is not None:
        query = query.where(Session.id < page.cursor)
    return list((await db.exec(query.order_by(col(Session.id).desc()).limit(page.limit + 1))).all())


async def delete(pool: Pool, workspace_id: str, session_id: str) -> list[str]:
    """Erase a session with all that is kept of it; returns the ids of its runs, whose event logs must go too."""
    async with pool.acquire() as connection, connection.transaction():
        # a run's own statements lock the run first and the session second, and so does this
        runs = await connection.fetch(
            "SELECT id FROM runs WHERE session_id = $1 AND workspace_id = $2 ORDER BY id FOR UPDATE",
            session_id, workspace_id,
        )  # fmt: skip
        if not await connection.fetchval(
            "DELETE FROM sessions WHERE id = $1 AND workspace_id = $2 RETURNING true", session_id, workspace_id
        ):
            raise NotFound()
    return [row["id"] for row in runs]


async def list_messages(pool: Pool, session_id: str, page: Page) -> list[Any]:
    """Oldest first."""
    after = min(int(page.cursor), 2**31 - 1) if page.cursor and page.cursor.isdigit() else 0
    return list(
        await pool.fetch(
            "SELECT * FROM messages WHERE session_id = $1 AND position > $2 ORDER BY position LIMIT $3",
            session_id, after, page.limit + 1,
        )
    )  # fmt: skip


async def import_messages(
    db_connection: Any, session_id: str, messages: Sequence[ImportedMessage], tokens: Sequence[int]
) -> list[Any]:
    """Append prose, with the tokens of each; refused while a run is active, since it would stand between a question and its
    answer."""
    first = await db_connection.fetchval(
        "UPDATE sessions SET next_position = next_position + $2, updated_at = now() WHERE id = $1"
        " RETURNING next_position - $2",
        session_id, len(messages),
    )  # fmt: skip
    if first is None:
        raise NotFound()
    active = await db_connection.fetchval(
        "SELECT id FROM runs WHERE session_id = $1 AND status IN ('queued', 'running', 'waiting') LIMIT 1", session_id
    )
    if active is not None:
        raise Conflict("The session has an active run.", code="run_in_progress", extra={"run_id": active})
    now = clock.now()
    return list(
        await db_connection.fetch(
            "INSERT INTO messages (id, session_id, position, role, content, created_at, tokens)"
            " SELECT m.id, $1, m.position, m.role, m.content, m.created_at, m.tokens"
            " FROM unnest($2::text[], $3::int[], $4::text[], $5::text[], $6::timestamptz[], $7::int[])"
            " AS m(id, position, role, content, created_at, tokens) RETURNING *",
            session_id,
            [ids.new(ids.MESSAGE) for _ in messages],
            list(range(first, first + len(messages))),
            [message.role for message in messages],
            [message.content for message in messages],
            [message.created_at or now for message in messages],
            list(tokens),
        )
    )
