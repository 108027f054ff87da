"""Which value has which token. This is the pure half: a session's vault in memory, filled by one load, stored by one batch.

How a writer uses it, around one model call:

1. `SessionVault(pairs)` from one load, when the run starts (or once for all the runs of a process that share it).
2. Redact everything with it. New values get provisional numbers at once; nothing has left yet.
3. `fresh()` are the pairs to store, in one statement. Unique are (session, label, number, variant) and the value's HMAC
   under (session, label). If all went in, `mark_stored(pairs)`, and send.
4. If not all went in, a sibling (a child run, a summary in another process) was faster with a value or a number: undo the
   statement, load what stands there, `rebase(pairs)`, and store again. Stored tokens never change; our own that clash get
   new numbers, and `generation` grows.
5. Whoever redacted under an older `generation` redacts again from the same texts: a pure step, and the second time every
   value has its stored token. Send only what was redacted under the present generation and after its pairs are stored.

Siblings in one process share one vault: numbers are given under a lock, and each stores all that is fresh.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from app.redaction.labels import BUILT_IN
from app.redaction.tokens import Token


@dataclass(frozen=True, slots=True)
class Pair:
    """One row. `key` is what the spellings of the value share. `value` None: the number is never to be given to a value."""

    token: Token
    value: str | None
    key: str = ""


class Vault(Protocol):
    """What redacting and restoring need."""

    @property
    def labels(self) -> frozenset[str]:
        """The labels of which there are tokens, the built-in ones among them."""

    def token_for(self, label: str, value: str, key: str) -> Token:
        """The value's token, the same for the session's life; another spelling under a known key gets a variant."""

    def value_of(self, token: Token) -> str | None: ...

    def retire(self, token: Token) -> None:
        """Somebody wrote this unknown token: its number is never given to a value."""


class SessionVault:
    """A `Vault` in memory; see the module for how it is stored."""

    def __init__(self, stored: Iterable[Pair] = ()) -> None:
        self._lock = threading.RLock()
        self.generation = 0
        self._stored: dict[Token, Pair] = {}
        self._clear()
        for pair in stored:
            self._stored[pair.token] = pair
            self._enter(pair)

    def _clear(self) -> None:
        self._values: dict[Token, str] = {}
        self._tokens: dict[tuple[str, str], Token] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._variants: dict[tuple[str, int], int] = {}
        self._taken: dict[str, set[int]] = {}
        self._next: dict[str, int] = {}
        self._fresh: dict[Token, Pair] = {}
        self._labels = BUILT_IN

    def _enter(self, pair: Pair) -> None:
        token = pair.token
        self._taken.setdefault(token.label, set()).add(token.number)
        if token.label not in self._labels and pair.value is not None:
            self._labels |= {token.label}
        if pair.value is None:
            return
        self._values[token] = pair.value
        self._tokens[token.label, pair.value] = token
        self._numbers.setdefault((token.label, pair.key), token.number)
        place = (token.label, token.number)
        self._variants[place] = max(token.variant + 1, self._variants.get(place, 0))

    @property
    def labels(self) -> frozenset[str]:
        return self._labels

    def token_for(self, label: str, value: str, key: str) -> Token:
        known = self._tokens.get((label, value))
        if known:
            return known
        with self._lock:
            known = self._tokens.get((label, value))
            if known:
                return known
            number = self._numbers.get((label, key)) or self._free(label)
            pair = Pair(Token(label, number, self._variants.get((label, number), 0)), value, key)
            self._enter(pair)
            self._fresh[pair.token] = pair
            return pair.token

    def _free(self, label: str) -> int:
        number, taken = self._next.get(label, 1), self._taken.setdefault(label, set())
        while number in taken:
            number += 1
        self._next[label] = number
        return number

    def value_of(self, token: Token) -> str | None:
        return self._values.get(token)

    def retire(self, token: Token) -> None:
        with self._lock:
            if token.number in self._taken.get(token.label, ()):
                return
            pair = Pair(Token(token.label, token.number), None)
            self._enter(pair)
            self._fresh[pair.token] = pair

    def pairs(self) -> list[Pair]:
        """Everything known that has a value."""
        with self._lock:
            return [pair for pair in (*self._stored.values(), *self._fresh.values()) if pair.value is not None]

    def fresh(self) -> list[Pair]:
        """What is not stored yet, in the order it came."""
        with self._lock:
            return list(self._fresh.values())

    def mark_stored(self, pairs: Iterable[Pair]) -> None:
        with self._lock:
            for pair in pairs:
                if self._fresh.get(pair.token) == pair:
                    self._stored[pair.token] = self._fresh.pop(pair.token)

    def rebase(self, stored: Iterable[Pair]) -> bool:
        """Take in what others stored; True if a fresh token of ours had to change: texts must be redacted again."""
        with self._lock:
            ours = list(self._fresh.values())
            self._stored |= {pair.token: pair for pair in stored}
            self._clear()
            for pair in self._stored.values():
                self._enter(pair)
            changed = False
            for pair in ours:
                if pair.value is None:
                    self.retire(pair.token)
                else:
                    changed |= self.token_for(pair.token.label, pair.value, pair.key) != pair.token
            self.generation += changed
            return changed
