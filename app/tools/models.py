"""Registered tools. Their secrets and headers are kept encrypted; a secret is shown at creation and rotation only."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import Column, DateTime, ForeignKey, LargeBinary, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field as Column_
from sqlmodel import SQLModel

from app.infra import clock
from app.redaction.shapes import ToolRedaction
from app.shapes import Shape

TOOL_NAME = r"^[A-Za-z0-9_-]{1,64}$"


class Tool(SQLModel, table=True):
    __tablename__ = "tools"

    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True))
    name: str = Column_(primary_key=True)
    description: str
    parameters: Any = Column_(sa_column=Column(JSONB, nullable=False))
    kind: str
    url: str | None = None
    timeout_seconds: float
    requires_approval: bool = False
    at_most_once: bool = False
    result_keys: Any = Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))
    redaction: Any = Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))
    active: bool = True
    headers: bytes | None = Column_(default=None, sa_column=Column(LargeBinary, nullable=True))
    secret: bytes = Column_(sa_column=Column(LargeBinary, nullable=False))
    old_secret: bytes | None = Column_(default=None, sa_column=Column(LargeBinary, nullable=True))
    old_secret_until: datetime | None = Column_(default=None, sa_column=Column(DateTime(timezone=True), nullable=True))
    created_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))
    updated_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))


class ToolPut(Shape):
    description: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    parameters: dict[str, Any]
    kind: Literal["webhook", "client"] = "webhook"
    url: Annotated[str, StringConstraints(max_length=2_000)] | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=300)] = 30.0
    requires_approval: bool = False
    at_most_once: bool = False
    result_keys: (
        Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=100)]], Field(max_length=50)] | None
    ) = None
    headers: dict[str, str] | None = None
    redaction: ToolRedaction | None = None
    active: bool = True


class ToolRead(BaseModel):
    """`headers` shows the names only: their values may be secrets."""

    name: str
    description: str
    parameters: dict[str, Any]
    kind: Literal["webhook", "client"]
    url: str | None
    timeout_seconds: float
    requires_approval: bool
    at_most_once: bool
    result_keys: list[str] | None
    headers: dict[str, str] | None
    redaction: dict[str, Any] | None
    active: bool
    created_at: str
    updated_at: str
    secret: str | None = None


def tool_json(row: Tool, header_names: list[str], secret: str | None = None) -> dict[str, Any]:
    shown = {
        "name": row.name,
        "description": row.description,
        "parameters": row.parameters,
        "kind": row.kind,
        "url": row.url,
        "timeout_seconds": row.timeout_seconds,
        "requires_approval": row.requires_approval,
        "at_most_once": row.at_most_once,
        "result_keys": row.result_keys,
        "headers": dict.fromkeys(header_names, "********") or None,
        "redaction": row.redaction,
        "active": row.active,
        "created_at": clock.rfc3339(row.created_at),
        "updated_at": clock.rfc3339(row.updated_at),
    }
    return shown if secret is None else {**shown, "secret": secret}
