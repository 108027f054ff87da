"""What of the memories goes into the next turn: read in one round trip, chosen and written down by pure functions.

Reading writes nothing, so that being shown never makes a note heavier.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.infra.database import Pool
from app.memories.block import Room, memory_block
from app.memories.notes import Kind
from app.memories.ranking import Candidate, Considered, choose, prefix_queries, terms
from app.memories.statements import CANDIDATE, CANDIDATES, HEAVIEST_READ
from app.scope import Scope, axis

_RECALL = CANDIDATES.format(columns=CANDIDATE)


@dataclass(frozen=True, slots=True)
class Recalled:
    """`block` is None when nothing is sent; `considered` are all notes that were looked at, in their order of claim."""

    block: str | None
    considered: tuple[Considered, ...]


async def recall(
    pool: Pool, workspace_id: str, scope: Scope, query: str | None, max_tokens: int, count_tokens: Callable[[str], int]
) -> Recalled:
    """The memories for a turn of this scope in at most `max_tokens`. `query` is what the user asks, None if nothing.

    Reads the 200 most important notes that apply and at most 100 that the question's words find.
    """
    if max_tokens <= 0:
        return Recalled(None, ())
    words = terms(query or "")
    rows = await pool.fetch(_RECALL, workspace_id, *scope.as_columns().values(), words, prefix_queries(words), HEAVIEST_READ)
    return chosen_of([candidate(row) for row in rows], asked=bool(words), max_tokens=max_tokens, count_tokens=count_tokens)


def chosen_of(candidates: list[Candidate], *, asked: bool, max_tokens: int, count_tokens: Callable[[str], int]) -> Recalled:
    """The block of those that fit; the last ones give way should the whole count for more than its parts."""
    chosen, considered = choose(candidates, asked=asked, fits=Room(max_tokens, count_tokens).fits)
    block = memory_block(chosen)
    while block is not None and count_tokens(block) > max_tokens:
        dropped = chosen.pop()
        considered = tuple(one.left_out() if one.id == dropped.id else one for one in considered)
        block = memory_block(chosen)
    return Recalled(block, considered)


def candidate(row: Mapping[str, Any]) -> Candidate:
    return Candidate(
        id=row["id"],
        scope=scope_of(row),
        kind=Kind(row["kind"]),
        content=row["content"],
        importance=row["importance"],
        evidence_count=row["evidence_count"],
        pinned=row["pinned"],
        created_at=row["created_at"],
        days_since_confirmed=row["days_since_confirmed"],
        word_rank=row["word_rank"],
        likeness_rank=row["likeness_rank"],
    )


def scope_of(row: Mapping[str, Any]) -> Scope:
    return Scope.model_validate({name: axis(row, name) for name in ("tenant", "subject", "member")})
