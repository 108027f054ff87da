"""From a key to its caller, and the keys that a first start makes.

A key is looked up at every request, so that deleting it works at once on every replica.
"""

import asyncpg

from app.infra import ids
from app.infra.crypto import fingerprint, new_key
from app.infra.database import Pool
from app.infra.settings import Settings
from app.web import Caller

DEFAULT_WORKSPACE = "wsp_00000000000070008000000000000001"
_BOOTSTRAP_LOCK = 7_266_546_002

_LOOK_UP = """
SELECT kind, coalesce(workspace_id, '') AS workspace_id, NULL AS session_id, NULL::text[] AS can
  FROM api_keys WHERE hash = $1
UNION ALL
SELECT 'client', workspace_id, session_id, can FROM client_tokens WHERE hash = $1 AND expires_at > now()
"""


async def authenticate(pool: Pool, key: str) -> Caller | None:
    row = await pool.fetchrow(_LOOK_UP, fingerprint(key))
    if row is None:
        return None
    return Caller(row["kind"], row["workspace_id"], row["session_id"], tuple(row["can"] or ()))


async def ensure_keys(pool: Pool, settings: Settings) -> dict[str, str]:
    """Make the workspace `default` and the bootstrap keys. Returns the keys that were made now, by kind: show them once."""
    made: dict[str, str] = {}
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _BOOTSTRAP_LOCK)
        await connection.execute(
            "INSERT INTO workspaces (id, name, created_at) VALUES ($1, 'default', now()) ON CONFLICT DO NOTHING",
            DEFAULT_WORKSPACE,
        )
        for kind, workspace_id, given in (
            ("admin", None, settings.admin_key),
            ("service", DEFAULT_WORKSPACE, settings.service_key),
        ):
            if given is not None:
                await _replace(connection, kind, workspace_id, given)
            elif not await connection.fetchval("SELECT true FROM api_keys WHERE kind = $1 LIMIT 1", kind):
                made[kind] = new_key(kind)
                await _replace(connection, kind, workspace_id, made[kind])
    return made


async def _replace(connection: asyncpg.Connection, kind: str, workspace_id: str | None, key: str) -> None:
    """Keep the given key as the bootstrap key of its kind; an earlier one with another value is gone."""
    await connection.execute("DELETE FROM api_keys WHERE bootstrap AND kind = $1 AND hash <> $2", kind, fingerprint(key))
    await connection.execute(
        "INSERT INTO api_keys (id, workspace_id, kind, name, hash, bootstrap, created_at)"
        " VALUES ($1, $2, $3, 'bootstrap', $4, true, now()) ON CONFLICT (hash) DO NOTHING",
        ids.new(ids.KEY), workspace_id, kind, fingerprint(key),
    )  # fmt: skip
