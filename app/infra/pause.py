"""Pauses inside a call that is made in somebody's name: what was theirs before a pause may be another's after it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Look = Callable[[], Awaitable[None]]
"""Raises where the call is not to go on."""

_look: ContextVar[Look | None] = ContextVar("look", default=None)


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """Have every `pause` inside end with this look."""
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


async def pause(seconds: float) -> None:
    """Wait before an attempt is made again. Raises what the look raises."""
    await asyncio.sleep(seconds)
    if (look := _look.get()) is not None:
        await look()
