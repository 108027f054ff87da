"""What a storm does to its fleet, at moments and places that the seed gives."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.faults.processes import LEASE_SECONDS, Fleet, Process

KINDS = ("kill", "term", "pause", "cut", "flush", "redis", "postgres")


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened, by the wall clock (seconds since the epoch)."""

    kind: str
    what: str
    at: float


class Faults:
    """One fault after the other, some of which last while the next ones come."""

    def __init__(self, fleet: Fleet, kinds: tuple[str, ...], seed: int) -> None:
        self._fleet = fleet
        self._kinds = kinds
        self._random = Random(f"{seed}/faults")
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[str] = set()
        self.happened: list[Fault] = []

    @property
    def counts(self) -> Counter[str]:
        return Counter(f"{fault.kind} {fault.what}" for fault in self.happened)

    async def rage(self, seconds: float) -> None:
        """For so long; then wait until everything that was stopped is back."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(min(self._random.uniform(0.4, 2.0), max(0.0, end - time.monotonic())))
            self._check()
            self._strike(self._random.choice(self._kinds))
        await self.calm()

    async def calm(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
            self._check()

    def _check(self) -> None:
        """Raise what went wrong in the harness itself; revive what ended by itself."""
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()
        for process in self._fleet.processes:
            if process.has_died and process.name not in self._busy:
                self._do(process.name, process.revive)

    def _strike(self, kind: str) -> None:
        match kind:
            case "kill" | "term" | "pause":
                process = self._random.choice(self._fleet.processes)
                seconds = self._random.uniform(0.0, 1.0)
                if process.name not in self._busy and process.up.is_set() and self._is_spare(process):
                    self._note(kind, process.name)
                    self._do(process.name, lambda: self._hit(kind, process, seconds))
            case "cut":
                self._strike_line()
            case "flush":
                self._note(kind, "redis")
                self._do("flush", self._flush)
            case "redis":
                self._restart("redis", self._fleet.redis.restart, (signal.SIGKILL, signal.SIGTERM))
            case "postgres":
                self._restart("postgres", self._fleet.postgres.restart, (signal.SIGINT, signal.SIGQUIT))

    def _is_spare(self, process: Process) -> bool:
        """Whether there is another API process: without one a storm only waits for the next start."""
        return process.door is None or any(
            other.up.is_set() for other in self._fleet.processes if other.door is not None and other is not process
        )

    def _strike_line(self) -> None:
        name = self._random.choice(list(self._fleet.lines))
        line = self._fleet.lines[name]
        seconds = self._random.uniform(0.2, LEASE_SECONDS + 1.0)
        if self._random.random() < 0.7:
            self._note("cut", name)
            line.cut()
        elif name not in self._busy:
            self._note("stall", name)
            self._do(name, lambda: line.stall(seconds))

    async def _hit(self, kind: str, process: Process, seconds: float) -> None:
        match kind:
            case "kill":
                await process.restart(signal.SIGKILL, seconds)
            case "term":
                await process.restart(signal.SIGTERM, seconds)
            case _:
                await process.pause(LEASE_SECONDS + 0.5 + seconds)

    def _restart(
        self, kind: str, restart: Callable[[signal.Signals], Awaitable[None]], signals: tuple[signal.Signals, ...]
    ) -> None:
        how = self._random.choice(signals)
        if kind not in self._busy:
            self._note(kind, how.name)
            self._do(kind, lambda: restart(how))

    async def _flush(self) -> None:
        redis: Redis = Redis.from_url(self._fleet.redis.url)
        try:
            await redis.flushall()
        except (RedisError, OSError):
            pass  # it is being restarted at this very moment
        finally:
            await redis.aclose()

    def _note(self, kind: str, what: str) -> None:
        self.happened.append(Fault(kind, what, time.time()))

    def _do(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        async def act() -> None:
            try:
                await work()
            finally:
                self._busy.discard(name)

        self._busy.add(name)
        self._tasks.add(asyncio.create_task(act(), name=f"fault {name}"))
