"""Starts children again when they have died: with a pause that grows, and not for ever."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from app.infra.embedded.processes import EmbeddedServersError
from app.infra.telemetry import log

LOOK_SECONDS = 0.2
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
MAX_DEATHS = 6
DEATHS_SECONDS = 60.0


class Child(Protocol):
    """A process of ours. `name` is for people."""

    name: str

    @property
    def is_alive(self) -> bool: ...

    async def start_again(self) -> None:
        """Start it as it was, and wait until it is ready; raises EmbeddedServersError where it does not come up."""
        ...


async def keep_alive(children: Sequence[Child]) -> None:
    """Look after them until cancelled. Raises EmbeddedServersError when one has died too often in a short time.

    To be run in the main thread: on Linux a child ends with the thread that has started it.
    """
    deaths: dict[str, deque[float]] = {child.name: deque(maxlen=MAX_DEATHS) for child in children}
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        for child in children:
            if not child.is_alive:
                await _revive(child, deaths[child.name])


async def _revive(child: Child, deaths: deque[float]) -> None:
    now = time.monotonic()
    deaths.append(now)
    recent = sum(now - death < DEATHS_SECONDS for death in deaths)
    log.error("child_died", child=child.name, deaths=recent)
    if recent >= MAX_DEATHS:
        raise EmbeddedServersError(f"{child.name} died {recent} times within {DEATHS_SECONDS:.0f} seconds. See its log.")
    await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 2 ** (recent - 1), _LONGEST_PAUSE_SECONDS))
    try:
        await child.start_again()
    except EmbeddedServersError as error:
        log.error("child_not_started", child=child.name, reason=str(error))
        return
    log.warning("child_started_again", child=child.name)
