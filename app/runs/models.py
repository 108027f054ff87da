"""Runs and what they write down: iterations, tool calls, events. The API's shapes stand in `shapes.py`."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, ForeignKey, Index, Integer, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field as Column_
from sqlmodel import SQLModel


def _json() -> Any:
    return Column_(default=None, sa_column=Column(JSONB(none_as_null=True), nullable=True))


def _time(*, nullable: bool = True) -> Any:
    column = Column(DateTime(timezone=True), nullable=nullable)
    return Column_(default=None, sa_column=column) if nullable else Column_(sa_column=column)


class Run(SQLModel, table=True):
    """`request` is all that is needed to execute it, resolved when it was accepted, so that any process can.

    `claim` is the token of the process that owns it, fresh per claim, good until `lease_expires_at` by the database's
    clock; `epoch` counts the claims and fences the event log. `last_seq` is set with the terminal status. No event beyond
    `reserved_seq` and the stored ones was shown to anybody.

    A run that waits has no claim: `pending` tells for what, and `wake_at` until when. `worked_seconds` is the time that
    earlier owners worked on it, and `answered_epoch` the epoch in which it began to wait. `memories` are those that were
    sent, with their weights.

    A queued run starts at its `wake_at`, if it has one; until it is claimed, what comes for its `join_key` joins it.
    `depth` counts the events by which one run caused the next. `vault` is the owner of the vault that holds the values of
    what stands in tokens here; null while nothing does.
    """

    __tablename__ = "runs"
    __table_args__ = (
        Index("runs_by_workspace", "workspace_id", "id"),
        Index("runs_by_session", "session_id", "id"),
        Index(
            "runs_one_active", "session_id", unique=True,
            postgresql_where=text("status IN ('running', 'waiting') AND session_id IS NOT NULL"),
        ),
        Index("runs_unfinished", "status", "lease_expires_at", postgresql_where=text("status IN ('queued', 'running')")),
        Index("runs_waking", "wake_at", postgresql_where=text("status = 'waiting'")),
        Index("runs_by_agent", "agent_id", "id", postgresql_where=text("agent_id IS NOT NULL")),
        Index("runs_by_vault", "vault", postgresql_where=text("vault IS NOT NULL")),
        Index("runs_by_parent", "parent_run_id", postgresql_where=text("parent_run_id IS NOT NULL")),
        Index(
            "runs_joinable", "join_key", unique=True,
            postgresql_where=text(
                "status = 'queued' AND claim IS NULL AND cancel_requested_at IS NULL AND join_key IS NOT NULL"
            ),
        ),
    )  # fmt: skip

    id: str = Column_(primary_key=True)
    workspace_id: str = Column_(sa_column=Column(Text, ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=False))
    session_id: str | None = Column_(sa_column=Column(Text, ForeignKey("sessions.id", ondelete="CASCADE"), nullable=True))
    agent_id: str | None = None
    parent_run_id: str | None = None
    tenant_type: str
    tenant_id: str
    subject_type: str | None = None
    subject_id: str | None = None
    member_type: str | None = None
    member_id: str | None = None
    status: str
    finish_reason: str | None = None
    output: str | None = None
    output_parsed: Any = _json()
    error_code: str | None = None
    error_message: str | None = None
    model: str
    iterations: int = 0
    tool_calls: int = 0
    input_tokens: int = Column_(default=0, sa_column=Column(BigInteger, nullable=False))
    output_tokens: int = Column_(default=0, sa_column=Column(BigInteger, nullable=False))
    cached_tokens: int = Column_(default=0, sa_column=Column(BigInteger, nullable=False))
    reasoning_tokens: int = Column_(default=0, sa_column=Column(BigInteger, nullable=False))
    metadata_: Any = Column_(default=None, sa_column=Column("metadata", JSONB(none_as_null=True), nullable=True))
    request: Any = Column_(sa_column=Column(JSONB, nullable=False))
    claim: str | None = None
    epoch: int = 0
    lease_expires_at: datetime | None = _time()
    claimed_at: datetime | None = _time()
    worked_seconds: float = 0.0
    answered_epoch: int | None = None
    pending: Any = _json()
    memories: Any = _json()
    wake_at: datetime | None = _time()
    join_key: str | None = None
    depth: int = Column_(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    vault: str | None = None
    cancel_requested_at: datetime | None = _time()
    last_seq: int | None = None
    reserved_seq: int = Column_(default=0, sa_column=Column(Integer, nullable=False, server_default="0"))
    created_at: datetime = _time(nullable=False)
    started_at: datetime | None = _time()
    finished_at: datetime | None = _time()


class Iteration(SQLModel, table=True):
    """One iteration as it was written down: the reply to replay it, and every attempt at the model call."""

    __tablename__ = "iterations"

    run_id: str = Column_(sa_column=Column(Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True))
    iteration: int = Column_(primary_key=True)
    message_id: str
    reply: Any = _json()
    model_calls: Any = Column_(sa_column=Column(JSONB, nullable=False))
    created_at: datetime = _time(nullable=False)


class RunToolCall(SQLModel, table=True):
    """A call, stored before it is executed; what came of it is filled in when it has returned (`answered_at`).

    `sent_at` is kept of calls that must not be sent twice. `pending_reason` and `expires_at` stand while it waits for
    something outside; `resolution` is what came.
    """

    __tablename__ = "tool_calls"
    __table_args__ = (Index("tool_calls_by_run", "run_id", "iteration", "index"),)

    id: str = Column_(primary_key=True)
    run_id: str = Column_(sa_column=Column(Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False))
    iteration: int
    index: int
    position: int | None = None
    tool: str
    arguments: Any = _json()
    raw_arguments: str
    provider_id: str | None = None
    native: Any = _json()
    result: Any = Column_(default=None, sa_column=Column(JSONB, nullable=True))
    content: str | None = None
    truncated: bool = False
    outcome: str | None = None
    hint_streak: int | None = None
    status: int | None = None
    cause: str | None = None
    seconds: float | None = None
    attempts: int | None = None
    tokens: int | None = Column_(default=None, sa_type=BigInteger)
    sent_at: datetime | None = _time()
    pending_reason: str | None = None
    expires_at: datetime | None = _time()
    resolution: Any = _json()
    answered_at: datetime | None = _time()


class RunEvent(SQLModel, table=True):
    """Every event of a run but its deltas, without what other rows hold, so that a lost event log can be made again."""

    __tablename__ = "run_events"

    run_id: str = Column_(sa_column=Column(Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True))
    seq: int = Column_(primary_key=True)
    type: str
    at: str
    ref: str | None = None
    data: Any = _json()
