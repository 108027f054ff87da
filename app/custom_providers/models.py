"""Providers of a workspace: further servers and accounts of a known API. Keys and headers are kept encrypted."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, StringConstraints
from sqlalchemy import Column, DateTime, ForeignKey, LargeBinary, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field as Column_
from sqlmodel import SQLModel

from app.infra import clock
from app.shapes import JsonObject, Shape

PROVIDER_NAME = r"^[a-z0-9][a-z0-9_-]{0,63}$"


class CustomProvider(SQLModel, table=True):
    __tablename__ = "providers"

    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True))
    name: str = Column_(primary_key=True)
    kind: str
    base_url: str
    api_key: bytes = Column_(sa_column=Column(LargeBinary, nullable=False))
    headers: bytes | None = Column_(default=None, sa_column=Column(LargeBinary, nullable=True))
    options: Any = Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))
    created_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))
    updated_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))


class ProviderPut(Shape):
    """`options` are model options that every call gets; a run's own win over them."""

    kind: Literal["openai", "anthropic"]
    base_url: Annotated[str, StringConstraints(min_length=8, max_length=2000)]
    api_key: Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[\x21-\x7e]+$")]
    headers: dict[str, str] | None = None
    options: JsonObject | None = None


class ProviderRead(BaseModel):
    name: str
    kind: Literal["openai", "anthropic"]
    base_url: str
    headers: dict[str, str] | None
    options: JsonObject
    created_at: str
    updated_at: str


def provider_json(row: CustomProvider, header_names: list[str]) -> JsonObject:
    return {
        "name": row.name,
        "kind": row.kind,
        "base_url": row.base_url,
        "headers": dict.fromkeys(header_names, "********") or None,
        "options": row.options or {},
        "created_at": clock.rfc3339(row.created_at),
        "updated_at": clock.rfc3339(row.updated_at),
    }
