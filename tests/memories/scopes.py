"""The scopes of `memory` tests: a law firm, two of its files, two of its lawyers, and another firm."""

from datetime import UTC, datetime, timedelta
from typing import Any

from app.memories.notes import Kind
from app.memories.ranking import Candidate
from app.scope import Reference, Scope

FIRM = Reference(type="despacho", id="org42")
OTHER_FIRM = Reference(type="despacho", id="org43")
FILE_7, FILE_8 = Reference(type="expediente", id="matter7"), Reference(type="expediente", id="matter8")
MARIA, JUAN = Reference(type="letrado", id="maria"), Reference(type="letrado", id="juan")

SCOPES = {
    "A": Scope(tenant=FIRM),
    "B": Scope(tenant=FIRM, subject=FILE_7),
    "C": Scope(tenant=FIRM, member=MARIA),
    "D": Scope(tenant=FIRM, subject=FILE_7, member=MARIA),
    "E": Scope(tenant=FIRM, subject=FILE_8),
    "F": Scope(tenant=FIRM, member=JUAN),
    "G": Scope(tenant=OTHER_FIRM),
}
SEEN = {
    "file 7, María": (Scope(tenant=FIRM, subject=FILE_7, member=MARIA), "ABCD"),
    "file 7, Juan": (Scope(tenant=FIRM, subject=FILE_7, member=JUAN), "ABF"),
    "the firm": (Scope(tenant=FIRM), "A"),
}
"""Of which scopes a session of a scope sees what is kept."""

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def body_of(scope: Scope) -> dict[str, Any]:
    """The axes as a request has them."""
    return scope.model_dump(mode="json", exclude_none=True)


def note(number: int, content: str = "", scope: str = "A", **fields: Any) -> Candidate:
    """A candidate; of two, the one with the lower number is the older."""
    given = {
        "kind": Kind.FACT, "importance": 3, "evidence_count": 1, "pinned": False, "days_since_confirmed": 0.0,
        "created_at": _BEGIN + timedelta(minutes=number), **fields,
    }  # fmt: skip
    return Candidate(id=f"mem_{number:04}", scope=SCOPES[scope], content=content or f"Note number {number}.", **given)
