"""Sessions and their messages, as tables and as the API shows them."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, StringConstraints
from sqlalchemy import Boolean, Column, DateTime, ForeignKey, Index, Integer, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field as Column_
from sqlmodel import SQLModel

from app.infra import clock
from app.redaction.shapes import RedactionConfig
from app.run_options import HistoryConfig, MemoryConfig, ModelChoice, RunOptions, ToolNames
from app.scope import Reference, Scope, axis
from app.shapes import JsonObject, Shape


def _json() -> Any:
    return Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))


def _time() -> Any:
    return Column_(default=None, sa_column=Column(DateTime(timezone=True), nullable=True))


class Session(SQLModel, table=True):
    """`distilled_position` is the last message from which memories were drawn, 0 before the first time; `distil_claim` is
    whoever is at it, good until `distil_claimed_until` by the database's clock. `has_vault`: tokens stand in its messages
    for values in its vault."""

    __tablename__ = "sessions"
    __table_args__ = (
        Index("sessions_by_workspace", "workspace_id", "id"),
        Index("sessions_by_tenant", "workspace_id", "tenant_type", "tenant_id", "id"),
        Index(
            "sessions_undistilled",
            "updated_at",
            postgresql_where=text("next_position > distilled_position + 1"),
        ),
    )

    id: str = Column_(primary_key=True)
    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False))
    tenant_type: str
    tenant_id: str
    subject_type: str | None = None
    subject_id: str | None = None
    member_type: str | None = None
    member_id: str | None = None
    title: str | None = None
    agent_id: str | None = None
    system_prompt: str | None = None
    model: Any = _json()
    tools: Any = _json()
    context: Any = _json()
    history: Any = _json()
    memory: Any = _json()
    redaction: Any = _json()
    config: Any = _json()
    metadata_: Any = Column_(default=None, sa_column=Column("metadata", JSONB(none_as_null=True), nullable=True))
    next_position: int = 1
    distilled_position: int = Column_(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    distil_claim: str | None = None
    distil_claimed_until: datetime | None = Column_(default=None, sa_column=Column(DateTime(timezone=True), nullable=True))
    has_vault: bool = Column_(default=False, sa_column=Column(Boolean, nullable=False, server_default="false"))
    created_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))
    updated_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))


class StoredMessage(SQLModel, table=True):
    """`parts` holds what `content` cannot: image parts of a user's input. `position` is unique in the session. `tokens` are
    those of prose, by the newest vocabulary; null where nobody counted them."""

    __tablename__ = "messages"
    __table_args__ = (UniqueConstraint("session_id", "position", name="messages_session_position"),)

    id: str = Column_(primary_key=True)
    session_id: str = Column_(sa_column=Column(Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False))
    run_id: str | None = Column_(default=None, index=True)
    position: int
    role: str
    content: str
    parts: Any = _json()
    tool_calls: Any = _json()
    tool_call_id: str | None = None
    tokens: int | None = None
    created_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))


class Compression(SQLModel, table=True):
    """The summary of a session's older turns, and the work on it. A session without a row was never over its budget.

    `summary` stands for all prose up to `through_position`. `due_at` is when somebody shall look at it, with `options` (the
    history's settings as they were resolved, and the models); `claim` is whoever is at it, good until `claimed_until` by the
    database's clock. After `failures` in a row it rests until `resting_until`.
    """

    __tablename__ = "compressions"
    __table_args__ = (Index("compressions_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),)

    session_id: str = Column_(
        sa_column=Column(Text, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True, nullable=False)
    )
    summary: str | None = None
    summary_tokens: int = 0
    through_position: int = 0
    model: str | None = None
    options: Any = _json()
    due_at: datetime | None = _time()
    claim: str | None = None
    claimed_until: datetime | None = _time()
    failures: int = 0
    resting_until: datetime | None = _time()
    compressed_at: datetime | None = _time()


def message_json(row: Any) -> dict[str, Any]:
    """A message as the API and the events show it; `row` is a record or mapping of the table's columns."""
    return {
        "id": row["id"],
        "session_id": row["session_id"],
        "run_id": row["run_id"],
        "position": row["position"],
        "role": row["role"],
        "content": row["parts"] or row["content"],
        "tool_calls": row["tool_calls"] or [],
        "tool_call_id": row["tool_call_id"],
        "created_at": clock.rfc3339(row["created_at"]),
    }


Title = Annotated[str, StringConstraints(max_length=500)]
SystemPrompt = Annotated[str, StringConstraints(max_length=200_000)]


class SessionFields(Shape):
    """What a session keeps beside its scope; `config` takes any field of a run."""

    title: Title | None = None
    system_prompt: SystemPrompt | None = None
    model: ModelChoice | None = None
    tools: ToolNames | None = None
    context: JsonObject | None = None
    history: HistoryConfig | None = None
    memory: MemoryConfig | None = None
    redaction: RedactionConfig | None = None
    config: RunOptions | None = None
    metadata: JsonObject | None = None

    def as_columns(self) -> dict[str, Any]:
        """The fields that were named, as the table keeps them, but for `redaction`, which is kept sealed."""
        named: dict[str, Any] = self.model_dump(mode="json", exclude_unset=True, exclude={"redaction"})
        if "metadata" in named:
            named["metadata_"] = named.pop("metadata")
        return named


class SessionCreate(SessionFields):
    tenant: Reference
    subject: Reference | None = None
    member: Reference | None = None
    agent_id: str | None = None

    @property
    def scope(self) -> Scope:
        return Scope(tenant=self.tenant, subject=self.subject, member=self.member)


class SessionRead(BaseModel):
    id: str
    tenant: Reference
    subject: Reference | None
    member: Reference | None
    title: str | None
    agent_id: str | None
    system_prompt: str | None
    model: ModelChoice | None
    tools: list[str] | None
    context: JsonObject
    history: JsonObject | None
    memory: JsonObject | None
    redaction: JsonObject | None
    config: JsonObject
    metadata: JsonObject
    created_at: str
    updated_at: str


def session_json(row: Session, redaction: JsonObject | None = None) -> dict[str, Any]:
    """`redaction` with its dictionary opened."""
    return {
        "id": row.id,
        "tenant": axis(row, "tenant"),
        "subject": axis(row, "subject"),
        "member": axis(row, "member"),
        "title": row.title,
        "agent_id": row.agent_id,
        "system_prompt": row.system_prompt,
        "model": row.model,
        "tools": row.tools,
        "context": row.context or {},
        "history": row.history,
        "memory": row.memory,
        "redaction": redaction,
        "config": row.config or {},
        "metadata": row.metadata_ or {},
        "created_at": clock.rfc3339(row.created_at),
        "updated_at": clock.rfc3339(row.updated_at),
    }


class ImportedMessage(Shape):
    role: Literal["user", "assistant"]
    content: Annotated[str, StringConstraints(min_length=1, max_length=1_000_000)]
    created_at: Annotated[AwareDatetime, Field(strict=False)] | None = None


class MessagesImport(Shape):
    messages: Annotated[list[ImportedMessage], Field(min_length=1, max_length=1000)]


class MessageRead(BaseModel):
    id: str
    session_id: str
    run_id: str | None
    position: int
    role: Literal["user", "assistant", "tool"]
    content: str | list[JsonObject]
    tool_calls: list[JsonObject]
    tool_call_id: str | None
    created_at: str


class Imported(BaseModel):
    data: list[MessageRead]
