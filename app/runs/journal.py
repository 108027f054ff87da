"""The loop's Journal port on PostgreSQL: each step is stored in one statement, under the run's claim, and then shown.

A statement that finds another claim changes nothing and raises `LeaseLost`: this process has lost the run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import asyncpg

from app.events.frames import KeptEvent
from app.events.writer import RunLog
from app.infra import clock, ids
from app.infra.database import Pool
from app.infra.errors import LeaseLost
from app.loop.events import MessageCompleted, MessageDelta, RunEnded, ToolInvoked
from app.loop.messages import (
    AnsweredCall,
    DraftCall,
    FinishReason,
    ModelCall,
    ModelFailure,
    Outcome,
    Reply,
    ToolCall,
    ToolOutcome,
    ToolResult,
    Usage,
)
from app.loop.ports import StoredIteration
from app.loop.tool_calls import cancelled, shown_to_model
from app.runs import statements
from app.runs.shapes import run_json
from app.sessions.models import message_json


class RunJournal:
    """Of one run, under one claim. `stored_iterations` is what earlier owners wrote."""

    def __init__(
        self,
        pool: Pool,
        log: RunLog,
        run: Mapping[str, Any],
        claim: str,
        stored_iterations: Mapping[int, StoredIteration] | None = None,
    ) -> None:
        self._pool, self._log, self._run, self._claim = pool, log, run, claim
        self._stored = dict(stored_iterations or {})
        self._persist: bool = run["session_id"] is not None and run["request"]["persist"]
        self._open: dict[str, tuple[int, ToolCall]] = {}
        self.last_text: str | None = None
        self.iterations = 0
        for iteration, stored in self._stored.items():
            self._remember(iteration, stored.reply, stored.calls, stored.answers)

    def stored(self, iteration: int) -> StoredIteration | None:
        return self._stored.get(iteration)

    async def reply(self, iteration: int, reply: Reply, calls: tuple[ToolCall, ...]) -> None:
        now = clock.now()
        message_id = message_id_of(self._run["id"], iteration)
        shown_calls = [shown_call(call) for call in calls]
        message = self._message(message_id, "assistant", reply.text, now, tool_calls=shown_calls)
        event = MessageCompleted(iteration, message)
        seq = self._log.reserve(event)
        row = await self._pool.fetchrow(
            statements.REPLY,
            self._run["id"], self._claim, iteration, reply_json(reply), attempts_json(reply.attempts), message_id,
            reply.text, shown_calls or None, [_call_row(index, call) for index, call in enumerate(calls)],
            reply.usage.as_dict(), self._persist, len(calls), now, _rows(self._log.take_unkept()),
        )  # fmt: skip
        if row is None:
            raise LeaseLost
        message["position"] = row["position"]
        self._remember(iteration, reply, calls, {})
        self._log.release(seq, event)

    async def failure(self, iteration: int, failure: ModelFailure) -> None:
        self.iterations = iteration
        stored = await self._pool.fetchval(
            statements.FAILURE,
            self._run["id"], self._claim, iteration, message_id_of(self._run["id"], iteration),
            attempts_json(failure.attempts), clock.now(),
        )  # fmt: skip
        if stored is None:
            raise LeaseLost

    async def answer(self, iteration: int, answered: AnsweredCall) -> None:
        event = _invoked(iteration, answered)
        seq = self._log.reserve(event)
        stored = await self._pool.fetchval(
            statements.ANSWER,
            self._run["id"], self._claim, [_answer_row(answered)], _result_ids([answered.call.id]), clock.now(),
            _rows(self._log.take_unkept()),
        )  # fmt: skip
        if stored is None:
            raise LeaseLost
        self._open.pop(answered.call.id, None)
        self._log.release(seq, event)

    async def say(self, iteration: int, text: str) -> None:
        now = clock.now()
        message_id = ids.derived(ids.MESSAGE, self._run["id"], "say")
        self._log.emit(MessageDelta(iteration, message_id, text))
        message = self._message(message_id, "assistant", text, now)
        event = MessageCompleted(iteration, message)
        seq = self._log.reserve(event)
        row = await self._pool.fetchrow(
            statements.SAY,
            self._run["id"], self._claim, message_id, text, now, self._persist, _rows(self._log.take_unkept()),
        )  # fmt: skip
        if row is None:
            raise LeaseLost
        message["position"] = row["position"]
        self._log.release(seq, event)

    async def finish(self, outcome: Outcome) -> asyncpg.Record:
        """Store the end, with a `cancelled` result for every open call, and show it. Returns the run's row.

        The row's `next_run_id` is the queued run of the session that may start now.
        """
        settled = [(iteration, _settled(call)) for iteration, call in self._open.values()]
        released = [(self._log.reserve(_invoked(*pair)), _invoked(*pair)) for pair in settled]
        placeholder = RunEnded({"status": outcome.status})
        last_seq = self._log.reserve(placeholder)
        row = await self._pool.fetchrow(
            statements.FINISH,
            self._run["id"], self._claim, outcome.status, outcome.finish_reason, outcome.output, outcome.output_parsed,
            outcome.error_code, outcome.error_message, last_seq,
            [_answer_row(answered) for _, answered in settled],
            _result_ids([answered.call.id for _, answered in settled]), clock.now(), _rows(self._log.take_unkept()),
        )  # fmt: skip
        if row is None:
            raise LeaseLost
        for seq, event in released:
            self._log.release(seq, event)
        self._log.release(last_seq, RunEnded(run_json(row)))
        return row

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


def shown_call(call: ToolCall) -> dict[str, Any]:
    """A call as messages show it; arguments that are no object are shown as the text the model wrote."""
    arguments = call.raw_arguments if call.arguments is None else call.arguments
    return {"id": call.id, "name": call.name, "arguments": arguments}


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
    return [asdict(event) for event in events]


# ---- to and from JSON


def attempts_json(attempts: Iterable[ModelCall]) -> list[dict[str, Any]]:
    return [
        {
            "model": attempt.model,
            "attempt": attempt.attempt,
            "input_tokens": attempt.usage.input_tokens,
            "output_tokens": attempt.usage.output_tokens,
            "seconds": attempt.seconds,
            "first_token_seconds": attempt.first_token_seconds,
            "finish_reason": attempt.finish_reason,
            "error": attempt.error,
        }
        for attempt in attempts
    ]


def reply_json(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "reasoning": reply.reasoning,
        "finish_reason": reply.finish_reason,
        "usage": reply.usage.as_dict(),
        "model": reply.model,
        "native": dict(reply.native),
        "calls": [
            {
                "provider_id": call.provider_id,
                "name": call.name,
                "arguments": call.arguments,
                "native": dict(call.native),
            }
            for call in reply.calls
        ],
    }


def reply_of(stored: Mapping[str, Any]) -> Reply:
    return Reply(
        stored["text"],
        tuple(DraftCall(**call) for call in stored["calls"]),
        stored["reasoning"],
        FinishReason(stored["finish_reason"]),
        Usage(**stored["usage"]),
        stored["model"],
        stored["native"],
    )


def _call_row(index: int, call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "index": index,
        "tool": call.name,
        "arguments": call.arguments,
        "raw_arguments": call.raw_arguments,
        "provider_id": call.provider_id,
        "native": dict(call.native),
    }


def call_of(row: Mapping[str, Any]) -> ToolCall:
    return ToolCall(row["id"], row["tool"], row["arguments"], row["raw_arguments"], row["provider_id"], row["native"] or {})


def _answer_row(answered: AnsweredCall) -> dict[str, Any]:
    result = answered.result
    return {
        "id": answered.call.id,
        "result": result.result,
        "content": answered.content,
        "truncated": answered.truncated,
        "outcome": result.outcome,
        "hint_streak": answered.hint_streak,
        "status": result.status,
        "cause": result.cause,
        "seconds": result.seconds,
        "attempts": result.attempts,
    }


def answered_of(row: Mapping[str, Any]) -> AnsweredCall:
    result = ToolResult(
        row["result"], ToolOutcome(row["outcome"]), row["seconds"], row["attempts"], row["status"], row["cause"]
    )
    return AnsweredCall(call_of(row), result, row["content"], row["truncated"], row["hint_streak"])
