"""The chunks of a chat-completions stream -> a `Reply`, shown on the way. No I/O.

Servers leave out, null or rename nearly everything, so nothing is taken for granted but that a chunk is JSON.
"""

import json
import re
from collections.abc import Callable, Collection
from typing import Any

import orjson

from app.infra.telemetry import log
from app.loop.cleaning import TooDeep, clean_json
from app.loop.messages import FinishReason, Reply, Usage
from app.providers.assembly import CallAssembly
from app.providers.channel import Channel, ThinkTags
from app.providers.client import ProviderError, ProviderErrorKind, Show, finish_of
from app.providers.errors import in_band_error

_PLAIN_KEYS = frozenset({"role", "content", "refusal", "tool_calls", "function_call"})
_KEPT_KEY = re.compile(r"reasoning|thinking|thought|signature|encrypted|extra_content|provider_specific")
_BROKEN_OFF = frozenset({"error", "insufficient_system_resource"})
_ENVELOPE = re.compile(r"<(?:tool_call|function_call|tool_calls)>|<\|tool_call")


class ReplyStream:
    """Fold in the data of each frame; `reply()` gives the whole. `on_content` is called whenever the model said something.

    `finished` tells that the model gave its finish reason: what is here is the whole answer, even if the connection
    breaks now. `began` tells that there was any chunk of an answer.
    """

    def __init__(
        self,
        model: str,
        offered: Collection[str],
        show: Show,
        on_content: Callable[[], None],
        *,
        think_tags: Any = None,
        secrets: Collection[str] = (),
    ) -> None:
        self.began = False
        self.finished = False
        self._model = model
        self._on_content = on_content
        self._secrets = secrets
        self._text = Channel("text", show)
        self._reasoning = Channel("reasoning", show)
        prefilled = think_tags == "prefilled"
        self._tags = ThinkTags(self._text, self._reasoning, prefilled=prefilled) if think_tags else None
        self._say = self._tags.add if self._tags else self._text.add
        self._calls = CallAssembly(offered)
        self._refused = False
        self._reason: str | None = None
        self._native: dict[str, Any] = {}
        self._usage = Usage()

    def accept(self, data: bytes, event: str = "") -> bool:
        """Fold in one frame's data; true when it says that the stream is done. Raises `ProviderError` only."""
        if data[:1] == b"[" and data.strip() == b"[DONE]":
            return True
        if data:
            chunk = chunk_of(data)
            if isinstance(chunk, dict):
                self._chunk(chunk, event)
        return False

    def whole(self, body: bytes) -> None:
        """Fold in an answer that came in one piece although a stream was asked for."""
        answer = chunk_of(body)
        if not isinstance(answer, dict) or not (answer.get("choices") or answer.get("error")):
            raise ProviderError(ProviderErrorKind.UNAVAILABLE, "The provider's answer is no chat completion.")
        self._chunk(answer, "")
        self.finished = True

    def reply(self) -> Reply:
        """What the model answered, once its stream has ended."""
        if self._tags is not None:
            self._tags.end()
        text, reasoning = self._text.end(), self._reasoning.end()
        finish = finish_of(self._reason, has_calls=bool(self._calls))
        if self._refused and finish is not FinishReason.LENGTH:
            finish = FinishReason.CONTENT_FILTER
        if not self._calls and _ENVELOPE.search(text):
            log.warning("model_wrote_call_as_text", model=self._model)
        if self._calls.dropped:
            log.warning("call_pieces_dropped", model=self._model, pieces=self._calls.dropped)
        return Reply(text, self._calls.calls(), reasoning, finish, self._usage, native=self._clean_native())

    def _chunk(self, chunk: dict[str, Any], event: str) -> None:
        error = chunk.get("error") or (chunk if event == "error" or chunk.get("object") == "error" else None)
        if error:
            raise in_band_error(error, self._secrets)
        choices = chunk.get("choices")
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            self._choice(choices[0])
        usage = chunk.get("usage")
        if usage:
            self._count(usage)

    def _choice(self, choice: dict[str, Any]) -> None:
        if choice.get("index"):
            return
        self.began = True
        if choice.get("error"):
            raise in_band_error(choice["error"], self._secrets)
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            self._delta(delta)
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            if reason in _BROKEN_OFF:
                raise ProviderError(ProviderErrorKind.UNAVAILABLE, "The provider broke its answer off.")
            self._reason = reason
            self.finished = True
        if choice.get("usage"):
            self._count(choice["usage"])

    def _delta(self, delta: dict[str, Any]) -> None:
        content = delta.get("content")
        if content:
            self._on_content()
            if isinstance(content, str):
                self._say(content)
            else:
                self._parts(content)
        if len(delta) > 1 or not content:
            self._rest(delta)

    def _rest(self, delta: dict[str, Any]) -> None:
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            self._on_content()
            self._refused = True
            self._text.add(refusal)
        for entries in (delta.get("tool_calls"), _legacy_call(delta.get("function_call"))):
            if entries:
                self._on_content()
                self._calls.add(entries)
        if not delta.keys() <= _PLAIN_KEYS:
            self._extras(delta)

    def _extras(self, delta: dict[str, Any]) -> None:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if thought and isinstance(thought, str):
            self._on_content()
            self._reasoning.add(thought)
        for key, value in delta.items():
            if value is None or key in _PLAIN_KEYS or not _KEPT_KEY.search(key):
                continue
            self._native[key] = _joined(self._native.get(key), value)

    def _parts(self, parts: Any) -> None:
        """Content as a list: texts, and thoughts that hold texts of their own."""
        for part in parts if isinstance(parts, list) else [parts]:
            if isinstance(part, str):
                self._text.add(part)
            elif isinstance(part, dict):
                if isinstance(part.get("text"), str) and part["text"]:
                    self._text.add(part["text"])
                for thought in _thoughts(part.get("thinking")):
                    self._reasoning.add(thought)

    def _count(self, usage: Any) -> None:
        """Totals are cumulative: the last ones stand, and a report of nothing does not undo one of something."""
        counted = usage_of(usage)
        if counted.total_tokens:
            self._usage = counted

    def _clean_native(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        for key, value in self._native.items():
            try:
                cleaned[key] = clean_json(value)
            except TooDeep:
                log.warning("native_field_dropped", model=self._model, field=key)
        return cleaned


def _joined(held: Any, new: Any) -> Any:
    """A field that comes in pieces: texts and lists grow, objects are merged, anything else is replaced."""
    if isinstance(held, str) and isinstance(new, str):
        return held + new
    if isinstance(held, list) and isinstance(new, list):
        return held + new
    return {**held, **new} if isinstance(held, dict) and isinstance(new, dict) else new


def chunk_of(data: bytes) -> Any:
    """The JSON of a frame. What orjson refuses but others write is read all the same: half surrogates, raw control
    characters, broken UTF-8, NaN."""
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        raise ProviderError(ProviderErrorKind.UNAVAILABLE, "The provider sent a chunk that is no JSON.") from error


def usage_of(usage: Any) -> Usage:
    """Tokens from any of the shapes in which servers of this kind report them."""
    if not isinstance(usage, dict):
        return Usage()
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return Usage(
        input_tokens=_tokens(usage, "prompt_tokens", "input_tokens"),
        output_tokens=_tokens(usage, "completion_tokens", "output_tokens"),
        cached_tokens=_tokens(prompt, "cached_tokens") or _tokens(usage, "cached_tokens", "prompt_cache_hit_tokens"),
        reasoning_tokens=_tokens(completion, "reasoning_tokens") or _tokens(usage, "reasoning_tokens"),
    )


def _tokens(counts: Any, *names: str) -> int:
    for name in names:
        value = counts.get(name) if isinstance(counts, dict) else None
        if isinstance(value, int | float) and 0 < value < 2**53:
            return int(value)
    return 0


def _legacy_call(call: Any) -> list[dict[str, Any]]:
    """`function_call`, the form before `tool_calls`: there is one at most."""
    return [{"index": 0, "function": call}] if isinstance(call, dict) and call else []


def _thoughts(thinking: Any) -> list[str]:
    if isinstance(thinking, str):
        return [thinking] if thinking else []
    if not isinstance(thinking, list):
        return []
    return [
        part["text"] for part in thinking if isinstance(part, dict) and isinstance(part.get("text"), str) and part["text"]
    ]
