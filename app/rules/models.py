"""Rules: what people order, sent verbatim; as a table and as the API shows them."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, field_validator
from sqlalchemy import CheckConstraint, Column, Computed, DateTime, ForeignKey, Index, LargeBinary, Text, text
from sqlmodel import Field as Column_
from sqlmodel import SQLModel

from app.infra import clock
from app.scope import Reference, Scoped, axis
from app.shapes import JsonObject, Shape

Content = Annotated[str, StringConstraints(min_length=1, max_length=20_000)]
Position = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]


class Rule(SQLModel, table=True):
    __tablename__ = "rules"
    __table_args__ = (
        CheckConstraint(
            "(subject_type IS NULL) = (subject_id IS NULL) AND (member_type IS NULL) = (member_id IS NULL)",
            name="rules_axes_paired",
        ),
        Index("rules_active", "workspace_id", "scope_hash", postgresql_where=text("active")),
        Index("rules_by_workspace", "workspace_id", "id"),
        Index("rules_by_tenant", "workspace_id", "tenant_type", "tenant_id", "id"),
    )

    id: str = Column_(primary_key=True)
    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False))
    tenant_type: str
    tenant_id: str
    subject_type: str | None = None
    subject_id: str | None = None
    member_type: str | None = None
    member_id: str | None = None
    scope_hash: bytes | None = Column_(
        default=None,
        sa_column=Column(
            LargeBinary,
            Computed("scope_hash(tenant_type, tenant_id, subject_type, subject_id, member_type, member_id)", persisted=True),
            nullable=False,
        ),
    )
    content: str
    position: int = 0
    active: bool = True
    created_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))
    updated_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be blank")
    return value


class RuleCreate(Scoped):
    """Rules are sent in the order tenant, subject, member, and within each by `position`, then by age."""

    content: Content
    position: Position = 0
    active: bool = True

    check_content = field_validator("content")(_not_blank)


class RulePatch(Shape):
    """What is named changes; whose it is does not."""

    content: Content | None = None
    position: Position | None = None
    active: bool | None = None

    @field_validator("content", "position", "active")
    @classmethod
    def _given(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("null is no value of it; leave it out")
        return _not_blank(value) if isinstance(value, str) else value


class RuleRead(BaseModel):
    id: str
    tenant: Reference
    subject: Reference | None
    member: Reference | None
    content: str
    position: int
    active: bool
    created_at: str
    updated_at: str


def rule_json(row: Rule) -> JsonObject:
    return {
        "id": row.id,
        **{name: axis(row, name) for name in ("tenant", "subject", "member")},
        "content": row.content,
        "position": row.position,
        "active": row.active,
        "created_at": clock.rfc3339(row.created_at),
        "updated_at": clock.rfc3339(row.updated_at),
    }
