"""The runs that this process owns: each in a task that no request owns, under a lease that is renewed for all at once.

It also finds runs that nobody works on (their owner died, or their wake-up was lost) and carries them on.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic

import asyncpg

from app.infra.database import Pool
from app.infra.errors import LeaseLost
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import ACTIVE_RUNS, log
from app.loop.messages import RunStatus
from app.runs import lease, waiting
from app.runs.background import Background, Work
from app.runs.opening import Owned
from app.runs.runner import OutOfReach, Runner

_LAST_STEPS_SECONDS = 2.0
_LOOK_SECONDS = 0.05

OnEnd = Callable[[asyncpg.Record], Awaitable[None]]
"""What is told, with its row, of a run that ended or began to wait in this process, where somebody may care: it is an
agent's, a child, or subscribed to (`told`). It may be lost with the process."""


class Stop(StrEnum):
    """Why a run's task is cancelled from outside."""

    CANCEL = "cancel"
    LOST = "lost"
    DRAIN = "drain"


@dataclass(slots=True)
class _Running:
    owned: Owned
    task: "asyncio.Task[None]"
    stop: Stop | None = None


class Supervisor:
    """One per process, API or worker. `drain` lets go of everything, so that others carry on at once."""

    def __init__(
        self,
        pool: Pool,
        runner: Runner,
        *,
        lease_seconds: float,
        heartbeat_seconds: float,
        sweep_seconds: float,
        max_concurrent_runs: int,
        tell: Callable[[str], Awaitable[None]],
        on_end: OnEnd | None = None,
    ) -> None:
        self._on_end = on_end
        self._pool, self._runner, self._tell = pool, runner, tell
        self._lease_seconds = lease_seconds
        self._max = max_concurrent_runs
        self._running: dict[str, _Running] = {}
        self._reserved = self._promised = 0
        self._refilling = asyncio.Lock()
        self._background = Background()
        for seconds, work in (
            (heartbeat_seconds, self._watch_cancels), (lease_seconds / 3, self._renew), (sweep_seconds, self.sweep),
        ):  # fmt: skip
            self._background.every(seconds, work)
        self._draining = False
        self._leaving = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return not self._draining and len(self._running) + self._reserved < self._max

    @property
    def is_leaving(self) -> bool:
        return self._draining

    @contextlib.contextmanager
    def place(self, *, newcomer: bool) -> Iterator[bool]:
        """Keep a place for a run that is about to be claimed, so that many at once do not all see the same one as free.

        Gives False when there is none. A newcomer does not get those that are promised to whoever waited.
        """
        promised = self._promised if newcomer else 0
        has_place = self.has_room and len(self._running) + self._reserved + promised < self._max
        self._reserved += has_place
        try:
            yield has_place
        finally:
            self._reserved -= has_place

    def start(self) -> None:
        self._background.start()

    def also_every(self, seconds: float, work: Work) -> None:
        """Something else to be done again and again, from `start` to `drain`."""
        self._background.every(seconds, work)

    def own(self, owned: Owned) -> None:
        """Execute a claimed run in a task of its own."""
        owned.lease.is_leaving = self._draining
        running = _Running(owned, asyncio.create_task(self._execute(owned), name=owned.id))
        self._running[owned.id] = running
        ACTIVE_RUNS.inc()

    async def _execute(self, owned: Owned) -> None:
        next_run_id: str | None = None
        try:
            row = await self._runner.execute(owned, lambda: self._running[owned.id].stop is Stop.CANCEL)
            next_run_id = row["next_run_id"]
            self._tell_end(row)
            if row["status"] == RunStatus.WAITING and await waiting.came_early(self._pool, owned.id):
                next_run_id = owned.id
        except LeaseLost:
            log.warning("run_lost", run_id=owned.id)
        except asyncio.CancelledError:
            await self._let_go(owned)
        except Exception as error:
            # the lease runs out, and whoever can carries the run on
            away = is_out_of_reach(error) or isinstance(error, OutOfReach)
            log.error("run_abandoned", run_id=owned.id, exc_info=None if away else error)
        finally:
            was_full = not self.has_room
            del self._running[owned.id]
            ACTIVE_RUNS.dec()
        if next_run_id is not None or was_full:
            self._follow_up(next_run_id, was_full)

    async def _let_go(self, owned: Owned) -> None:
        """For another process to carry on, which is told, so that it need not wait for its sweep."""
        if self._running[owned.id].stop is Stop.LOST:
            return
        try:
            await lease.let_go(self._pool, owned.id, owned.claim)
        except Exception as error:
            if not is_out_of_reach(error):
                raise
            log.warning("run_not_let_go", run_id=owned.id)  # its lease runs out
        else:
            await self.tell("wake", owned.id)

    async def tell(self, word: str, run_id: str) -> None:
        """Let all processes know of a run that one of them can do something about (`hear`)."""
        await self._tell(f"{word} {run_id}")

    def hear(self, words: str) -> None:
        """`wake RUN`: it may be free; `cancel RUN`: its end was asked for."""
        word, _, run_id = words.partition(" ")
        if word == "cancel" and run_id in self._running:
            self._background.soon(self._watch_cancels)
        elif word == "wake" and self.has_room and run_id not in self._running:
            self._background.soon(lambda: self._claim(run_id))

    def _tell_end(self, row: asyncpg.Record) -> None:
        on_end = self._on_end
        is_awaited = row["agent_id"] is not None or row["parent_run_id"] is not None or row.get("told")
        if on_end is not None and is_awaited:
            self._background.soon(lambda: on_end(row))

    def _follow_up(self, next_run_id: str | None, was_full: bool) -> None:
        """Start the session's next run (or this one again), and those that waited for a place in this process."""

        async def work() -> None:
            if next_run_id is not None:
                await self.take(next_run_id)
            if was_full:
                await self._refill()

        self._promised += was_full
        self._background.soon(work)

    async def _refill(self) -> None:
        """One at a time, until nobody waits or no place is left: others may have become free meanwhile."""
        try:
            async with self._refilling:
                while self.has_room and await self.sweep():
                    pass
        finally:
            self._promised -= 1

    async def wait(self, run_id: str, seconds: float | None = None) -> bool:
        """Wait until this process has ended a run, or leaves; False when it has no such run. Who waits may go away."""
        running = self._running.get(run_id)
        if running is None:
            return False
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait((running.task, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        return True

    async def settle(self, run_id: str, for_run_id: str) -> bool:
        """Wait until a run that another one here waits for is not executed here any more; False when it was not."""
        running = self._running.get(run_id)
        if running is not None:
            await asyncio.wait((running.task,))
        elif self._draining and for_run_id in self._running:
            await self._running[for_run_id].owned.lease.rest()
        return running is not None

    async def take(self, run_id: str, *, beyond_limit: bool = False) -> bool:
        """Claim a run and execute it, if it is free; or end it, if that was asked for while nobody worked on it.

        Where there is no room here, the other processes are told of it. `beyond_limit`: also where this process has as many
        runs as it may, for a run that another one here waits for.
        """
        await self.wait(run_id, _LAST_STEPS_SECONDS)  # its task may still be at the last step of letting it wait
        if not (self.has_room or (beyond_limit and not self._draining)):
            await self.tell("wake", run_id)
            return False
        return await self._claim(run_id, beyond_limit=beyond_limit)

    async def _claim(self, run_id: str, *, beyond_limit: bool = False) -> bool:
        with self.place(newcomer=False) as has_place:
            if not (has_place or (beyond_limit and not self._draining)) or run_id in self._running:
                return False
            since = monotonic()
            row = await lease.claim(self._pool, run_id, self._lease_seconds)
            if row is None:
                return False
            owned = Owned(row, self._lease_of(row, since))
            if row["cancel_requested_at"] is None:
                self.own(owned)
                return True
        await self._end(owned)
        return True

    def _lease_of(self, row: asyncpg.Record, since: float) -> lease.Lease:
        return lease.Lease(self._pool, row["id"], row["claim"], self._lease_seconds, since)

    def cancel(self, run_id: str, stop: Stop = Stop.CANCEL) -> bool:
        """End a run of this process; False when it has no such run."""
        running = self._running.get(run_id)
        if running is None:
            return False
        if running.stop is None:
            running.stop = stop
            running.task.cancel()
        return True

    async def finalise(self, run_id: str) -> bool:
        """End a run that no living process owns; False when somebody does, or it has ended."""
        since = monotonic()
        row = await lease.claim_to_cancel(self._pool, run_id, self._lease_seconds)
        return row is not None and await self._end(Owned(row, self._lease_of(row, since)))

    async def _end(self, owned: Owned) -> bool:
        """End a claimed run; False when it was taken from us meanwhile."""
        try:
            ended = await self._runner.end(owned)
        except LeaseLost:
            log.info("run_taken_over", run_id=owned.id)
            return False
        self._tell_end(ended)
        if ended["next_run_id"] is not None:
            await self.take(ended["next_run_id"])
        return True

    async def finalise_if_asked(self, row: asyncpg.Record) -> None:
        """End a run whose end was asked for and whose owner has died meanwhile."""
        if row["cancel_requested_at"] is not None:
            await self.finalise(row["id"])

    def lose(self, run_id: str) -> None:
        """The run is erased: stop working on it, without a word."""
        self.cancel(run_id, Stop.LOST)

    def leave(self) -> None:
        """Take nothing more, begin nothing more, and let go of those who wait here."""
        self._draining = True
        self._leaving.set()
        for running in self._running.values():
            running.owned.lease.is_leaving = True

    async def drain(self, seconds: float) -> None:
        """Let go of each run at its next stored point, and after this time of those that are still in a call."""
        self.leave()
        until = monotonic() + seconds
        while self._running and monotonic() < until:
            for run_id in [run_id for run_id, running in self._running.items() if running.owned.lease.is_at_rest]:
                self.cancel(run_id, Stop.DRAIN)
            await asyncio.wait([running.task for running in self._running.values()], timeout=_LOOK_SECONDS)
        tasks = [running.task for running in self._running.values()]
        for run_id in list(self._running):
            self.cancel(run_id, Stop.DRAIN)
        await asyncio.gather(self._background.stop(), *tasks, return_exceptions=True)  # until here leases were renewed

    async def _renew(self) -> None:
        since = monotonic()
        claims = {run_id: running.owned.claim for run_id, running in self._running.items()}
        if not claims:
            return
        renewed, lost = await lease.renew(self._pool, claims, self._lease_seconds)
        for run_id, token in claims.items():
            running = self._running.get(run_id)
            if running is None or running.owned.claim != token or running.task.done():
                continue
            if run_id in renewed:
                running.owned.lease.renewed(since)
            elif run_id in lost:
                running.owned.lease.lost("renewal")
                self.cancel(run_id, Stop.LOST)

    async def _watch_cancels(self) -> None:
        if not self._running:
            return
        for run_id, gone in (await lease.cancel_requested(self._pool, list(self._running))).items():
            self.cancel(run_id, Stop.LOST if gone else Stop.CANCEL)

    async def sweep(self) -> int:
        """Carry on what nobody works on; returns how many runs were taken."""
        room, taken = self._max - len(self._running), 0
        if room <= 0:
            return 0
        for run_id in await lease.abandoned(self._pool, min(room, 100)):
            if not self.has_room:
                break
            try:
                taken += await self._claim(run_id)
            except Exception as error:
                if is_out_of_reach(error):
                    raise
                log.exception("run_not_taken", run_id=run_id)  # it must not keep the others from being taken
        return taken
