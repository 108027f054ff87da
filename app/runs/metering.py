"""A wrap of the Provider port that measures every attempt at a model call."""

from app.infra.telemetry import FIRST_TOKEN_SECONDS, MODEL_CALLS, MODEL_SECONDS, TOKENS
from app.loop.messages import ModelFailure, Reply
from app.loop.ports import ModelRequest, Provider


class MeteredProvider:
    def __init__(self, inner: Provider) -> None:
        self._inner = inner

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        answer = await self._inner.ask(request)
        for attempt in answer.attempts:
            MODEL_CALLS.labels("ok" if attempt.error is None else "failed").inc()
            MODEL_SECONDS.observe(attempt.seconds)
            if attempt.first_token_seconds is not None:
                FIRST_TOKEN_SECONDS.observe(attempt.first_token_seconds)
            TOKENS.labels("input").inc(attempt.usage.input_tokens)
            TOKENS.labels("output").inc(attempt.usage.output_tokens)
        return answer
