"""The loop's Journal port on PostgreSQL: each step is stored in one statement, under the run's claim, and then shown.

A statement that finds another claim changes nothing and raises `LeaseLost`: this process has lost the run. One that finds no
database is done again while the run may still be ours, so that a result is not lost with a connection.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import asyncpg

from app.events.frames import KeptEvent
from app.events.writer import RunLog
from app.infra import clock, ids
from app.infra.database import Pool
from app.infra.telemetry import ITERATIONS, TOOL_SECONDS
from app.loop.events import (
    Event,
    GuardHint,
    MessageCompleted,
    MessageDelta,
    RunEnded,
    RunWaiting,
    ToolInvoked,
    ToolInvoking,
)
from app.loop.messages import (
    AnsweredCall,
    ModelFailure,
    Outcome,
    PendingCall,
    Reply,
    ToolCall,
)
from app.loop.ports import StoredIteration
from app.loop.tool_calls import cancelled, shown_to_model
from app.providers.tokens import count_tokens_of
from app.runs import step_statements
from app.runs.lease import Lease
from app.runs.shapes import run_json
from app.runs.stored import answer_row, attempts_json, call_row, reply_json, shown_call, shown_pending
from app.runs.timing import Timing
from app.sessions.history import History
from app.sessions.models import message_json

Step = TypeVar("Step", bound=Callable[..., Coroutine[Any, Any, Any]])
_IS_KEPT = "SELECT true FROM run_events WHERE run_id = $1 AND seq = $2"


def to_its_end(step: Step) -> Step:
    """A step that is cancelled is still stored and shown; only then is the cancellation let through.

    Otherwise nobody would know whether the statement under way was committed, and its reserved event would hold up all
    that come after it. One step at a time: so the rows hold the events in order, without a hole that is filled later.
    """

    async def in_turn(journal: "RunJournal", *arguments: Any) -> Any:
        async with journal.turn:
            await journal.store_begin()
            return await step(journal, *arguments)

    @wraps(step)
    async def run(*arguments: Any) -> Any:
        task = asyncio.ensure_future(in_turn(*arguments))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            while not task.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait((task,))
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error from None
            raise

    return cast(Step, run)


class RunJournal:
    """Of one run, under one claim. `stored_iterations` is what earlier owners wrote; `history` is what the model was sent
    of the turns before, once it was read, and `prose_tokens` what this owner added to it."""

    def __init__(
        self,
        pool: Pool,
        log: RunLog,
        run: Mapping[str, Any],
        lease: Lease,
        stored_iterations: Mapping[int, StoredIteration] | None = None,
        timing: Timing | None = None,
        *,
        pending_seconds: float = 86_400.0,
    ) -> None:
        self._pool, self._log, self._run, self._lease = pool, log, run, lease
        self.turn = lease.turn
        self._pending_seconds = pending_seconds
        self._stored = dict(stored_iterations or {})
        self._timing = timing or Timing()
        self._persist: bool = run["session_id"] is not None and run["request"]["persist"]
        self._open: dict[str, tuple[int, ToolCall]] = {}
        self._pending: dict[str, dict[str, Any]] = {}
        self.last_text: str | None = None
        self.history: History | None = None
        self.prose_tokens = 0
        self.iterations = 0
        for iteration, stored in self._stored.items():
            self._remember(iteration, stored.reply, stored.calls, stored.answers)
            self._pending |= {
                call_id: shown_pending(pending, pending.expires_at)
                for call_id, pending in stored.pending.items()
                if call_id not in stored.answers
            }

    def stored(self, iteration: int) -> StoredIteration | None:
        return self._stored.get(iteration)

    def leave_open(self, iteration: int, call: ToolCall) -> None:
        """A call that somebody else left without a result, for the end to settle."""
        self._open[call.id] = (iteration, call)

    def seconds(self, iteration: int) -> float:
        return self._timing.seconds(iteration)

    async def _store(self, kind: str, seq: int | None, statement: str, *arguments: Any) -> Any:
        """Execute an owner's statement. `seq` is that of the event that it keeps, by which it is known when it was stored.

        The row that it gives; or that of the run, when it was stored though its answer did not come. Raises LeaseLost where
        it changed nothing.
        """
        given = (self._run["id"], self._lease.claim, *arguments)

        async def again() -> asyncpg.Record | None:
            async with self._pool.acquire() as connection, connection.transaction():
                run = await connection.fetchrow(step_statements.LOCKED, self._run["id"])
                if run is None or run["claim"] not in (None, self._lease.claim):
                    return None
                if seq is not None and await connection.fetchval(_IS_KEPT, self._run["id"], seq):
                    return run
                return await connection.fetchrow(statement, *given)

        row = await self._lease.lasting(lambda: self._pool.fetchrow(statement, *given), again)
        if row is None:
            raise self._lease.lost(kind)
        return row

    async def begin(self) -> None:
        """Store and show how this owner begins. To be awaited before anything is called; costs nothing later on."""
        if not self._log.is_held:
            return
        await asyncio.sleep(0)  # what the loop shows before its calls, it shows first
        await self._begin()

    @to_its_end
    async def _begin(self) -> None:
        """Nothing more than every step begins with."""

    async def store_begin(self) -> None:
        if not self._log.is_held:
            return
        self._log.begin()
        seq, reserved = self._log.last_seq, self._log.to_reserve
        await self._store("begin", None, step_statements.BEGIN, _rows(self._log.take_unkept()), reserved)
        self._log.stored(seq, reserved)

    @to_its_end
    async def reply(self, iteration: int, reply: Reply, calls: tuple[ToolCall, ...]) -> None:
        now = clock.now()
        message_id = message_id_of(self._run["id"], iteration)
        shown_calls = [shown_call(call) for call in calls]
        message = self._message(message_id, "assistant", reply.text, now, tool_calls=shown_calls)
        tokens = await self._counted(reply.text)
        event = MessageCompleted(iteration, message)
        seq = self._log.reserve(event)
        reserved = self._log.to_reserve
        row = await self._store(
            "reply", seq, step_statements.REPLY,
            iteration, reply_json(reply), attempts_json(reply.attempts), message_id,
            reply.text, shown_calls or None, [call_row(index, call) for index, call in enumerate(calls)],
            reply.usage.as_dict(), self._persist, len(calls), now, _rows(self._log.take_unkept()), reserved, tokens,
        )  # fmt: skip
        ITERATIONS.inc()
        message["position"] = await self._position(row, message_id)
        self._remember(iteration, reply, calls, {})
        self._timing.replied(iteration, (attempt.seconds + attempt.paused_seconds for attempt in reply.attempts), now)
        self._log.release(seq, event)
        self._log.stored(seq, reserved)

    @to_its_end
    async def failure(self, iteration: int, failure: ModelFailure) -> None:
        self.iterations = iteration
        await self._store(
            "failure", None, step_statements.FAILURE,
            iteration, message_id_of(self._run["id"], iteration), attempts_json(failure.attempts), clock.now(),
        )  # fmt: skip

    @to_its_end
    async def answer(self, iteration: int, answered: AnsweredCall) -> None:
        now = clock.now()
        reserved = [(self._log.reserve(event), event) for event in _answer_events(iteration, answered)]
        await self._store(
            "answer", reserved[-1][0], step_statements.ANSWER,
            [answer_row(answered)], _result_ids([answered.call.id]), now, _rows(self._log.take_unkept()),
        )  # fmt: skip
        self._timing.answered(iteration, now)
        TOOL_SECONDS.labels(answered.result.outcome).observe(answered.result.seconds)
        self._open.pop(answered.call.id, None)
        self._pending.pop(answered.call.id, None)
        for seq, event in reserved:
            self._log.release(seq, event)

    @to_its_end
    async def wait_for(self, iteration: int, pending: PendingCall) -> None:
        row = await self._store(
            "wait_for", None, step_statements.WAIT_FOR, pending.call.id, pending.reason, self._pending_seconds
        )
        self._pending[pending.call.id] = shown_pending(pending, row["expires_at"])

    @to_its_end
    async def suspend(self) -> asyncpg.Record:
        """Store that the run waits, and show for what; it belongs to nobody then. Returns its row."""
        event = RunWaiting([self._pending[call_id] for call_id in self._open if call_id in self._pending])
        seq = self._log.reserve(event)
        row = await self._store("suspend", seq, step_statements.SUSPEND, event.pending, _rows(self._log.take_unkept()), seq)
        self._log.release(seq, event)
        return row

    @to_its_end
    async def say(self, iteration: int, text: str) -> None:
        now = clock.now()
        message_id = ids.derived(ids.MESSAGE, self._run["id"], "say")
        self._log.emit(MessageDelta(iteration, message_id, text))
        message = self._message(message_id, "assistant", text, now)
        tokens = await self._counted(text)
        event = MessageCompleted(iteration, message)
        seq = self._log.reserve(event)
        row = await self._store(
            "say", seq, step_statements.SAY, message_id, text, now, self._persist, _rows(self._log.take_unkept()), tokens
        )
        message["position"] = await self._position(row, message_id)
        self._log.release(seq, event)

    @to_its_end
    async def finish(self, outcome: Outcome) -> asyncpg.Record:
        """Store the end, with a `cancelled` result for every open call, and show it. Returns the run's row.

        The row's `next_run_id` is the queued run of the session that may start now.
        """
        settled = [(iteration, _settled(call)) for iteration, call in self._open.values()]
        for iteration, call in self._open.values():
            self._log.emit(_invoking(iteration, call))  # those whose turn had not come; the others have been shown
        released = [(self._log.reserve(_invoked(*pair)), _invoked(*pair)) for pair in settled]
        last_seq = self._log.reserve(RunEnded({"status": outcome.status}))
        row = await self._store(
            "finish", last_seq, step_statements.FINISH,
            outcome.status, outcome.finish_reason, outcome.output, outcome.output_parsed,
            outcome.error_code, outcome.error_message, last_seq,
            [answer_row(answered) for _, answered in settled],
            _result_ids([answered.call.id for _, answered in settled]), clock.now(), _rows(self._log.take_unkept()),
        )  # fmt: skip
        for seq, event in released:
            self._log.release(seq, event)
        self._log.release(last_seq, RunEnded(run_json(row)))
        return row

    async def _position(self, row: asyncpg.Record, message_id: str) -> int | None:
        """Where the message of a stored step stands in its session."""
        if "position" in row.keys():  # noqa: SIM118, a record's `in` looks at its values
            position: int | None = row["position"]
            return position
        query = "SELECT position FROM messages WHERE id = $1"
        found: int | None = await self._lease.lasting(lambda: self._pool.fetchval(query, message_id))
        return found

    async def _counted(self, text: str) -> int:
        """The tokens of what the assistant says, which count for the history from now on."""
        tokens = await count_tokens_of(text) if self._persist and text.strip() else 0
        self.prose_tokens += tokens
        return tokens

    def _remember(
        self, iteration: int, reply: Reply, calls: tuple[ToolCall, ...], answers: Mapping[str, AnsweredCall]
    ) -> None:
        self.iterations = iteration
        if reply.text.strip():
            self.last_text = reply.text
        self._open.update({call.id: (iteration, call) for call in calls if call.id not in answers})

    def _message(self, message_id: str, role: str, content: str, now: Any, **more: Any) -> dict[str, Any]:
        row = {
            "id": message_id,
            "session_id": self._run["session_id"],
            "run_id": self._run["id"],
            "position": None,
            "role": role,
            "content": content,
            "parts": None,
            "tool_calls": None,
            "tool_call_id": None,
            "created_at": now,
        }
        return message_json({**row, **more})


def message_id_of(run_id: str, iteration: int) -> str:
    return ids.derived(ids.MESSAGE, run_id, "reply", iteration)


def call_id_of(run_id: str, iteration: int, index: int) -> str:
    return ids.derived(ids.CALL, run_id, iteration, index)


def _answer_events(iteration: int, answered: AnsweredCall) -> list[Event]:
    events: list[Event] = [_invoked(iteration, answered)]
    if answered.hint_streak is not None:
        events.append(GuardHint(iteration, answered.call.id, answered.hint_streak))
    return events


def _invoking(iteration: int, call: ToolCall) -> ToolInvoking:
    shown = shown_call(call)
    return ToolInvoking(iteration, call.id, shown["name"], shown["arguments"])


def _invoked(iteration: int, answered: AnsweredCall) -> ToolInvoked:
    result = answered.result
    return ToolInvoked(
        iteration, answered.call.id, answered.call.name, result.result, answered.truncated, result.outcome,
        result.seconds, result.attempts,
    )  # fmt: skip


def _settled(call: ToolCall) -> AnsweredCall:
    result = cancelled()
    content, _ = shown_to_model(result.result, 1000)
    return AnsweredCall(call, result, content)


def _result_ids(call_ids: Iterable[str]) -> dict[str, str]:
    return {call_id: ids.derived(ids.MESSAGE, call_id, "result") for call_id in call_ids}


def _rows(events: Iterable[KeptEvent]) -> list[dict[str, Any]]:
    return [event.as_row() for event in events]
