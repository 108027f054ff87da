"""Deltas of a chat-completions stream -> the calls they meant. Pure.

Servers disagree on how a call is told from the next one: by `index`, by `id`, by neither; ids come late, change, repeat
or are empty; names come once, each time or in pieces. One order of questions fits all of them:

1. `""` and null are absent; an `index` that is no whole number is absent.
2. A known id is that call, unless another index and a name make it a second call under the same id.
3. An unknown id belongs to the call at that index if that one has no id yet, or is unfinished while no name is given;
   without index and name to a current call that has no id; else it begins a call.
4. Without id, the index decides, unless that call is finished and the entry begins another.
5. Without a place of its own, a name begins a call.
6. What is left continues the current call.

A finished JSON object cannot go on, so a piece that opens another one under a name always begins a new call.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from app.loop.cleaning import TooDeep, clean_json, clean_text
from app.loop.messages import DraftCall

_KNOWN_KEYS = frozenset({"index", "id", "type", "function"})
_KNOWN_FUNCTION_KEYS = frozenset({"name", "arguments"})


class _Call:
    """A call under way. `merged` holds arguments that came as objects instead of text."""

    __slots__ = ("id", "indexes", "merged", "name", "native", "pieces")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.indexes: set[int] = set()
        self.pieces: list[str] = []
        self.merged: dict[str, Any] | None = None
        self.native: dict[str, Any] = {}

    def arguments(self) -> str:
        text = "".join(self.pieces)
        return text if text or self.merged is None else _json_text(self.merged)

    def is_complete(self) -> bool:
        """Whether the arguments so far are a whole JSON text."""
        text = self.arguments().strip()
        if not text or (text.startswith("{") and not text.endswith("}")):
            return False
        try:
            orjson.loads(text)
        except ValueError:
            return False
        return True


class _Entry:
    """One element of `delta.tool_calls`, normalised: absent is None, or `""` for name and piece."""

    __slots__ = ("id", "index", "merged", "name", "native", "piece")

    def __init__(self, raw: dict[str, Any]) -> None:
        function = raw.get("function")
        if not isinstance(function, dict):
            function = {}
        index, id_, name, arguments = raw.get("index"), raw.get("id"), function.get("name"), function.get("arguments")
        self.index: int | None = index if type(index) is int else None
        self.id: str | None = id_ or None if isinstance(id_, str) else str(id_) if type(id_) is int else None
        self.name = name if isinstance(name, str) else ""
        self.merged: dict[str, Any] | None = arguments if isinstance(arguments, dict) else None
        self.piece = arguments if isinstance(arguments, str) else "" if arguments is None else _json_text(arguments)
        self.native = _unknown_keys(raw, function)

    def is_empty(self) -> bool:
        return not (self.id or self.name or self.piece or self.native)

    def opens(self) -> bool:
        return self.piece.lstrip().startswith("{")


class CallAssembly:
    """Fold in every entry as it comes; `calls()` tells what they made, in the order in which the calls began.

    `offered` are the names of the offered tools, which tell a name in pieces from one that is said again. `dropped`
    counts the pieces that belonged to no call.
    """

    __slots__ = ("_active", "_by_id", "_by_index", "_calls", "_offered", "dropped")

    def __init__(self, offered: Collection[str] = ()) -> None:
        self.dropped = 0
        self._offered = frozenset(offered)
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        self._active: _Call | None = None

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, entries: Any) -> None:
        """Fold in one chunk's `tool_calls`; what is not shaped like an entry is ignored."""
        for raw in entries if isinstance(entries, list) else [entries]:
            if not isinstance(raw, dict):
                continue
            entry = _Entry(raw)
            if entry.is_empty():
                continue
            call = self._call_of(entry)
            if call is None:
                self.dropped += 1
                continue
            self._active = call
            self._fold(call, entry)

    def calls(self) -> tuple[DraftCall, ...]:
        """The calls so far. Their arguments are what the model wrote, so they may be blank or no JSON."""
        return tuple(
            DraftCall(clean_text(call.id) if call.id else None, clean_text(call.name), call.arguments(), call.native)
            for call in self._calls
        )

    def _call_of(self, entry: _Entry) -> _Call | None:
        held = self._by_index.get(entry.index) if entry.index is not None else None
        if entry.id is not None:
            known = self._by_id.get(entry.id)
            return self._of_known_id(entry, known) if known else self._of_unknown_id(entry, entry.id, held)
        if held is not None:
            return self._begun(entry) if _begins_another(held, entry) else held
        if entry.name:
            return self._begun(entry)
        if self._active is not None and entry.index is not None:
            self._bind(self._active, entry.index)
        return self._active

    def _of_known_id(self, entry: _Entry, known: _Call) -> _Call:
        if entry.name:
            elsewhere = entry.index is not None and bool(known.indexes) and entry.index not in known.indexes
            again = entry.merged is None and entry.opens() and known.is_complete()
            if elsewhere or again:
                return self._begun(entry)
        if entry.index is not None and entry.index not in self._by_index:
            self._bind(known, entry.index)
        return known

    def _of_unknown_id(self, entry: _Entry, id_: str, held: _Call | None) -> _Call:
        call: _Call | None = None
        if held is not None:
            late = held.id is None and not _begins_another(held, entry)
            if late or (not entry.name and not held.is_complete()):
                call = held
        elif entry.index is None and not entry.name and self._active is not None and self._active.id is None:
            call = self._active
        if call is None:
            return self._begun(entry)
        call.id = call.id or id_
        self._by_id[id_] = call
        return call

    def _begun(self, entry: _Entry) -> _Call:
        call = _Call()
        call.id = entry.id
        self._calls.append(call)
        if entry.id is not None:
            self._by_id[entry.id] = call
        if entry.index is not None:
            self._bind(call, entry.index)
        return call

    def _bind(self, call: _Call, index: int) -> None:
        call.indexes.add(index)
        self._by_index[index] = call

    def _fold(self, call: _Call, entry: _Entry) -> None:
        if entry.name:
            call.name = self._joined_name(call.name, entry.name)
        if entry.merged is not None and not call.pieces:
            call.merged = {**(call.merged or {}), **entry.merged}
        elif entry.piece and entry.merged is None:
            call.pieces.append(entry.piece)
        if entry.native:
            call.native = _merged(call.native, entry.native)

    def _joined_name(self, held: str, new: str) -> str:
        if not held or held == new:
            return new
        joined = held + new
        if held in self._offered and joined not in self._offered:
            return new if new in self._offered else held
        return joined


