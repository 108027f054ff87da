"""The closed set of what a run can show. One class per event; its fields are the event's JSON, beside the frame's own.

The log adds `type`, `run_id`, `seq` and `at`. `message` and `run` are JSON objects as the API gives them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class RunQueued:
    type: ClassVar = "run.queued"
    run: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunStarted:
    type: ClassVar = "run.started"
    run: dict[str, Any]


@dataclass(frozen=True, slots=True)
class IterationStarted:
    type: ClassVar = "iteration.started"
    iteration: int
    model: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    type: ClassVar = "reasoning.delta"
    iteration: int
    text: str


@dataclass(frozen=True, slots=True)
class MessageDelta:
    type: ClassVar = "message.delta"
    iteration: int
    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class MessageDiscarded:
    type: ClassVar = "message.discarded"
    iteration: int
    message_id: str


@dataclass(frozen=True, slots=True)
class MessageCompleted:
    type: ClassVar = "message.completed"
    iteration: int
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolInvoking:
    type: ClassVar = "tool.invoking"
    iteration: int
    call_id: str
    tool: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class ToolInvoked:
    type: ClassVar = "tool.invoked"
    iteration: int
    call_id: str
    tool: str
    result: Any
    truncated: bool
    outcome: str
    seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class IterationCompleted:
    type: ClassVar = "iteration.completed"
    iteration: int
    finish_reason: str
    usage: dict[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class GuardHint:
    type: ClassVar = "guard.hint"
    iteration: int
    call_id: str
    streak: int


@dataclass(frozen=True, slots=True)
class RunWaiting:
    type: ClassVar = "run.waiting"
    pending: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RunResumed:
    type: ClassVar = "run.resumed"
    reason: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The one terminal event; `type` is `run.` and the run's status."""

    run: dict[str, Any]

    @property
    def type(self) -> str:
        return f"run.{self.run['status']}"


Event = (
    RunQueued
    | RunStarted
    | IterationStarted
    | ReasoningDelta
    | MessageDelta
    | MessageDiscarded
    | MessageCompleted
    | ToolInvoking
    | ToolInvoked
    | IterationCompleted
    | GuardHint
    | RunWaiting
    | RunResumed
    | RunEnded
)

TERMINAL_TYPES = frozenset({"run.completed", "run.incomplete", "run.failed", "run.cancelled"})
"""After one of these a stream ends."""
