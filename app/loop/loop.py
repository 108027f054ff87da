"""The loop: ask the model, answer its calls, ask again. It knows no HTTP, SQL or Redis; it is given ports.

It returns an `Outcome` and shows events as it goes, so nobody's disconnect ends it. What an earlier owner of the run has
stored is taken from the journal instead of being done again; the loop itself is the same either way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from app.loop.events import IterationCompleted, IterationStarted
from app.loop.guards import CAP_NOTE, EMPTY_NUDGE, EMPTY_STREAK_HINT, MISFIT, EmptyStreak
from app.loop.messages import (
    ErrorCode,
    FinishReason,
    Message,
    ModelFailure,
    Outcome,
    Reply,
    RunFinish,
    RunStatus,
    ToolCall,
    Usage,
)
from app.loop.ports import Emit, Journal, ModelRequest, OfferedTool, ParsedAnswer, Provider, Tools
from app.loop.tool_calls import identified
from app.loop.turn import Limits, Ports, Turn


@dataclass(frozen=True, slots=True)
class Task:
    """What a run is given. `message_id(iteration)` and `call_id(iteration, index)` must always give the same id."""

    model: str
    messages: tuple[Message, ...]
    message_id: Callable[[int], str]
    call_id: Callable[[int, int], str]
    tools: tuple[OfferedTool, ...] = ()
    tool_choice: str = "auto"
    limits: Limits = field(default_factory=Limits)
    parse: Callable[[str], ParsedAnswer] | None = None
    """Reads the final answer where it shall be JSON; a misfit is sent back once."""


async def run_loop(task: Task, provider: Provider, tools: Tools, journal: Journal, emit: Emit) -> Outcome:
    """Run until the model has answered, a limit is reached or the model fails. Raises only what the ports raise."""
    loop = _Loop(task, provider, tools, journal, emit)
    for iteration in range(1, task.limits.max_iterations + 1):
        outcome = await loop.iterate(iteration)
        if outcome is not None:
            return outcome
    raise AssertionError("the last iteration always has an outcome")


class _Loop:
    def __init__(self, task: Task, provider: Provider, tools: Tools, journal: Journal, emit: Emit) -> None:
        self.task, self.limits = task, task.limits
        self.provider, self.journal, self.emit = provider, journal, emit
        self.ports = Ports(tools, journal, emit)
        self.messages = list(task.messages)
        self.streak = EmptyStreak(task.limits.empty_streak_after, task.limits.empty_streak_hint or EMPTY_STREAK_HINT)
        self.usage = Usage()
        self.tokens_elsewhere = 0
        """Spent on the results of calls, by agents that were used as tools."""
        self.last_text: str | None = None
        self.asked_for_tools = False
        self.nudged = self.mended = False

    async def iterate(self, iteration: int) -> Outcome | None:
        """One model call and its calls; an outcome when the run ends with it."""
        last = iteration == self.limits.max_iterations
        capped = last and self.limits.on_cap == "answer" and self.asked_for_tools
        self.emit(IterationStarted(iteration, self.task.model))
        asked = await self.reply(iteration, capped)
        if isinstance(asked, ModelFailure):
            return self.failed(iteration, asked)
        reply, calls = asked
        self.usage += reply.usage
        if reply.text.strip():
            self.last_text = reply.text
        ending = self.limit_reached(last) if calls else None
        if calls:
            self.asked_for_tools = True
            stopped = await self.answer(iteration, reply, calls, ending)
            if stopped is not None:
                return stopped
            ending = ending or (RunFinish.BUDGET if self.spent else None)
        seconds = self.journal.seconds(iteration)
        self.emit(IterationCompleted(iteration, reply.finish_reason, reply.usage.as_dict(), seconds))
        if calls:
            return await self.incomplete(iteration, ending, self.last_text) if ending else None
        return await self.finish(iteration, reply, last, capped)

    async def reply(self, iteration: int, capped: bool) -> tuple[Reply, tuple[ToolCall, ...]] | ModelFailure:
        stored = self.journal.stored(iteration)
        if stored is not None:
            reply, calls = stored.reply, stored.calls
        else:
            asked = await self.provider.ask(self.request(iteration, capped))
            if isinstance(asked, ModelFailure):
                await self.journal.failure(iteration, asked)
                return asked
            reply = asked
            calls = tuple(
                identified(draft, self.task.call_id(iteration, index), self.task.tools)
                for index, draft in enumerate(reply.calls)
            )
            await self.journal.reply(iteration, reply, calls)
        if calls or reply.text.strip() or reply.finish_reason is FinishReason.PAUSE:
            self.messages.append(Message("assistant", reply.text, calls, native=reply.native, native_model=reply.model))
        return reply, calls

    def request(self, iteration: int, capped: bool) -> ModelRequest:
        choice = self.task.tool_choice
        if choice not in ("auto", "none") and iteration > 1:
            choice = "auto"
        messages = tuple(self.messages)
        if capped:
            choice, messages = "none", (*messages, Message("user", CAP_NOTE))
        return ModelRequest(iteration, self.task.message_id(iteration), messages, self.task.tools, choice)

    def limit_reached(self, last: bool) -> RunFinish | None:
        """Why the run cannot go on with this turn: its calls are not executed then."""
        if last:
            return RunFinish.MAX_ITERATIONS
        return RunFinish.BUDGET if self.spent else None

    @property
    def spent(self) -> bool:
        """Whether the budget of tokens is used up, so that the model is not asked again for whatever reason."""
        budget = self.limits.max_tokens_total
        return budget is not None and self.usage.total_tokens + self.tokens_elsewhere >= budget

    async def answer(
        self, iteration: int, reply: Reply, calls: tuple[ToolCall, ...], ending: RunFinish | None
    ) -> Outcome | None:
        """Every call gets its result, stored as it returns; the model sees them in the order of the calls.

        An outcome where the run cannot go on: a call waits for something outside, or was refused without a reason.
        """
        allowed = () if self.task.tool_choice == "none" else self.task.tools
        turn = Turn(allowed, self.limits, self.streak, self.ports, iteration, reply, calls, ending)
        if await turn.is_refused():
            return await self.incomplete(iteration, RunFinish.REJECTED, self.last_text)
        answers = await turn.answers()
        if len(answers) < len(calls):
            return Outcome(RunStatus.WAITING, None, iterations=iteration)
        self.tokens_elsewhere += sum(answers[call.id].result.tokens for call in calls if call.id not in turn.original)
        self.messages.extend(Message("tool", answers[call.id].content, tool_call_id=call.id) for call in calls)
        return None

    async def finish(self, iteration: int, reply: Reply, last: bool, capped: bool) -> Outcome | None:
        """The outcome of a reply without calls, or None when it is asked for once more."""
        text = reply.text if reply.text.strip() else None
        if reply.finish_reason is FinishReason.PAUSE:
            ending = self.limit_reached(last)
            return await self.incomplete(iteration, ending, self.last_text) if ending else None
        last = last or self.spent
        if capped:
            return await self.incomplete(iteration, RunFinish.MAX_ITERATIONS, text or self.last_text)
        if reply.finish_reason is FinishReason.LENGTH:
            return await self.incomplete(iteration, RunFinish.LENGTH, text)
        if reply.finish_reason is FinishReason.CONTENT_FILTER:
            return await self.incomplete(iteration, RunFinish.CONTENT_FILTER, text)
        if text is not None:
            return self.answered(iteration, text, last)
        if self.limits.empty_nudge and not self.nudged and not last:
            self.nudged = True
            self.messages.append(Message("user", EMPTY_NUDGE))
            return None
        return await self.incomplete(iteration, RunFinish.EMPTY, None)

    def answered(self, iteration: int, text: str, last: bool) -> Outcome | None:
        """The end with an answer; or None when it is no JSON of the wanted shape and can be mended once more."""
        parsed = self.task.parse(text) if self.task.parse is not None else ParsedAnswer(None)
        if parsed.problem is not None and not self.mended and not last:
            self.mended = True
            self.messages.append(Message("user", MISFIT.replace(":problem", parsed.problem)))
            return None
        return Outcome(RunStatus.COMPLETED, RunFinish.STOP, text, parsed.value, iterations=iteration)

    async def incomplete(self, iteration: int, reason: RunFinish, text: str | None) -> Outcome:
        if text is None and self.limits.empty_reply is not None:
            text = self.limits.empty_reply
            await self.journal.say(iteration, text)
        return Outcome(RunStatus.INCOMPLETE, reason, text, iterations=iteration)

    def failed(self, iteration: int, failure: ModelFailure) -> Outcome:
        return Outcome(
            RunStatus.FAILED,
            RunFinish.ERROR,
            self.last_text,
            error_code=failure.code,
            error_message=failure.message,
            iterations=iteration,
        )


def failed(code: ErrorCode, message: str) -> Outcome:
    """The outcome of a run that something outside the loop ended."""
    return Outcome(RunStatus.FAILED, RunFinish.ERROR, error_code=code, error_message=message)
