"""What a client of a chat protocol makes of a stream, and what ends it: the rules that the real clients were seen to have.

Each judge reads chunks as its client does, raises AssertionError where that one would end the stream, and keeps what a
person would see.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ag_ui.core import Event
from pydantic import TypeAdapter

Chunk = Mapping[str, Any]

_CALL = {"toolCallId", "dynamic"}
# type: fields that must be there, fields that may be, since which major version
_CHUNKS: dict[str, tuple[set[str], set[str], int]] = {
    "start": (set(), {"messageId", "messageMetadata"}, 5),
    "start-step": (set(), set(), 5),
    "finish-step": (set(), set(), 5),
    "reset-step": (set(), set(), 7),
    "text-start": ({"id"}, set(), 5),
    "text-delta": ({"id", "delta"}, set(), 5),
    "text-end": ({"id"}, set(), 5),
    "reasoning-start": ({"id"}, set(), 5),
    "reasoning-delta": ({"id", "delta"}, set(), 5),
    "reasoning-end": ({"id"}, set(), 5),
    "tool-input-available": ({*_CALL, "toolName", "input"}, set(), 5),
    "tool-output-available": ({*_CALL, "output"}, set(), 5),
    "tool-output-error": ({*_CALL, "errorText"}, set(), 5),
    "tool-output-denied": ({"toolCallId"}, set(), 6),
    "tool-approval-request": ({"toolCallId", "approvalId"}, set(), 6),
    "error": ({"errorText"}, set(), 5),
    "abort": (set(), set(), 5),
    "finish": (set(), {"finishReason", "messageMetadata"}, 5),
}
_FINISHES = {"stop", "length", "content-filter", "tool-calls", "error", "other"}


class AiSdkClient:
    """The Vercel AI SDK from version 5 on. `parts` is the message that it shows."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.parts: list[dict[str, Any]] = []
        self.hidden: set[str] = set()
        self.metadata: dict[str, Any] = {}
        self.finishes: list[str] = []
        self.errors: list[str] = []
        self.is_aborted = False
        self._open: dict[str, dict[str, Any]] = {}
        self._calls: dict[str, dict[str, Any]] = {}

    def read(self, chunks: Iterable[Chunk]) -> "AiSdkClient":
        for chunk in chunks:
            self._check(chunk)
            self._apply(chunk)
        return self

    @property
    def texts(self) -> list[str]:
        """What stands there, less what the application was told to hide."""
        return [part["text"] for part in self.parts if part["type"] == "text" and part["id"] not in self.hidden]

    @property
    def calls(self) -> list[tuple[str, str]]:
        return [(part["tool"], part["state"]) for part in self.parts if part["type"] == "dynamic-tool"]

    def _check(self, chunk: Chunk) -> None:
        kind, fields = chunk["type"], set(chunk) - {"type"}
        if kind.startswith("data-"):
            assert fields - {"id", "transient"} == {"data"}, chunk
        else:
            assert kind in _CHUNKS, f"unknown chunk {chunk}"
            must, may, since = _CHUNKS[kind]
            assert since <= self.version, f"{kind} is of version {since}"
            assert must <= fields <= must | may, chunk
        assert all(chunk[name] is not None for name in fields - {"input", "output"}), f"a null in {chunk}"

    def _apply(self, chunk: Chunk) -> None:
        kind = chunk["type"]
        match kind:
            case "text-start" | "reasoning-start":
                assert chunk["id"] not in {part.get("id") for part in self.parts}, f"part {chunk['id']} twice"
                part = {"type": kind.partition("-")[0], "id": chunk["id"], "text": "", "state": "streaming"}
                self.parts.append(part)
                self._open[chunk["id"]] = part
            case "text-delta" | "reasoning-delta":
                self._open[chunk["id"]]["text"] += chunk["delta"]
            case "text-end" | "reasoning-end":
                self._open.pop(chunk["id"])["state"] = "done"
            case "start-step":
                self.parts.append({"type": "step-start"})
            case "finish-step":
                self._open.clear()
            case "reset-step":
                self._open.clear()
                while self.parts and self.parts[-1]["type"] != "step-start":
                    self.parts.pop()
            case "tool-input-available":
                call = {"type": "dynamic-tool", "tool": chunk["toolName"], "input": chunk["input"], "state": "input"}
                self.parts.append(call)
                self._calls[chunk["toolCallId"]] = call
            case "tool-output-available" | "tool-output-error" | "tool-output-denied":
                call = self._calls[chunk["toolCallId"]]
                call |= {"state": kind.removeprefix("tool-"), "output": chunk.get("output", chunk.get("errorText"))}
            case "tool-approval-request":
                self._calls[chunk["toolCallId"]]["state"] = "approval-requested"
            case "error":
                self.errors.append(chunk["errorText"])
            case "abort":
                self.is_aborted = True
            case "finish":
                assert chunk["finishReason"] in _FINISHES
                assert not self._open, f"{self._open} would stay open for good"
                self.finishes.append(chunk["finishReason"])
                self.metadata |= chunk.get("messageMetadata", {})
            case "start":
                self.metadata |= chunk.get("messageMetadata", {})
            case "data-reset":
                self.hidden.update(chunk["data"]["parts"])
            case _:
                self._data(chunk)

    def _data(self, chunk: Chunk) -> None:
        if chunk.get("transient"):
            return
        same = [part for part in self.parts if part["type"] == chunk["type"] and part.get("id") == chunk.get("id")]
        if same and "id" in chunk:
            same[0]["data"] = chunk["data"]
        else:
            self.parts.append(dict(chunk))


