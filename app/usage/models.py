"""Tokens spent, a row for each model call that gave an answer. It names no session, run or person: what is erased elsewhere
leaves nothing here but counts of its tenant."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Column, DateTime, ForeignKey, Identity, Index, Text
from sqlalchemy.dialects.postgresql import BIGINT
from sqlmodel import Field as Column_
from sqlmodel import SQLModel

from app.scope import Reference


class UsageRecord(SQLModel, table=True):
    """`model` is the one that answered, `purpose` what for: `run`, `compression` or `distillation`."""

    __tablename__ = "usage_records"
    __table_args__ = (Index("usage_by_workspace", "workspace_id", "at"),)

    id: int | None = Column_(default=None, sa_column=Column(BIGINT, Identity(always=True), primary_key=True))
    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False))
    at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))
    tenant_type: str
    tenant_id: str
    agent_id: str | None = None
    model: str
    purpose: str
    input_tokens: int = Column_(sa_column=Column(BIGINT, nullable=False))
    output_tokens: int = Column_(sa_column=Column(BIGINT, nullable=False))
    cached_tokens: int = Column_(sa_column=Column(BIGINT, nullable=False))
    reasoning_tokens: int = Column_(sa_column=Column(BIGINT, nullable=False))


class UsageRead(BaseModel):
    """One group: `tenant`, `model`, `agent_id` and `day` (UTC) where it was grouped by them. `cost` is by today's prices of
    the models that have one; null where none has."""

    tenant: Reference | None = None
    model: str | None = None
    agent_id: str | None = None
    day: str | None = None
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost: float | None


class InsightRead(BaseModel):
    """What became of a model's calls of a tool, by outcome. `hints`: results to which the guard's hint was added."""

    tool: str | None = None
    model: str | None = None
    calls: int
    ok: int
    neutral: int
    empty: int
    error: int
    invalid: int
    unknown: int
    failed: int
    denied: int
    cancelled: int
    skipped: int
    hints: int
    seconds: float | None


Row = dict[str, Any]
