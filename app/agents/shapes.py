"""What makes an agent and what starts it, and agents and firings as the API shows them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, field_validator

from app.agents.models import Agent
from app.infra import clock
from app.redaction.shapes import RedactionConfig
from app.run_options import HistoryConfig, MemoryConfig, ModelChoice, RunOptions, ToolNames
from app.runs.shapes import Input, is_blank
from app.scope import Reference, Scope, axis
from app.sessions.models import SystemPrompt
from app.shapes import JsonObject, Shape

EventName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
AgentName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
AgentInput = Annotated[str, StringConstraints(max_length=200_000)]


class _AgentFields(Shape):
    """What may be changed of an agent. `config` takes any field of a run; one that stands outside it wins over it."""

    model: ModelChoice | None = None
    cron: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    input: AgentInput | None = None
    history: HistoryConfig | None = None
    memory: MemoryConfig | None = None
    redaction: RedactionConfig | None = None
    config: RunOptions | None = None

    @field_validator("input", check_fields=False)
    @classmethod
    def _not_blank(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("must not be blank")
        return value

    def as_columns(self) -> dict[str, Any]:
        """The fields that were named, as the table keeps them, but for the tenant, and `redaction`, which is kept sealed."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"tenant", "redaction"})


class AgentCreate(_AgentFields):
    """`tenant` null: for every tenant of the workspace. `allowed_tools`: names of tools, and `agent:NAME` for other agents;
    without it those of `config.tools`, or none."""

    tenant: Reference | None = None
    name: AgentName
    system_prompt: SystemPrompt
    event_triggers: Annotated[list[EventName], Field(max_length=100)] = Field(default_factory=list)
    timezone: Annotated[str, StringConstraints(min_length=1, max_length=100)] = "UTC"
    allowed_tools: ToolNames = Field(default_factory=list)
    max_tasks_per_day: Annotated[int, Field(ge=0, le=1_000_000)] = 200
    debounce_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    active: bool = True


class AgentPatch(_AgentFields):
    """What is named is changed. `active: true` also ends a pause; failures and cron slots before it no longer count."""

    name: AgentName = ""
    system_prompt: SystemPrompt = ""
    event_triggers: Annotated[list[EventName], Field(max_length=100)] = Field(default_factory=list)
    timezone: Annotated[str, StringConstraints(min_length=1, max_length=100)] = "UTC"
    allowed_tools: ToolNames = Field(default_factory=list)
    max_tasks_per_day: Annotated[int, Field(ge=0, le=1_000_000)] = 200
    debounce_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    active: bool = True


class AgentRead(BaseModel):
    id: str
    tenant: Reference | None
    name: str
    system_prompt: str
    model: ModelChoice | None
    event_triggers: list[str]
    cron: str | None
    timezone: str
    input: str | None
    allowed_tools: list[str]
    max_tasks_per_day: int
    debounce_seconds: float
    active: bool
    history: JsonObject | None
    memory: JsonObject | None
    redaction: JsonObject | None
    config: JsonObject
    next_at: str | None
    paused_at: str | None
    paused_reason: str | None
    created_at: str
    updated_at: str


def agent_json(row: Agent, redaction: JsonObject | None = None) -> dict[str, Any]:
    """`next_at` is the next cron slot; `redaction` comes with its dictionary opened."""
    return {
        "id": row.id,
        "tenant": axis(row, "tenant"),
        "name": row.name,
        "system_prompt": row.system_prompt,
        "model": row.model,
        "event_triggers": row.event_triggers,
        "cron": row.cron,
        "timezone": row.timezone,
        "input": row.input,
        "allowed_tools": row.allowed_tools or [],
        "max_tasks_per_day": row.max_tasks_per_day,
        "debounce_seconds": row.debounce_seconds,
        "active": row.active,
        "history": row.history,
        "memory": row.memory,
        "redaction": redaction,
        "config": row.config or {},
        "next_at": _time(row.next_at),
        "paused_at": _time(row.paused_at),
        "paused_reason": row.paused_reason,
        "created_at": clock.rfc3339(row.created_at),
        "updated_at": clock.rfc3339(row.updated_at),
    }


class AgentRunCreate(Shape):
    """`POST /v1/agents/{id}/runs`. `input` in the place of the agent's own; the tenant is the agent's if it has one."""

    input: Input | None = None
    tenant: Reference | None = None
    subject: Reference | None = None
    member: Reference | None = None
    context: JsonObject | None = None

    @field_validator("input")
    @classmethod
    def _not_blank(cls, value: Any) -> Any:
        if value is not None and is_blank(value):
            raise ValueError("input must not be blank")
        return value


class TriggerCreate(Shape):
    """An event of the caller's. `payload` is data for the model; `context` reaches tools only."""

    event: EventName
    tenant: Reference
    subject: Reference | None = None
    member: Reference | None = None
    payload: Any = None
    context: JsonObject | None = None
    cause_run_id: str | None = None

    @property
    def scope(self) -> Scope:
        return Scope(tenant=self.tenant, subject=self.subject, member=self.member)


class Fired(BaseModel):
    agent_id: str
    run_id: str
    due_at: str


class Skipped(BaseModel):
    """`debounced` names the run that it joined; `invalid`: the agent cannot run as it is, its firings say why."""

    agent_id: str
    reason: Literal["debounced", "daily_ceiling", "inactive", "causality", "invalid"]
    run_id: str | None = None


class TriggerAnswer(BaseModel):
    fired: list[Fired]
    skipped: list[Skipped]


def firing_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """`kind`: event, cron, manual, pause. `outcome`: fired, skipped (with `reason`), paused. `slot` is cron's."""
    shown = {name: row[name] for name in ("id", "agent_id", "kind", "event", "outcome", "reason", "detail")}
    return {
        **shown,
        "tenant": axis(row, "tenant"),
        "subject": axis(row, "subject"),
        "member": axis(row, "member"),
        "run_id": row["run_id"],
        "cause_run_id": row["cause_run_id"],
        "slot": _time(row["slot"]),
        "due_at": _time(row["due_at"]),
        "at": clock.rfc3339(row["at"]),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else clock.rfc3339(moment)