def _begins_another(held: _Call, entry: _Entry) -> bool:
    return bool(entry.name) and (entry.opens() or entry.name != held.name) and held.is_complete()


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _unknown_keys(raw: dict[str, Any], function: dict[str, Any]) -> dict[str, Any]:
    """What must go back with the call as it came: unknown keys, those inside `function`, and a type of its own kind."""
    if raw.keys() <= _KNOWN_KEYS and function.keys() <= _KNOWN_FUNCTION_KEYS and raw.get("type") in _PLAIN_TYPES:
        return {}
    native = {key: value for key, value in raw.items() if key not in _KNOWN_KEYS and value is not None}
    inner = {key: value for key, value in function.items() if key not in _KNOWN_FUNCTION_KEYS and value is not None}
    if inner:
        native["function"] = inner
    if isinstance(raw.get("type"), str) and raw["type"] not in _PLAIN_TYPES:
        native["type"] = raw["type"]
    try:
        cleaned: dict[str, Any] = clean_json(native)
    except TooDeep:
        return {}
    return cleaned


_PLAIN_TYPES = (None, "", "function")


def _merged(held: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Objects are merged at every depth; anything else is replaced by what came later."""
    merged = dict(held)
    for key, value in new.items():
        before = merged.get(key)
        merged[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged
