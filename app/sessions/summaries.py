"""The work on a session's summary, in the database: due, claimed, committed or failed. Each is one statement.

One at a time works on a session, under a claim that is good for a lease. A mark that comes while somebody is at it moves
`due_at`, so that whoever finishes sees that there is more to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.infra.database import Connection, Pool
from app.sessions.compression import HistoryOptions, options_of

TRIES = 3
BACKOFF_SECONDS = (30.0, 300.0)
REST_SECONDS = 3600.0

# $1 session_id, $2 options, $3 whether somebody asked for it by hand
_MARK = """
INSERT INTO compressions (session_id, options, due_at) SELECT id, $2, now() FROM sessions WHERE id = $1
ON CONFLICT (session_id) DO UPDATE SET options = CASE
         WHEN compressions.due_at IS NOT NULL AND (compressions.options->>'force')::bool AND NOT $3
         THEN compressions.options ELSE excluded.options END,
       due_at = CASE WHEN $3 OR compressions.claim IS NOT NULL THEN now()
                     ELSE coalesce(compressions.due_at, greatest(now(), compressions.resting_until)) END,
       failures = CASE WHEN $3 THEN 0 ELSE compressions.failures END
RETURNING due_at <= now()
"""

# $1 session_id, $2 token budget
_IS_OVER = """
SELECT coalesce(sum(tokens), 0) + coalesce((SELECT summary_tokens FROM compressions WHERE session_id = $1), 0) > $2
  FROM messages WHERE session_id = $1 AND role IN ('user', 'assistant')
   AND position > coalesce((SELECT through_position FROM compressions WHERE session_id = $1), 0)
"""

# $1 session_id, $2 claim, $3 lease seconds
_CLAIM = """
WITH mine AS (
  UPDATE compressions SET claim = $2, claimed_until = now() + make_interval(secs => $3)
   WHERE session_id = $1 AND due_at <= now() AND (claim IS NULL OR claimed_until < now())
  RETURNING session_id, options, due_at, through_position)
SELECT mine.*, sessions.workspace_id,
       (SELECT request->'models' FROM runs WHERE runs.session_id = mine.session_id ORDER BY id DESC LIMIT 1) AS last_models,
       (SELECT id FROM runs WHERE runs.session_id = mine.session_id AND status IN ('running', 'waiting')) AS active_run_id
  FROM mine JOIN sessions ON sessions.id = mine.session_id
"""

# $1 session_id, $2 claim, $3 lease seconds
_RENEW = """
UPDATE compressions SET claimed_until = now() + make_interval(secs => $3) WHERE session_id = $1 AND claim = $2
RETURNING true
"""

_DONE = """claim = NULL, claimed_until = NULL, due_at = CASE WHEN due_at IS DISTINCT FROM $3 THEN due_at ELSE NULL END"""

# $1 session_id, $2 claim, $3 due_at as it was claimed
_RELEASE = f"UPDATE compressions SET {_DONE} WHERE session_id = $1 AND claim = $2"

# $1 session_id, $2 claim, $3 due_at as it was claimed, $4 summary, $5 its tokens, $6 model, $7 from and $8 to which position
_COMMIT = f"""
UPDATE compressions SET {_DONE}, summary = $4, summary_tokens = $5, model = $6, through_position = $8, failures = 0,
       resting_until = NULL, compressed_at = now()
 WHERE session_id = $1 AND claim = $2 AND through_position = $7 AND $8 > $7
RETURNING true
"""

# $1 session_id, $2 claim, $3 tries, $4 backoff seconds, $5 rest seconds
_FAIL = """
UPDATE compressions SET claim = NULL, claimed_until = NULL,
       failures = CASE WHEN failures + 1 < $3 THEN failures + 1 ELSE 0 END,
       due_at = CASE WHEN failures + 1 < $3 THEN now() + make_interval(secs => ($4::float8[])[failures + 1]) END,
       resting_until = CASE WHEN failures + 1 < $3 THEN NULL ELSE now() + make_interval(secs => $5) END
 WHERE session_id = $1 AND claim = $2
RETURNING due_at IS NULL AS gave_up, extract(epoch FROM due_at - now())::float8 AS again_seconds
"""

_OVERDUE = """
SELECT session_id FROM compressions WHERE due_at <= now() AND (claim IS NULL OR claimed_until < now())
 ORDER BY due_at LIMIT $1
"""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A session whose summary is ours to write for the length of the lease. The turn of the active run is not over."""

    session_id: str
    workspace_id: str
    claim: str
    options: HistoryOptions
    models: tuple[str, ...]
    due_at: datetime | None
    through_position: int
    active_run_id: str | None


async def mark(db: Connection | Pool, session_id: str, options: HistoryOptions) -> bool:
    """The session is due; False when it rests after failures, or is gone. `options.force` is somebody's own wish."""
    return bool(await db.fetchval(_MARK, session_id, options.as_json(), options.force))


async def mark_if_over(db: Connection | Pool, session_id: str, options: HistoryOptions) -> bool:
    """Mark a session whose messages are over the budget, as far as they were counted."""
    if not await db.fetchval(_IS_OVER, session_id, options.token_budget):
        return False
    return await mark(db, session_id, options)


async def claim(pool: Pool, session_id: str, token: str, lease_seconds: float) -> Claimed | None:
    """Take the session if it is due and nobody is at it."""
    row: Mapping[str, Any] | None = await pool.fetchrow(_CLAIM, session_id, token, lease_seconds)
    if row is None:
        return None
    options = options_of(row["options"])
    models = options.models or tuple(row["last_models"] or ())
    return Claimed(
        session_id, row["workspace_id"], token, options, models, row["due_at"], row["through_position"], row["active_run_id"]
    )


async def renew(pool: Pool, claimed: Claimed, lease_seconds: float) -> bool:
    return bool(await pool.fetchval(_RENEW, claimed.session_id, claimed.claim, lease_seconds))


async def release(pool: Pool, claimed: Claimed) -> None:
    """There was nothing to do."""
    await pool.execute(_RELEASE, claimed.session_id, claimed.claim, claimed.due_at)


async def commit(
    pool: Pool, claimed: Claimed, summary: str, tokens: int, model: str, through_position: int, *, has_more: bool
) -> bool:
    """Store a summary; False when the claim or the position is another's by now. `has_more`: it stays due."""
    seen = None if has_more else claimed.due_at
    return bool(
        await pool.fetchval(
            _COMMIT, claimed.session_id, claimed.claim, seen, summary, tokens, model, claimed.through_position,
            through_position,
        )
    )  # fmt: skip


async def fail(pool: Pool, claimed: Claimed) -> float | None:
    """Count a failure: the seconds until the next try, or None when it is given up for now (or is another's)."""
    row = await pool.fetchrow(_FAIL, claimed.session_id, claimed.claim, TRIES, list(BACKOFF_SECONDS), REST_SECONDS)
    return None if row is None or row["gave_up"] else max(0.0, row["again_seconds"])


async def overdue(pool: Pool, limit: int) -> list[str]:
    """Sessions that are due and that nobody works on."""
    return [row["session_id"] for row in await pool.fetch(_OVERDUE, limit)]


async def is_claimed(pool: Pool, session_id: str) -> bool:
    """Whether somebody is at it."""
    query = "SELECT true FROM compressions WHERE session_id = $1 AND claimed_until > now() AND claim IS NOT NULL"
    return bool(await pool.fetchval(query, session_id))
