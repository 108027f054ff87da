"""What a model's proposals may be judged by, and how decisions are stored. The distiller and `remember` both go this way:

async with transaction:
    shelf = await read_shelf(connection, workspace_id, session_scope, [proposal.text for proposal in proposals])
    decisions = judge(proposals, Context(scope, lines, …, notes=shelf.notes, deleted=shelf.deleted))
    await store(connection, workspace_id, Origin(session_id), decisions)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from app.infra import clock
from app.infra.database import Connection, Pool
from app.memories import writing
from app.memories.admission import Add, Confirm, Decision, Known, Note, Pend, Refuse, Supersede
from app.memories.notes import Source, Status
from app.memories.ranking import ordered, prefix_queries, terms
from app.memories.recall import candidate, scope_of
from app.memories.statements import CANDIDATE, CANDIDATES, HEAVIEST_READ, LIVING
from app.memories.wording import norm, norm_hash
from app.memories.writing import Origin
from app.scope import Scope, applies

_CANDIDATES = CANDIDATES.format(columns=f"{CANDIDATE}, status, source")
NOTES_READ = 2000
"""How many notes a proposal is compared with; a scope has 200 of them by models, and what people wrote."""


@dataclass(frozen=True, slots=True)
class Shelf:
    notes: tuple[Known, ...]
    deleted: frozenset[tuple[Scope, bytes]]


async def read_shelf(connection: Connection, workspace_id: str, scope: Scope, texts: Sequence[str]) -> Shelf:
    """The notes, active and pending, that apply to a session's scope, and which of `texts` were deleted there. Holds the
    locks of all scopes it may write to until the transaction ends, so that what is judged by it may be stored."""
    await writing.lock_scopes(connection, workspace_id, writable(scope))
    rows = await connection.fetch(
        f"SELECT * FROM memories WHERE workspace_id = $1 AND {applies(2)} AND (status = 'pending' OR {LIVING})"
        " ORDER BY id DESC LIMIT $8",
        workspace_id, *scope.as_columns().values(), NOTES_READ,
    )  # fmt: skip
    buried = await connection.fetch(
        f"SELECT * FROM memory_tombstones WHERE workspace_id = $1 AND {applies(2)} AND norm_hash = ANY($8)",
        workspace_id, *scope.as_columns().values(), [norm_hash(norm(text)) for text in texts],
    )  # fmt: skip
    return Shelf(tuple(map(_known, rows)), frozenset((scope_of(row), row["norm_hash"]) for row in buried))


async def most_relevant(pool: Pool, workspace_id: str, scope: Scope, words: str, limit: int) -> tuple[Known, ...]:
    """The notes that a model is shown as known: of those that apply to a session's scope the ones that its words find, and
    then the heaviest."""
    asked = terms(words)
    rows = await pool.fetch(
        _CANDIDATES, workspace_id, *scope.as_columns().values(), asked, prefix_queries(asked), HEAVIEST_READ
    )
    by_id = {row["id"]: row for row in rows}
    chosen = ordered([candidate(row) for row in rows], asked=bool(asked))[:limit]
    return tuple(_known(by_id[note.id]) for note, _, _ in chosen)


def _known(row: Any) -> Known:
    return Known(row["id"], scope_of(row), row["content"], Status(row["status"]), row["pinned"], Source(row["source"]))


def writable(scope: Scope) -> list[Scope]:
    """The scopes that a session's notes may be kept in: with and without its subject, with and without its member."""
    return list(
        dict.fromkeys(
            Scope(tenant=scope.tenant, subject=subject, member=member)
            for subject in (None, scope.subject)
            for member in (None, scope.member)
        )
    )


async def store(
    connection: Connection, workspace_id: str, origin: Origin, decisions: Sequence[Decision]
) -> list[str | None]:
    """Carry decisions out under the locks that `read_shelf` took; the id of the note that each concerned, None for refused
    ones. Lines that were evidence of a note already do not make it weigh more."""
    return [await _store(connection, workspace_id, origin, decision) for decision in decisions]


async def _store(connection: Connection, workspace_id: str, origin: Origin, decision: Decision) -> str | None:
    match decision:
        case Refuse():
            return None
        case Confirm(memory_id, evidence):
            await _confirm(connection, workspace_id, origin, memory_id, evidence)
            return memory_id
        case Add(note):
            return await _insert(connection, workspace_id, origin, note)
        case Pend(note, doubt, target_id):
            waiting = {"status": Status.PENDING, "reason": str(doubt), "supersedes": target_id}
            return await _insert(connection, workspace_id, origin, note, waiting)
        case Supersede(target_id, note):
            added = await _insert(connection, workspace_id, origin, note)
            await writing.supersede(connection, target_id, added, clock.now())
            return added
        case _:
            assert_never(decision)


async def _insert(
    connection: Connection, workspace_id: str, origin: Origin, note: Note, more: dict[str, Any] | None = None
) -> str:
    values = {
        "kind": note.kind, "importance": note.importance, "source": Source.DISTILLED, "valid_to": note.valid_until,
        "distillation_id": origin.distillation_id, **(more or {}),
    }  # fmt: skip
    memory_id = await writing.insert(connection, workspace_id, note.scope, note.content, values)
    await writing.add_evidence(connection, memory_id, origin, note.evidence)
    return memory_id


async def _confirm(
    connection: Connection, workspace_id: str, origin: Origin, memory_id: str, evidence: Sequence[int]
) -> None:
    row = await writing.read_locked(connection, workspace_id, memory_id)
    if row is not None and await writing.add_evidence(connection, memory_id, origin, evidence):
        values = {"evidence_count": row["evidence_count"] + 1, "last_confirmed_at": clock.now()}
        await writing.change(connection, memory_id, "confirmed", values)
