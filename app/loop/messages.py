"""What the loop speaks of: messages, calls, results, replies, and how a run ends.

Everything here is a frozen value. A `ToolCall` carries Rondo's own id (`call_…`); the id that a provider gave is kept
beside it, for pairing inside that provider's wire format only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal


class FinishReason(StrEnum):
    """Why one model call ended, in one vocabulary for all providers."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    PAUSE = "pause"
    """The provider wants to be asked again, with what it said so far, to go on."""


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE_STATUSES = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING)


class RunFinish(StrEnum):
    """`finish_reason` of a run; null while it is active."""

    STOP = "stop"
    MAX_ITERATIONS = "max_iterations"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    EMPTY = "empty"
    DEADLINE = "deadline"
    BUDGET = "budget"
    REJECTED = "rejected"
    ERROR = "error"
    CANCELLED = "cancelled"


class ErrorCode(StrEnum):
    """`error.code` of a failed run."""

    PROVIDER_UNAVAILABLE = "provider_unavailable"
    PROVIDER_REJECTED = "provider_rejected"
    PROVIDER_AUTH = "provider_auth"
    CONTEXT_OVERFLOW = "context_overflow"
    SCRIPT_EXHAUSTED = "script_exhausted"
    REDACTION_FAILED = "redaction_failed"
    HOOK_FAILED = "hook_failed"
    INTERNAL = "internal"


class ToolOutcome(StrEnum):
    """What became of one call. `error`: the model can mend it; `failed`: only a person can."""

    OK = "ok"
    EMPTY = "empty"
    NEUTRAL = "neutral"
    ERROR = "error"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    FAILED = "failed"
    DENIED = "denied"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens spent, as the provider reported them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def as_dict(self) -> dict[str, int]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cached_tokens": self.cached_tokens,
            "reasoning_tokens": self.reasoning_tokens,
        }


@dataclass(frozen=True, slots=True)
class DraftCall:
    """A call as a provider's stream gave it, before Rondo gave it an id.

    `arguments` is the text the model wrote, untouched (it may be blank or no JSON). `native` holds the provider's unknown
    keys of this call, to be sent back byte for byte with it.
    """

    provider_id: str | None
    name: str
    arguments: str
    native: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call with Rondo's id. `arguments` is the parsed object, or None where the text was none (`raw_arguments` has it)."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    raw_arguments: str
    provider_id: str | None = None
    native: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Image:
    """An image part: either a `url`, or base64 `data` with its `media_type`."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None


Content = str | tuple[str | Image, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of what a model is sent.

    `native` is what the provider that wrote an assistant message wants back with it (reasoning, signatures), and
    `native_model` names the model it belongs to; another model is never sent it.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: Content
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    native: Mapping[str, Any] = field(default_factory=dict)
    native_model: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part for part in self.content if isinstance(part, str))


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One attempt at a model call, as the trace shows it. `seconds` are wall time, after a pause of `paused_seconds`;
    `error` is for people."""

    model: str
    attempt: int
    seconds: float
    first_token_seconds: float | None = None
    usage: Usage = Usage()
    finish_reason: FinishReason | None = None
    error: str | None = None
    paused_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered. With finish reason `length` and calls, the last call was cut off."""

    text: str
    calls: tuple[DraftCall, ...] = ()
    reasoning: str = ""
    finish_reason: FinishReason = FinishReason.STOP
    usage: Usage = Usage()
    model: str = ""
    native: Mapping[str, Any] = field(default_factory=dict)
    attempts: tuple[ModelCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFailure:
    """A model call that gave no reply, after all retries and failovers. `message` may be shown to the caller."""

    code: ErrorCode
    message: str
    attempts: tuple[ModelCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came back of a call.

    `result` is the tool's own value (JSON), `status` the HTTP status if there was one, `cause` the reason of a failure for
    log and trace, never for the model. `tokens` were spent on it by models elsewhere, and count for the run's budget.
    """

    result: Any
    outcome: ToolOutcome
    seconds: float = 0.0
    attempts: int = 0
    status: int | None = None
    cause: str | None = None
    tokens: int = 0


class PendingReason(StrEnum):
    """What a call waits for: somebody's decision, the caller's own code, or a webhook that answered 202."""

    APPROVAL = "approval"
    CLIENT = "client"
    ASYNC = "async"


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A call that has no result yet, since it waits for something outside."""

    call: ToolCall
    reason: PendingReason
    expires_at: datetime | None = None
    """Set once it is stored."""


@dataclass(frozen=True, slots=True)
class Approved:
    """A decision to execute a call, with other arguments where somebody edited them."""

    arguments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A decision not to execute a call. Without a reason it ends the run."""

    reason: str | None = None


Resolution = Approved | Rejected | ToolResult
"""What came for a call that was waiting: a decision, or its result from outside."""


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A call with its result and `content`, the result as the model sees it (shortened, hint appended)."""

    call: ToolCall
    result: ToolResult
    content: str
    truncated: bool = False
    hint_streak: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, or that it waits (status `waiting`, without a finish reason)."""

    status: RunStatus
    finish_reason: RunFinish | None
    output: str | None = None
    output_parsed: Any = None
    error_code: ErrorCode | None = None
    error_message: str | None = None
    iterations: int = 0
