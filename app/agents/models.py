"""Agents, what happened to them (firings), and how many runs each tenant's day had. The API's shapes: `shapes.py`."""

from datetime import date, datetime
from typing import Any

from sqlalchemy import Column, Date, DateTime, ForeignKey, Index, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field as Column_
from sqlmodel import SQLModel


def _json() -> Any:
    return Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))


def _time(*, nullable: bool = True) -> Any:
    column = Column(DateTime(timezone=True), nullable=nullable)
    return Column_(default=None, sa_column=column) if nullable else Column_(sa_column=column)


class Agent(SQLModel, table=True):
    """`cron_after` is the moment up to which cron slots are settled, `next_at` the next slot (null: none is wanted), and
    `cron_run_id` the run of the last one. `activated_at` is since when it is active; failures before it do not count."""

    __tablename__ = "agents"
    __table_args__ = (
        UniqueConstraint("workspace_id", "name", name="agents_workspace_name"),
        Index("agents_by_workspace", "workspace_id", "id"),
        Index("agents_due", "next_at", postgresql_where=text("active AND next_at IS NOT NULL")),
    )

    id: str = Column_(primary_key=True)
    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False))
    tenant_type: str | None = None
    tenant_id: str | None = None
    name: str
    system_prompt: str
    model: Any = _json()
    event_triggers: Any = Column_(sa_column=Column(JSONB, nullable=False))
    cron: str | None = None
    timezone: str = "UTC"
    input: str | None = None
    allowed_tools: Any = _json()
    max_tasks_per_day: int = 200
    debounce_seconds: float = 30.0
    active: bool = True
    history: Any = _json()
    memory: Any = _json()
    redaction: Any = _json()
    config: Any = _json()
    cron_after: datetime | None = _time()
    next_at: datetime | None = _time()
    cron_run_id: str | None = None
    activated_at: datetime = _time(nullable=False)
    paused_at: datetime | None = _time()
    paused_reason: str | None = None
    created_at: datetime = _time(nullable=False)
    updated_at: datetime = _time(nullable=False)


def _agent() -> Any:
    return Column_(sa_column=Column(Text, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False))


class Firing(SQLModel, table=True):
    """One time an agent was to run: for every event, every cron slot and every manual start. `slot` is unique per agent."""

    __tablename__ = "firings"
    __table_args__ = (
        Index("firings_by_agent", "agent_id", "id"),
        Index("firings_slot", "agent_id", "slot", unique=True, postgresql_where=text("slot IS NOT NULL")),
        Index("firings_by_time", "at"),
    )

    id: str = Column_(primary_key=True)
    agent_id: str = _agent()
    kind: str
    event: str | None = None
    slot: datetime | None = _time()
    tenant_type: str | None = None
    tenant_id: str | None = None
    subject_type: str | None = None
    subject_id: str | None = None
    member_type: str | None = None
    member_id: str | None = None
    outcome: str
    reason: str | None = None
    detail: str | None = None
    run_id: str | None = None
    cause_run_id: str | None = None
    due_at: datetime | None = _time()
    at: datetime = _time(nullable=False)


class AgentDay(SQLModel, table=True):
    """How many runs of an agent a tenant's day has had; the day is that of the agent's time zone."""

    __tablename__ = "agent_days"

    agent_id: str = Column_(sa_column=Column(Text, ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True))
    tenant_type: str = Column_(primary_key=True)
    tenant_id: str = Column_(primary_key=True)
    day: date = Column_(sa_column=Column(Date, primary_key=True))
    count: int
