"""AG-UI: a run, its iterations as steps, and its messages and calls under Rondo's own ids.

Clients end the stream at a null where a field may be left out, at a run that finishes with something open, and at whatever
comes behind its end. What they have been shown is taken back by a snapshot of all messages without it. A client that comes
to a run that is under way is given such a snapshot first, so that it may follow from the start whatever it has already.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

import orjson

from app.events.dialects import Chunk
from app.infra import ids
from app.loop.messages import RunStatus

VERSIONS = (0, 1)
_USAGE = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cachedInputTokens": "cached_tokens",
    "reasoningTokens": "reasoning_tokens",
}
Earlier = Callable[[], Awaitable[Sequence[Mapping[str, Any]]]]
"""The messages before a run's first reply, the question among them, as the API shows messages."""


class AgUi:
    """One stream, for a client of this major version. `attaches`: the client did not start the run with this request."""

    headers: ClassVar[Mapping[str, str]] = {}
    end: ClassVar[bytes] = b""

    def __init__(self, earlier: Earlier, version: int = VERSIONS[0], *, attaches: bool = False) -> None:
        self._earlier, self._version, self._attaches = earlier, version, attaches
        self._before: list[Chunk] | None = None
        self._own: list[Chunk] = []
        """What the run has added to the conversation so far."""
        self._run: Mapping[str, Any] = {}
        self._is_running = False
        self._step: str | None = None
        self._text: str | None = None
        self._reasoning: Chunk | None = None
        self._thoughts = 0
        self._tried: list[Chunk] = []
        """The reasoning that was shown of the message at hand."""
        self._reply_id = ""

    async def chunks(self, event: Mapping[str, Any]) -> list[Chunk]:
        if self._is_running:
            return await self._told(event)
        if event["type"] == "run.queued":
            self._run = event["run"]
            return [*self._started(), *([await self._snapshot()] if self._attaches else [])]
        return [*self._started(), *await self._told(event)]  # it waited, and goes on

    async def _told(self, event: Mapping[str, Any]) -> list[Chunk]:
        match event["type"]:
            case "message.delta":
                return self._texted(event["message_id"], event["text"])
            case "reasoning.delta":
                return await self._thought(event["iteration"], event["text"])
            case "run.started":
                return []
            case "iteration.started":
                self._step = str(event["iteration"])
                return [{"type": "STEP_STARTED", "stepName": self._step}]
            case "message.discarded":
                return await self._discarded()
            case "message.completed":
                ends = self._closed()
                self._reply_id, self._tried = event["message"]["id"], []
                self._own.append(message_of(event["message"]))
                return ends
            case "tool.invoking":
                return self._call(event)
            case "tool.invoked":
                return [self._result(event)]
            case "guard.hint":
                hint = {"call_id": event["call_id"], "streak": event["streak"]}
                return [{"type": "CUSTOM", "name": "guard.hint", "value": hint}]
            case "iteration.completed":
                return self._step_ended()
            case "run.waiting":
                asked = [_interrupt(pending) for pending in event["pending"]]
                return self._finished({"type": "interrupt", "interrupts": asked}, still_open=self._step)
            case "run.resumed":
                return [{"type": "CUSTOM", "name": "run.resumed", "value": {"reason": event["reason"]}}]
            case _:
                return self._run_ended(event["run"])

    async def forget(self, message_id: str) -> list[Chunk]:
        """Taken for a message whose text had begun: that must be ended before it may begin again."""
        self._text = message_id
        return await self._discarded()

    def broken_off(self, message: str) -> list[Chunk]:
        return [{"type": "RUN_ERROR", "message": message, "code": "stream_broken_off"}]

    def _ids(self) -> dict[str, str]:
        return {"threadId": self._run["session_id"] or self._run["id"], "runId": self._run["id"]}

    def _started(self) -> list[Chunk]:
        self._is_running = True
        parent = self._run["parent_run_id"]
        started = {"type": "RUN_STARTED", **self._ids(), **({} if parent is None else {"parentRunId": parent})}
        return [started, *([] if self._step is None else [{"type": "STEP_STARTED", "stepName": self._step}])]

    def _texted(self, message_id: str, text: str) -> list[Chunk]:
        chunks = self._thoughts_closed()
        if self._text is None:
            self._text = message_id
            chunks.append({"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"})
        return [*chunks, {"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": text}]

    async def _thought(self, iteration: int, text: str) -> list[Chunk]:
        chunks: list[Chunk] = []
        if self._reasoning is None:
            self._thoughts += 1
            thought_id = f"{self._run['id']}-reasoning-{iteration}-{self._thoughts}"
            self._reasoning = {"id": thought_id, "role": "reasoning", "content": ""}
            self._own.append(self._reasoning)
            self._tried.append(self._reasoning)
            if self._attaches and self._thoughts == 1:  # what a client has of them goes with a snapshot that has one
                chunks.append(await self._snapshot())
            begun = {"messageId": thought_id}
            chunks += [
                {"type": "REASONING_START", **begun},
                {"type": "REASONING_MESSAGE_START", **begun, "role": "reasoning"},
            ]
        self._reasoning["content"] += text
        return [*chunks, {"type": "REASONING_MESSAGE_CONTENT", "messageId": self._reasoning["id"], "delta": text}]

    def _call(self, event: Mapping[str, Any]) -> list[Chunk]:
        """`parentMessageId` keeps the calls of one reply together."""
        call_id = event["call_id"]
        begun = {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": event["tool"]}
        return [
            {**begun, "parentMessageId": self._reply_id},
            {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": _text_of(event["arguments"])},
            {"type": "TOOL_CALL_END", "toolCallId": call_id},
        ]

    def _result(self, event: Mapping[str, Any]) -> Chunk:
        message_id = ids.derived(ids.MESSAGE, event["call_id"], "result")
        content = _text_of(event["result"])
        self._own.append({"id": message_id, "role": "tool", "content": content, "toolCallId": event["call_id"]})
        told = {"messageId": message_id, "toolCallId": event["call_id"], "content": content, "role": "tool"}
        return {"type": "TOOL_CALL_RESULT", **told}

    async def _discarded(self) -> list[Chunk]:
        ends = self._closed()
        for thought in self._tried:
            thought["content"] = ""  # left out, it would stay: clients keep reasoning that a snapshot does not name
        self._tried = []
        return [*ends, await self._snapshot()]

    async def _snapshot(self) -> Chunk:
        """All messages but one that is being written."""
        if self._before is None:
            self._before = [message_of(message) for message in await self._earlier()]
        return {"type": "MESSAGES_SNAPSHOT", "messages": [dict(one) for one in (*self._before, *self._own)]}

    def _run_ended(self, run: Mapping[str, Any]) -> list[Chunk]:
        if run["status"] == RunStatus.FAILED:
            error = run["error"]
            return [*self._step_ended(), {"type": "RUN_ERROR", "message": error["message"], "code": error["code"]}]
        told = {name: run[name] for name in ("status", "finish_reason", "output", "output_parsed")}
        is_told = run["status"] == RunStatus.CANCELLED and self._version >= 1
        outcome = {"type": "cancelled" if is_told else "success"}
        provider, _, model = run["model"].partition("/")
        usage = {name: run["usage"][field] for name, field in _USAGE.items()}
        usage["totalTokens"] = usage["inputTokens"] + usage["outputTokens"]
        return self._finished(outcome, result=told, usage=[{"provider": provider, "model": model, **usage}])

    def _finished(self, outcome: Chunk, *, still_open: str | None = None, **more: Any) -> list[Chunk]:
        """The end of the run as far as AG-UI goes; `still_open` is the step that goes on when it is resumed."""
        chunks = self._step_ended()
        self._step, self._is_running = still_open, False
        return [*chunks, {"type": "RUN_FINISHED", **self._ids(), "outcome": outcome, **more}]

    def _closed(self) -> list[Chunk]:
        chunks = self._thoughts_closed()
        if self._text is not None:
            chunks.append({"type": "TEXT_MESSAGE_END", "messageId": self._text})
            self._text = None
        return chunks

    def _thoughts_closed(self) -> list[Chunk]:
        if self._reasoning is None:
            return []
        ended, self._reasoning = {"messageId": self._reasoning["id"]}, None
        return [{"type": "REASONING_MESSAGE_END", **ended}, {"type": "REASONING_END", **ended}]

    def _step_ended(self) -> list[Chunk]:
        chunks = self._closed()
        if self._step is not None:
            chunks.append({"type": "STEP_FINISHED", "stepName": self._step})
            self._step = None
        return chunks


def message_of(message: Mapping[str, Any]) -> Chunk:
    """A message as AG-UI has it, from one as the API shows it."""
    shown: Chunk = {"id": message["id"], "role": message["role"]}
    if message["role"] == "assistant":
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": _text_of(call["arguments"])},
            }
            for call in message["tool_calls"] or ()
        ]
        return {**shown, "content": _prose_of(message["content"]), **({"toolCalls": calls} if calls else {})}
    if message["role"] == "tool":
        return {**shown, "content": _text_of(message["content"]), "toolCallId": message["tool_call_id"]}
    content = message["content"]
    return {**shown, "content": content if isinstance(content, str) else [_part(part) for part in content]}


def _prose_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _part(part: Mapping[str, Any]) -> Chunk:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("url"):
        return {"type": "image", "source": {"type": "url", "value": part["url"]}}
    return {"type": "image", "source": {"type": "data", "value": part["data"], "mimeType": part["media_type"]}}


def _interrupt(pending: Mapping[str, Any]) -> Chunk:
    """What a person or an application has to answer, over Rondo's own endpoints."""
    reason = "tool_call" if pending["reason"] == "approval" else f"rondo:{pending['reason']}"
    about = {"tool": pending["tool"], "arguments": pending["arguments"]}
    return {
        "id": pending["call_id"],
        "reason": reason,
        "toolCallId": pending["call_id"],
        "expiresAt": pending["expires_at"],
        "metadata": about,
    }


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
