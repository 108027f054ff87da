"""What a model is sent for a turn, in the order of sending: rules, system prompt, memories, summary, history, input.

Tools go beside it. What changes least stands first, so that a provider's prompt cache holds. A run and `GET …/prompt` build
it by the same function.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from app.infra import ids
from app.infra.database import Pool
from app.loop.messages import Content, Message, ToolCall
from app.providers.tokens import vocabulary_of
from app.scope import Scope, axis
from app.sessions.compression import summary_block
from app.sessions.history import History, content_of, read_history


class Considered(Protocol):
    """A memory that could have been sent."""

    @property
    def id(self) -> str: ...
    @property
    def chosen(self) -> bool: ...
    @property
    def weight(self) -> float: ...
    @property
    def reason(self) -> str: ...


class Recalled(Protocol):
    """The memories of a turn: the block that is sent, if any, and all that were considered."""

    @property
    def block(self) -> str | None: ...
    @property
    def considered(self) -> Sequence[Considered]: ...


@dataclass(frozen=True, slots=True)
class Nothing:
    """No memories at all."""

    block: None = None
    considered: Sequence[Considered] = ()


async def no_rules(workspace_id: str, scope: Scope) -> str | None:
    return None


async def no_memories(workspace_id: str, scope: Scope, query: str, max_tokens: int) -> Recalled:
    return Nothing()


@dataclass(frozen=True, slots=True)
class PromptSources:
    """What stands around the conversation: the block of the rules of a scope, and its memories for a text, in tokens."""

    rules: Callable[[str, Scope], Awaitable[str | None]] = no_rules
    memories: Callable[[str, Scope, str, int], Awaitable[Recalled]] = no_memories


@dataclass(frozen=True, slots=True)
class Prompt:
    """`given` is a conversation that the caller keeps himself, in the place of history and input."""

    rules: str | None = None
    system_prompt: str | None = None
    recalled: Recalled = field(default_factory=Nothing)
    history: History = field(default_factory=History)
    given: tuple[Message, ...] = ()
    input: Content | None = None

    @property
    def memories(self) -> str | None:
        return self.recalled.block

    @property
    def summary(self) -> str | None:
        return None if self.history.summary is None else summary_block(self.history.summary)

    @property
    def messages(self) -> tuple[Message, ...]:
        top = "\n\n".join(text for text in (self.rules, self.system_prompt) if text)
        above = [Message("system", text) for text in (top, self.memories, self.summary) if text]
        asked = () if self.input is None else (Message("user", self.input),)
        return (*above, *self.given, *self.history.messages, *asked)

    def with_history(self, history: History) -> "Prompt":
        return replace(self, history=history)

    @property
    def chosen(self) -> list[dict[str, Any]]:
        """The memories that are sent, as they are kept on the run."""
        return [{"id": one.id, "weight": one.weight} for one in self.recalled.considered if one.chosen]


@dataclass(frozen=True, slots=True)
class NextTurn:
    """Whose turn it is and what is asked: all that a prompt is built from. `model` decides how its tokens are counted;
    `memory_tokens` 0 reads none."""

    workspace_id: str
    scope: Scope
    session_id: str | None
    model: str
    system_prompt: str | None
    memory_tokens: int
    input: Content | None = None
    given: tuple[Message, ...] = ()
    before_message_id: str = ""
    query: str | None = None
    """The text by which memories are found, where it is not what is asked."""

    @property
    def asked(self) -> str:
        """What the user asked, as text."""
        if self.input is not None:
            return Message("user", self.input).text
        return next((message.text for message in reversed(self.given) if message.role == "user"), "")


def turn_of(run: Mapping[str, Any]) -> NextTurn:
    """The turn of a run, from what was resolved when it was accepted."""
    request = run["request"]
    memory = request.get("memory") or {"read": False}
    return NextTurn(
        run["workspace_id"],
        Scope.model_validate({name: axis(run, name) for name in ("tenant", "subject", "member")}),
        run["session_id"],
        run["model"],
        request["system_prompt"],
        memory["max_tokens"] if memory["read"] else 0,
        None if request["input"] is None else input_content(request["input"]),
        tuple(map(_given, request["messages"] or ())),
        input_message_id(run["id"]),
    )


class PromptBuilder:
    """Reads what a turn's prompt is made of: the history, the rules and the memories at once."""

    def __init__(self, pool: Pool, sources: PromptSources) -> None:
        self._pool, self._sources = pool, sources

    async def build(self, turn: NextTurn) -> Prompt:
        rules, recalled, history = await asyncio.gather(self._rules(turn), self._memories(turn), self.history(turn))
        return Prompt(rules, turn.system_prompt, recalled, history, turn.given, turn.input)

    async def history(self, turn: NextTurn) -> History:
        """The history before the turn's input, as it is now."""
        if turn.session_id is None:
            return History()
        return await read_history(self._pool, turn.session_id, turn.before_message_id, vocabulary_of(turn.model))

    async def _rules(self, turn: NextTurn) -> str | None:
        return await self._sources.rules(turn.workspace_id, turn.scope)

    async def _memories(self, turn: NextTurn) -> Recalled:
        if not turn.memory_tokens:
            return Nothing()
        query = turn.asked if turn.query is None else turn.query
        return await self._sources.memories(turn.workspace_id, turn.scope, query, turn.memory_tokens)


def input_content(given: str | Sequence[dict[str, Any]]) -> Any:
    return given if isinstance(given, str) else content_of("", given)


def input_message_id(run_id: str) -> str:
    return ids.derived(ids.MESSAGE, run_id, "input")


def input_message(run_id: str, given: str | Sequence[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """The user's input as a row of the session: its text, and its parts where it has images."""
    row = {"id": input_message_id(run_id), "content": given, "parts": None, "tokens": tokens}
    if not isinstance(given, str):
        row["content"] = "".join(part["text"] for part in given if part["type"] == "text")
        row["parts"] = list(given)
    return row


def _given(message: Mapping[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["name"], call["arguments"], "", call["id"]) for call in message.get("tool_calls") or ()
    )
    return Message(message["role"], input_content(message["content"]), calls, tool_call_id=message.get("tool_call_id"))
