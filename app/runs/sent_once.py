"""A wrap of the Tools port for tools that are `at_most_once`: that a call is being sent is stored before it is.

A run that is carried on after a crash finds such a call sent and without a result. It may have been executed or not, so
it is not sent again, and the model is told.
"""

from collections.abc import Set

from app.infra.database import Pool
from app.loop.messages import PendingCall, ToolCall, ToolOutcome, ToolResult
from app.loop.ports import Tools
from app.runs import step_statements
from app.runs.lease import Lease

OUTCOME_UNKNOWN = (
    "outcome unknown: the call was sent and its answer was lost. It may have been carried out; it is not sent again."
)


class SentOnce:
    """`names` are the tools that are not to be called twice."""

    def __init__(self, pool: Pool, inner: Tools, names: Set[str], lease: Lease) -> None:
        self._pool, self._inner, self._names, self._lease = pool, inner, names, lease

    async def call(self, call: ToolCall) -> ToolResult | PendingCall:
        if call.name in self._names and not await self._mark(call):
            return ToolResult({"error": OUTCOME_UNKNOWN}, ToolOutcome.FAILED, cause="sent before, answer lost")
        return await self._inner.call(call)

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        return await self._inner.received(call, result)

    async def _mark(self, call: ToolCall) -> bool:
        """True when no earlier owner has sent it. Raises LeaseLost when the run is another's."""
        run_id, claim = self._lease.run_id, self._lease.claim
        if (
            await self._lease.lasting(lambda: self._pool.fetchval(step_statements.SENDING, run_id, claim, call.id))
            is not None
        ):
            return True
        query = "SELECT claim FROM runs WHERE id = $1"
        if await self._lease.lasting(lambda: self._pool.fetchval(query, run_id)) != claim:
            raise self._lease.lost("sending")
        return False
