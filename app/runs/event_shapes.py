"""The events of a run and what subscriptions are told, as the OpenAPI document tells them. What is sent is made elsewhere
(`app/events/frames.py`, `app/sources.py`): a delta has no time for models."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from app.runs.shapes import RunRead, RunUsage
from app.scope import Reference
from app.sessions.models import MessageRead


class _Event(BaseModel):
    """`seq` is the event's id in the stream."""

    model_config = ConfigDict(extra="forbid")

    run_id: str
    seq: int
    at: str


class RunChangedEvent(_Event):
    """The first two of a run, and the one that ends it."""

    type: Literal["run.queued", "run.started", "run.completed", "run.incomplete", "run.failed", "run.cancelled"]
    run: RunRead


class IterationStartedEvent(_Event):
    type: Literal["iteration.started"]
    iteration: int
    model: str


class ReasoningDeltaEvent(_Event):
    type: Literal["reasoning.delta"]
    iteration: int
    text: str


class MessageDeltaEvent(_Event):
    type: Literal["message.delta"]
    iteration: int
    message_id: str
    text: str


class MessageDiscardedEvent(_Event):
    """Forget this message's deltas: it is written anew."""

    type: Literal["message.discarded"]
    iteration: int
    message_id: str


class EventMessage(MessageRead):
    """The assistant's turn as stored. In a run that is not persisted it belongs to no session, or has no place in it."""

    session_id: str | None  # type: ignore[assignment]
    position: int | None  # type: ignore[assignment]


class MessageCompletedEvent(_Event):
    type: Literal["message.completed"]
    iteration: int
    message: EventMessage


class ToolInvokingEvent(_Event):
    """For every call, also one that will not be executed. `arguments` is a text where the model gave no JSON object."""

    type: Literal["tool.invoking"]
    iteration: int
    call_id: str
    tool: str
    arguments: Any


class ToolInvokedEvent(_Event):
    """`result` is the tool's own; `truncated`: the model saw less of it."""

    type: Literal["tool.invoked"]
    iteration: int
    call_id: str
    tool: str
    result: Any
    truncated: bool
    outcome: Literal["ok", "empty", "neutral", "error", "invalid", "unknown", "failed", "denied", "cancelled", "skipped"]
    seconds: float
    attempts: int


class IterationCompletedEvent(_Event):
    type: Literal["iteration.completed"]
    iteration: int
    finish_reason: str
    usage: RunUsage
    seconds: float


class GuardHintEvent(_Event):
    """`streak` results in a row had found nothing, and the model was told so."""

    type: Literal["guard.hint"]
    iteration: int
    call_id: str
    streak: int


class PendingCallRead(BaseModel):
    call_id: str
    tool: str
    arguments: Any
    reason: Literal["approval", "client", "async"]
    expires_at: str


class RunWaitingEvent(_Event):
    type: Literal["run.waiting"]
    pending: list[PendingCallRead]


class RunResumedEvent(_Event):
    type: Literal["run.resumed"]
    reason: Literal["answered", "recovered"]


class RunEvent(
    RootModel[
        Annotated[
            RunChangedEvent
            | IterationStartedEvent
            | ReasoningDeltaEvent
            | MessageDeltaEvent
            | MessageDiscardedEvent
            | MessageCompletedEvent
            | ToolInvokingEvent
            | ToolInvokedEvent
            | IterationCompletedEvent
            | GuardHintEvent
            | RunWaitingEvent
            | RunResumedEvent,
            Field(discriminator="type"),
        ]
    ]
):
    """One event of a run, by its `type`. A later version may have more of them: pass over what you do not know."""


class ToldRun(BaseModel):
    model_config = ConfigDict(extra="forbid")

    run: RunRead


class ToldUsage(BaseModel):
    """What a run spent, its children's among it."""

    model_config = ConfigDict(extra="forbid")

    run_id: str
    session_id: str | None
    agent_id: str | None
    parent_run_id: str | None
    tenant: Reference
    subject: Reference | None
    member: Reference | None
    model: str
    usage: RunUsage


class RunTold(BaseModel):
    """What a subscription is sent of a run that has ended, or waits."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["run.completed", "run.incomplete", "run.failed", "run.cancelled", "run.waiting"]
    timestamp: str
    data: ToldRun


class UsageTold(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["usage.recorded"]
    timestamp: str
    data: ToldUsage
