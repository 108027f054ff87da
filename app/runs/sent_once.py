"""A wrap of the Tools port for tools that are `at_most_once`: that a call is being sent is stored before it is.

A run that is carried on after a crash finds such a call sent and without a result. It may have been executed or not, so
it is not sent again, and the model is told.
"""

from collections.abc import Set

from app.infra.database import Pool
from app.infra.errors import LeaseLost
from app.loop.messages import PendingCall, ToolCall, ToolOutcome, ToolResult
from app.loop.ports import Tools
from app.runs import statements

OUTCOME_UNKNOWN = (
    "outcome unknown: the call was sent and its answer was lost. It may have been carried out; it is not sent again."
)


class SentOnce:
    """`names` are the tools that are not to be called twice."""

    def __init__(self, pool: Pool, inner: Tools, names: Set[str], run_id: str, claim: str) -> None:
        self._pool, self._inner, self._names, self._run_id, self._claim = pool, inner, names, run_id, claim

    async def call(self, call: ToolCall) -> ToolResult | PendingCall:
        if call.name in self._names and not await self._mark(call):
            return ToolResult({"error": OUTCOME_UNKNOWN}, ToolOutcome.FAILED, cause="sent before, answer lost")
        return await self._inner.call(call)

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        return await self._inner.received(call, result)

    async def _mark(self, call: ToolCall) -> bool:
        """True when this is the first time. Raises LeaseLost when the run is another's."""
        if await self._pool.fetchval(statements.SENDING, self._run_id, self._claim, call.id) is not None:
            return True
        if await self._pool.fetchval("SELECT claim FROM runs WHERE id = $1", self._run_id) != self._claim:
            raise LeaseLost
        return False
