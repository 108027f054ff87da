"""Values to tokens: in a text, in many at once, in JSON.

Everything that is redacted in one call is read as one text, with marks between the parts that nothing matches across, so
that a result of a thousand small fields costs about what one text of their length does. What was found is hidden and the
rest read again until nothing more is found: so the outcome, read once more as trusted text, stays as it is.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.redaction import cues
from app.redaction.detectors import Context, detect
from app.redaction.dictionary import Dictionary, Entry
from app.redaction.labels import Label, Span, normal_form
from app.redaction.tokens import look_alikes, seen_tokens
from app.redaction.vault import Pair, Vault

LONG_INTEGER = 10**8
"""Integers from here on (nine digits) are read as texts."""

_LEARNED = frozenset({str(label) for label in (Label.PER, Label.ENT, Label.TEL, Label.ID, Label.CARD, Label.IBAN)})
_NOT_LEARNED = frozenset({str(label) for label in (Label.LIT, Label.URL, Label.KEY, Label.EMAIL, Label.IP, Label.COIN)})
_KEY_WORDS = re.compile(r"[^\W\d_]+?(?=[A-Z]|[\d\W_]|$)|[A-Z]+(?=[A-Z]|[\d\W_]|$)")
_SEPARATORS = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Found:
    """A value at `text[start:end]` of the original, and the token in its place."""

    start: int
    end: int
    label: str
    token: str


@dataclass(frozen=True, slots=True)
class _Hidden:
    """What stood there, and what stands there now."""

    value: str
    token: str
    label: str


@dataclass(slots=True)
class _Leaf:
    """One text. `parts` are what may still hold values, and what was hidden between; `cue` is read in front of it."""

    parts: list[str | _Hidden]
    trusted: bool
    cue: str = ""
    label: str | None = None
    """All of it is a value of this kind."""

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.token for part in self.parts)


@dataclass(slots=True)
class _Piece:
    """A part of a leaf, and where it stands in the text that is read."""

    start: int
    end: int
    leaf: _Leaf
    text: str
    spans: list[Span] = field(default_factory=list)


class Redactor:
    """Redacts for one session, with the dictionaries that apply.

    What was once a value in the session (also a name known only from a `Sra.` before it) is one wherever it comes again.
    Raises `RedactionError`, or what a detector raises: then nothing may be sent.

    `trusted` text was written by a model that was shown tokens, or by this class: its tokens stay, and the numbers of
    unknown ones are never given out. In other text whatever restore would take for a token becomes a literal.
    """

    def __init__(
        self, vault: Vault, entries: Iterable[Entry] = (), context: Context | None = None, known: Iterable[Pair] = ()
    ) -> None:
        """`known` are the vault's pairs, to be found again."""
        self._vault = vault
        self._names = Dictionary()
        self._own_labels: frozenset[str] = frozenset()
        self._context = replace(context or Context(), names=self._names)
        self.add(entries)
        for pair in known:
            if pair.value is not None:
                self._learn(pair.token.label, pair.value, pair.key)

    def add(self, entries: Iterable[Entry]) -> None:
        """Look for these too from now on."""
        for entry in entries:
            self._own_labels |= {entry.label}
            for value in (entry.value, *entry.aliases):
                self._names.add(entry.label, value, normal_form(entry.label, entry.value))

    def redact(self, text: str, *, trusted: bool = False) -> str:
        """The text with a token in the place of each value."""
        return self.redact_all([text], trusted=trusted)[0]

    def redact_all(self, texts: Sequence[str], *, trusted: bool = False) -> list[str]:
        """Many texts at the price of one."""
        leaves = [_Leaf([text], trusted) for text in texts]
        self._hide(leaves)
        return [leaf.text for leaf in leaves]

    def found(self, text: str) -> tuple[str, list[Found]]:
        """The text redacted as untrusted, and where its values stood in the original."""
        leaf = _Leaf([text], trusted=False)
        self._hide([leaf])
        spans, at = [], 0
        for part in leaf.parts:
            length = len(part) if isinstance(part, str) else len(part.value)
            if isinstance(part, _Hidden):
                spans.append(Found(at, at + length, part.label, part.token))
            at += length
        return leaf.text, spans

    def redact_json(self, value: Any, *, trusted: bool = False, labels: Mapping[str, str] | None = None) -> Any:
        """The JSON value with texts and keys redacted; an integer of nine digits and more that is a value becomes a text.

        A key is a cue for what stands under it. `labels` says of paths, as `items[].owner`, of what kind their texts are.
        """
        leaves = list(_leaves(value, trusted, labels or {}))
        self._hide(leaves)
        texts = iter([leaf.text for leaf in leaves])
        return _rebuilt(value, lambda: next(texts))

    def _hide(self, leaves: list[_Leaf]) -> None:
        for leaf in leaves:
            if leaf.label:
                self._hide_whole(leaf, leaf.label)
            elif leaf.trusted:
                leaf.parts = list(self._tokens_hidden(str(leaf.parts[0])))
        active, ends = leaves, time.thread_time() + self._context.seconds
        while active:
            text, pieces = _joined(active)
            spans = detect(text, self._context, self._look_alikes, ends=ends)
            changed, learned = self._replace(pieces, spans)
            active = leaves if learned else [leaf for leaf in active if id(leaf) in changed]

    def _look_alikes(self, text: str) -> Iterator[Span]:
        return look_alikes(text, self._vault.labels | self._own_labels)

    def _tokens_hidden(self, text: str) -> Iterator[str | _Hidden]:
        done = 0
        for seen in seen_tokens(text, self._vault.labels | self._own_labels, any_label=True):
            if seen.start > done:
                yield text[done : seen.start]
            yield self._kept(text[seen.start : seen.end])
            done = seen.end
        if done < len(text):
            yield text[done:]

    def _kept(self, written: str) -> _Hidden:
        """A token in trusted text, as it was written."""
        for seen in seen_tokens(written, self._vault.labels | self._own_labels, any_label=True):
            if self._vault.value_of(seen.token) is None:
                self._vault.retire(seen.token)
        return _Hidden(written, written, Label.LIT)

    def _hide_whole(self, leaf: _Leaf, label: str) -> None:
        text = str(leaf.parts[0])
        if text.strip():
            leaf.parts = [self._hidden(leaf, text, label, normal_form(label, text))]
            self._learn(label, text, normal_form(label, text))

    def _hidden(self, leaf: _Leaf, value: str, label: str, key: str) -> _Hidden:
        if leaf.trusted and label == Label.LIT:
            return self._kept(value)
        return _Hidden(value, str(self._vault.token_for(label, value, key)), label)

    def _replace(self, pieces: list[_Piece], spans: list[Span]) -> tuple[set[int], bool]:
        """The spans hidden in their leaves; the ids of the leaves that changed, and whether there is more to look for."""
        at = 0
        for span in spans:
            while at < len(pieces) and pieces[at].end <= span.start:
                at += 1
            place = at
            while place < len(pieces) and pieces[place].start < span.end:
                pieces[place].spans.append(span)
                place += 1
        changed = {id(piece.leaf): piece.leaf for piece in pieces if piece.spans}
        learned = False
        parts: dict[int, list[list[str | _Hidden]]] = {place: [] for place in changed}
        for piece in pieces:
            if id(piece.leaf) in changed:
                split, more = self._split(piece)
                parts[id(piece.leaf)].append(split)
                learned |= more
        for place, leaf in changed.items():
            texts = iter(parts[place])
            leaf.parts = [new for part in leaf.parts for new in (next(texts) if isinstance(part, str) else [part])]
        return set(changed), learned

    def _split(self, piece: _Piece) -> tuple[list[str | _Hidden], bool]:
        """The piece cut at its spans, and whether there is more to look for."""
        parts: list[str | _Hidden] = []
        learned, done = False, 0
        for span in piece.spans:
            start, end = max(0, span.start - piece.start), min(len(piece.text), span.end - piece.start)
            value = piece.text[start:end]
            key = span.key if end - start == span.end - span.start else normal_form(span.label, value)
            parts += [piece.text[done:start]] if start > done else []
            parts.append(self._hidden(piece.leaf, value, span.label, key))
            learned |= self._learn(span.label, value, key)
            done = end
        if done < len(piece.text):
            parts.append(piece.text[done:])
        return parts, learned

    def _learn(self, label: str, value: str, key: str) -> bool:
        if label in _NOT_LEARNED:
            return False
        learned = self._names.add(label, value, key, learned=True)
        if label in _LEARNED and label not in (Label.PER, Label.ENT):
            for plain in {_SEPARATORS.sub("", value), _SEPARATORS.sub("", key)}:
                learned |= self._names.add(label, plain, key, learned=True)
        return learned


