"""What the loop needs from outside. Wrapping one of these is the only way to extend a run (see `runs/runner.py`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.loop.events import Event
from app.loop.messages import AnsweredCall, Message, ModelFailure, PendingCall, Reply, Resolution, ToolCall, ToolResult

Emit = Callable[[Event], None]
"""Show something. Never waits and never fails; the log behind it writes ahead of what a client sees."""


@dataclass(frozen=True, slots=True)
class CheckedArguments:
    """Arguments that a tool's schema accepts (numbers in strings taken as numbers), or what is wrong, a line each."""

    arguments: dict[str, Any]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A final answer as the JSON that was asked for, or why it is not."""

    value: Any
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the model sees it, with the check of its arguments and the keys by which its results are judged."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    check: Callable[[dict[str, Any]], CheckedArguments]
    result_keys: tuple[str, ...] | None = None
    requires_approval: bool = False


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. `tool_choice` is `auto`, `none`, `required` or a tool's name; with no tools it means nothing."""

    iteration: int
    message_id: str
    messages: Sequence[Message]
    tools: Sequence[OfferedTool] = ()
    tool_choice: str = "auto"


class Provider(Protocol):
    """Asks a model; retries, failover and time-outs are behind it."""

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        """Return the whole reply. Its deltas were shown on the way; a failure is a value, never raised."""
        ...


class Tools(Protocol):
    """Runs the calls that were found and checked."""

    async def call(self, call: ToolCall) -> ToolResult | PendingCall:
        """Return what came back, with outcome `ok`, `error` or `failed`, or that it comes later; never raises."""
        ...

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """Return what goes on in the place of a result that came from outside, for a call that was waiting."""
        ...


@dataclass(frozen=True, slots=True)
class StoredIteration:
    """What the journal holds of an iteration: the reply, its calls, and the answers in the order they were stored."""

    reply: Reply
    calls: tuple[ToolCall, ...]
    answers: Mapping[str, AnsweredCall] = field(default_factory=dict)
    pending: Mapping[str, PendingCall] = field(default_factory=dict)
    resolutions: Mapping[str, Resolution] = field(default_factory=dict)


class Journal(Protocol):
    """Writes down what happened before it is acted on, and tells what was already written (after a crash)."""

    def stored(self, iteration: int) -> StoredIteration | None:
        """What an earlier owner of the run wrote of this iteration."""
        ...

    def seconds(self, iteration: int) -> float:
        """How long an iteration took, by what is stored of it: the same for every owner of the run."""
        ...

    async def reply(self, iteration: int, reply: Reply, calls: tuple[ToolCall, ...]) -> None:
        """Store the assistant's turn, then show `message.completed`."""
        ...

    async def failure(self, iteration: int, failure: ModelFailure) -> None:
        """Store the attempts of a model call that gave no reply."""
        ...

    async def answer(self, iteration: int, answered: AnsweredCall) -> None:
        """Store one result at the position of its call, then show `tool.invoked`, and `guard.hint` where one is due."""
        ...

    async def wait_for(self, iteration: int, pending: PendingCall) -> None:
        """Store that a call waits for something outside."""
        ...

    async def say(self, iteration: int, text: str) -> None:
        """Store and show a text that no model wrote (`empty_reply`) as the assistant's."""
        ...
