"""One run from its row to its end. The only place where the loop's ports are joined, for chats and agents alike."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import asyncpg
import structlog

from app.events.log import EventLog
from app.events.writer import RunLog
from app.infra.database import Pool
from app.infra.errors import LeaseLost
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import RUNS, log
from app.loop.events import MessageDiscarded, RunQueued, RunResumed, RunStarted
from app.loop.loop import Task, failed, run_loop
from app.loop.messages import ErrorCode, Outcome, RunFinish, RunStatus
from app.loop.ports import Emit, OfferedTool, Provider, Tools
from app.loop.turn import Limits
from app.runs import statements
from app.runs.answer import answer_parser
from app.runs.hooks import HookedProvider, HookedTools, HookFailed, Hooks
from app.runs.journal import RunJournal, call_id_of, message_id_of
from app.runs.metering import MeteredProvider
from app.runs.prompt import build_messages, input_message
from app.runs.recovery import attempts_made, catch_up, stored_iterations
from app.runs.sent_once import SentOnce
from app.runs.shapes import queued_json, run_json, started_json

FLUSH_SECONDS = 5.0
"""How long the end of a run waits for a log that is out of reach; readers then make its events from the rows."""


class OutOfReach(Exception):
    """The database is gone for now. The run is left to its next owner."""


ProviderFor = Callable[[Mapping[str, Any], Emit, int], Awaitable[Provider]]
"""The model of a run: from its row, for showing deltas, with the number of attempts that were made before."""


class RunTools(Tools, Protocol):
    """The Tools port of one run, with what is offered to its model."""

    offered: tuple[OfferedTool, ...]
    at_most_once: frozenset[str]


ToolboxFor = Callable[[Mapping[str, Any]], Awaitable[RunTools]]
BeforeEnd = Callable[[Mapping[str, Any]], Awaitable[None]]
"""What is to be done before the end of a run is stored: its children end first."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A run that this process has claimed. `fresh`: it was accepted by this process just now, nothing is stored yet."""

    run: Mapping[str, Any]
    fresh: bool = False

    @property
    def id(self) -> str:
        run_id: str = self.run["id"]
        return run_id

    @property
    def claim(self) -> str:
        token: str = self.run["claim"]
        return token


