"""Subscriptions and what is to be delivered to them. Secrets and headers are kept encrypted."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints
from sqlalchemy import Column, DateTime, ForeignKey, Identity, Index, LargeBinary, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT, JSONB
from sqlmodel import Field as Column_
from sqlmodel import SQLModel

from app.infra import clock
from app.shapes import Shape


class Topic(StrEnum):
    """What can be subscribed to."""

    RUN_COMPLETED = "run.completed"
    RUN_INCOMPLETE = "run.incomplete"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"
    RUN_WAITING = "run.waiting"
    USAGE_RECORDED = "usage.recorded"


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    EXHAUSTED = "exhausted"
    """Its day is over; it can still be delivered by hand."""


def _moment(*, nullable: bool = True) -> Any:
    column: Column[datetime] = Column(DateTime(timezone=True), nullable=nullable)
    return Column_(sa_column=column) if not nullable else Column_(default=None, sa_column=column)


class Subscription(SQLModel, table=True):
    """`failures` are tries in a row that failed, since `failing_since`. `paused_at`: nothing is sent until a person or a
    delivery by hand resumes it; what happens meanwhile is kept."""

    __tablename__ = "subscriptions"
    __table_args__ = (Index("subscriptions_by_workspace", "workspace_id", "id"),)

    id: str = Column_(primary_key=True)
    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False))
    url: str
    events: list[str] = Column_(sa_column=Column(ARRAY(Text), nullable=False))
    active: bool = True
    headers: bytes | None = Column_(default=None, sa_column=Column(LargeBinary, nullable=True))
    secret: bytes = Column_(sa_column=Column(LargeBinary, nullable=False))
    old_secret: bytes | None = Column_(default=None, sa_column=Column(LargeBinary, nullable=True))
    old_secret_until: datetime | None = _moment()
    failures: int = 0
    failing_since: datetime | None = _moment()
    last_error: str | None = None
    paused_at: datetime | None = _moment()
    paused_reason: str | None = None
    created_at: datetime = _moment(nullable=False)
    updated_at: datetime = _moment(nullable=False)


class Delivery(SQLModel, table=True):
    """One event for one subscription: the outbox row, written with what it tells. `place` orders them. `changed` holds the
    columns of the run as they were when it began to wait; a run that has ended does not change. `by_hand`: also while the
    subscription is paused. Tries end a day after `due_at`."""

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("deliveries_by_subscription", "subscription_id", "place"),
        Index(
            "deliveries_pending", "subscription_id", "next_attempt_at", postgresql_where=text("status = 'pending'")
        ),
        Index("deliveries_of_run", "run_id", "subscription_id", "place"),
        Index("deliveries_done", "settled_at", postgresql_where=text("settled_at IS NOT NULL")),
    )  # fmt: skip

    id: str = Column_(primary_key=True)
    place: int | None = Column_(default=None, sa_column=Column(BIGINT, Identity(always=True), nullable=False))
    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False))
    subscription_id: str = Column_(
        sa_column=Column(Text, ForeignKey("subscriptions.id", ondelete="CASCADE"), nullable=False)
    )
    run_id: str = Column_(sa_column=Column(Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False))
    event: str
    changed: Any = Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))
    status: str
    attempts: int = 0
    by_hand: bool = False
    claim: str | None = None
    claimed_until: datetime | None = _moment()
    next_attempt_at: datetime = _moment(nullable=False)
    due_at: datetime = _moment(nullable=False)
    last_status: int | None = None
    last_error: str | None = None
    created_at: datetime = _moment(nullable=False)
    settled_at: datetime | None = _moment()


Url = Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
Topics = Annotated[list[Annotated[Topic, Field(strict=False)]], Field(min_length=1, max_length=len(Topic))]


class SubscriptionCreate(Shape):
    url: Url
    events: Topics
    active: bool = True
    headers: dict[str, str] | None = None


class SubscriptionPatch(Shape):
    """`active: true` also resumes a paused one."""

    url: Url | None = None
    events: Topics | None = None
    active: bool | None = None
    headers: dict[str, str] | None = None


class SubscriptionRead(BaseModel):
    """`headers` shows the names only. `secret` is in the answer of creation alone."""

    id: str
    url: str
    events: list[str]
    active: bool
    status: Literal["active", "paused", "inactive"]
    paused_reason: str | None
    failing_since: str | None
    last_error: str | None
    headers: dict[str, str] | None
    created_at: str
    updated_at: str
    secret: str | None = None


class DeliveryRead(BaseModel):
    """`id` is the `webhook-id` of every try. `last_status` and `last_error` are of the last one that failed."""

    id: str
    subscription_id: str
    event: str
    run_id: str
    status: DeliveryStatus
    attempts: int
    next_attempt_at: str | None
    last_status: int | None
    last_error: str | None
    created_at: str
    delivered_at: str | None


def subscription_json(row: Subscription, header_names: list[str], secret: str | None = None) -> dict[str, Any]:
    shown = {
        "id": row.id,
        "url": row.url,
        "events": row.events,
        "active": row.active,
        "status": "inactive" if not row.active else "active" if row.paused_at is None else "paused",
        "paused_reason": row.paused_reason,
        "failing_since": None if row.failing_since is None else clock.rfc3339(row.failing_since),
        "last_error": row.last_error,
        "headers": dict.fromkeys(header_names, "********") or None,
        "created_at": clock.rfc3339(row.created_at),
        "updated_at": clock.rfc3339(row.updated_at),
    }
    return shown if secret is None else {**shown, "secret": secret}


def delivery_json(row: Any) -> dict[str, Any]:
    pending, delivered = row["status"] == DeliveryStatus.PENDING, row["status"] == DeliveryStatus.DELIVERED
    return {
        "id": row["id"],
        "subscription_id": row["subscription_id"],
        "event": row["event"],
        "run_id": row["run_id"],
        "status": row["status"],
        "attempts": row["attempts"],
        "next_attempt_at": clock.rfc3339(row["next_attempt_at"]) if pending else None,
        "last_status": row["last_status"],
        "last_error": row["last_error"],
        "created_at": clock.rfc3339(row["created_at"]),
        "delivered_at": clock.rfc3339(row["settled_at"]) if delivered else None,
    }
