"""The work on drawing notes from a session, in the database: what is due, claimed, committed or failed.

One at a time works on a session, under a claim in its row that is good for a lease. What was drawn from is
`sessions.distilled_position`, which moves in the transaction that stores the notes, and by compare-and-set: so every stretch
of messages is distilled once.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from app.infra.database import Connection, Pool
from app.loop.messages import Usage
from app.memories.distillation import Said

PAUSES_SECONDS = (30.0, 300.0, 3600.0)
"""Before each further try; after the last one the stretch is given up, so that it does not block the session."""
ROWS_AT_ONCE = 2000


class Trigger(StrEnum):
    """Why a session is distilled now."""

    COMPRESSION = "compression"
    IDLE = "idle"
    REQUEST = "request"


# $1 session_id, $2 claim, $3 lease seconds: not one whose last try has failed a moment ago
_CLAIM = """
UPDATE sessions SET distil_claim = $2, distil_claimed_until = now() + make_interval(secs => $3)
 WHERE id = $1 AND next_position > distilled_position + 1
   AND (distil_claimed_until IS NULL OR distil_claimed_until < now())
   AND NOT EXISTS (SELECT 1 FROM distillations AS d WHERE d.session_id = $1
        AND d.from_position = sessions.distilled_position + 1 AND d.next_attempt_at > now())
RETURNING workspace_id, distilled_position,
  (SELECT request->'models' FROM runs WHERE runs.session_id = $1 ORDER BY id DESC LIMIT 1) AS last_models,
  coalesce((SELECT min(m.position) FROM runs JOIN messages AS m ON m.run_id = runs.id
             WHERE runs.session_id = $1 AND runs.status IN ('running', 'waiting')), next_position) - 1 AS to_position
"""

# $1 session_id, $2 claim, $3 lease seconds
_RENEW = """
UPDATE sessions SET distil_claimed_until = now() + make_interval(secs => $3) WHERE id = $1 AND distil_claim = $2
"""

_FREE = "distil_claim = NULL, distil_claimed_until = NULL"
RELEASE = f"UPDATE sessions SET {_FREE} WHERE id = $1 AND distil_claim = $2"

# $1 session_id, $2 claim, $3 from which position: nobody deletes or moves it until the transaction ends
_HOLD = """
SELECT true FROM sessions WHERE id = $1 AND distil_claim = $2 AND distilled_position = $3 - 1 FOR NO KEY UPDATE
"""

# $1 session_id, $2 claim, $3 from and $4 to which position
_MOVE = f"""
UPDATE sessions SET distilled_position = $4, {_FREE}
 WHERE id = $1 AND distil_claim = $2 AND distilled_position = $3 - 1 RETURNING true
"""

# the same where nothing was worth a model call
_PASS = f"""
WITH moved AS ({_MOVE})
UPDATE distillations SET status = 'done', to_position = $4, next_attempt_at = NULL, finished_at = now()
  FROM moved WHERE session_id = $1 AND from_position = $3
"""

# $1 session_id, $2 after and $3 to which position, $4 how many
_SAID = """
SELECT position, role, content, coalesce(tokens, length(content) / 3) AS tokens FROM messages
 WHERE session_id = $1 AND position > $2 AND position <= $3 AND role IN ('user', 'assistant') AND content ~ '\\S'
 ORDER BY position LIMIT $4
"""

# $1 session_id, $2 from and $3 to which position, $4 trigger: a try begins
_BEGIN = """
INSERT INTO distillations (session_id, from_position, to_position, trigger, status, attempts, input_tokens, output_tokens,
                           kept, created_at)
VALUES ($1, $2, $3, $4, 'running', 1, 0, 0, 0, now())
ON CONFLICT (session_id, from_position) DO UPDATE SET to_position = excluded.to_position, status = 'running',
   attempts = distillations.attempts + 1, next_attempt_at = NULL
RETURNING id, attempts
"""

# $1 session_id: somebody asks for it; nothing where there is nothing new
_ASK = """
INSERT INTO distillations (session_id, from_position, to_position, trigger, status, attempts, next_attempt_at, input_tokens,
                           output_tokens, kept, created_at)
SELECT id, distilled_position + 1, next_position - 1, 'request', 'due', 0, now(), 0, 0, 0, now()
  FROM sessions WHERE id = $1 AND next_position > distilled_position + 1
ON CONFLICT (session_id, from_position) DO UPDATE SET next_attempt_at = now(), status = CASE
   WHEN distillations.status = 'running' THEN 'running' ELSE 'due' END
"""

_DONE = """
UPDATE distillations SET status = 'done', next_attempt_at = NULL, model = $2, kept = $3, dropped = $4, error = NULL,
       input_tokens = input_tokens + $5, output_tokens = output_tokens + $6, finished_at = now()
 WHERE id = $1
