"""What a run writes down, to and from JSON and rows."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from app.infra import clock
from app.loop.messages import (
    AnsweredCall,
    Approved,
    DraftCall,
    FinishReason,
    ModelCall,
    PendingCall,
    PendingReason,
    Rejected,
    Reply,
    Resolution,
    ToolCall,
    ToolOutcome,
    ToolResult,
    Usage,
)
from app.loop.tool_calls import unavailable


def shown_call(call: ToolCall) -> dict[str, Any]:
    """A call as messages show it; arguments that are no object are shown as the text the model wrote."""
    arguments = call.raw_arguments if call.arguments is None else call.arguments
    return {"id": call.id, "name": call.name, "arguments": arguments}


def shown_pending(pending: PendingCall, expires_at: datetime | None) -> dict[str, Any]:
    """What a run waits for, as the run and its event show it."""
    call = shown_call(pending.call)
    return {
        "call_id": call["id"],
        "tool": call["name"],
        "arguments": call["arguments"],
        "reason": pending.reason,
        "expires_at": None if expires_at is None else clock.rfc3339(expires_at),
    }


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
            "paused_seconds": attempt.paused_seconds,
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


def call_row(index: int, call: ToolCall) -> dict[str, Any]:
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


def answer_row(answered: AnsweredCall) -> dict[str, Any]:
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
        "tokens": result.tokens or None,
    }


def answered_of(row: Mapping[str, Any]) -> AnsweredCall:
    result = ToolResult(
        row["result"], ToolOutcome(row["outcome"]), row["seconds"], row["attempts"], row["status"], row["cause"],
        row["tokens"] or 0,
    )  # fmt: skip
    return AnsweredCall(call_of(row), result, row["content"], row["truncated"], row["hint_streak"])


def pending_of(row: Mapping[str, Any]) -> PendingCall:
    """What a call waits for; one that was approved before it has the arguments that somebody edited."""
    call, approval = call_of(row), approval_before(row)
    if approval is not None and approval.arguments is not None:
        call = replace(call, arguments=approval.arguments)
    return PendingCall(call, PendingReason(row["pending_reason"]), row["expires_at"])


def approval_before(row: Mapping[str, Any]) -> Approved | None:
    """The approval of a call that waits for its result by now: it was made, and is not made again because of it."""
    given = row["resolution"]
    if given is None or given["kind"] != "approve" or row["pending_reason"] == PendingReason.APPROVAL:
        return None
    return Approved(given.get("arguments"))


def resolution_of(row: Mapping[str, Any]) -> Resolution | None:
    """What came for a call that waits; when nothing came in its time: a refusal, or a failed result."""
    given = row["resolution"]
    if given is None or approval_before(row) is not None:
        if row["expires_at"] > clock.now():
            return None
        if row["pending_reason"] == PendingReason.APPROVAL:
            return Rejected()
        return ToolResult(unavailable(row["tool"]), ToolOutcome.FAILED, cause="nothing came in time")
    match given["kind"]:
        case "approve":
            return Approved(given.get("arguments"))
        case "reject":
            return Rejected(given.get("reason"))
        case "error":
            return ToolResult({"error": given["error"]}, ToolOutcome.ERROR)
        case _:
            return ToolResult(given["result"], ToolOutcome.OK)
