"""The events of a Messages API stream -> a `Reply`, shown on the way. No I/O.

The reply's `native` is `{"blocks": [...]}`: the whole content blocks as the API gave them, in their order, put together
from their deltas, so that the same model can be sent them back. A kind of event, block or delta that is not known is no
error: unknown blocks are kept as they came, unknown deltas are passed over.
"""

import json
from collections.abc import Callable, Collection
from typing import Any

from app.infra.telemetry import log
from app.loop.cleaning import TooDeep, clean_json, clean_text
from app.loop.messages import DraftCall, FinishReason, Reply, Usage
from app.loop.tool_calls import parse_arguments
from app.providers.channel import Channel
from app.providers.client import ProviderError, ProviderErrorKind, Show, finish_of
from app.providers.errors import in_band_error
from app.providers.openai_stream import chunk_of

_GROWING = {"text_delta": "text", "thinking_delta": "thinking"}


class _Block:
    """A content block under way. `input_pieces` are the fragments of its input, which is JSON only as a whole."""

    __slots__ = ("fields", "input_pieces", "pieces")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.pieces: dict[str, list[str]] = {}
        self.input_pieces: list[str] = []

    def grow(self, key: str, text: str) -> None:
        if key not in self.pieces:
            begun = self.fields.get(key)
            self.pieces[key] = [begun] if isinstance(begun, str) else []
        self.pieces[key].append(text)

    def arguments(self) -> str:
        """The input as the model wrote it; the input that the block began with counts only where no fragment came."""
        text = "".join(self.input_pieces)
        begun = self.fields.get("input")
        return text if text.strip() or not begun else json.dumps(begun, ensure_ascii=False, separators=(",", ":"))

    def whole(self) -> dict[str, Any] | None:
        """The block as it is sent back; None for one that nests too deep to be kept."""
        fields = {**self.fields, **{key: "".join(pieces) for key, pieces in self.pieces.items()}}
        if "input" in fields or self.input_pieces:
            fields["input"] = parse_arguments(self.arguments()) or {}
        try:
            cleaned: dict[str, Any] = clean_json(fields)
        except TooDeep:
            return None
        return cleaned