"""

# $1 id, $2 error, $3 seconds until the next try or NULL, $4 and $5 tokens
_FAIL = """
UPDATE distillations SET status = CASE WHEN $3::float8 IS NULL THEN 'failed' ELSE 'due' END, error = $2,
       next_attempt_at = now() + make_interval(secs => $3), input_tokens = input_tokens + $4,
       output_tokens = output_tokens + $5, finished_at = CASE WHEN $3::float8 IS NULL THEN now() END
 WHERE id = $1
"""

# $1 idle seconds, $2 how many: sessions at rest with something new, and those whose next try has come
_OVERDUE = """
(SELECT id, 'idle' AS trigger FROM sessions
  WHERE next_position > distilled_position + 1 AND updated_at < now() - make_interval(secs => $1)
    AND (distil_claimed_until IS NULL OR distil_claimed_until < now())
    AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.session_id = sessions.id AND runs.status IN ('running', 'waiting'))
    AND NOT EXISTS (SELECT 1 FROM distillations AS d WHERE d.session_id = sessions.id
         AND d.from_position = sessions.distilled_position + 1 AND d.next_attempt_at > now())
  ORDER BY updated_at LIMIT $2)
UNION ALL
(SELECT d.session_id, d.trigger FROM distillations AS d JOIN sessions ON sessions.id = d.session_id
  WHERE d.status = 'due' AND d.next_attempt_at <= now() AND d.from_position = sessions.distilled_position + 1
    AND (distil_claimed_until IS NULL OR distil_claimed_until < now())
  ORDER BY d.next_attempt_at LIMIT $2)
"""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A session whose notes are ours to draw. `last_models` are those of its last run, if there was one."""

    session_id: str
    workspace_id: str
    claim: str
    from_position: int
    to_position: int
    last_models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Try:
    """One try on a stretch; `number` counts from 1."""

    id: int
    number: int


async def claim(pool: Pool, session_id: str, token: str, lease_seconds: float) -> Claimed | None:
    """Take a session with something new, if nobody is at it and it is not too early for another try."""
    row = await pool.fetchrow(_CLAIM, session_id, token, lease_seconds)
    if row is None:
        return None
    models = tuple(row["last_models"] or ())
    return Claimed(session_id, row["workspace_id"], token, row["distilled_position"] + 1, row["to_position"], models)


async def renew(pool: Pool, claimed: Claimed, lease_seconds: float) -> None:
    await pool.execute(_RENEW, claimed.session_id, claimed.claim, lease_seconds)


async def release(pool: Pool, claimed: Claimed) -> None:
    await pool.execute(RELEASE, claimed.session_id, claimed.claim)


async def said(pool: Pool, claimed: Claimed) -> tuple[list[Said], bool]:
    """What user and assistant said since the last time, as far as it is over, and whether that is all of it."""
    rows = await pool.fetch(_SAID, claimed.session_id, claimed.from_position - 1, claimed.to_position, ROWS_AT_ONCE)
    found = [Said(row["position"], row["role"], row["content"], row["tokens"]) for row in rows]
    return found, len(found) < ROWS_AT_ONCE


async def begin(pool: Pool, claimed: Claimed, to_position: int, trigger: Trigger) -> Try:
    row = await pool.fetchrow(_BEGIN, claimed.session_id, claimed.from_position, to_position, trigger)
    assert row is not None
    return Try(row["id"], row["attempts"])


async def hold(connection: Connection, claimed: Claimed) -> bool:
    """Whether the stretch is still ours, and to be stored in this transaction."""
    return bool(await connection.fetchval(_HOLD, claimed.session_id, claimed.claim, claimed.from_position))


async def move(db: Connection | Pool, claimed: Claimed, to_position: int) -> bool:
    """All up to there was distilled, and the session is free again. False: it is another's by now."""
    return bool(
        await db.fetchval(_MOVE, claimed.session_id, claimed.claim, claimed.from_position, to_position)
    )  # fmt: skip


async def pass_over(pool: Pool, claimed: Claimed, to_position: int) -> None:
    """There is nothing to be drawn from up to there."""
    await pool.execute(_PASS, claimed.session_id, claimed.claim, claimed.from_position, to_position)


async def done(connection: Connection, begun: Try, model: str, kept: int, dropped: Counter[str], spent: Usage) -> None:
    await connection.execute(_DONE, begun.id, model, kept, dict(dropped) or None, spent.input_tokens, spent.output_tokens)


async def fail(connection: Connection, begun: Try, error: str, spent: Usage) -> float | None:
    """Count a failed try: the seconds until the next one, or None when there is none."""
    again = PAUSES_SECONDS[begun.number - 1] if begun.number <= len(PAUSES_SECONDS) else None
    await connection.execute(_FAIL, begun.id, error, again, spent.input_tokens, spent.output_tokens)
    return again


async def ask(db: Connection | Pool, session_id: str) -> None:
    """Somebody wants it now."""
    await db.execute(_ASK, session_id)


async def overdue(pool: Pool, idle_seconds: float, limit: int) -> list[tuple[str, Trigger]]:
    """Sessions that nobody works on and that are due, each with why."""
    rows = await pool.fetch(_OVERDUE, idle_seconds, limit)
    return [(row["id"], Trigger(row["trigger"])) for row in rows]
