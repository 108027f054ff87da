"""Whether one more run may be accepted. What was accepted is executed, so a flood is refused here or not at all."""

import time

from app.infra.database import Connection, Pool
from app.infra.errors import TooMany, Unavailable
from app.infra.telemetry import REFUSALS

# a queued run whose turn it is: nothing but a place in a process is missing
_WAITS = """status = 'queued' AND (wake_at IS NULL OR wake_at <= now()) AND (session_id IS NULL OR NOT EXISTS (
  SELECT 1 FROM runs AS other WHERE other.session_id = runs.session_id AND other.id <> runs.id
     AND (other.status IN ('running', 'waiting') OR (other.status = 'queued' AND other.id < runs.id))))"""

# $1 as many are enough to know
_QUEUED_AT_MOST = f"SELECT count(*) FROM (SELECT 1 FROM runs WHERE {_WAITS} LIMIT $1) AS few"

# $1 workspace_id, $2 as many are enough to know
_UNFINISHED_AT_MOST = """
SELECT count(*) FROM (
  SELECT 1 FROM runs
   WHERE workspace_id = $1 AND status IN ('queued', 'running') AND (wake_at IS NULL OR wake_at <= now()) LIMIT $2) AS few
"""

_QUEUE_STATE = f"""
SELECT count(*) AS waiting,
       coalesce(extract(epoch FROM now() - min(coalesce(wake_at, created_at))), 0)::float8 AS oldest_seconds
  FROM runs WHERE {_WAITS}
"""

_RETRY_SECONDS = 5
_FULL_SECONDS = 0.25
"""How long a full queue is taken for full without being counted again: counting is work, and a flood asks often."""


class Admission:
    """One per process; the limits hold over all of them, give or take those who are being accepted at the same moment."""

    def __init__(self, max_queued: int, max_session_queued: int, max_workspace_runs: int | None) -> None:
        self._max_queued, self._max_session_queued = max_queued, max_session_queued
        self._max_workspace_runs = max_workspace_runs
        self._full_until = 0.0

    async def check(self, db: Connection | Pool, workspace_id: str, before_it: int, has_place: bool) -> None:
        """Raises `TooMany` or `Unavailable`. `before_it`: the active runs of its session; `has_place`: could start now.

        It is asked after idempotency was, and costs no round trip for a run that can start, unless workspaces are limited.
        """
        if before_it > self._max_session_queued:
            REFUSALS.labels("session_queue").inc()
            raise TooMany("As many runs wait in this session as may.", retry_after_seconds=_RETRY_SECONDS)
        if not before_it and not has_place:
            await self._check_queue(db)
        most = self._max_workspace_runs
        if most is not None and await db.fetchval(_UNFINISHED_AT_MOST, workspace_id, most) >= most:
            REFUSALS.labels("workspace_runs").inc()
            raise TooMany("The workspace has as many unfinished runs as it may.", retry_after_seconds=_RETRY_SECONDS)

    async def _check_queue(self, db: Connection | Pool) -> None:
        now = time.monotonic()
        if now >= self._full_until:
            if await db.fetchval(_QUEUED_AT_MOST, self._max_queued) < self._max_queued:
                return
            self._full_until = now + _FULL_SECONDS
        REFUSALS.labels("queue").inc()
        raise Unavailable("As many runs wait for a place as may.", retry_after_seconds=_RETRY_SECONDS)


async def queue_state(pool: Pool) -> tuple[int, float]:
    """How many runs wait for a place in a process, and how many seconds the first of them has waited."""
    row = await pool.fetchrow(_QUEUE_STATE)
    return row["waiting"], row["oldest_seconds"]
