"""`Idempotency-Key`: the same key with the same body gives the first answer, over replicas and restarts, for a day.

A key belongs to a workspace, a kind of caller and a path. What it answers stands in the transaction of what it created:
either a run's id (a run is followed also while it is in progress), or the answer itself, sealed, since it may hold a key
that is shown once.
"""

import hashlib
from datetime import datetime
from typing import Any

import asyncpg
import orjson
from sqlalchemy import Column, DateTime, ForeignKey, LargeBinary, Text
from sqlmodel import Field as Column_
from sqlmodel import SQLModel

from app.infra.crypto import Crypto
from app.infra.errors import Conflict, Invalid


class IdempotencyKey(SQLModel, table=True):
    __tablename__ = "idempotency_keys"

    workspace_id: str = Column_(primary_key=True)
    scope: str = Column_(primary_key=True)
    key: str = Column_(primary_key=True)
    fingerprint: bytes = Column_(sa_column=Column(LargeBinary, nullable=False))
    run_id: str | None = Column_(
        default=None, sa_column=Column(Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=True, index=True)
    )
    status: int | None = None
    answer: bytes | None = Column_(default=None, sa_column=Column(LargeBinary, nullable=True))
    created_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False, index=True))


def check_key(text: str) -> str:
    """The header's value, or 422: 1-255 ASCII characters without spaces."""
    if not 1 <= len(text) <= 255 or not text.isascii() or not text.isprintable() or " " in text:
        raise Invalid(
            "Idempotency-Key must be 1-255 ASCII characters without spaces.",
            errors=[(("header", "Idempotency-Key"), "1-255 ASCII characters without spaces")],
        )
    return text


def fingerprint(body: Any) -> bytes:
    """Of the body as JSON, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).digest()


class Idempotency:
    """One use of a key, inside one transaction on an asyncpg connection."""

    def __init__(self, workspace_id: str, scope: str, key: str, body: Any, crypto: Crypto) -> None:
        self._place = (workspace_id, scope, key)
        self._fingerprint = fingerprint(body)
        self._crypto = crypto

    @property
    def _bound_to(self) -> str:
        return "idempotency:" + ":".join(self._place)

    async def is_known(self, db: asyncpg.Pool) -> bool:
        """Whether a first call with this key was accepted, without waiting for one that is under way."""
        query = "SELECT true FROM idempotency_keys WHERE workspace_id = $1 AND scope = $2 AND key = $3"
        return await db.fetchval(query, *self._place) is not None

    async def find(self, connection: asyncpg.Connection, *, wait: bool) -> asyncpg.Record | None:
        """The first call's row. Takes the key's lock until the transaction ends: `wait` for another call, or 409."""
        lock = "SELECT pg_advisory_xact_lock($1)" if wait else "SELECT pg_try_advisory_xact_lock($1)"
        if await connection.fetchval(lock, self._lock_number()) is False:
            raise Conflict("The first call with this key is not answered yet.", code="idempotency_in_progress")
        row = await connection.fetchrow(
            "SELECT * FROM idempotency_keys WHERE workspace_id = $1 AND scope = $2 AND key = $3", *self._place
        )
        if row is not None and row["fingerprint"] != self._fingerprint:
            raise Invalid("This key was used with another body.", code="idempotency_conflict")
        return row

    def answer(self, row: asyncpg.Record) -> tuple[int, bytes]:
        """Status and body of the first answer."""
        return row["status"], self._crypto.open(row["answer"], bound_to=self._bound_to)

    async def keep_run(self, connection: asyncpg.Connection, run_id: str) -> None:
        await self._keep(connection, run_id, None, None)

    async def keep_answer(self, connection: asyncpg.Connection, status: int, body: bytes) -> None:
        await self._keep(connection, None, status, self._crypto.seal(body, bound_to=self._bound_to))

    async def _keep(
        self, connection: asyncpg.Connection, run_id: str | None, status: int | None, answer: bytes | None
    ) -> None:
        await connection.execute(
            "INSERT INTO idempotency_keys (workspace_id, scope, key, fingerprint, run_id, status, answer, created_at)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, now())",
            *self._place, self._fingerprint, run_id, status, answer,
        )  # fmt: skip

    def _lock_number(self) -> int:
        digest = hashlib.sha256(self._bound_to.encode()).digest()
        return int.from_bytes(digest[:8], "big", signed=True)


async def forget_expired(pool: asyncpg.Pool, ttl_seconds: int) -> int:
    """Delete keys older than their time; returns how many."""
    status: str = await pool.execute(
        "DELETE FROM idempotency_keys WHERE created_at < now() - make_interval(secs => $1)", float(ttl_seconds)
    )
    return int(status.rpartition(" ")[2])
