"""The Vercel AI SDK's UI message stream (v1): a whole run is one message of the assistant, an iteration one of its steps.

Clients differ by major version; 5 is what all of them read. A chunk of an unknown type ends their stream, and so does a null
where a field may be left out.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from app.events.dialects import Chunk
from app.loop.messages import RunFinish, RunStatus, ToolOutcome

VERSIONS = (5, 6, 7)
_FINISH = {RunFinish.STOP: "stop", RunFinish.LENGTH: "length", RunFinish.CONTENT_FILTER: "content-filter"}
_FOUND = frozenset({ToolOutcome.OK, ToolOutcome.EMPTY, ToolOutcome.NEUTRAL})


class AiSdk:
    """One stream, for a client of this major version of the SDK."""

    headers: ClassVar[Mapping[str, str]] = {"x-vercel-ai-ui-message-stream": "v1"}
    end: ClassVar[bytes] = b"data: [DONE]\n\n"

    def __init__(self, version: int = VERSIONS[0]) -> None:
        self._version = version
        self._text: str | None = None
        self._reasoning: str | None = None
        self._is_in_step = False
        self._tries = 0
        """How often a message was begun anew: no part's id is used twice."""
        self._thoughts = 0
        self._parts: list[str] = []
        """What was shown of the message at hand."""

    async def chunks(self, event: Mapping[str, Any]) -> list[Chunk]:
        """What an event is in this protocol, after all those before it."""
        match event["type"]:
            case "message.delta":
                return self._texted(event["message_id"], event["text"])
            case "reasoning.delta":
                return self._thought(event["iteration"], event["text"])
            case "run.queued":
                run = event["run"]
                known = {"run_id": run["id"], "session_id": run["session_id"]}
                return [{"type": "start", "messageId": run["id"], "messageMetadata": known}, _run(run)]
            case "run.started":
                return [_run(event["run"])]
            case "iteration.started":
                self._is_in_step, self._parts = True, []
                return [{"type": "start-step"}]
            case "message.discarded":
                return self._discarded(event["message_id"])
            case "message.completed":
                return self._closed()
            case "tool.invoking":
                return [{**_call("tool-input-available", event), "toolName": event["tool"], "input": event["arguments"]}]
            case "tool.invoked":
                return [self._result(event)]
            case "guard.hint":
                hint = {"call_id": event["call_id"], "streak": event["streak"]}
                return [{"type": "data-guard-hint", "data": hint, "transient": True}]
            case "iteration.completed":
                return self._step_ended()
            case "run.waiting":
                asked = [self._question(pending) for pending in event["pending"]]
                return [*self._step_ended(), *asked, {"type": "finish", "finishReason": "tool-calls"}]
            case "run.resumed":
                return [{"type": "data-resumed", "data": {"reason": event["reason"]}, "transient": True}]
            case _:
                return self._run_ended(event["run"])

    async def forget(self, message_id: str) -> list[Chunk]:
        """Its text stays open at the client until the step ends: whether it was begun is not known here."""
        self._parts = [message_id]
        return self._discarded(message_id)

    def broken_off(self, message: str) -> list[Chunk]:
        return [*self._step_ended(), {"type": "error", "errorText": message}]

    def _texted(self, message_id: str, text: str) -> list[Chunk]:
        if self._text is not None and self._reasoning is None:
            return [{"type": "text-delta", "id": self._text, "delta": text}]
        chunks = self._thoughts_closed()
        if self._text is None:
            self._text = message_id if not self._tries else f"{message_id}-{self._tries + 1}"
            self._parts.append(self._text)
            chunks.append({"type": "text-start", "id": self._text})
        return [*chunks, {"type": "text-delta", "id": self._text, "delta": text}]

    def _thought(self, iteration: int, text: str) -> list[Chunk]:
        chunks: list[Chunk] = []
        if self._reasoning is None:
            self._thoughts += 1
            self._reasoning = f"reasoning-{iteration}-{self._thoughts}"
            self._parts.append(self._reasoning)
            chunks.append({"type": "reasoning-start", "id": self._reasoning})
        return [*chunks, {"type": "reasoning-delta", "id": self._reasoning, "delta": text}]

    def _discarded(self, message_id: str) -> list[Chunk]:
        """Before version 7 nothing can be taken back: the application is told which parts to hide."""
        if self._version >= 7:
            self._text = self._reasoning = None
            chunks: list[Chunk] = [{"type": "reset-step"}]
        else:
            dropped = {"message_id": message_id, "parts": list(self._parts)}
            chunks = [*self._closed(), {"type": "data-reset", "data": dropped}]
        self._tries += 1
        self._parts = []
        return chunks

    def _result(self, event: Mapping[str, Any]) -> Chunk:
        outcome = event["outcome"]
        if outcome in _FOUND:
            return {**_call("tool-output-available", event), "output": event["result"]}
        if outcome == ToolOutcome.DENIED and self._version >= 6:
            return {"type": "tool-output-denied", "toolCallId": event["call_id"]}
        return {**_call("tool-output-error", event), "errorText": _error_text(event["result"])}

    def _question(self, pending: Mapping[str, Any]) -> Chunk:
        call_id = pending["call_id"]
        if pending["reason"] != "approval":
            return {"type": "data-pending", "id": call_id, "data": dict(pending)}
        if self._version >= 6:
            return {"type": "tool-approval-request", "approvalId": call_id, "toolCallId": call_id}
        return {"type": "data-approval", "id": call_id, "data": dict(pending)}

    def _run_ended(self, run: Mapping[str, Any]) -> list[Chunk]:
        closed = self._step_ended()
        if run["status"] == RunStatus.FAILED:
            return [*closed, {"type": "error", "errorText": run["error"]["message"]}]
        if run["status"] == RunStatus.CANCELLED:
            return [*closed, {"type": "abort"}]
        told = {name: run[name] for name in ("status", "finish_reason", "usage")}
        known = {"run_id": run["id"], "session_id": run["session_id"], **told}
        reason = _FINISH.get(run["finish_reason"], "other")
        return [*closed, _run(run), {"type": "finish", "finishReason": reason, "messageMetadata": known}]

    def _closed(self) -> list[Chunk]:
        """The ends of the text and the reasoning that are open."""
        chunks = self._thoughts_closed()
        if self._text is not None:
            chunks.append({"type": "text-end", "id": self._text})
            self._text = None
        return chunks

    def _thoughts_closed(self) -> list[Chunk]:
        if self._reasoning is None:
            return []
        ended, self._reasoning = self._reasoning, None
        return [{"type": "reasoning-end", "id": ended}]

    def _step_ended(self) -> list[Chunk]:
        chunks = self._closed()
        if self._is_in_step:
            self._is_in_step = False
            chunks.append({"type": "finish-step"})
        return chunks


def _run(run: Mapping[str, Any]) -> Chunk:
    """How far the run is; one part of the message, renewed in its place."""
    data = {"run_id": run["id"], "session_id": run["session_id"], "status": run["status"]}
    return {"type": "data-run", "id": run["id"], "data": data}


def _call(kind: str, event: Mapping[str, Any]) -> Chunk:
    """`dynamic`: the client need not know the tool."""
    return {"type": kind, "toolCallId": event["call_id"], "dynamic": True}


def _error_text(result: Any) -> str:
    error = result.get("error") if isinstance(result, dict) else result
    return error if isinstance(error, str) else orjson.dumps(result).decode()
