"""Who owns a run. A claim is a random token that expires by the database's clock; every write of the run names it.

The owner keeps its own account of the time (`Lease`), by its monotonic clock and from before each statement that renewed
the claim: so it never believes longer than the database that the run is its own.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, TypeVar

import asyncpg

from app.events.frames import KeptEvent
from app.infra.database import Pool
from app.infra.errors import LeaseLost
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import STALE_WRITES_REFUSED, log
from app.runs import statements, step_statements

Answer = TypeVar("Answer")
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0


def new_claim() -> str:
    return secrets.token_hex(16)


class Lease:
    """A run that this process owns, until it is told otherwise. `since`: when it was claimed, by the monotonic clock."""

    def __init__(self, pool: Pool, run_id: str, claim: str, seconds: float, since: float) -> None:
        self.run_id, self.claim, self.seconds = run_id, claim, seconds
        self.pool = pool
        self.turn = asyncio.Lock()
        """One change of the run at a time, so that its rows hold the events in order."""
        self.until = since + seconds
        self.calls = 0
        """Calls of models and tools that are under way."""
        self.waiting = 0
        """Calls that are not begun since this process leaves."""
        self.is_leaving = False
        """Nothing new is begun: the run is let go of when what is under way is stored."""

    @property
    def is_at_rest(self) -> bool:
        """All that was under way is stored or about to be (a step is stored to its end), and nothing more is begun."""
        return self.waiting > 0 and self.calls == 0

    async def rest(self) -> None:
        """A call waits for a run that this leaving process has let go of: nothing is under way in it here any more, and the
        process lets go of this run too. Does not return."""
        self.calls -= 1
        self.waiting += 1
        await asyncio.Event().wait()

    def renewed(self, since: float) -> None:
        self.until = max(self.until, since + self.seconds)

    async def confirm(self) -> None:
        """Make sure that the run is still ours; asks the database only after a pause longer than the lease."""
        if monotonic() < self.until:
            return
        log.info("lease_ran_out", run_id=self.run_id)
        since = monotonic()
        await self._proven("renewal", statements.RENEW, [self.run_id], [self.claim], self.seconds)
        self.renewed(since)

    async def reserve(self, seq: int) -> None:
        """Let the run's row tell that events up to this seq may be shown. Raises LeaseLost."""
        await self._proven("reservation", statements.RESERVE, self.run_id, self.claim, seq)

    async def keep(self, take: Callable[[], list[KeptEvent]], reserved: int) -> None:
        """Store events that stand for no change, before they are shown. Raises LeaseLost."""
        async with self.turn:
            if rows := [event.as_row() for event in take()]:
                await self._proven("keep", step_statements.BEGIN, self.run_id, self.claim, rows, reserved)

    async def _proven(self, kind: str, statement: str, *arguments: Any) -> None:
        try:
            if await self.lasting(lambda: self.pool.fetchval(statement, *arguments)) is not None:
                return
        except Exception as error:
            if not is_out_of_reach(error):
                raise
        raise self.lost(kind)

    def lost(self, kind: str) -> LeaseLost:
        """The error of a write that was refused, counted."""
        STALE_WRITES_REFUSED.labels(kind).inc()
        log.info("stale_write_refused", run_id=self.run_id, kind=kind)
        return LeaseLost()

    async def lasting(
        self, work: Callable[[], Awaitable[Answer]], again: Callable[[], Awaitable[Answer]] | None = None
    ) -> Answer:
        """Do it; do it `again` while the database is out of reach and the run may still be ours.

        That is for as long as the lease lasts, and at least as long as a lease is: nobody can have claimed the run while
        there was no database. Raises what `work` raised last.
        """
        give_up_at, pause, step = max(self.until, monotonic() + self.seconds), _FIRST_PAUSE_SECONDS, work
        while True:
            try:
                return await step()
            except Exception as error:
                if not is_out_of_reach(error) or monotonic() + pause > give_up_at:
                    raise
                log.warning("database_away", run_id=self.run_id, error=type(error).__name__)
            await asyncio.sleep(pause)
            pause, step = min(2 * pause, _LONGEST_PAUSE_SECONDS), again or work


async def claim(pool: Pool, run_id: str, lease_seconds: float) -> asyncpg.Record | None:
    """Take a run that nobody works on; None when somebody does, or when it is not its turn."""
    token = new_claim()
    try:
        return await pool.fetchrow(statements.CLAIM, run_id, token, lease_seconds)
    except asyncpg.UniqueViolationError:
        return None  # another run of the session was started at this very moment


async def claim_to_cancel(pool: Pool, run_id: str, lease_seconds: float) -> asyncpg.Record | None:
    """Take a run in order to end it; None when a living process owns it or it has ended."""
    return await pool.fetchrow(statements.CLAIM_TO_CANCEL, run_id, new_claim(), lease_seconds)


async def abandoned(pool: Pool, limit: int) -> list[str]:
    """Runs that wait for an owner: queued ones whose turn it is, and those whose lease ran out."""
    return [row["id"] for row in await pool.fetch(statements.ABANDONED, limit)]


async def renew(pool: Pool, claims: Mapping[str, str], lease_seconds: float) -> tuple[set[str], set[str]]:
    """Renew the leases of these runs (claims by run id). Returns the renewed, and those that are another's or gone.

    A run that has just ended or begun to wait is neither: its owner is about to notice.
    """
    rows = await pool.fetch(statements.RENEW, list(claims), list(claims.values()), lease_seconds)
    renewed = {row["id"] for row in rows}
    missing = claims.keys() - renewed
    if not missing:
        return renewed, set()
    known = {row["id"]: row for row in await pool.fetch(statements.OWNERS, list(missing))}
    return renewed, {
        run_id
        for run_id in missing
        if run_id not in known or (known[run_id]["status"] == "running" and known[run_id]["claim"] != claims[run_id])
    }


async def let_go(pool: Pool, run_id: str, token: str) -> None:
    await pool.execute(statements.LET_GO, run_id, token)


async def cancel_requested(pool: Pool, run_ids: list[str]) -> dict[str, bool]:
    """Of these runs, those whose end was asked for, with whether they are gone altogether."""
    rows: list[Any] = await pool.fetch(statements.CANCEL_REQUESTED, run_ids)
    return {row["id"]: row["gone"] for row in rows}


async def request_cancel(pool: Pool, run_id: str) -> bool | None:
    """Ask for the end of a run. True: a living process owns it and will see it; False: nobody does; None: it has ended."""
    row = await pool.fetchrow(statements.REQUEST_CANCEL, run_id)
    return None if row is None else bool(row["owned"])
