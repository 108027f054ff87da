"""What people do to memories over the API: write, change, delete, approve, reject. Each in the caller's transaction."""

from collections.abc import Mapping
from typing import Any

import asyncpg

from app.infra import clock
from app.infra.database import Connection
from app.infra.errors import Conflict, NotFound
from app.memories import writing
from app.memories.notes import Source, Status
from app.memories.recall import scope_of
from app.memories.repository import find
from app.memories.wording import norm, norm_hash
from app.scope import Scope


async def write(
    connection: Connection, workspace_id: str, scope: Scope, content: str, values: Mapping[str, Any], named: set[str]
) -> tuple[asyncpg.Record, bool]:
    """A note, and True when it is new. One that says the same in this scope is confirmed instead: its evidence grows, it
    counts as a person's from then on, what the caller `named` of it changes, and it need not wait for approval any more."""
    await writing.lock_scopes(connection, workspace_id, [scope])
    hashed = norm_hash(norm(content))
    await writing.unbury(connection, workspace_id, scope, hashed)
    same = await writing.same_in_scope(connection, workspace_id, scope, hashed)
    if not same:
        stored = {**values, "source": Source.API}
        memory_id = await writing.insert(connection, workspace_id, scope, content, stored)
        return await find(connection, workspace_id, memory_id), True
    row = same[0]
    changes = {name: value for name, value in values.items() if name in named}
    changes |= _confirmed(row) | {"source": Source.API, "status": Status.ACTIVE, "reason": None, "supersedes": None}
    await writing.change(connection, row["id"], "confirmed", changes)
    await _retire_target(connection, workspace_id, row)
    return await find(connection, workspace_id, row["id"]), False


async def change(connection: Connection, workspace_id: str, memory_id: str, named: Mapping[str, Any]) -> asyncpg.Record:
    """Change what is `named`. New words make it a person's note; a time to come brings back one that had run out."""
    row, scope = await _locked(connection, workspace_id, memory_id)
    values = dict(named)
    if "content" in named:
        normal = norm(named["content"])
        values |= {"norm": normal, "norm_hash": norm_hash(normal), "source": Source.API}
        await writing.unbury(connection, workspace_id, scope, values["norm_hash"])
    if row["status"] == Status.EXPIRED and row["reason"] == "expired" and _lasts(row, named):
        values |= {"status": Status.ACTIVE, "reason": None, "invalidated_at": None}
    if values.get("status", row["status"]) == Status.ACTIVE:
        hashed = values.get("norm_hash", row["norm_hash"])
        for other in await writing.same_in_scope(connection, workspace_id, scope, hashed, but=memory_id):
            if other["status"] == Status.ACTIVE:
                raise Conflict(
                    "Another note of this scope says the same.", code="duplicate_memory", extra={"memory_id": other["id"]}
                )
    if values:
        await writing.change(connection, memory_id, "changed", values)
    return await find(connection, workspace_id, memory_id)


def _lasts(row: Mapping[str, Any], named: Mapping[str, Any]) -> bool:
    """Whether its time is still to come once `expires_at` is what was named."""
    if "expires_at" not in named:
        return False
    ends = [moment for moment in (named["expires_at"], row["valid_to"]) if moment is not None]
    return all(moment > clock.now() for moment in ends)


async def delete(connection: Connection, workspace_id: str, memory_id: str) -> None:
    """Erase it, and leave a tombstone so that it is not drawn again."""
    row, scope = await _locked(connection, workspace_id, memory_id)
    await writing.delete(connection, workspace_id, memory_id)
    await writing.bury(connection, workspace_id, scope, row["norm_hash"])


async def approve(connection: Connection, workspace_id: str, memory_id: str) -> asyncpg.Record:
    """Send a note that waited. It retires what it was to supersede in its scope; where another one says the same already,
    that one is confirmed and this one superseded by it. Raises Conflict (`not_pending`)."""
    row, scope = await _locked(connection, workspace_id, memory_id)
    if row["status"] == Status.ACTIVE:
        return await find(connection, workspace_id, memory_id)
    _check_pending(row)
    same = await writing.same_in_scope(connection, workspace_id, scope, row["norm_hash"], but=memory_id)
    if same and same[0]["status"] == Status.ACTIVE:
        await writing.change(connection, same[0]["id"], "confirmed", _confirmed(same[0]))
        await writing.supersede(connection, memory_id, same[0]["id"], clock.now())
        return await find(connection, workspace_id, memory_id)
    values = {"status": Status.ACTIVE, "reason": None, "supersedes": None, "last_confirmed_at": clock.now()}
    await writing.change(connection, memory_id, "approved", values)
    await _retire_target(connection, workspace_id, row)
    return await find(connection, workspace_id, memory_id)


async def reject(connection: Connection, workspace_id: str, memory_id: str) -> asyncpg.Record:
    """Never send a note that waited, nor draw it again. Raises Conflict (`not_pending`)."""
    row, scope = await _locked(connection, workspace_id, memory_id)
    if row["reason"] != "rejected":
        _check_pending(row)
        values = {"status": Status.EXPIRED, "reason": "rejected", "supersedes": None, "invalidated_at": clock.now()}
        await writing.change(connection, memory_id, "rejected", values)
        await writing.bury(connection, workspace_id, scope, row["norm_hash"])
    return await find(connection, workspace_id, memory_id)


async def _locked(connection: Connection, workspace_id: str, memory_id: str) -> tuple[asyncpg.Record, Scope]:
    """The stored row under the lock of its scope; raises NotFound."""
    scope = scope_of(await find(connection, workspace_id, memory_id))
    await writing.lock_scopes(connection, workspace_id, [scope])
    row = await writing.read_locked(connection, workspace_id, memory_id)
    if row is None:
        raise NotFound()
    return row, scope


def _check_pending(row: Mapping[str, Any]) -> None:
    if row["status"] != Status.PENDING:
        raise Conflict(f"The note is {row['status']}, it does not wait for approval.", code="not_pending")


def _confirmed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"evidence_count": row["evidence_count"] + 1, "last_confirmed_at": clock.now()}


async def _retire_target(connection: Connection, workspace_id: str, row: Mapping[str, Any]) -> None:
    """What a pending note was to supersede, if it is active still and of the same scope."""
    if row["supersedes"] is None or row["status"] != Status.PENDING:
        return
    target = await writing.read_locked(connection, workspace_id, row["supersedes"])
    if target is not None and target["scope_hash"] == row["scope_hash"] and target["status"] == Status.ACTIVE:
        await writing.supersede(connection, target["id"], row["id"], clock.now())
