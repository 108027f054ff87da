"""The loop's Provider: retries, failover and the telling of deltas around clients that make one attempt each."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Literal

from app.infra.pause import pause
from app.loop.events import MessageDelta, MessageDiscarded, ReasoningDelta
from app.loop.messages import ErrorCode, ModelCall, ModelFailure, Reply
from app.loop.ports import Emit, ModelRequest
from app.providers.client import ModelClient, ModelSettings, ProviderError, ProviderErrorKind

_CODES = {
    ProviderErrorKind.UNAVAILABLE: ErrorCode.PROVIDER_UNAVAILABLE,
    ProviderErrorKind.REJECTED: ErrorCode.PROVIDER_REJECTED,
    ProviderErrorKind.AUTH: ErrorCode.PROVIDER_AUTH,
    ProviderErrorKind.OVERFLOW: ErrorCode.CONTEXT_OVERFLOW,
    ProviderErrorKind.SCRIPT_EXHAUSTED: ErrorCode.SCRIPT_EXHAUSTED,
}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts` are per candidate. A wait is random between 0 and `base_seconds` doubled each time, up to `cap_seconds`;
    a provider's Retry-After is waited for up to `retry_after_limit_seconds`, and beyond it nothing is."""

    attempts: int = 4
    base_seconds: float = 0.5
    cap_seconds: float = 8.0
    retry_after_limit_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model to ask: its full name (`openai/gpt-5`), its client, and what is bound to it."""

    model: str
    client: ModelClient
    settings: ModelSettings


class RetryingProvider:
    """Asks the candidates in order until one gives a whole reply.

    Only what may pass by itself is tried again, and only before anything of this model call was shown does the next
    candidate get its turn. A message of which something was shown is discarded before it is written anew; when there is
    no further attempt, what was shown stays. Exceptions that are no `ProviderError` come through: bugs, and what `pause`
    finds.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        emit: Emit,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = pause,
        random: Callable[[], float] = random.random,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if not candidates:
            raise ValueError("at least one candidate is needed")
        self._candidates = tuple(candidates)
        self._emit = emit
        self._policy = policy or RetryPolicy()
        self._sleep, self._random, self._clock = sleep, random, clock

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        """The reply under the full name of the model that gave it, with every attempt, or why there is none."""
        call = _ModelCall(request, self._emit, self._clock)
        for candidate in self._candidates:
            answer = await self._ask_one(candidate, call)
            if isinstance(answer, Reply):
                return replace(answer, model=candidate.model, attempts=tuple(call.attempts))
            failure = ModelFailure(_CODES[answer.kind], answer.message, tuple(call.attempts))
            if call.shown_ever or not answer.retryable:
                break
        return failure

    async def _ask_one(self, candidate: Candidate, call: "_ModelCall") -> Reply | ProviderError:
        """One candidate's reply, or the error after which it is not asked again."""
        number = 1
        while True:
            answer = await call.attempt(candidate)
            if isinstance(answer, Reply):
                return answer
            wait_seconds = self._wait_seconds(answer, number)
            if wait_seconds is None:
                return answer
            call.discard()
            await self._sleep(wait_seconds)
            call.paused_seconds = wait_seconds
            number += 1

    def _wait_seconds(self, error: ProviderError, number: int) -> float | None:
        """How long to wait after attempt `number` before the next one; None when there shall be none."""
        policy = self._policy
        asked = error.retry_after_seconds or 0.0
        if not error.retryable or number >= policy.attempts or asked > policy.retry_after_limit_seconds:
            return None
        ceiling = min(policy.cap_seconds, policy.base_seconds * 2.0 ** (number - 1))
        return max(asked, self._random() * ceiling)


class _ModelCall:
    """The attempts at one model call: shows their deltas and keeps their record."""

    def __init__(self, request: ModelRequest, emit: Emit, clock: Callable[[], float]) -> None:
        self.attempts: list[ModelCall] = []
        self.shown_ever = False
        self._request, self._emit, self._clock = request, emit, clock
        self._started = 0.0
        self._first_at: float | None = None
        self.paused_seconds = 0.0

    async def attempt(self, candidate: Candidate) -> Reply | ProviderError:
        self._started, self._first_at = self._clock(), None
        answer: Reply | ProviderError
        try:
            answer = await candidate.client.reply(self._request, candidate.settings, self._show)
        except ProviderError as error:
            answer = error
        self._record(candidate, answer)
        return answer

    def discard(self) -> None:
        """Have the client forget what the last attempt showed, if anything."""
        if self._first_at is not None:
            self._first_at = None
            self._emit(MessageDiscarded(self._request.iteration, self._request.message_id))

    def _show(self, kind: Literal["text", "reasoning"], text: str) -> None:
        if not text:
            return
        if self._first_at is None:
            self._first_at = self._clock()
            self.shown_ever = True
        if kind == "text":
            self._emit(MessageDelta(self._request.iteration, self._request.message_id, text))
        else:
            self._emit(ReasoningDelta(self._request.iteration, text))

    def _record(self, candidate: Candidate, answer: Reply | ProviderError) -> None:
        call = ModelCall(
            model=candidate.model,
            attempt=len(self.attempts) + 1,
            seconds=round(self._clock() - self._started, 6),
            first_token_seconds=None if self._first_at is None else round(self._first_at - self._started, 6),
            paused_seconds=round(self.paused_seconds, 6),
        )
        self.paused_seconds = 0.0
        if isinstance(answer, Reply):
            call = replace(call, usage=answer.usage, finish_reason=answer.finish_reason)
        else:
            call = replace(call, error=answer.message)
        self.attempts.append(call)