class Runner:
    """Executes claimed runs. It keeps nothing between two of them."""

    def __init__(
        self,
        pool: Pool,
        event_log: EventLog,
        provider_for: ProviderFor,
        toolbox_for: ToolboxFor,
        pending_seconds: float,
        hooks: Hooks | None = None,
        before_end: BeforeEnd | None = None,
    ) -> None:
        self._before_end = before_end
        self._hooks = hooks
        self._pending_seconds = pending_seconds
        self._pool, self._event_log = pool, event_log
        self._provider_for, self._toolbox_for = provider_for, toolbox_for

    async def execute(self, owned: Owned, cancel_wanted: Callable[[], bool]) -> asyncpg.Record:
        """Run until it ends or waits, and store that; returns its row. Raises LeaseLost when it is another's by now.

        When this task is cancelled, the run ends as `cancelled` if that is wanted; otherwise it is left as it is, for the
        next owner.
        """
        run = owned.run
        structlog.contextvars.bind_contextvars(run_id=run["id"], session_id=run["session_id"])
        run_log, journal = await self._open(owned)
        try:
            try:
                outcome = await self._outcome(run, run_log, journal)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not cancel_wanted() or task is None:
                    raise
                task.uncancel()
                outcome = cancelled(journal)
            return await self._finish(run, run_log, journal, outcome)
        finally:
            run_log.close()

    async def end(self, run: Mapping[str, Any]) -> asyncpg.Record:
        """End a claimed run that nobody works on as `cancelled`, from what is stored of it."""
        structlog.contextvars.bind_contextvars(run_id=run["id"], session_id=run["session_id"])
        run_log, journal = await self._open(Owned(run), goes_on=False)
        try:
            return await self._finish(run, run_log, journal, cancelled(journal))
        finally:
            run_log.close()

    async def announce(self, run: Mapping[str, Any]) -> None:
        """Show that a run was accepted and waits for its turn."""
        run_log = RunLog(self._event_log, run["id"], 0)
        try:
            run_log.emit(RunQueued(queued_json(run)))
            await run_log.flushed()
        except LeaseLost:
            log.debug("run_taken_at_once", run_id=run["id"])  # its new owner has shown this event too
        finally:
            run_log.close()

    async def _open(self, owned: Owned, *, goes_on: bool = True) -> tuple[RunLog, RunJournal]:
        run = owned.run
        in_session = run["session_id"] is not None and run["request"]["persist"]
        if owned.fresh:
            run_log = RunLog(self._event_log, run["id"], run["epoch"], in_session=in_session)
            run_log.emit(RunQueued(queued_json(run)))
            run_log.emit(RunStarted(started_json(run)))
            return run_log, RunJournal(self._pool, run_log, run, owned.claim, pending_seconds=self._pending_seconds)
        if in_session and goes_on:  # the input of a run that was queued becomes part of the history now
            message = input_message(run["id"], run["request"]["input"])
            await self._pool.execute(statements.ASK, run["session_id"], run["id"], message)
        stored = await stored_iterations(self._pool, run["id"])
        shown = await catch_up(self._event_log, self._pool, run)
        run_log = RunLog(self._event_log, run["id"], run["epoch"], shown.last_seq, shown.identities, in_session=in_session)
        if goes_on and run["epoch"] > 1 and run["started_at"] is not None:
            answered = run["answered_epoch"] is not None and run["epoch"] == run["answered_epoch"] + 1
            run_log.emit(RunResumed("answered" if answered else "recovered"))
            if shown.partial is not None:
                run_log.emit(MessageDiscarded(*shown.partial))
        return run_log, RunJournal(self._pool, run_log, run, owned.claim, stored, pending_seconds=self._pending_seconds)

    async def _outcome(self, run: Mapping[str, Any], run_log: RunLog, journal: RunJournal) -> Outcome:
        request = run["request"]
        deadline = asyncio.timeout(max(0.0, request["deadline_seconds"] - run["worked_seconds"]))
        try:
            async with deadline:
                return await self._loop(run, run_log, journal)
        except TimeoutError:
            if not deadline.expired():
                raise
            text = journal.last_text
            if text is None and request["empty_reply"] is not None:
                text = request["empty_reply"]
                await journal.say(journal.iterations, text)
            return Outcome(RunStatus.INCOMPLETE, RunFinish.DEADLINE, text, iterations=journal.iterations)
        except HookFailed as error:
            return _hook_failed(error)
        except BaseExceptionGroup as group:
            if hook := group.subgroup(HookFailed):
                return _hook_failed(hook)
            if lost := group.subgroup(LeaseLost):
                raise LeaseLost from lost
            if gone := group.subgroup(is_out_of_reach):
                raise OutOfReach from gone
            log.exception("run_failed_inside")
        except LeaseLost:
            raise
        except Exception as error:
            if is_out_of_reach(error):
                raise OutOfReach from error
            log.exception("run_failed_inside")
        return failed(ErrorCode.INTERNAL, "An internal error ended the run.")

    async def _loop(self, run: Mapping[str, Any], run_log: RunLog, journal: RunJournal) -> Outcome:
        request = run["request"]
        attempts = await attempts_made(self._pool, run["id"]) if run["epoch"] > 1 else 0
        toolbox = await self._toolbox_for(run)
        task = Task(
            model=run["model"],
            messages=await build_messages(self._pool, run),
            message_id=lambda iteration: message_id_of(run["id"], iteration),
            call_id=lambda iteration, index: call_id_of(run["id"], iteration, index),
            tools=toolbox.offered,
            tool_choice=request["tool_choice"],
            limits=limits_of(request),
            parse=None if request["response_schema"] is None else answer_parser(request["response_schema"]),
        )
        provider: Provider = MeteredProvider(await self._provider_for(run, run_log.emit, attempts))
        tools: Tools = toolbox
        if toolbox.at_most_once:
            tools = SentOnce(self._pool, toolbox, toolbox.at_most_once, run["id"], run["claim"])
        if self._hooks is not None:
            shown = run_json(run)
            provider = HookedProvider(self._hooks, provider, shown, run_log.emit)
            tools = HookedTools(self._hooks, tools, shown)
        return await run_loop(task, provider, tools, journal, run_log.emit)

    async def _finish(
        self, run: Mapping[str, Any], run_log: RunLog, journal: RunJournal, outcome: Outcome
    ) -> asyncpg.Record:
        if outcome.finish_reason is None:
            row = await journal.suspend()
            await self._flush(run_log)
            return row
        if self._before_end is not None:
            await self._before_end(run)
        row = await journal.finish(outcome)
        await self._flush(run_log)
        RUNS.labels(outcome.status, outcome.finish_reason).inc()
        if outcome.status is not RunStatus.COMPLETED:
            log.warning(
                "run_not_completed",
                status=outcome.status,
                finish_reason=outcome.finish_reason,
                error_code=outcome.error_code,
                iterations=row["iterations"],
                tool_calls=row["tool_calls"],
            )
        return row

    async def _flush(self, run_log: RunLog) -> None:
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await run_log.flushed()
        except TimeoutError:
            log.warning("event_log_behind", last_seq=run_log.last_seq)


def _hook_failed(error: BaseException) -> Outcome:
    log.error("hook_failed", exc_info=error)
    return failed(ErrorCode.HOOK_FAILED, "A hook of the operator failed.")


def cancelled(journal: RunJournal) -> Outcome:
    return Outcome(RunStatus.CANCELLED, RunFinish.CANCELLED, journal.last_text, iterations=journal.iterations)


def limits_of(request: Mapping[str, Any]) -> Limits:
    return Limits(
        max_iterations=request["max_iterations"],
        on_cap=request["on_cap"],
        empty_streak_after=request["empty_streak_after"],
        empty_streak_hint=request["empty_streak_hint"],
        result_keys=tuple(request["result_keys"]),
        max_tool_result_chars=request["max_tool_result_chars"],
        parallel_tools=request["parallel_tools"],
        empty_nudge=request["empty_nudge"],
        empty_reply=request["empty_reply"],
        max_tokens_total=request["max_tokens_total"],
    )
