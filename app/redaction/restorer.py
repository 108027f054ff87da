"""Tokens back to values: in a text, in a stream, in JSON. One pass: a restored value is never read again."""

from dataclasses import dataclass
from typing import Any

from app.redaction.tokens import held_from, seen_tokens
from app.redaction.vault import Vault


@dataclass(frozen=True, slots=True)
class Restored:
    """A JSON value with real values in it, what kinds they are of, and what stands in the way of using it."""

    value: Any
    labels: frozenset[str]
    unknown: tuple[str, ...]
    """Tokens that stand for nothing, as they were written."""

    clash: bool
    """Two keys of one object became the same."""


def restore(text: str, vault: Vault) -> str:
    """Real values for all known tokens; unknown ones stay as they are."""
    if "_" not in text:
        return text
    parts, done = [], 0
    for start, end, value in _values(text, vault):
        parts += [text[done:start], value]
        done = end
    return "".join([*parts, text[done:]]) if parts else text


def _values(text: str, vault: Vault) -> list[tuple[int, int, str]]:
    found = ((seen, vault.value_of(seen.token)) for seen in seen_tokens(text, vault.labels))
    return [(seen.start, seen.end, value) for seen, value in found if value is not None]


class StreamRestorer:
    """Restores a text that comes in pieces; any split gives what no split gives."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._held = ""
        self._before = ""

    def feed(self, delta: str) -> str:
        """What may be shown now; at most 48 characters wait."""
        text = self._held + delta
        if not text:
            return ""
        cut = held_from(text, self._vault.labels, self._before)
        self._held = text[cut:]
        return self._shown(text, cut)

    def flush(self) -> str:
        """The rest, at the end of the text."""
        text, self._held = self._held, ""
        return self._shown(text, len(text))

    def _shown(self, text: str, cut: int) -> str:
        """`text[:cut]` restored, as it reads with what stands before and behind it."""
        if not cut:
            return ""
        front = self._before
        self._before = text[cut - 1]
        if "_" not in text[:cut]:
            return text[:cut]
        whole, parts, done = front + text, [], len(front)
        for start, end, value in _values(whole, self._vault):
            if len(front) <= start < len(front) + cut:
                parts += [whole[done:start], value]
                done = end
        return "".join([*parts, whole[done : len(front) + cut]])


def restore_json(value: Any, vault: Vault) -> Restored:
    """The value with its texts and keys restored; what it is made of stays untouched."""
    walk = _Walk(vault)
    restored = walk.value(value)
    return Restored(restored, frozenset(walk.labels), tuple(dict.fromkeys(walk.unknown)), walk.clash)


class _Walk:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self.labels: set[str] = set()
        self.unknown: list[str] = []
        self.clash = False

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        restored = {self._text(key): self.value(item) for key, item in value.items()}
        self.clash |= len(restored) < len(value)
        return restored

    def _text(self, text: str) -> str:
        if "_" not in text:
            return text
        for seen in seen_tokens(text, self._vault.labels):
            if self._vault.value_of(seen.token) is not None:
                self.labels.add(seen.token.label)
            elif not seen.bare:
                self.unknown.append(text[seen.start : seen.end])
        for seen in seen_tokens(text, self._vault.labels, any_label=True):
            if seen.token.label not in self._vault.labels and text[seen.start] == "«" and text[seen.end - 1] == "»":
                self.unknown.append(text[seen.start : seen.end])
        return restore(text, self._vault)
