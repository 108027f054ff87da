"""Every change of memories. A change holds the locks of the scopes it touches, so that what it saw there is still so, and
is told in `memory_events`, before and after. The transaction is the caller's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from app.infra import clock, ids
from app.infra.database import Connection
from app.memories.notes import Status
from app.memories.statements import ENDED
from app.memories.wording import norm, norm_hash
from app.scope import Scope

_HASH = "scope_hash({0}, {1}, {2}, {3}, {4}, {5})"
_SNAPSHOT = """jsonb_build_object('kind', m.kind, 'content', m.content, 'importance', m.importance, 'pinned', m.pinned,
 'status', m.status, 'reason', m.reason, 'source', m.source, 'evidence_count', m.evidence_count,
 'superseded_by', m.superseded_by, 'valid_from', m.valid_from, 'valid_to', m.valid_to, 'expires_at', m.expires_at,
 'last_confirmed_at', m.last_confirmed_at)"""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a drawn note comes from: the session whose lines are its evidence, and the distillation, if it was one."""

    session_id: str
    distillation_id: int | None = None


async def lock_scopes(connection: Connection, workspace_id: str, scopes: Sequence[Scope]) -> None:
    """Until the transaction ends nobody else changes a note there; what has run out there meanwhile is settled."""
    columns = [list(values) for values in zip(*(scope.as_columns().values() for scope in scopes), strict=True)]
    rows = await connection.fetch(
        "SELECT DISTINCT scope_hash(a, b, c, d, e, f) AS hash"
        " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) AS t(a, b, c, d, e, f)"
        " ORDER BY hash",
        *columns,
    )
    hashes = [row["hash"] for row in rows]
    for hashed in hashes:
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('memories ' || $1 || encode($2::bytea, 'hex'), 0))",
            workspace_id, hashed,
        )  # fmt: skip
    await _settle_ended(connection, workspace_id, hashes)


async def _settle_ended(connection: Connection, workspace_id: str, hashes: Sequence[bytes]) -> None:
    """Notes whose time is up make room for new ones of the same words."""
    ended = await connection.fetch(
        f"SELECT id, least(expires_at, valid_to) AS ended_at FROM memories"
        f" WHERE workspace_id = $1 AND scope_hash = ANY($2) AND {ENDED}",
        workspace_id, list(hashes),
    )  # fmt: skip
    for row in ended:
        values = {"status": Status.EXPIRED, "reason": "expired", "invalidated_at": row["ended_at"]}
        await change(connection, row["id"], "expired", values)


async def insert(connection: Connection, workspace_id: str, scope: Scope, content: str, values: Mapping[str, Any]) -> str:
    """Store a new note and tell it; returns its id. `values` are further columns."""
    now = clock.now()
    normal = norm(content)
    row: dict[str, Any] = {
        "id": ids.new(ids.MEMORY), "workspace_id": workspace_id, **scope.as_columns(), "content": content, "norm": normal,
        "norm_hash": norm_hash(normal), "evidence_count": 1, "pinned": False, "status": Status.ACTIVE, "created_at": now,
        "updated_at": now, "last_confirmed_at": now, "valid_from": now, **values,
    }  # fmt: skip
    names, places = ", ".join(row), ", ".join(f"${number}" for number in range(1, len(row) + 1))
    memory_id: str = await connection.fetchval(
        f"WITH m AS (INSERT INTO memories ({names}) VALUES ({places}) RETURNING *)"
        " INSERT INTO memory_events (workspace_id, memory_id, action, after, at)"
        f" SELECT m.workspace_id, m.id, 'added', {_SNAPSHOT}, m.created_at FROM m RETURNING memory_id",
        *row.values(),
    )
    return memory_id