def _joined(leaves: Iterable[_Leaf]) -> tuple[str, list[_Piece]]:
    """One text to read, and which part of it belongs where."""
    texts: list[str] = []
    pieces: list[_Piece] = []
    length = 0
    for leaf in leaves:
        texts += [cues.LEAF, leaf.cue]
        length += 1 + len(leaf.cue)
        for part in leaf.parts:
            if isinstance(part, str):
                pieces.append(_Piece(length, length + len(part), leaf, part))
            texts.append(part if isinstance(part, str) else cues.HIDDEN)
            length += len(texts[-1])
    return "".join(texts), pieces


def _cue_of(key: str) -> str:
    """`ownerPhone` and `owner_phone` read as words."""
    return " ".join(_KEY_WORDS.findall(key[:100])) + ": "


def _leaves(value: Any, trusted: bool, labels: Mapping[str, str], path: str = "", cue: str = "") -> Iterator[_Leaf]:
    if isinstance(value, str):
        yield _Leaf([value], trusted, cue, labels.get(path))
    elif _is_long(value):
        yield _Leaf([str(value)], trusted, cue, labels.get(path))
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item, trusted, labels, path + "[]", cue)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield _Leaf([key], trusted)
            yield from _leaves(item, trusted, labels, f"{path}.{key}" if path else key, _cue_of(key))


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LONG_INTEGER


def _rebuilt(value: Any, text: Callable[[], str]) -> Any:
    """The same value with the leaves' texts, in the order in which they were taken."""
    if isinstance(value, str):
        return text()
    if _is_long(value):
        redacted = text()
        return value if redacted == str(value) else redacted
    if isinstance(value, list):
        return [_rebuilt(item, text) for item in value]
    if isinstance(value, dict):
        return {text(): _rebuilt(item, text) for key, item in value.items()}
    return value
