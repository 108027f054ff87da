"""The calls of one assistant turn: a few at once, each stored as it returns, none without a result or a reason to wait."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from app.loop.events import ToolInvoking
from app.loop.guards import EmptyStreak
from app.loop.messages import AnsweredCall, FinishReason, Rejected, Reply, RunFinish, ToolCall, ToolResult
from app.loop.ports import Emit, Journal, OfferedTool, StoredIteration, Tools
from app.loop.tool_calls import denied, execute, shown_to_model, skipped


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a run. `empty_streak_hint` None is the built-in one."""

    max_iterations: int = 7
    on_cap: Literal["answer", "stop"] = "answer"
    empty_streak_after: int = 2
    empty_streak_hint: str | None = None
    result_keys: tuple[str, ...] = ("items", "results", "matches", "passages", "data")
    max_tool_result_chars: int = 16_000
    parallel_tools: int = 4
    empty_nudge: bool = True
    empty_reply: str | None = None
    max_tokens_total: int | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a turn's calls go, where they are written down and shown."""

    tools: Tools
    journal: Journal
    emit: Emit


class Turn:
    """The calls of one assistant turn, a few at once."""

    def __init__(
        self,
        tools: tuple[OfferedTool, ...],
        limits: Limits,
        streak: EmptyStreak,
        ports: Ports,
        iteration: int,
        reply: Reply,
        calls: tuple[ToolCall, ...],
        ending: RunFinish | None,
    ) -> None:
        self.tools, self.limits, self.streak, self.ports = tools, limits, streak, ports
        self.iteration, self.reply, self.calls, self.ending = iteration, reply, calls, ending
        self.original = _repeats(calls)
        self.done: dict[str, AnsweredCall] = {}
        self.stored = ports.journal.stored(iteration) or StoredIteration(reply, calls)

    async def is_refused(self) -> bool:
        """Whether somebody refused a call without a reason; the refused calls then have their results."""
        refused = [
            (call, resolution)
            for call in self.calls
            if isinstance(resolution := self.stored.resolutions.get(call.id), Rejected)
        ]
        if all(resolution.reason for _, resolution in refused):
            return False
        for call, resolution in refused:
            if call.id not in self.stored.answers:
                await self.store(call, denied(resolution), None)
        return True

    async def answers(self) -> dict[str, AnsweredCall]:
        for call_id, answered in self.stored.answers.items():
            self.done[call_id] = answered
            if call_id not in self.original:
                self.streak.judge(answered.result)
        slots = asyncio.Semaphore(self.limits.parallel_tools)
        opened = [call for call in self.calls if call.id not in self.done]
        async with asyncio.TaskGroup() as group:
            for call in opened:
                if call.id not in self.original:
                    group.create_task(self.answer(call, slots))
        for call in opened:
            if self.original.get(call.id) in self.done:
                await self.repeat(call)
        return self.done

    async def answer(self, call: ToolCall, slots: asyncio.Semaphore) -> None:
        async with slots:
            self.invoking(call)
            if self.ending is not None:
                result = skipped(_SKIPPED[self.ending])
            else:
                executed = await self.execute(call)
                if executed is None:
                    return
                result = executed
            await self.store(call, result, self.streak.judge(result))

    async def execute(self, call: ToolCall) -> ToolResult | None:
        """The call's result; None when it waits for something outside."""
        resolution = self.stored.resolutions.get(call.id)
        if call.id in self.stored.pending and resolution is None:
            return None
        cut_off = self.reply.finish_reason is FinishReason.LENGTH and call is self.calls[-1]
        result = await execute(
            call, self.tools, self.ports.tools, self.limits.result_keys, cut_off=cut_off, resolution=resolution
        )
        if isinstance(result, ToolResult):
            return result
        await self.ports.journal.wait_for(self.iteration, result)
        return None

    async def repeat(self, call: ToolCall) -> None:
        """The model sent one call twice: it was executed once, and both get its answer."""
        self.invoking(call)
        await self.store(call, self.done[self.original[call.id]].result, None)

    def invoking(self, call: ToolCall) -> None:
        arguments = call.raw_arguments if call.arguments is None else call.arguments
        self.ports.emit(ToolInvoking(self.iteration, call.id, call.name, arguments))

    async def store(self, call: ToolCall, result: ToolResult, streak: int | None) -> None:
        content, truncated = shown_to_model(result.result, self.limits.max_tool_result_chars)
        if streak is not None:
            content = f"{content}\n\n{self.streak.text(streak)}"
        answered = AnsweredCall(call, result, content, truncated, streak)
        await self.ports.journal.answer(self.iteration, answered)
        self.done[call.id] = answered


_SKIPPED = {
    RunFinish.MAX_ITERATIONS: "Not executed: the run has used all its model calls.",
    RunFinish.BUDGET: "Not executed: the run has used up its token budget.",
}


def _repeats(calls: tuple[ToolCall, ...]) -> dict[str, str]:
    """Calls that repeat an earlier one of the turn, under the provider's same id, and which one they repeat."""
    seen: list[ToolCall] = []
    repeats: dict[str, str] = {}
    for call in calls:
        same = (call.provider_id, call.name, call.arguments, call.raw_arguments if call.arguments is None else "")
        for earlier in seen:
            raw = earlier.raw_arguments if earlier.arguments is None else ""
            if call.provider_id and same == (earlier.provider_id, earlier.name, earlier.arguments, raw):
                repeats[call.id] = earlier.id
                break
        else:
            seen.append(call)
    return repeats