async def change(connection: Connection, memory_id: str, action: str, values: Mapping[str, Any]) -> None:
    """Set columns of a note and tell it, as `action`."""
    assigned = ", ".join(f"{column} = ${number}" for number, column in enumerate(values, 4))
    await connection.execute(
        f"WITH m AS (SELECT * FROM memories WHERE id = $1 FOR UPDATE),"
        f" old AS (SELECT {_SNAPSHOT} AS snapshot FROM m),"
        f" new AS (UPDATE memories AS m SET {assigned}, updated_at = $3 WHERE id = $1"
        f" RETURNING m.workspace_id, {_SNAPSHOT} AS snapshot)"
        " INSERT INTO memory_events (workspace_id, memory_id, action, before, after, at)"
        " SELECT new.workspace_id, $1, $2, old.snapshot, new.snapshot, $3 FROM old, new",
        memory_id, action, clock.now(), *values.values(),
    )  # fmt: skip


async def read_locked(connection: Connection, workspace_id: str, memory_id: str) -> asyncpg.Record | None:
    """The stored row, locked, after the lock of its scope was taken (a note never changes its scope)."""
    return await connection.fetchrow(
        "SELECT * FROM memories WHERE id = $1 AND workspace_id = $2 FOR UPDATE", memory_id, workspace_id
    )


async def same_in_scope(
    connection: Connection, workspace_id: str, scope: Scope, hashed: bytes, *, but: str = ""
) -> list[asyncpg.Record]:
    """The active or pending notes of exactly this scope with these words; active ones first."""
    here = _HASH.format("$2", "$3", "$4", "$5", "$6", "$7")
    rows: list[asyncpg.Record] = await connection.fetch(
        f"SELECT * FROM memories WHERE workspace_id = $1 AND scope_hash = {here} AND norm_hash = $8"
        " AND status IN ('active', 'pending') AND id <> $9 ORDER BY status, id",
        workspace_id, *scope.as_columns().values(), hashed, but,
    )  # fmt: skip
    return rows


async def add_evidence(connection: Connection, memory_id: str, origin: Origin, positions: Sequence[int]) -> int:
    """Note the user's lines that a note rests on; returns how many of them were not known yet."""
    status: str = await connection.execute(
        "INSERT INTO memory_sources (memory_id, session_id, position)"
        " SELECT $1, $2, position FROM unnest($3::int[]) AS position ON CONFLICT DO NOTHING",
        memory_id, origin.session_id, list(positions),
    )  # fmt: skip
    return int(status.rpartition(" ")[2])


async def supersede(connection: Connection, target_id: str, by: str, since: datetime) -> None:
    """Retire a note in favour of another one; it stays readable."""
    values = {
        "status": Status.SUPERSEDED, "reason": "superseded", "superseded_by": by, "invalidated_at": since, "valid_to": since,
    }  # fmt: skip
    await change(connection, target_id, "superseded", values)


async def bury(connection: Connection, workspace_id: str, scope: Scope, hashed: bytes) -> None:
    """A text that must not be drawn again in this scope, without keeping it."""
    await connection.execute(
        "INSERT INTO memory_tombstones (workspace_id, tenant_type, tenant_id, subject_type, subject_id, member_type,"
        " member_id, norm_hash, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now()) ON CONFLICT DO NOTHING",
        workspace_id, *scope.as_columns().values(), hashed,
    )  # fmt: skip


async def unbury(connection: Connection, workspace_id: str, scope: Scope, hashed: bytes) -> None:
    """A person writes it: it may be drawn again."""
    here = _HASH.format("$2", "$3", "$4", "$5", "$6", "$7")
    await connection.execute(
        f"DELETE FROM memory_tombstones WHERE workspace_id = $1 AND scope_hash = {here} AND norm_hash = $8",
        workspace_id, *scope.as_columns().values(), hashed,
    )  # fmt: skip


async def delete(connection: Connection, workspace_id: str, memory_id: str) -> None:
    """Erase a note; its history keeps that there was one, and no word of it."""
    await connection.execute("DELETE FROM memories WHERE id = $1", memory_id)
    await connection.execute(
        "WITH scrubbed AS (UPDATE memory_events SET before = before - 'content', after = after - 'content'"
        " WHERE memory_id = $1)"
        " INSERT INTO memory_events (workspace_id, memory_id, action, at) VALUES ($2, $1, 'deleted', now())",
        memory_id, workspace_id,
    )  # fmt: skip
