"""Starting, cancelling, waiting for and following runs: what the endpoints, and later the triggers, ask for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

import asyncpg

from app.events.log import EventLog
from app.events.sse import PING_SECONDS
from app.idempotency import Idempotency
from app.infra import clock
from app.infra.database import Connection, Pool
from app.infra.errors import Conflict, Invalid, NotFound, Unavailable
from app.infra.redis import RedisAway
from app.infra.telemetry import log
from app.loop.messages import ACTIVE_STATUSES, RunStatus
from app.redaction.answers import restored, restored_frames, restored_list
from app.runs import lease, repository
from app.runs.admission import Admission
from app.runs.following import Reader, reached, rest
from app.runs.lease import Lease
from app.runs.opening import Owned
from app.runs.prompt import input_content, input_message
from app.runs.redacting import Redactions
from app.runs.resolve import Resolved
from app.runs.runner import Runner
from app.runs.shapes import run_json
from app.runs.supervisor import Supervisor
from app.sessions.history import content_tokens

_CANCEL_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_STARTS = 100
_LOOK_AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Started:
    """`since`: when its statement was sent, by the monotonic clock."""

    row: asyncpg.Record
    since: float = 0.0
    replayed: bool = False


class RunService:
    """One per process. What it accepts stands in the database before anything is answered."""

    def __init__(
        self,
        pool: Pool,
        runner: Runner,
        supervisor: Supervisor,
        event_log: EventLog,
        admission: Admission,
        lease_seconds: float,
        redactions: Redactions,
    ) -> None:
        self.pool, self._admission, self.redactions = pool, admission, redactions
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
        await self.redactions.accept(resolved.row)
        for _ in range(_STARTS):
            since = monotonic()
            with self._supervisor.place(newcomer=True) as has_place:
                started = await self._accept(resolved, idempotency, has_place, since)
                if started is not None:
                    return await self._set_going(started, resolved)
            await self._make_room(resolved)
            if self._supervisor.is_leaving:  # nobody waits here for a run to end: another process will
                raise Unavailable("This process is going down.", retry_after_seconds=1)
        raise Conflict("The session is too busy to interrupt.", code="run_in_progress")

    async def _first(self, connection: Connection, idempotency: Idempotency) -> Started | None:
        row = await idempotency.find(connection, wait=True)
        if row is None:
            return None
        run = await connection.fetchrow("SELECT * FROM runs WHERE id = $1", row["run_id"])
        return Started(run, replayed=True)

    async def _accept(
        self, resolved: Resolved, idempotency: Idempotency | None, has_place: bool, since: float
    ) -> Started | None:
        """None for a busy session. Raises TooMany or Unavailable where nothing more may be accepted."""
        if idempotency is not None or not has_place or resolved.on_conflict == "queue":
            return await self._start_carefully(resolved, idempotency, has_place, since)
        await self._admission.check(self.pool, resolved.row["workspace_id"], 0, has_place)
        row = await self._start_at_once(self.pool, resolved)
        return None if row is None else Started(row, since)

    async def _start_at_once(self, db: Connection | Pool, resolved: Resolved) -> asyncpg.Record | None:
        row, now, claim = resolved.row, clock.now(), lease.new_claim()
        if row["session_id"] is None:
            return await repository.start_alone(db, row, claim, self._lease_seconds, now)
        message = None
        if row["request"]["persist"]:
            given = row["request"]["input"]
            message = input_message(row["id"], given, await content_tokens(input_content(given)))
        try:
            return await repository.start_in_session(db, row, claim, self._lease_seconds, now, message)
        except asyncpg.UniqueViolationError:
            return None  # two starts at the same moment: the other one was first
        except asyncpg.ForeignKeyViolationError:
            raise NotFound() from None

    async def _start_carefully(
        self, resolved: Resolved, idempotency: Idempotency | None, has_place: bool, since: float
    ) -> Started | None:
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
            await self._admission.check(connection, resolved.row["workspace_id"], len(active), has_place)
            if active or not has_place:
                row = await repository.queue(connection, resolved.row, clock.now())
            else:
                row = await self._start_at_once(connection, resolved)
            if row is not None and idempotency is not None:
                await idempotency.keep_run(connection, row["id"])
        return None if row is None else Started(row, since)

    async def _set_going(self, started: Started, resolved: Resolved) -> Started:
        if started.replayed:
            return started
        if started.row["status"] == "running":
            # the request as it was given: a JSONB column forgets the order of keys
            claim = started.row["claim"]
            lease = Lease(self.pool, started.row["id"], claim, self._lease_seconds, started.since)
            self._supervisor.own(Owned({**started.row, "request": resolved.row["request"]}, lease, fresh=True))
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
        since, claim = monotonic(), lease.new_claim()
        started = await repository.start_child(self.pool, row, claim, self._lease_seconds, clock.now())
        if started is None:
            return await repository.reload(self.pool, row["id"])
        held = Lease(self.pool, row["id"], claim, self._lease_seconds, since)
        self._supervisor.own(Owned({**started, "request": row["request"]}, held, fresh=True))
        return started

    async def settle(self, row: asyncpg.Record, for_run_id: str) -> asyncpg.Record:
        """A run once it has ended or waits, for another one of this process that waits for it until it is let go of."""
        while row["status"] in (RunStatus.QUEUED, RunStatus.RUNNING):
            run_id = row["id"]
            here = await self._supervisor.settle(run_id, for_run_id)
            if not here and not await self._supervisor.take(run_id, beyond_limit=True):
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            row = await repository.reload(self.pool, run_id)
        return row

    async def _make_room(self, resolved: Resolved) -> None:
        """Raise Conflict, or cancel what the session is doing, as the caller wants it."""
        active = await repository.active_runs(self.pool, resolved.row["session_id"])
        if resolved.on_conflict == "reject" and active:
            pending = await restored(self.redactions.vaults, active[0]["pending"] or [], active[0]["vault"])
            extra = {"run_id": active[0]["id"], "pending": pending}
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
            await self._supervisor.tell("cancel", run_id)
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
        """Until the run has ended or waits; also by a look at its row now and then, which is all there is without Redis."""
        started = monotonic()
        async with self._log.follow(row["id"], 0) as following:
            while not following.is_over:
                try:
                    groups = await following.next(_LOOK_SECONDS)
                except RedisAway:
                    groups = []
                    await following.pause(_LOOK_SECONDS / 2)
                if groups and not any(group.ends or b"\nevent: run.waiting\n" in group.frames for group in groups):
                    continue
                now = await repository.reload(self.pool, row["id"])
                if now["status"] not in (RunStatus.QUEUED, RunStatus.RUNNING):
                    return
                if seconds is not None and monotonic() - started > seconds:
                    return
                await self._supervisor.finalise_if_asked(now)

    async def carry_on(self, row: asyncpg.Record, may_go_on: bool) -> asyncpg.Record:
        """Wake a run that has what it waited for; any process may be the one that takes it."""
        if may_go_on:
            await self._supervisor.take(row["id"])
        return row

    # ---- showing

    async def shown(self, row: asyncpg.Record) -> Any:
        """A run as the API shows it, with values in the place of tokens."""
        return await restored(self.redactions.vaults, run_json(row), row["vault"])

    async def shown_list(self, rows: list[asyncpg.Record]) -> list[Any]:
        vaults = self.redactions.vaults
        return await restored_list(vaults, [run_json(row) for row in rows], [row["vault"] for row in rows])

    # ---- following

    async def check_seq(self, row: asyncpg.Record, after: int) -> None:
        """Raises Invalid for a seq that the run has not reached."""
        if after > 0 and not await reached(self._log, self.pool, row, after):
            raise Invalid(f"The run has not reached {after}.", errors=[(("header", "Last-Event-ID"), "not reached yet")])

    async def frames(self, row: asyncpg.Record, after: int) -> AsyncIterator[bytes]:
        """The run's events after a seq as SSE frames, until its end; a ping whenever there was nothing for a while."""
        frames = self._frames(row, after)
        if row["vault"] is not None:
            query = "SELECT vault FROM runs WHERE id = $1"
            frames = restored_frames(frames, self.redactions.vaults, lambda: self.pool.fetchval(query, row["id"]))
        async for part in frames:
            yield part

    async def _frames(self, row: asyncpg.Record, after: int) -> AsyncIterator[bytes]:
        if row["status"] not in ACTIVE_STATUSES:
            yield await rest(self._log, self.pool, row, after)
            return
        reader = Reader(self._log, self.pool, row["id"], after, PING_SECONDS)
        async for part in reader.frames():
            yield part

    async def forget(self, run_ids: list[str]) -> None:
        """The rows of these runs are erased: stop them, and erase their event logs."""
        for run_id in run_ids:
            self._supervisor.lose(run_id)
        try:
            await self._log.forget(run_ids)
        except RedisAway:
            # they run out by themselves (`EVENT_TTL_SECONDS`), and nobody can ask for a run that has no row
            log.warning("event_logs_left", runs=len(run_ids))
