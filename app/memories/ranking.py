"""How heavy a note is, and which notes are sent. Pure.

weight = .40 relevance + .25 importance + .20 recency + .15 evidence, each 0 to 1; without a question relevance drops out and
the rest is scaled up. Nothing here depends on whether a note was sent before.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from app.memories.notes import Kind
from app.memories.wording import content_words, stem
from app.scope import Scope

RELEVANCE, IMPORTANCE, RECENCY, EVIDENCE = 0.40, 0.25, 0.20, 0.15
HALF_LIFE_DAYS = {Kind.PREFERENCE: 180, Kind.FACT: 180, Kind.DECISION: 120, Kind.PROCEDURE: 365, Kind.EVENT: 30}
RRF_K = 60
HEAVIEST = 5
MAX_TERMS = 32
_MAX_QUERY_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A note that could be sent. A rank (from 1, equal ones share it) is None where that list does not have the note."""

    id: str
    scope: Scope
    kind: Kind
    content: str
    importance: int
    evidence_count: int
    pinned: bool
    created_at: datetime
    days_since_confirmed: float
    word_rank: int | None = None
    likeness_rank: int | None = None


class Why(StrEnum):
    PINNED = "pinned"
    HEAVIEST = "heaviest"
    WEIGHT = "weight"
    NO_ROOM = "no_room"


@dataclass(frozen=True, slots=True)
class Considered:
    """One note that could have been sent: whether it is, how much it weighs (0 to 1), and why (a `Why`)."""

    id: str
    chosen: bool
    weight: float
    reason: str

    def left_out(self) -> "Considered":
        return replace(self, chosen=False, reason=str(Why.NO_ROOM))


def terms(query: str) -> list[str]:
    """The content words of a question, of which the first 32 are looked for; blank questions have none."""
    return content_words(query[:_MAX_QUERY_CHARS])[:MAX_TERMS]


def prefix_queries(words: Sequence[str]) -> list[str]:
    """Each word as a full-text query of its first 70 %, e.g. `'invoi':*`."""
    return [f"'{stem(word)}':*" if len(word) > 3 and word.isalpha() else f"'{word}'" for word in words]


def relevance_of(candidates: Sequence[Candidate]) -> dict[str, float]:
    """Reciprocal-rank fusion of the lists that found anything, 1 for what stands first in all of them, 0 for the rest."""
    ranked = [[note.word_rank for note in candidates], [note.likeness_rank for note in candidates]]
    lists = [ranks for ranks in ranked if any(rank is not None for rank in ranks)]
    best = len(lists) / (RRF_K + 1)
    return {
        note.id: sum(1 / (RRF_K + rank) for ranks in lists if (rank := ranks[place]) is not None) / best if lists else 0.0
        for place, note in enumerate(candidates)
    }


def weight_of(note: Candidate, relevance: float | None) -> float:
    """0 to 1; `relevance` is None where nothing was asked."""
    importance = (note.importance - 1) / 4
    recency = math.exp2(-max(0.0, note.days_since_confirmed) / HALF_LIFE_DAYS[note.kind])
    evidence = min(1.0, math.log2(1 + note.evidence_count) / 4)
    rest = IMPORTANCE * importance + RECENCY * recency + EVIDENCE * evidence
    if relevance is None:
        return rest / (1 - RELEVANCE)
    return RELEVANCE * relevance + rest


def ordered(candidates: Sequence[Candidate], *, asked: bool) -> list[tuple[Candidate, float, Why]]:
    """In the order of their claim to be sent: pinned, the five heaviest whatever was asked, then by weight."""
    relevance = relevance_of(candidates) if asked else {}
    weights = {note.id: weight_of(note, relevance[note.id] if asked else None) for note in candidates}
    plain = {note.id: weight_of(note, None) for note in candidates}
    by_weight = sorted(candidates, key=lambda note: (-weights[note.id], note.id))
    pinned = [note for note in by_weight if note.pinned]
    others = [note for note in by_weight if not note.pinned]
    heaviest = sorted(others, key=lambda note: (-plain[note.id], note.id))[:HEAVIEST]
    first = {note.id for note in heaviest}
    rest = [note for note in others if note.id not in first]
    groups = ((pinned, Why.PINNED), (heaviest, Why.HEAVIEST), (rest, Why.WEIGHT))
    return [(note, weights[note.id], why) for notes, why in groups for note in notes]


def choose(
    candidates: Sequence[Candidate], *, asked: bool, fits: Callable[[Candidate], bool]
) -> tuple[list[Candidate], tuple[Considered, ...]]:
    """Take notes in their order, each if it `fits` beside those taken before; and what is to be told of all of them."""
    chosen, considered = [], []
    for note, weight, why in ordered(candidates, asked=asked):
        taken = fits(note)
        if taken:
            chosen.append(note)
        considered.append(Considered(note.id, taken, round(weight, 4), str(why if taken else Why.NO_ROOM)))
    return chosen, tuple(considered)
