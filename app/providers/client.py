"""The seam between the loop's Provider port and one model API: what a client is given, and how it fails.

A client makes one attempt. It shows each delta as it comes, returns the whole reply, and raises `ProviderError` for
everything that its API or the way to it did wrong; any other exception is a bug of the client. Retries and failover are
not its business (see `retry.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from app.loop.messages import FinishReason, Reply
from app.loop.ports import ModelRequest

Show = Callable[[Literal["text", "reasoning"], str], None]
"""Called synchronously for every delta, in order, never with an empty text."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is bound to a model beside the request: its name without the provider's prefix, and the run's options."""

    model: str
    options: Mapping[str, Any]
    capabilities: tuple[str, ...] = ()
    response_schema: Mapping[str, Any] | None = None


class ProviderErrorKind(StrEnum):
    """Who can do something about it: time or another provider, the caller, the operator, a shorter prompt, the script."""

    UNAVAILABLE = "unavailable"
    REJECTED = "rejected"
    AUTH = "auth"
    OVERFLOW = "overflow"
    SCRIPT_EXHAUSTED = "script_exhausted"


class ProviderError(Exception):
    """One attempt failed. `message` may be shown to a caller: bounded, without secrets, headers or host names."""

    def __init__(
        self,
        kind: ProviderErrorKind,
        message: str,
        *,
        status: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after_seconds = retry_after_seconds

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.kind is ProviderErrorKind.UNAVAILABLE


class ModelClient(Protocol):
    """One model API."""

    async def reply(self, request: ModelRequest, settings: ModelSettings, show: Show) -> Reply:
        """Make one attempt; `Reply.attempts` is left empty. Raises `ProviderError`; cancelling it closes the connection."""
        ...


_FINISH = {
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
    "refusal": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
}


def finish_of(reason: str | None, *, has_calls: bool) -> FinishReason:
    """A provider's stop reason in Rondo's words.

    Whether there are calls decides between `tool_calls` and `stop`, whatever the provider said; only a cut or a filter
    stands above that. A reason that is not known counts as a normal end.
    """
    known = _FINISH.get(reason.lower()) if reason else None
    return known or (FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP)
