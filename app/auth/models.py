"""Workspaces and their keys, of which only the SHA-256 is kept."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, StringConstraints
from sqlalchemy import Column, DateTime, ForeignKey, LargeBinary, Text
from sqlmodel import Field as Column_
from sqlmodel import SQLModel

from app.infra import clock
from app.shapes import Shape

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def created_at_column() -> Column[datetime]:
    return Column(DateTime(timezone=True), nullable=False)


class Workspace(SQLModel, table=True):
    __tablename__ = "workspaces"

    id: str = Column_(primary_key=True)
    name: str
    created_at: datetime = Column_(sa_column=created_at_column())


class ApiKey(SQLModel, table=True):
    __tablename__ = "api_keys"

    id: str = Column_(primary_key=True)
    workspace_id: str | None = Column_(
        sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), index=True, nullable=True)
    )
    kind: str
    name: str
    hash: bytes = Column_(sa_column=Column(LargeBinary, nullable=False, unique=True))
    bootstrap: bool = False
    created_at: datetime = Column_(sa_column=created_at_column())


class WorkspaceCreate(Shape):
    name: Name


class WorkspaceRead(BaseModel):
    id: str
    name: str
    created_at: str

    @classmethod
    def of(cls, row: Workspace) -> "WorkspaceRead":
        return cls(id=row.id, name=row.name, created_at=clock.rfc3339(row.created_at))


class KeyCreate(Shape):
    """`workspace_id` is needed for a `service` key and refused for an `admin` key."""

    workspace_id: str | None = None
    kind: Literal["admin", "service"]
    name: Name


class KeyRead(BaseModel):
    id: str
    kind: str
    workspace_id: str | None
    name: str
    created_at: str

    @classmethod
    def of(cls, row: ApiKey) -> "KeyRead":
        return cls(
            id=row.id,
            kind=row.kind,
            workspace_id=row.workspace_id,
            name=row.name,
            created_at=clock.rfc3339(row.created_at),
        )


class KeyCreated(KeyRead):
    """The only answer that holds the key itself."""

    key: str
