"""Vaults at rest. The values stand encrypted under a data key of their vault, and that key under the service's own keys."""

from datetime import datetime

from sqlalchemy import Column, DateTime, ForeignKey, ForeignKeyConstraint, Index, Integer, LargeBinary, Text
from sqlmodel import Field as Column_
from sqlmodel import SQLModel


class VaultKey(SQLModel, table=True):
    """One vault. `owner` is the session, or, of runs without one, the run at the root of them; `session_id` is the owner
    where that is a session. Without `sealed_key` nothing of the vault can be read again."""

    __tablename__ = "vault_keys"
    __table_args__ = (
        Index("vault_keys_by_session", "session_id"),
        Index("vault_keys_by_tenant", "workspace_id", "tenant_type", "tenant_id"),
    )

    owner: str = Column_(primary_key=True)
    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False))
    session_id: str | None = Column_(
        default=None, sa_column=Column(Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=True)
    )
    tenant_type: str
    tenant_id: str
    subject_type: str | None = None
    subject_id: str | None = None
    member_type: str | None = None
    member_id: str | None = None
    sealed_key: bytes = Column_(sa_column=Column(LargeBinary, nullable=False))
    created_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False))


class VaultEntry(SQLModel, table=True):
    """A token and what it stands for. `digest` is the value's HMAC, by which two writers find that they have the same one.
    Both are null where the number is never to be given to a value."""

    __tablename__ = "vault_entries"
    __table_args__ = (
        ForeignKeyConstraint(["owner"], ["vault_keys.owner"], ondelete="CASCADE"),
        Index("vault_entries_by_digest", "owner", "label", "digest", unique=True),
    )

    owner: str = Column_(primary_key=True)
    label: str = Column_(primary_key=True)
    number: int = Column_(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    variant: int = Column_(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    digest: bytes | None = Column_(default=None, sa_column=Column(LargeBinary, nullable=True))
    sealed: bytes | None = Column_(default=None, sa_column=Column(LargeBinary, nullable=True))
