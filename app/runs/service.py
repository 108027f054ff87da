"""Starting, cancelling, waiting for and following runs: what the endpoints, and later the triggers, ask for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import asyncpg

from app.events.frames import PING
from app.events.log import EventLog
from app.events.sse import PING_SECONDS
from app.idempotency import Idempotency
from app.infra import clock
from app.infra.database import Connection, Pool
from app.infra.errors import Conflict, Invalid, NotFound, Unavailable
from app.loop.messages import ACTIVE_STATUSES, RunStatus
from app.runs import lease, repository
from app.runs.prompt import input_message
from app.runs.replay import frames_after, rebuild
from app.runs.resolve import Resolved
from app.runs.runner import Owned, Runner
from app.runs.supervisor import Supervisor

_CANCEL_SECONDS = 30.0
_STARTS = 100
_LOOK_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Started:
    row: asyncpg.Record
    replayed: bool = False


class RunService:
    """One per process. What it accepts stands in the database before anything is answered."""

    def __init__(
        self, pool: Pool, runner: Runner, supervisor: Supervisor, event_log: EventLog, lease_seconds: float
    ) -> None:
        self.pool = pool
        self._runner, self._supervisor, self._log = runner, supervisor, event_log
        self._lease_seconds = lease_seconds
        self._interrupting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # ---- starting

    async def start(self, resolve: Callable[[], Awaitable[Resolved]], idempotency: Idempotency | None) -> Started:
        """Accept a run and start it, in a task that outlives the request. Raises Conflict for a busy session.

        With a key that was used before it gives the first run, before anything else is judged.
        """
        if idempotency is not None:
            async with self.pool.acquire() as connection, connection.transaction():
                if (first := await self._first(connection, idempotency)) is not None:
                    return first
        resolved = await resolve()
        for _ in range(_STARTS):
            if idempotency is None and self._is_simple(resolved):
                row = await self._start_at_once(self.pool, resolved)
                started = None if row is None else Started(row)
            else:
                started = await self._start_carefully(resolved, idempotency)
            if started is not None:
                return await self._set_going(started, resolved)
            await self._make_room(resolved)
        raise Conflict("The session is too busy to interrupt.", code="run_in_progress")

    async def _first(self, connection: Connection, idempotency: Idempotency) -> Started | None:
        row = await idempotency.find(connection, wait=True)
        if row is None:
            return None
        run = await connection.fetchrow("SELECT * FROM runs WHERE id = $1", row["run_id"])
        return Started(run, replayed=True)

    def _is_simple(self, resolved: Resolved) -> bool:
        return self._supervisor.has_room and resolved.on_conflict != "queue"

    async def _start_at_once(self, db: Connection | Pool, resolved: Resolved) -> asyncpg.Record | None:
        row, now, claim = resolved.row, clock.now(), lease.new_claim()
        if row["session_id"] is None:
            return await repository.start_alone(db, row, claim, self._lease_seconds, now)
        message = input_message(row["id"], row["request"]["input"]) if row["request"]["persist"] else None
        try:
            return await repository.start_in_session(db, row, claim, self._lease_seconds, now, message)
        except asyncpg.UniqueViolationError:
            return None  # two starts at the same moment: the other one was first
        except asyncpg.ForeignKeyViolationError:
            raise NotFound() from None

    async def _start_carefully(self, resolved: Resolved, idempotency: Idempotency | None) -> Started | None:
        """In one transaction: the key, the session's lock, the run, queued where it must wait."""
        session_id = resolved.row["session_id"]
        async with self.pool.acquire() as connection, connection.transaction():
            if idempotency is not None and (first := await self._first(connection, idempotency)) is not None:
                return first
            if session_id is not None:
                await repository.lock_session(connection, session_id)
            active = await repository.active_runs(connection, session_id) if session_id is not None else []
            if active and resolved.on_conflict != "queue":
                return None
            if active or not self._supervisor.has_room:
                row = await repository.queue(connection, resolved.row, clock.now())
            else:
                row = await self._start_at_once(connection, resolved)
            if row is not None and idempotency is not None:
                await idempotency.keep_run(connection, row["id"])
        return None if row is None else Started(row)

    async def _set_going(self, started: Started, resolved: Resolved) -> Started:
        if started.replayed:
            return started
        if started.row["status"] == "running":
            # the request as it was given: a JSONB column forgets the order of keys
            self._supervisor.own(Owned({**started.row, "request": resolved.row["request"]}, fresh=True))
        else:
            await self.set_going(started.row)
        return started

    async def set_going(self, queued: asyncpg.Record) -> None:
        """Show that a run is queued, and start it if it was due when it was made and there is room.

        What is due later is found by the sweep; a wake-up at `wake_at` would be set here.
        """
        await self._runner.announce(queued)
        if queued["wake_at"] is None or queued["wake_at"] <= queued["created_at"]:
            await self._supervisor.take(queued["id"])

    async def start_child(self, row: dict[str, Any]) -> asyncpg.Record:
        """Start a run that another run of this process waits for, at once; one that was started before is given as it is."""
        started = await repository.start_child(self.pool, row, lease.new_claim(), self._lease_seconds, clock.now())
        if started is None:
            return await repository.reload(self.pool, row["id"])
        self._supervisor.own(Owned({**started, "request": row["request"]}, fresh=True))
        return started

    async def settle(self, row: asyncpg.Record) -> asyncpg.Record:
        """The run once it has ended or waits; `wait` for those who work here, and go on while this process drains."""
        while row["status"] in (RunStatus.QUEUED, RunStatus.RUNNING):
            run_id = row["id"]
            if not await self._supervisor.settle(run_id) and not await self._supervisor.take(run_id, beyond_limit=True):
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            row = await repository.reload(self.pool, run_id)
        return row

    async def _make_room(self, resolved: Resolved) -> None:
        """Raise Conflict, or cancel what the session is doing, as the caller wants it."""
        active = await repository.active_runs(self.pool, resolved.row["session_id"])
        if resolved.on_conflict == "reject" and active:
            extra = {"run_id": active[0]["id"], "pending": active[0]["pending"] or []}
            raise Conflict("The session has an active run.", code="run_in_progress", extra=extra)
        session_id = resolved.row["session_id"]
        # one at a time, so that several who interrupt do not keep each other from ever starting
        async with self._interrupting.setdefault(session_id, asyncio.Lock()):
            for row in reversed(await repository.active_runs(self.pool, session_id)):
                await self.cancel(row)

    # ---- ending and waiting

    async def cancel(self, row: asyncpg.Record) -> asyncpg.Record:
        """End a run; returns its row when it has ended (or, with an owner that does not answer, as it is)."""
        run_id = row["id"]
        owned = await lease.request_cancel(self.pool, run_id)
        if owned is None:
            return await repository.reload(self.pool, run_id)
        if self._supervisor.cancel(run_id):
            await self._supervisor.wait(run_id, _CANCEL_SECONDS)
        elif owned or not await self._supervisor.finalise(run_id):
            await self._wait_elsewhere(row, _CANCEL_SECONDS)
        return await repository.reload(self.pool, run_id)

    async def wait(self, row: asyncpg.Record) -> asyncpg.Record:
        """Wait until a run has ended or waits, wherever it is executed."""
        while row["status"] in (RunStatus.QUEUED, RunStatus.RUNNING):
            if self._log.hub.closing:
                raise Unavailable("This process is going down; the run goes on.", retry_after_seconds=1)
            if not await self._supervisor.wait(row["id"]):
                await self._wait_elsewhere(row, None)
            row = await repository.reload(self.pool, row["id"])
        return row

    async def _wait_elsewhere(self, row: asyncpg.Record, seconds: float | None) -> None:
        started = clock.now()
        async for group in self._log.follow(row["id"], 0, 1.0):
            if group is None or b"\nevent: run.waiting\n" in group.frames:
                now = await repository.reload(self.pool, row["id"])
                if now["status"] not in (RunStatus.QUEUED, RunStatus.RUNNING):
                    return
                if seconds is not None and (clock.now() - started).total_seconds() > seconds:
                    return
                await self._supervisor.finalise_if_asked(now)

    async def carry_on(self, row: asyncpg.Record, may_go_on: bool) -> asyncpg.Record:
        """Wake a run that has what it waited for; any process may be the one that takes it."""
        if may_go_on:
            await self._supervisor.take(row["id"])
        return row

    # ---- following

    async def check_seq(self, row: asyncpg.Record, after: int) -> None:
        """Raises Invalid for a seq that the run has not reached."""
        if after <= 0:
            return
        top = row["last_seq"]
        if top is None:
            top = await self._log.top(row["id"])
            if after > top:
                query = "SELECT coalesce(max(seq), 0) FROM run_events WHERE run_id = $1"
                top = max(top, await self.pool.fetchval(query, row["id"]))
        if after > top:
            raise Invalid(f"The run has not reached {after}.", errors=[(("header", "Last-Event-ID"), "not reached yet")])

    async def frames(self, row: asyncpg.Record, after: int) -> AsyncIterator[bytes]:
        """The run's events after a seq as SSE frames, until its end; a ping whenever there was nothing for a while."""
        cursor = after
        if row["status"] not in ACTIVE_STATUSES:
            yield await self._rest(row, cursor)
            return
        async for group in self._log.follow(row["id"], after, PING_SECONDS):
            if group is None:
                now = await self._reload_or_none(row["id"])
                if now is None:
                    return
                if now["status"] not in ACTIVE_STATUSES:
                    yield await self._rest(now, cursor)
                    return
                yield PING
                continue
            if group.first > cursor + 1:
                bodies = await rebuild(self.pool, row)
                yield frames_after([body for body in bodies if body["seq"] < group.first], cursor)
            cursor = group.last
            yield group.frames

    async def _rest(self, row: asyncpg.Record, cursor: int) -> bytes:
        """All that is left of a finished run's events: from the log where it is whole, else made from the rows."""
        frames: list[bytes] = []
        at = cursor
        while groups := await self._log.read(row["id"], at):
            for group in groups:
                if group.first > at + 1:
                    return frames_after(await rebuild(self.pool, row), cursor)
                frames.append(group.after(at).frames)
                at = group.last
        if at < row["last_seq"]:
            return frames_after(await rebuild(self.pool, row), cursor)
        return b"".join(frames)

    async def _reload_or_none(self, run_id: str) -> Any:
        try:
            return await repository.reload(self.pool, run_id)
        except NotFound:
            return None

    async def forget(self, run_ids: list[str]) -> None:
        """The rows of these runs are erased: stop them, and erase their event logs."""
        for run_id in run_ids:
            self._supervisor.lose(run_id)
        await self._log.forget(run_ids)
