"""A wrap of the Provider and Tools ports for as long as a run is held: nothing is asked or called in its name after that.

Before each call, and before an attempt at it that is made again, the lease is looked at, which costs nothing unless this
process stood still for longer than a lease. While the process leaves, nothing new is begun: the call waits until its run is
let go of (`Supervisor.drain`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.infra.pause import looking
from app.loop.messages import ModelFailure, PendingCall, Reply, ToolCall, ToolResult
from app.loop.ports import ModelRequest, Provider, Tools
from app.runs.lease import Lease

Begin = Callable[[], Awaitable[None]]
"""Stores and shows how a new owner begins, the first time it is called."""


@dataclass(frozen=True, slots=True)
class Held:
    """What stands before the calls of one run."""

    lease: Lease
    begin: Begin

    async def may_call(self) -> None:
        """Raises LeaseLost. Does not return while this process leaves."""
        if self.lease.is_leaving:
            self.lease.waiting += 1
            await asyncio.Event().wait()
        await self.begin()
        await self.lease.confirm()

    @contextmanager
    def calling(self) -> Iterator[None]:
        self.lease.calls += 1
        try:
            with looking(self.lease.confirm):
                yield
        finally:
            self.lease.calls -= 1


class HeldProvider:
    """`discard`: told of the first request, when a message may have been begun of which nothing is known."""

    def __init__(self, held: Held, inner: Provider, discard: Callable[[ModelRequest], None] | None = None) -> None:
        self._held, self._inner, self._discard = held, inner, discard

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        await self._held.may_call()
        if self._discard is not None:
            self._discard(request)
            self._discard = None
        with self._held.calling():
            return await self._inner.ask(request)


class HeldTools:
    def __init__(self, held: Held, inner: Tools) -> None:
        self._held, self._inner = held, inner

    async def call(self, call: ToolCall) -> ToolResult | PendingCall:
        await self._held.may_call()
        with self._held.calling():
            return await self._inner.call(call)

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        with self._held.calling():
            return await self._inner.received(call, result)
