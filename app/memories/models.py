"""Memories as tables: notes, where each comes from, what became of it, what was distilled, and what must not return."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Column, Computed, DateTime, ForeignKey, Identity, Index, LargeBinary, Text, text
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.dialects.postgresql import BIGINT, JSONB, TSVECTOR
from sqlmodel import Field as Column_
from sqlmodel import SQLModel

SCOPE_HASH = "scope_hash(tenant_type, tenant_id, subject_type, subject_id, member_type, member_id)"
PAIRED = "(subject_type IS NULL) = (subject_id IS NULL) AND (member_type IS NULL) = (member_id IS NULL)"


def _moment(*, nullable: bool = True) -> Any:
    column: Column[datetime] = Column(DateTime(timezone=True), nullable=nullable)
    return Column_(sa_column=column) if not nullable else Column_(default=None, sa_column=column)


def _workspace() -> Any:
    return Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False))


def scope_hash_column() -> Any:
    """Made by the database of the axes, so that it can never differ from them."""
    return Column_(default=None, sa_column=Column(LargeBinary, Computed(SCOPE_HASH, persisted=True), nullable=False))


class Memory(SQLModel, table=True):
    """One note. `valid_*` is the world's time, `created_at` and `invalidated_at` ours; `supersedes` is what a pending
    note retires when it is approved; `reason` tells why it is pending or has ended."""

    __tablename__ = "memories"
    __table_args__ = (
        CheckConstraint(PAIRED, name="memories_axes_paired"),
        CheckConstraint("importance BETWEEN 1 AND 5", name="memories_importance"),
        Index(
            "memories_one_active", "workspace_id", "scope_hash", "norm_hash", unique=True,
            postgresql_where=text("status = 'active'"),
        ),
        Index("memories_living", "workspace_id", "scope_hash", postgresql_where=text("status IN ('active', 'pending')")),
        Index("memories_by_workspace", "workspace_id", "id"),
        Index("memories_by_tenant", "workspace_id", "tenant_type", "tenant_id", "id"),
        Index(
            "memories_by_importance", "workspace_id", "scope_hash", text("pinned DESC"), text("importance DESC"),
            text("last_confirmed_at DESC"), postgresql_where=text("status = 'active'"),
        ),
        Index("memories_superseded_by", "superseded_by", postgresql_where=text("superseded_by IS NOT NULL")),
        Index("memories_supersedes", "supersedes", postgresql_where=text("supersedes IS NOT NULL")),
    )  # fmt: skip

    id: str = Column_(primary_key=True)
    workspace_id: str = _workspace()
    tenant_type: str
    tenant_id: str
    subject_type: str | None = None
    subject_id: str | None = None
    member_type: str | None = None
    member_id: str | None = None
    scope_hash: bytes | None = scope_hash_column()
    kind: str
    content: str
    norm: str
    norm_hash: bytes = Column_(sa_column=Column(LargeBinary, nullable=False))
    words: str | None = Column_(
        default=None, sa_column=Column(TSVECTOR, Computed("to_tsvector('simple'::regconfig, norm)", persisted=True))
    )
    importance: int
    evidence_count: int = 1
    pinned: bool = False
    source: str
    status: str
    reason: str | None = None
    superseded_by: str | None = Column_(
        default=None, sa_column=Column(Text, ForeignKey("memories.id", ondelete="SET NULL"), nullable=True)
    )
    supersedes: str | None = Column_(
        default=None, sa_column=Column(Text, ForeignKey("memories.id", ondelete="SET NULL"), nullable=True)
    )
    valid_from: datetime | None = _moment()
    valid_to: datetime | None = _moment()
    created_at: datetime = _moment(nullable=False)
    updated_at: datetime = _moment(nullable=False)
    last_confirmed_at: datetime = _moment(nullable=False)
    invalidated_at: datetime | None = _moment()
    expires_at: datetime | None = _moment()
    distillation_id: int | None = Column_(
        default=None,
        sa_column=Column(BIGINT, ForeignKey("distillations.id", ondelete="SET NULL"), nullable=True, index=True),
    )


class MemorySource(SQLModel, table=True):
    """A user's line that a note rests on; it goes with its session."""

    __tablename__ = "memory_sources"

    memory_id: str = Column_(sa_column=Column(Text, ForeignKey("memories.id", ondelete="CASCADE"), primary_key=True))
    session_id: str = Column_(
        sa_column=Column(Text, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True, index=True)
    )
    position: int = Column_(primary_key=True)


class MemoryEvent(SQLModel, table=True):
    """A change of a note, before and after. Outlives the note, without its text."""

    __tablename__ = "memory_events"
    __table_args__ = (Index("memory_events_by_memory", "memory_id", "id"),)

    id: int | None = Column_(default=None, sa_column=Column(BIGINT, Identity(always=True), primary_key=True))
    workspace_id: str = Column_(
        sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False, index=True)
    )
    memory_id: str
    action: str
    before: Any = Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))
    after: Any = Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))
    at: datetime = _moment(nullable=False)


class Distillation(SQLModel, table=True):
    """A range of a session's messages from which notes were drawn, or are to be; `dropped` counts refusals by reason."""

    __tablename__ = "distillations"
    __table_args__ = (
        Unique("session_id", "from_position", name="distillations_one_per_range"),
        Index("distillations_due", "next_attempt_at", postgresql_where=text("status = 'due'")),
    )

    id: int | None = Column_(default=None, sa_column=Column(BIGINT, Identity(always=True), primary_key=True))
    session_id: str = Column_(sa_column=Column(Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False))
    from_position: int
    to_position: int
    trigger: str
    status: str
    attempts: int = 0
    next_attempt_at: datetime | None = _moment()
    model: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    kept: int = 0
    dropped: Any = Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))
    error: str | None = None
    created_at: datetime = _moment(nullable=False)
    finished_at: datetime | None = _moment()


class MemoryTombstone(SQLModel, table=True):
    """What was deleted in a scope and must not be distilled again: the hash of its norm, never the text."""

    __tablename__ = "memory_tombstones"
    __table_args__ = (
        CheckConstraint(PAIRED, name="memory_tombstones_axes_paired"),
        Index("memory_tombstones_by_tenant", "workspace_id", "tenant_type", "tenant_id"),
    )

    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True))
    scope_hash: bytes | None = Column_(
        default=None, sa_column=Column(LargeBinary, Computed(SCOPE_HASH, persisted=True), primary_key=True)
    )
    norm_hash: bytes = Column_(sa_column=Column(LargeBinary, primary_key=True))
    tenant_type: str
    tenant_id: str
    subject_type: str | None = None
    subject_id: str | None = None
    member_type: str | None = None
    member_id: str | None = None
    created_at: datetime = _moment(nullable=False)