class ReplyStream:
    """Fold in the data of each frame; `reply()` gives the whole. `on_content` is called whenever the model said something.

    `finished` tells that the model gave its stop reason: what is here is the whole answer, even if the connection breaks
    now. `began` tells that there was any event of an answer.
    """

    def __init__(self, model: str, show: Show, on_content: Callable[[], None], *, secrets: Collection[str] = ()) -> None:
        self.began = False
        self.finished = False
        self._model = model
        self._on_content = on_content
        self._secrets = secrets
        self._text = Channel("text", show)
        self._reasoning = Channel("reasoning", show)
        self._blocks: list[_Block] = []
        self._by_index: dict[int, _Block] = {}
        self._dropped = 0
        self._reason: str | None = None
        self._tokens: dict[str, int] = {}

    def accept(self, data: bytes, event: str = "") -> bool:
        """Fold in one frame's data; true when it says that the stream is done. Raises `ProviderError` only."""
        if data.strip() in (b"", b"[DONE]"):
            return False
        value = chunk_of(data)
        if not isinstance(value, dict):
            return False
        kind = "error" if value.get("error") else value.get("type") or event
        if kind == "message_stop":
            self.began = self.finished = True
            return True
        self._event(kind, value)
        return False

    def whole(self, body: bytes) -> None:
        """Fold in an answer that came in one piece although a stream was asked for."""
        answer = chunk_of(body)
        if not isinstance(answer, dict) or not (isinstance(answer.get("content"), list) or answer.get("error")):
            raise ProviderError(ProviderErrorKind.UNAVAILABLE, "The provider's answer is no message.")
        if answer.get("error"):
            raise in_band_error(answer["error"], self._secrets)
        self._event("message_start", {"message": answer})
        for index, block in enumerate(answer["content"]):
            self._start({"index": index, "content_block": block})
        self._event("message_delta", {"delta": answer})
        self.finished = True

    def reply(self) -> Reply:
        """What the model answered, once its stream has ended."""
        text, reasoning = self._text.end(), self._reasoning.end()
        calls = tuple(_call(block) for block in self._blocks if block.fields.get("type") == "tool_use")
        blocks = [whole for block in self._blocks if (whole := block.whole()) is not None]
        if self._dropped or len(blocks) < len(self._blocks):
            log.warning("reply_pieces_dropped", model=self._model, pieces=self._dropped + len(self._blocks) - len(blocks))
        native = {"blocks": blocks} if blocks else {}
        return Reply(text, calls, reasoning, self._finish(has_calls=bool(calls)), self._usage(), native=native)

    def _event(self, kind: Any, value: dict[str, Any]) -> None:
        match kind:
            case "error":
                raise in_band_error(value.get("error") or value, self._secrets)
            case "message_start":
                self.began = True
                self._count(_object(value, "message").get("usage"))
            case "content_block_start":
                self._start(value)
            case "content_block_delta":
                self._delta(value)
            case "message_delta":
                self.began = True
                reason = _object(value, "delta").get("stop_reason")
                if isinstance(reason, str) and reason:
                    self._reason, self.finished = reason, True
                self._count(value.get("usage"))

    def _start(self, value: dict[str, Any]) -> None:
        fields = value.get("content_block")
        if not isinstance(fields, dict):
            return
        self.began = True
        self._on_content()
        self._begin(value.get("index"), dict(fields))
        if fields.get("type") == "text":
            self._say(self._text, fields.get("text"))
        elif fields.get("type") == "thinking":
            self._say(self._reasoning, fields.get("thinking"))

    def _begin(self, index: Any, fields: dict[str, Any]) -> _Block:
        block = _Block(fields)
        self._blocks.append(block)
        if type(index) is int:
            self._by_index[index] = block
        return block

    def _delta(self, value: dict[str, Any]) -> None:
        delta, index = _object(value, "delta"), value.get("index")
        kind = delta.get("type")
        block = self._by_index.get(index) if type(index) is int else (self._blocks[-1] if self._blocks else None)
        if block is None:
            # Some servers leave out the start of a text; nothing is missing by it.
            key = _GROWING.get(kind) if isinstance(kind, str) else None
            if key is None or not isinstance(delta.get(key), str):
                self._dropped += 1
                return
            block = self._begin(index, {"type": key, key: ""})
        self.began = True
        self._on_content()
        self._fold(block, kind, delta)

    def _fold(self, block: _Block, kind: Any, delta: dict[str, Any]) -> None:
        match kind, delta:
            case "text_delta", {"text": str(text)}:
                block.grow("text", text)
                self._say(self._text, text)
            case "thinking_delta", {"thinking": str(text)}:
                block.grow("thinking", text)
                self._say(self._reasoning, text)
            case "input_json_delta", {"partial_json": str(text)}:
                block.input_pieces.append(text)
            case "signature_delta", {"signature": str(signature)}:
                block.fields["signature"] = signature
            case "citations_delta", {"citation": citation}:
                block.fields["citations"] = [*(block.fields.get("citations") or ()), citation]

    def _say(self, channel: Channel, text: Any) -> None:
        if isinstance(text, str) and text:
            channel.add(text)

    def _count(self, usage: Any) -> None:
        """Totals are cumulative: the last of each stands, and a report of nothing does not undo one of something."""
        if not isinstance(usage, dict):
            return
        details = usage.get("output_tokens_details")
        for counts in (usage, details if isinstance(details, dict) else {}):
            for name, tokens in counts.items():
                if isinstance(tokens, int | float) and 0 < tokens < 2**53:
                    self._tokens[name] = int(tokens)

    def _usage(self) -> Usage:
        """`input_tokens` are the whole prompt: the API counts apart what it read from the cache and wrote to it."""
        cached = self._tokens.get("cache_read_input_tokens", 0)
        return Usage(
            input_tokens=self._tokens.get("input_tokens", 0) + cached + self._tokens.get("cache_creation_input_tokens", 0),
            output_tokens=self._tokens.get("output_tokens", 0),
            cached_tokens=cached,
            reasoning_tokens=self._tokens.get("thinking_tokens", 0),
        )

    def _finish(self, *, has_calls: bool) -> FinishReason:
        if self._reason == "pause_turn" and not has_calls:
            return FinishReason.PAUSE
        if self._reason == "model_context_window_exceeded":
            return FinishReason.LENGTH
        return finish_of(self._reason, has_calls=has_calls)


def _call(block: _Block) -> DraftCall:
    id_, name = block.fields.get("id"), block.fields.get("name")
    return DraftCall(
        clean_text(id_) if isinstance(id_, str) and id_ else None,
        clean_text(name) if isinstance(name, str) else "",
        block.arguments(),
    )


def _object(value: dict[str, Any], key: str) -> dict[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}
