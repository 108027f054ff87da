"""The loop's ports in memory, for tests without I/O: a model that plays replies, tools that play results, a journal that
remembers."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from app.infra import ids
from app.loop.events import Event, GuardHint
from app.loop.loop import Task, run_loop
from app.loop.messages import (
    AnsweredCall,
    DraftCall,
    FinishReason,
    Message,
    ModelFailure,
    Outcome,
    PendingCall,
    Reply,
    ToolCall,
    ToolOutcome,
    ToolResult,
)
from app.loop.ports import CheckedArguments, ModelRequest, OfferedTool, StoredIteration
from app.loop.turn import Limits

RUN_ID = "run_01a22f37597e7dfcb8b2fa9a6f564258"


class FakeProvider:
    """Answers with the given replies, one a call; `requests` are what it was asked."""

    def __init__(self, replies: Sequence[Reply | ModelFailure]) -> None:
        self.replies = list(replies)
        self.requests: list[ModelRequest] = []

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        self.requests.append(request)
        reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
        return replace(reply, model="scripted/test") if isinstance(reply, Reply) else reply


class FakeTools:
    """Answers by tool name: a value, or a function of the call."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.calls: list[ToolCall] = []

    async def call(self, call: ToolCall) -> ToolResult:
        self.calls.append(call)
        answer = self.answers[call.name]
        if callable(answer):
            answer = answer(call)
        if isinstance(answer, Awaitable):
            answer = await answer
        return answer if isinstance(answer, ToolResult) else ToolResult(answer, ToolOutcome.OK, attempts=1)

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        return result


class FakeJournal:
    """Remembers what was stored, in order; what it is given as stored counts as written by an earlier owner."""

    def __init__(self, stored: dict[int, StoredIteration] | None = None) -> None:
        self.earlier = stored or {}
        self.replies: list[tuple[int, Reply, tuple[ToolCall, ...]]] = []
        self.answers: list[AnsweredCall] = []
        self.failures: list[ModelFailure] = []
        self.said: list[str] = []
        self.shown: list[Event] = []
        self.waiting: list[PendingCall] = []

    def stored(self, iteration: int) -> StoredIteration | None:
        return self.earlier.get(iteration)

    def seconds(self, iteration: int) -> float:
        return float(iteration)

    async def reply(self, iteration: int, reply: Reply, calls: tuple[ToolCall, ...]) -> None:
        self.replies.append((iteration, reply, calls))

    async def failure(self, iteration: int, failure: ModelFailure) -> None:
        self.failures.append(failure)

    async def answer(self, iteration: int, answered: AnsweredCall) -> None:
        self.answers.append(answered)
        if answered.hint_streak is not None:
            self.shown.append(GuardHint(iteration, answered.call.id, answered.hint_streak))

    async def wait_for(self, iteration: int, pending: PendingCall) -> None:
        self.waiting.append(pending)

    async def say(self, iteration: int, text: str) -> None:
        self.said.append(text)


def offered(name: str, check: Callable[[dict[str, Any]], CheckedArguments] = CheckedArguments) -> OfferedTool:
    return OfferedTool(name, f"The tool {name}.", {"type": "object"}, check)


def calls(*drafts: DraftCall, text: str = "", finish: FinishReason = FinishReason.TOOL_CALLS) -> Reply:
    return Reply(text, drafts, finish_reason=finish)


def draft(name: str = "search", arguments: str = "{}", provider_id: str | None = None) -> DraftCall:
    return DraftCall(provider_id, name, arguments)


class Played:
    """What one run of the loop did."""

    def __init__(
        self, outcome: Outcome, provider: FakeProvider, tools: FakeTools, journal: FakeJournal, events: list[Event]
    ) -> None:
        self.outcome, self.provider, self.tools, self.journal, self.events = outcome, provider, tools, journal, events

    @property
    def contents(self) -> list[str]:
        """The results as the model saw them."""
        return [answered.content for answered in self.journal.answers]

    @property
    def outcomes(self) -> list[ToolOutcome]:
        return [answered.result.outcome for answered in self.journal.answers]

    def types(self) -> list[str]:
        return [event.type for event in self.events]


async def play(
    *replies: Reply | ModelFailure,
    answers: dict[str, Any] | None = None,
    tools: Sequence[OfferedTool] = (offered("search"),),
    tool_choice: str = "auto",
    stored: dict[int, StoredIteration] | None = None,
    **limits: Any,
) -> Played:
    """Run the real loop over fakes."""
    provider, port, journal = FakeProvider(replies), FakeTools(answers or {}), FakeJournal(stored)
    events: list[Event] = []
    journal.shown = events
    task = Task(
        model="scripted/test",
        messages=(Message("user", "Hello"),),
        message_id=lambda iteration: ids.derived(ids.MESSAGE, RUN_ID, iteration),
        call_id=lambda iteration, index: ids.derived(ids.CALL, RUN_ID, iteration, index),
        tools=tuple(tools),
        tool_choice=tool_choice,
        limits=Limits(**limits),
    )
    outcome = await run_loop(task, provider, port, journal, events.append)
    return Played(outcome, provider, port, journal, events)
