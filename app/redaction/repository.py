"""Vaults in the database: one load, one insert of all that is new, and the keys that open them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from app.infra import clock
from app.infra.crypto import Crypto
from app.infra.database import Connection, Pool
from app.redaction.labels import RedactionError
from app.redaction.sealing import KEY_BYTES, Row, Sealing
from app.redaction.vault import Pair
from app.scope import AXIS_COLUMNS

# $1 owners: each vault with its rows as arrays of one order
_LOAD = """
SELECT k.owner, k.sealed_key, coalesce(e.labels, '{}') AS labels, e.numbers, e.variants, e.digests, e.sealed
  FROM vault_keys AS k LEFT JOIN LATERAL (
    SELECT array_agg(label ORDER BY label, number, variant) AS labels,
           array_agg(number ORDER BY label, number, variant) AS numbers,
           array_agg(variant ORDER BY label, number, variant) AS variants,
           array_agg(digest ORDER BY label, number, variant) AS digests,
           array_agg(sealed ORDER BY label, number, variant) AS sealed
      FROM vault_entries WHERE owner = k.owner) AS e ON true
 WHERE k.owner = ANY($1)
"""
# $1 owner, $2 workspace_id, $3 session_id or NULL, $4-$9 axes, $10 sealed key, $11 now
_MAKE = f"""
WITH made AS (
  INSERT INTO vault_keys (owner, workspace_id, session_id, {", ".join(AXIS_COLUMNS)}, sealed_key, created_at)
  VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (owner) DO NOTHING RETURNING session_id)
UPDATE sessions SET has_vault = true FROM made WHERE sessions.id = made.session_id
"""
_KEEP = """
INSERT INTO vault_entries (owner, label, number, variant, digest, sealed)
SELECT $1, * FROM unnest($2::text[], $3::int[], $4::int[], $5::bytea[], $6::bytea[])
"""
_SEAL_ANEW = "UPDATE vault_keys SET sealed_key = $3 WHERE owner = $1 AND sealed_key = $2"
# a run that was never stored, or whose input was replaced by a later event's
_FORGET_UNUSED = """
DELETE FROM vault_keys AS k WHERE session_id IS NULL AND created_at < now() - interval '1 day'
   AND NOT EXISTS (SELECT FROM runs WHERE runs.vault = k.owner)
"""


class VaultGone(RedactionError):
    """The vault was erased with what it belonged to."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A vault as it is stored."""

    sealing: Sealing
    pairs: list[Pair]


async def load(db: Connection | Pool, crypto: Crypto, owners: Sequence[str]) -> dict[str, Loaded]:
    """The vaults of these owners that there are. Raises `DecryptionError` without the key that sealed one.

    A key that an older key of the service has sealed is sealed anew under the first one.
    """
    loaded: dict[str, Loaded] = {}
    for row in await db.fetch(_LOAD, list(owners)):
        owner, sealed_key = row["owner"], row["sealed_key"]
        data_key = crypto.open(sealed_key, bound_to=_place(owner))
        if not crypto.is_current(sealed_key):
            await db.execute(_SEAL_ANEW, owner, sealed_key, crypto.seal(data_key, bound_to=_place(owner)))
        sealing = Sealing(owner, data_key)
        columns = (row["labels"], row["numbers"], row["variants"], row["digests"], row["sealed"])
        rows = [Row(*values) for values in zip(*columns, strict=True)] if row["labels"] else []
        loaded[owner] = Loaded(sealing, [sealing.pair(one) for one in rows])
    return loaded


async def pairs(db: Connection | Pool, owner: str, sealing: Sealing) -> list[Pair]:
    """What stands in a vault that is open. Raises `DecryptionError` for a row that was changed."""
    query = "SELECT label, number, variant, digest, sealed FROM vault_entries WHERE owner = $1"
    return [sealing.pair(Row(*row)) for row in await db.fetch(query, owner)]


async def make(db: Connection | Pool, crypto: Crypto, owner: str, whose: Mapping[str, Any]) -> None:
    """A vault with a fresh key, unless there is one. `whose` has the workspace, the session (or None) and the axes.

    Raises `VaultGone` where the session was erased.
    """
    axes = [whose[name] for name in AXIS_COLUMNS]
    sealed = crypto.seal(os.urandom(KEY_BYTES), bound_to=_place(owner))
    try:
        await db.execute(_MAKE, owner, whose["workspace_id"], whose["session_id"], *axes, sealed, clock.now())
    except asyncpg.ForeignKeyViolationError:
        raise VaultGone("the session was erased") from None


async def keep(db: Connection | Pool, owner: str, rows: Sequence[Row]) -> bool:
    """Store all rows or none; False when somebody else was faster with a value or a number of theirs."""
    columns = zip(*((row.label, row.number, row.variant, row.digest, row.sealed) for row in rows), strict=True)
    try:
        await db.execute(_KEEP, owner, *map(list, columns))
    except asyncpg.UniqueViolationError:
        return False
    except asyncpg.ForeignKeyViolationError:
        raise VaultGone("the vault was erased") from None
    return True


async def forget_unused(pool: Pool) -> int:
    """Delete vaults that no run has used within a day; returns how many."""
    status: str = await pool.execute(_FORGET_UNUSED)
    return int(status.rpartition(" ")[2])


def _place(owner: str) -> str:
    return f"vault:{owner}"
