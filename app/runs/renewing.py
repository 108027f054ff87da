"""A claim that is good for a while, kept up for as long as the work under it takes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from app.infra.reach import is_out_of_reach
from app.infra.telemetry import log


@contextlib.asynccontextmanager
async def renewed(every_seconds: float, renew: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Renew again and again. A database out of reach is tried at the next turn: whoever loses the claim by that is refused
    when he stores what he made."""

    async def go_on() -> None:
        while True:
            await asyncio.sleep(every_seconds)
            try:
                await renew()
            except Exception as error:
                if not is_out_of_reach(error):
                    raise
                log.warning("claim_not_renewed", error=type(error).__name__)

    renewing = asyncio.create_task(go_on())
    try:
        yield
    finally:
        renewing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewing
