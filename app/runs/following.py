"""Following a run: from the event log as it is written, and from the rows for what the log has lost or cannot be asked for.

The rows hold every event but the deltas, in order, each before anybody is shown it (`runs/journal.py`). So a reader that
meets a gap in the log shows what the rows have, until they reach beyond the gap, and then goes on with the log. While Redis
is away it looks at the rows now and then.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

from app.events.frames import PING, Group, frame_of_dict
from app.events.log import EventLog, Following
from app.infra.database import Pool
from app.infra.redis import RedisAway
from app.infra.telemetry import STREAMS_REBUILT
from app.loop.messages import ACTIVE_STATUSES
from app.runs.recovery import is_whole, read_shown
from app.runs.replay import frames_after, rebuild

ROWS_SECONDS = 0.5
_END_SECONDS, _LOOK_SECONDS = 0.3, 0.02
"""How long the end of a run is awaited in the log, once it stands in the rows, and how often it is looked for."""
_RETRY_MILLISECONDS = (100, 1000)
"""After what time a client shall come back, at random, so that not all come at the same moment."""

_STATE = "SELECT *, (SELECT max(seq) FROM run_events WHERE run_id = $1) AS top FROM runs WHERE id = $1"


async def reached(log: EventLog, pool: Pool, row: Any, after: int) -> bool:
    """Whether a run has come to a seq. Of a log that is gone or away, any seq that may have been shown counts."""
    top = row["last_seq"]
    if top is None:
        try:
            top = await log.top(row["id"])
        except RedisAway:
            top = 0
        if after > top:
            may_be = row["reserved_seq"] if top == 0 and row["status"] != "queued" else 0
            stored = await pool.fetchval("SELECT coalesce(max(seq), 0) FROM run_events WHERE run_id = $1", row["id"])
            top = max(top, stored, may_be, 1 if row["started_at"] is None else 2)
    return after <= int(top)


async def rest(log: EventLog, pool: Pool, row: Any, cursor: int) -> bytes:
    """All that is left of a finished run's events: from the log where it is whole, else made from the rows.

    What its owner stored a moment ago is about to be in the log: so all readers get the very same bytes.
    """
    frames: list[bytes] = []
    at, give_up_at = cursor, monotonic() + _END_SECONDS
    try:
        while at < row["last_seq"]:
            groups = await log.read(row["id"], at)
            if not groups:
                if monotonic() > give_up_at or not await log.top(row["id"]):
                    break
                await asyncio.sleep(_LOOK_SECONDS)
            for group in groups:
                if group.first > at + 1:
                    return frames_after(await rebuild(pool, row), cursor)
                frames.append(group.after(at).frames)
                at = group.last
        if at < row["last_seq"]:
            return await _unfinished_rest(log, pool, row, cursor)
    except RedisAway:
        return frames_after(await rebuild(pool, row), cursor)
    return b"".join(frames)


async def _unfinished_rest(log: EventLog, pool: Pool, row: Any, cursor: int) -> bytes:
    """The log has not been told the end (yet): it is completed from the rows, where it is not lost.

    So a message that was begun is not told anew: the log may have all of it when this client comes back.
    """
    groups = await log.read_all(row["id"])
    bodies = await rebuild(pool, row)
    if not is_whole(groups):
        return frames_after(bodies, cursor)
    logged = b"".join(group.after(cursor).frames for group in groups if group.last > cursor)
    missing = read_shown(groups).missing(bodies)
    return logged + b"".join(frame_of_dict(body) for body in missing if body["seq"] > cursor)


class Reader:
    """One client's way through the events of a run, after `cursor`."""

    def __init__(self, log: EventLog, pool: Pool, run_id: str, cursor: int, ping_seconds: float) -> None:
        self._log, self._pool, self._run_id = log, pool, run_id
        self._cursor, self._ping_seconds = cursor, ping_seconds
        self._gap_until: int | None = None
        """The first seq after a gap in the log, until the rows reach beyond."""
        self._is_over = False

    async def frames(self) -> AsyncIterator[bytes]:
        """SSE frames until the run's end; a ping whenever there was nothing for a while.

        A run that is erased just ends. When this process goes down, the client is told when to come back.
        """
        spoken = monotonic()
        async with self._log.follow(self._run_id, self._cursor) as following:
            while not following.is_over and not self._is_over:
                part = await self._more(following, max(0.0, spoken + self._ping_seconds - monotonic()))
                if not part and monotonic() - spoken >= self._ping_seconds and not (following.is_over or self._is_over):
                    part = PING
                if part:
                    spoken = monotonic()
                    yield part
            if following.is_closing and not self._is_over:
                yield b"retry: %d\n\n" % random.randint(*_RETRY_MILLISECONDS)

    async def _more(self, following: Following, seconds: float) -> bytes:
        """What comes next; empty when nothing came in this time."""
        if self._gap_until is not None:
            await asyncio.sleep(min(seconds, ROWS_SECONDS))
            return await self._from_rows(following)
        try:
            groups = await following.next(seconds)
        except RedisAway:
            await following.pause(min(seconds, ROWS_SECONDS * random.uniform(0.8, 1.2)))
            return await self._from_rows(following)
        if following.is_over:
            return b""
        if groups and (shown := self._from_log(groups)):
            return shown
        return await self._from_rows(following)

    def _from_log(self, groups: list[Group]) -> bytes:
        """The frames up to the first gap."""
        frames: list[bytes] = []
        for group in groups:
            if group.first > self._cursor + 1:
                self._gap_until = group.first
                break
            frames.append(group.after(self._cursor).frames)
            self._cursor = group.last
            if group.ends:
                self._is_over = True
                break
        return b"".join(frames)

    async def _from_rows(self, following: Following) -> bytes:
        """What the rows have after the cursor, and all of it when the run has ended."""
        row = await self._pool.fetchrow(_STATE, self._run_id)
        if row is None:
            self._is_over = True
            return b""
        if row["status"] not in ACTIVE_STATUSES:
            self._is_over = True
            return await rest(self._log, self._pool, row, self._cursor)
        shown = b""
        if self._gap_until is not None or not self._log.line.is_up:
            bodies = await rebuild(self._pool, row) if (row["top"] or 2) > self._cursor else []
            STREAMS_REBUILT.inc(bool(bodies))
            shown = frames_after(bodies, self._cursor)
            self._cursor = max([self._cursor, *(body["seq"] for body in bodies)])
            if self._gap_until is None or self._cursor >= self._gap_until - 1:
                self._gap_until = None
                following.go_to(self._cursor)
        return shown
