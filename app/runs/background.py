"""What a process does beside its runs: again and again, or once and soon. Nobody waits for it."""

import asyncio
from collections.abc import Awaitable, Callable

from app.infra.reach import is_out_of_reach
from app.infra.telemetry import log

Work = Callable[[], Awaitable[object]]


class Background:
    """Duties begin with `start` and end with `stop`; whatever fails is told, and done again at its next turn."""

    def __init__(self) -> None:
        self._duties: list[tuple[float, Work]] = []
        self._repeating: list[asyncio.Task[None]] = []
        self._once: set[asyncio.Task[None]] = set()

    def every(self, seconds: float, work: Work) -> None:
        self._duties.append((seconds, work))

    def start(self) -> None:
        self._repeating = [
            asyncio.create_task(self._repeat(seconds, work), name=work.__name__) for seconds, work in self._duties
        ]

    def soon(self, work: Work) -> None:
        task = asyncio.create_task(self._guarded(work), name="follow-up")
        self._once.add(task)
        task.add_done_callback(self._once.discard)

    async def stop(self) -> None:
        """End the duties, and wait for what was begun once."""
        for task in self._repeating:
            task.cancel()
        await asyncio.gather(*self._repeating, *self._once, return_exceptions=True)

    async def _repeat(self, seconds: float, work: Work) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._guarded(work)

    async def _guarded(self, work: Work) -> None:
        """A database out of reach is told and tried again at the next turn: what must be done stands in it."""
        try:
            await work()
        except Exception as error:
            if not is_out_of_reach(error):
                log.exception("supervisor_failed", work=work.__name__)
                return
            log.warning("supervisor_unreachable", work=work.__name__, error=type(error).__name__)
