"""The Provider port held to the model's context window: everything that is sent, tool schemas included.

Only where it would overflow is anything done, and then in this order: the older turns are summarised at once; the oldest
turns are left out, the summary last; the oldest tool results of this run are cut short. The system prompt, the input and
the last thing that was said stay whatever happens. When the provider itself says that it was too much, half of it is sent,
once; then its word stands.

The count is tiktoken's, corrected by what the provider reported of the last large prompt of the same model.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import orjson

from app.infra.telemetry import SHORTENED, log
from app.loop.messages import ErrorCode, Image, Message, ModelFailure, Reply
from app.loop.ports import ModelRequest, OfferedTool, Provider
from app.providers.tokens import count_tokens_of, vocabulary_of
from app.providers.windows import Window
from app.redaction.tokens import safe_cut
from app.runs.prompt import Prompt
from app.sessions.history import IMAGE_TOKENS, History

_OVERHEAD_TOKENS = 8
"""Per message and per tool: roles, separators, names."""
_SHORT_RESULT_CHARS = 400
LEFT_OUT = " […] [The rest of this result was left out: the conversation would not fit the model's context window.]"

_LEAST, _MOST = 0.5, 2.5
_WORTH_COMPARING_TOKENS = 1000


class TokenFactors:
    """Of each model, what a token counted here is in its own tokens: from the last large prompt whose size it reported.

    A report that is far off is not about the same text, and corrects nothing.
    """

    def __init__(self) -> None:
        self._factors: dict[str, float] = {}

    def of(self, model: str) -> float:
        return self._factors.get(model, 1.0)

    def learn(self, model: str, counted: int, reported: int) -> None:
        factor = reported / counted if counted else 0.0
        if counted >= _WORTH_COMPARING_TOKENS and _LEAST <= factor <= _MOST:
            self._factors[model] = factor


@dataclass(slots=True)
class Fitting:
    """What a run's prompt may become. `summarise` gives the history with its older turns summarised, or None."""

    prompt: Prompt
    model: str
    window: Window
    summarise: Callable[[], Awaitable[History | None]]
    factors: TokenFactors


