"""The scripted model: replies written down beforehand, played through the real loop. Contract section 4."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from app.loop.messages import DraftCall, FinishReason, Reply, Usage
from app.loop.ports import ModelRequest
from app.providers.client import ModelSettings, ProviderError, ProviderErrorKind, Show, finish_of
from app.providers.errors import http_error

CAPABILITIES: Mapping[str, Mapping[str, Any]] = {"web_search": {}, "reasoning": {}}
"""Accepted as the other clients accept them, so that a request can be tested unchanged; nothing is added."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptCall(_Strict):
    """A call. `arguments` may be a text, to play broken JSON."""

    id: str | None = None
    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)


class ScriptUsage(_Strict):
    input_tokens: int = Field(0, ge=0)
    output_tokens: int = Field(0, ge=0)
    cached_tokens: int = Field(0, ge=0)
    reasoning_tokens: int = Field(0, ge=0)


class ScriptError(_Strict):
    """An HTTP error of the provider; what the turn says beside it is shown before it comes."""

    status: int = Field(ge=400, le=599)
    message: str = ""


class ScriptTurn(_Strict):
    """One attempt at a model call. `delay_ms` is waited before each chunk, or once where there is none."""

    text: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ScriptCall, ...] | None = None
    finish_reason: str | None = None
    usage: ScriptUsage | None = None
    delay_ms: int = Field(0, ge=0, le=600_000)
    chunk_chars: int | None = Field(None, ge=1)
    error: ScriptError | None = None


def _as_turn(raw: Any) -> Any:
    return {"text": raw} if isinstance(raw, str) else raw


_TURNS: TypeAdapter[list[ScriptTurn]] = TypeAdapter(list[Annotated[ScriptTurn, BeforeValidator(_as_turn)]])


def scripted_turns(raw: Iterable[Any]) -> list[ScriptTurn]:
    """The turns of a `script`, each a text or an object. Raises pydantic's `ValidationError`, which names the places."""
    return _TURNS.validate_python(list(raw))


def script_of(replies: Iterable[Reply]) -> list[dict[str, Any]]:
    """Turns that play these replies again: the same texts, calls, finish reasons and usage."""
    return [_turn_of(reply) for reply in replies]


class ScriptedClient:
    """Plays one turn for each attempt. `next_turn` is the index of the turn that comes next, to carry on from."""

    def __init__(
        self,
        turns: Sequence[Any],
        next_turn: int = 0,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.next_turn = next_turn
        self._turns = scripted_turns(turns)
        self._sleep = sleep

    async def reply(self, request: ModelRequest, settings: ModelSettings, show: Show) -> Reply:
        """The next turn's reply. A used-up script raises `ProviderError` that names how many turns there were."""
        if self.next_turn >= len(self._turns):
            count = len(self._turns)
            message = f"The script is used up: it has {count} {'turn' if count == 1 else 'turns'}."
            raise ProviderError(ProviderErrorKind.SCRIPT_EXHAUSTED, message)
        turn = self._turns[self.next_turn]
        self.next_turn += 1
        await self._play(turn, show)
        if turn.error is not None:
            raise http_error(turn.error.status, httpx.Headers(), turn.error.message.encode("utf-8", "replace"))
        return _reply_of(turn)

    async def _play(self, turn: ScriptTurn, show: Show) -> None:
        seconds = turn.delay_ms / 1000
        reasoning = list(_chunks(turn.reasoning, turn.chunk_chars))
        text = list(_chunks(turn.text, turn.chunk_chars))
        if seconds and not (reasoning or text):
            await self._sleep(seconds)
        for chunk in reasoning:
            if seconds:
                await self._sleep(seconds)
            show("reasoning", chunk)
        for chunk in text:
            if seconds:
                await self._sleep(seconds)
            show("text", chunk)


def _chunks(text: str | None, size: int | None) -> Iterator[str]:
    if text:
        step = size or len(text)
        for start in range(0, len(text), step):
            yield text[start : start + step]


def _reply_of(turn: ScriptTurn) -> Reply:
    calls = tuple(DraftCall(call.id, call.name, _arguments_text(call.arguments)) for call in turn.tool_calls or ())
    paused = turn.finish_reason == FinishReason.PAUSE and not calls
    return Reply(
        text=turn.text or "",
        calls=calls,
        reasoning=turn.reasoning or "",
        finish_reason=FinishReason.PAUSE if paused else finish_of(turn.finish_reason, has_calls=bool(calls)),
        usage=Usage(**turn.usage.model_dump()) if turn.usage else Usage(),
    )


def _turn_of(reply: Reply) -> dict[str, Any]:
    turn: dict[str, Any] = {}
    if reply.text:
        turn["text"] = reply.text
    if reply.reasoning:
        turn["reasoning"] = reply.reasoning
    if reply.calls:
        turn["tool_calls"] = [_script_call(call) for call in reply.calls]
    turn["finish_reason"] = reply.finish_reason.value
    turn["usage"] = reply.usage.as_dict()
    return turn


def _script_call(call: DraftCall) -> dict[str, Any]:
    named = {"id": call.provider_id} if call.provider_id is not None else {}
    return {**named, "name": call.name, "arguments": _exact_arguments(call.arguments)}


def _exact_arguments(text: str) -> dict[str, Any] | str:
    """As an object where playing it gives the very same text, which is easier to read and to change."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) and _arguments_text(value) == text else text


def _arguments_text(arguments: dict[str, Any] | str) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
