"""Client tokens: short-lived, for one session, for a browser. Only their SHA-256 is kept."""

from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from sqlalchemy import ARRAY, Column, DateTime, ForeignKey, LargeBinary, Text
from sqlmodel import Field as Column_
from sqlmodel import SQLModel
from sqlmodel.ext.asyncio.session import AsyncSession

from app.infra import clock
from app.infra.crypto import fingerprint, new_key
from app.infra.database import Pool
from app.sessions.models import Session
from app.shapes import Shape


class ClientToken(SQLModel, table=True):
    __tablename__ = "client_tokens"

    hash: bytes = Column_(sa_column=Column(LargeBinary, primary_key=True))
    workspace_id: str
    session_id: str = Column_(
        sa_column=Column(Text, ForeignKey("sessions.id", ondelete="CASCADE"), index=True, nullable=False)
    )
    can: list[str] = Column_(sa_column=Column(ARRAY(Text), nullable=False))
    expires_at: datetime = Column_(sa_column=Column(DateTime(timezone=True), nullable=False, index=True))


class TokenCreate(Shape):
    ttl_seconds: Annotated[int, Field(ge=1, le=86_400)] = 900
    can: Annotated[list[Literal["read", "run"]], Field(min_length=1, default_factory=lambda: ["read", "run"])]


class TokenCreated(BaseModel):
    token: str
    expires_at: str


async def create_token(db: AsyncSession, session: Session, wanted: TokenCreate) -> tuple[ClientToken, str]:
    """A token for one session, and its row."""
    token = new_key("client")
    row = ClientToken(
        hash=fingerprint(token),
        workspace_id=session.workspace_id,
        session_id=session.id,
        can=list(wanted.can),
        expires_at=clock.now() + timedelta(seconds=wanted.ttl_seconds),
    )
    db.add(row)
    return row, token


async def forget_expired_tokens(pool: Pool) -> None:
    await pool.execute("DELETE FROM client_tokens WHERE expires_at < now() - interval '1 hour'")