class FittedProvider:
    """Knows which of the messages are the prompt's (the first ones), and which this run added."""

    def __init__(self, inner: Provider, fitting: Fitting) -> None:
        self._inner, self._prompt = inner, fitting.prompt
        self._model, self._window, self._factors = fitting.model, fitting.window, fitting.factors
        self._summarise: Callable[[], Awaitable[History | None]] | None = fitting.summarise
        self._given = len(fitting.prompt.messages)
        self._short: dict[int, Message] = {}
        self._schemas: list[str] | None = None
        self._counts: dict[str, int] = {}

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        own = request.messages[self._given :]
        schemas = self._schemas_of(request.tools)
        limit = int(self._window.room / self._factors.of(self._model))
        messages, tokens = await self._fit(own, schemas, limit)
        answer = await self._inner.ask(replace(request, messages=messages))
        if isinstance(answer, Reply):
            if tokens is not None and answer.model == self._model:
                self._factors.learn(self._model, tokens, answer.usage.input_tokens)
            return answer
        if answer.code is not ErrorCode.CONTEXT_OVERFLOW:
            return answer
        tokens = await self._count(messages) + await self._count_texts(schemas)
        fixed = await self._count(self._prompt.with_history(History()).messages) + await self._count_texts(schemas)
        smaller, _ = await self._fit(own, schemas, fixed + (tokens - fixed) // 2)
        if smaller == messages:
            return answer
        log.warning("context_overflow_retried", tokens=tokens)
        return _after(answer, await self._inner.ask(replace(request, messages=smaller)))

    def _schemas_of(self, tools: Sequence[OfferedTool]) -> list[str]:
        if self._schemas is None:  # a run's tools stay the same
            self._schemas = [f"{tool.name}{tool.description}{orjson.dumps(tool.parameters).decode()}" for tool in tools]
        return self._schemas

    async def _fit(
        self, own: Sequence[Message], schemas: Sequence[str], limit: int
    ) -> tuple[tuple[Message, ...], int | None]:
        """What is sent, and its tokens where they had to be counted."""
        messages = (*self._prompt.messages, *self._shortened(own))
        if _bytes(messages, schemas) <= limit:
            return messages, None
        beside = await self._count_texts(schemas)
        tokens = beside + await self._count(messages)
        if tokens > limit:
            await self._shorten(own, limit - beside)
            messages = (*self._prompt.messages, *self._shortened(own))
            tokens = beside + await self._count(messages)
        return messages, tokens

    def _shortened(self, own: Sequence[Message]) -> tuple[Message, ...]:
        """The run's own messages, with those results cut short that were too much before."""
        return tuple(self._short.get(at, message) for at, message in enumerate(own))

    async def _shorten(self, own: Sequence[Message], limit: int) -> None:
        if self._summarise is not None and self._prompt.history.turns:
            summarise, self._summarise = self._summarise, None
            history = await summarise()
            if history is not None:
                SHORTENED.labels("summarised").inc()
                self._prompt = self._prompt.with_history(history)
        own_tokens = await self._count(self._shortened(own))
        tokens = own_tokens + await self._leave_turns_out(limit - own_tokens)
        for at, message in enumerate(own):
            if tokens <= limit:
                return
            if message.role != "tool" or at in self._short or len(message.text) <= _SHORT_RESULT_CHARS + len(LEFT_OUT):
                continue
            self._short[at] = replace(message, content=_shortened_text(message.text) + LEFT_OUT)
            tokens += await self._count((self._short[at],)) - await self._count((message,))
            SHORTENED.labels("results").inc()

    async def _leave_turns_out(self, limit: int) -> int:
        """Leave out the oldest turns, and the summary last; returns the tokens of the prompt that is left."""
        history = self._prompt.history
        tokens, left_out = await self._count(self._prompt.messages), 0
        while history.turns and tokens > limit:
            tokens -= await self._count(history.turns[0].messages)
            history, left_out = history.without_oldest(), left_out + 1
        if tokens > limit and history.summary is not None:
            history = History()
        if history is not self._prompt.history:
            SHORTENED.labels("turns").inc()
            log.warning("history_left_out", turns=left_out, summary=history.summary is None)
            self._prompt = self._prompt.with_history(history)
        return await self._count(self._prompt.messages)

    async def _count(self, messages: Sequence[Message]) -> int:
        images = sum(map(_images_in, messages)) * IMAGE_TOKENS
        return images + await self._count_texts([_text_of(message) for message in messages])

    async def _count_texts(self, texts: Sequence[str]) -> int:
        total = 0
        for text in texts:
            if text not in self._counts:
                self._counts[text] = await count_tokens_of(text, vocabulary_of(self._model)) + _OVERHEAD_TOKENS
            total += self._counts[text]
        return total


def _shortened_text(text: str) -> str:
    return text[: safe_cut(text, _SHORT_RESULT_CHARS)]


def _after(first: ModelFailure, second: Reply | ModelFailure) -> Reply | ModelFailure:
    """The second answer with the attempts of both."""
    made = len(first.attempts)
    later = tuple(replace(attempt, attempt=made + attempt.attempt) for attempt in second.attempts)
    return replace(second, attempts=(*first.attempts, *later))


def _bytes(messages: Sequence[Message], schemas: Sequence[str]) -> int:
    """No fewer than there can be tokens, since a token is a byte at least; costs next to nothing."""
    texts = [*map(_text_of, messages), *schemas]
    length = sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in texts)
    return length + len(texts) * _OVERHEAD_TOKENS + sum(map(_images_in, messages)) * IMAGE_TOKENS


def _text_of(message: Message) -> str:
    if not message.tool_calls:
        return message.text
    calls = (f"{call.name}{orjson.dumps(call.arguments or {}).decode()}" for call in message.tool_calls)
    return message.text + "".join(calls)


def _images_in(message: Message) -> int:
    return 0 if isinstance(message.content, str) else sum(isinstance(part, Image) for part in message.content)
