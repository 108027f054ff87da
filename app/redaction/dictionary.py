"""Values that the caller names, found without case and marks as whole words, however many there are."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from app.redaction.labels import Label, Span, fold, is_label, normal_form

MAX_VALUE_CHARS = 500
_WORD = re.compile(r"[^\W_](?:[^\W_]|[\u0300-\u036f])*+")
_GAP = re.compile(r"[\s.,'’´`\"“”\-‐–·/_&+()#:]{0,3}(?<![.,]\n)")
_NO_SPACES = re.compile("[\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")


@dataclass(frozen=True, slots=True)
class Entry:
    """A value with other names for the same thing: `Entry("PER", "María Pérez", ("Mari",))`.

    Raises `ValueError` for a type that cannot be a label, and for a value without a letter or digit or over 500 characters.
    """

    label: str
    value: str
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_label(self.label):
            raise ValueError("a type has up to 16 capitals and digits, starts with a capital, and is not LIT")
        for value in (self.value, *self.aliases):
            if len(value) > MAX_VALUE_CHARS or not _WORD.search(value):
                raise ValueError(f"a value has a letter or digit and at most {MAX_VALUE_CHARS} characters")


@dataclass(frozen=True, slots=True)
class _Known:
    label: str
    key: str
    capital: bool | None
    """Whether it must start with a capital, or must not; None where case says nothing."""


class Dictionary:
    """Runs of folded words. A look costs one step for each word of the text, whatever the number of entries.

    Words of one or two letters, and values learned from a text, count only as capitalised as they were given, so that
    `Al` is no `al`.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._runs: dict[tuple[str, ...], _Known] = {}
        self._longest: dict[str, int] = {}
        self._unspaced: dict[str, _Known] = {}
        self._unspaced_shape: re.Pattern[str] | None = None
        for entry in entries:
            for value in (entry.value, *entry.aliases):
                self.add(entry.label, value, normal_form(entry.label, entry.value))

    def add(self, label: str, value: str, key: str, *, learned: bool = False) -> bool:
        """Look for this value from now on; False where it was known or says too little to be looked for."""
        words = tuple(fold(word) for word in _WORD.findall(value))
        if not words or (learned and len(words) == 1 and len(words[0]) < 4):
            return False
        strict = learned or sum(map(len, words)) <= 2
        known = _Known(label, key, value.lstrip()[:1].isupper() if strict else None)
        if _NO_SPACES.search(value):
            return self._add_unspaced(value, known)
        added = False
        for turned in _orders(words) if label == Label.PER else [words]:
            if turned not in self._runs or (self._runs[turned].capital is not None and not strict):
                self._runs[turned] = known
                self._longest[turned[0]] = max(len(turned), self._longest.get(turned[0], 0))
                added = True
        return added

    def _add_unspaced(self, value: str, known: _Known) -> bool:
        if value in self._unspaced:
            return False
        self._unspaced[value] = known
        longest_first = sorted(self._unspaced, key=len, reverse=True)
        self._unspaced_shape = re.compile("|".join(map(re.escape, longest_first)))
        return True

    def find(self, text: str) -> Iterator[Span]:
        """The longest value at each word, from left to right."""
        if self._unspaced_shape:
            for match in self._unspaced_shape.finditer(text):
                known = self._unspaced[match[0]]
                yield Span(match.start(), match.end(), known.label, known.key)
        if not self._runs:
            return
        longest = self._longest
        folded = [fold(word) for word in _WORD.findall(text)]
        if longest.keys().isdisjoint(folded):
            return
        words = [match.span() for match in _WORD.finditer(text)]
        at = 0
        while at < len(words):
            count = 0
            if folded[at] in longest:
                run, count = self._longest_run(text, words, folded, at)
                if run:
                    yield Span(words[at][0], words[at + count - 1][1], run.label, run.key)
            at += count or 1

    def _longest_run(self, text: str, words: list[tuple[int, int]], folded: list[str], at: int) -> tuple[_Known | None, int]:
        most = min(self._longest[folded[at]], len(words) - at)
        reach = 1
        while reach < most and _GAP.fullmatch(text, words[at + reach - 1][1], words[at + reach][0]):
            reach += 1
        for count in range(reach, 0, -1):
            known = self._runs.get(tuple(folded[at : at + count]))
            if known and known.capital in (None, text[words[at][0]].isupper()):
                return known, count
        return None, 0


def _orders(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """`Ana Díaz Gil` also as `Díaz Gil, Ana`."""
    return [words[cut:] + words[:cut] for cut in range(min(len(words), 6))]
