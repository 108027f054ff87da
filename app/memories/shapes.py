"""Memories as the API takes and shows them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field, StringConstraints, field_validator

from app.infra import clock
from app.memories.notes import MAX_CHARS, MIN_CHARS
from app.memories.wording import one_line
from app.scope import Reference, Scoped, axis
from app.shapes import JsonObject, Shape

KindName = Literal["preference", "fact", "decision", "event", "procedure"]
StatusName = Literal["active", "pending", "superseded", "expired"]


def _as_note(value: str) -> str:
    """One line, whatever was given; refused only for its length then."""
    content = one_line(value)
    if not MIN_CHARS <= len(content) <= MAX_CHARS:
        raise ValueError(f"a note has {MIN_CHARS} to {MAX_CHARS} characters on one line; this has {len(content)}")
    return content


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("out of range") from None


Content = Annotated[str, AfterValidator(_as_note), Field(json_schema_extra={"minLength": MIN_CHARS, "maxLength": MAX_CHARS})]
Importance = Annotated[int, Field(ge=1, le=5)]
Moment = Annotated[AwareDatetime, Field(strict=False), AfterValidator(_in_utc)]


class MemoryCreate(Scoped):
    """Line ends and control characters in `content` are collapsed to spaces."""

    kind: KindName = "fact"
    content: Content
    importance: Importance = 3
    pinned: bool = False
    expires_at: Moment | None = None


class MemoryPatch(Shape):
    """What is named changes; whose it is does not. `expires_at: null` clears it."""

    kind: KindName | None = None
    content: Content | None = None
    importance: Importance | None = None
    pinned: bool | None = None
    expires_at: Moment | None = None

    @field_validator("kind", "content", "importance", "pinned")
    @classmethod
    def _given(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("null is no value of it; leave it out")
        return value


class MemorySearch(Scoped):
    query: Annotated[str, StringConstraints(min_length=1, max_length=4000)]
    limit: Annotated[int, Field(ge=1, le=50)] = 10


class MemorySourceRead(BaseModel):
    """The user's messages that a note rests on; none for one that was written over the API."""

    session_id: str | None
    message_ids: list[str]


class MemoryRead(BaseModel):
    """`reason` tells why a note is pending or has ended."""

    id: str
    tenant: Reference
    subject: Reference | None
    member: Reference | None
    kind: KindName
    content: str
    importance: int
    pinned: bool
    status: StatusName
    reason: str | None
    evidence_count: int
    superseded_by: str | None
    source: MemorySourceRead
    created_at: str
    updated_at: str
    last_confirmed_at: str
    expires_at: str | None


class FoundMemory(MemoryRead):
    """`relevance` and `weight` are 0 to 1; the most relevant stands first."""

    relevance: float
    weight: float


class FoundMemories(BaseModel):
    data: list[FoundMemory]
    next: None


def memory_json(row: Mapping[str, Any]) -> JsonObject:
    """A note as the API shows it; `row` has the columns `statements.SHOWN`."""
    return {
        "id": row["id"],
        **{name: axis(row, name) for name in ("tenant", "subject", "member")},
        **{name: row[name] for name in ("kind", "content", "importance", "pinned", "status", "reason", "evidence_count")},
        "superseded_by": row["superseded_by"],
        "source": {"session_id": row["source_session_id"], "message_ids": row["source_message_ids"] or []},
        **{name: clock.rfc3339(row[name]) for name in ("created_at", "updated_at", "last_confirmed_at")},
        "expires_at": None if row["expires_at"] is None else clock.rfc3339(row["expires_at"]),
    }