_EVENT: TypeAdapter[Any] = TypeAdapter(Event)
_OF_VERSION_1 = {"cancelled"}


class AgUiClient:
    """AG-UI's client. `messages` is the conversation that it shows."""

    def __init__(self, version: int, messages: Iterable[Mapping[str, Any]] = ()) -> None:
        self.version = version
        self.messages: list[dict[str, Any]] = [dict(message) for message in messages]
        self.outcomes: list[dict[str, Any]] = []
        self.results: list[Any] = []
        self.errors: list[dict[str, Any]] = []
        self.custom: list[tuple[str, Any]] = []
        self._is_running = self._has_failed = False
        self._open: set[tuple[str, str]] = set()

    def read(self, chunks: Iterable[Chunk]) -> "AgUiClient":
        for chunk in chunks:
            assert all(value is not None for name, value in chunk.items() if name not in ("result", "value")), chunk
            _EVENT.validate_python(chunk)
            self._follow(chunk)
        return self

    @property
    def texts(self) -> list[str]:
        return [message["content"] for message in self.messages if message["role"] == "assistant" and message.get("content")]

    @property
    def reasoning(self) -> str:
        return "".join(message["content"] for message in self.messages if message["role"] == "reasoning")

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages without the reasoning."""
        return [message for message in self.messages if message["role"] != "reasoning"]

    def _follow(self, chunk: Chunk) -> None:
        kind = chunk["type"]
        assert not self._has_failed or kind == "RUN_STARTED", f"{kind} after RUN_ERROR"
        assert self._is_running or kind in ("RUN_STARTED", "RUN_ERROR"), f"{kind} outside a run"
        match kind:
            case "RUN_STARTED":
                assert not self._is_running, "a run in a run"
                self._is_running, self._has_failed = True, False
            case "RUN_FINISHED":
                assert not self._open, f"{self._open} is open at the end"
                assert self.version >= 1 or chunk["outcome"]["type"] not in _OF_VERSION_1
                self._is_running = False
                self.outcomes.append(chunk["outcome"])
                self.results.append(chunk.get("result"))
            case "RUN_ERROR":
                self._is_running, self._has_failed = False, True
                self.errors.append(dict(chunk))
            case "MESSAGES_SNAPSHOT":
                assert not {name for name, _ in self._open} & {"text", "reasoning_message"}, "a snapshot inside a message"
                self._replace([dict(message) for message in chunk["messages"]])
            case "CUSTOM":
                self.custom.append((chunk["name"], chunk["value"]))
            case "TOOL_CALL_RESULT":
                self.messages.append({"id": chunk["messageId"], "role": "tool", "content": chunk["content"]})
            case _:
                self._part(kind, chunk)

    def _replace(self, snapshot: list[dict[str, Any]]) -> None:
        """Reasoning stays where the snapshot has none at all."""
        named = {message["id"]: message for message in snapshot}
        keeps = not any(message["role"] == "reasoning" for message in snapshot)
        stays = [
            named.pop(message["id"], message)
            for message in self.messages
            if message["id"] in named or (keeps and message["role"] == "reasoning")
        ]
        self.messages = [*stays, *named.values()]

    def _part(self, kind: str, chunk: Chunk) -> None:
        name, _, what = kind.rpartition("_")
        place = chunk.get("messageId") or chunk.get("toolCallId") or chunk.get("stepName") or ""
        part = {"STEP": "step", "TEXT_MESSAGE": "text", "TOOL_CALL": "call"}.get(name, name.lower())
        if what in ("START", "STARTED"):
            assert (part, place) not in self._open, f"{kind} {place} twice"
            self._open.add((part, place))
            self._begin(kind, chunk)
        elif what in ("END", "FINISHED"):
            self._open.remove((part, place))
        else:
            assert (part, place) in self._open, f"{kind} {place} is not open"
            if part == "call":
                self._call(place)["arguments"] += chunk["delta"]
            else:
                self._message(place)["content"] += chunk["delta"]

    def _begin(self, kind: str, chunk: Chunk) -> None:
        if kind in ("TEXT_MESSAGE_START", "REASONING_MESSAGE_START"):
            self._message(chunk["messageId"], chunk["role"])
        elif kind == "TOOL_CALL_START":
            parent = self._message(chunk["parentMessageId"])
            calls = parent.setdefault("toolCalls", [])
            calls.append({"id": chunk["toolCallId"], "function": {"name": chunk["toolCallName"], "arguments": ""}})

    def _message(self, message_id: str, role: str = "assistant") -> dict[str, Any]:
        for message in self.messages:
            if message["id"] == message_id:
                message.setdefault("content", "")
                return message
        self.messages.append({"id": message_id, "role": role, "content": ""})
        return self.messages[-1]

    def _call(self, call_id: str) -> dict[str, Any]:
        found = [call for message in self.messages for call in message.get("toolCalls", ()) if call["id"] == call_id]
        function: dict[str, Any] = found[0]["function"]
        return function
