"""One run from its row to its end. The only place where the loop's ports are joined, for chats and agents alike."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import asyncpg
import structlog

from app.events.log import EventLog
from app.events.writer import RunLog
from app.infra.database import Pool
from app.infra.errors import LeaseLost
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import RUNS, log
from app.loop.events import MessageDiscarded, RunQueued
from app.loop.loop import Task, failed, run_loop
from app.loop.messages import ErrorCode, Outcome, RunFinish, RunStatus
from app.loop.turn import Limits
from app.redaction.opened import RedactionFailed
from app.runs import step_statements
from app.runs.compressor import Compressor
from app.runs.fitting import FittedProvider, Fitting, TokenFactors
from app.runs.held import Held, HeldProvider, HeldTools
from app.runs.hooks import HookFailed, Hooks
from app.runs.joined import Joiner, RunTools
from app.runs.journal import RunJournal, call_id_of, message_id_of
from app.runs.opening import Opened, Opener, Owned
from app.runs.prompt import NextTurn, PromptBuilder, input_content, turn_of
from app.runs.recovery import attempts_made
from app.runs.redacted_models import REDACTION_FAILED
from app.runs.redacted_prompt import asking_for, redacted_prompt
from app.runs.redacting import Redactions
from app.runs.shapes import queued_json
from app.runs.side_calls import ModelFor
from app.runs.spans import spans_of
from app.sessions.compression import options_of
from app.sessions.history import History, content_tokens

FLUSH_SECONDS = 5.0
"""How long the end of a run waits for a log that is slow; readers then make its events from the rows."""


INTERNAL = "An internal error ended the run."


class OutOfReach(Exception):
    """The database is gone for now. The run is left to its next owner."""


ToolboxFor = Callable[[Mapping[str, Any]], Awaitable[RunTools]]
BeforeEnd = Callable[[Mapping[str, Any]], Awaitable[None]]
"""What is to be done before the end of a run is stored: its children end first."""


class Runner:
    """Executes claimed runs. It keeps nothing between two of them."""

    def __init__(
        self,
        pool: Pool,
        event_log: EventLog,
        model_for: ModelFor,
        toolbox_for: ToolboxFor,
        prompts: PromptBuilder,
        compressor: Compressor,
        pending_seconds: float,
        redactions: Redactions,
        hooks: Hooks | None = None,
        before_end: BeforeEnd | None = None,
    ) -> None:
        self._before_end = before_end
        self._hooks, self._redactions = hooks, redactions
        self._opener = Opener(pool, event_log, pending_seconds)
        self._pool, self._event_log = pool, event_log
        self._model_for, self._toolbox_for = model_for, toolbox_for
        self._prompts, self._compressor = prompts, compressor
        self._factors = TokenFactors()

    async def execute(self, owned: Owned, cancel_wanted: Callable[[], bool]) -> asyncpg.Record:
        """Run until it ends or waits, and store that; returns its row. Raises LeaseLost when it is another's by now.

        When this task is cancelled, the run ends as `cancelled` if that is wanted; otherwise it is left as it is, for the
        next owner.
        """
        run = owned.run
        structlog.contextvars.bind_contextvars(run_id=run["id"], session_id=run["session_id"])
        opened = await self._opener.open(owned)
        run_log, journal = opened.log, opened.journal
        try:
            try:
                outcome = await self._outcome(owned, opened)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not cancel_wanted() or task is None:
                    raise
                task.uncancel()
                outcome = cancelled(journal)
            return await self._finish(run, run_log, journal, outcome)
        finally:
            run_log.close()

    async def end(self, owned: Owned) -> asyncpg.Record:
        """End a claimed run that nobody works on as `cancelled`, from what is stored of it."""
        run = owned.run
        structlog.contextvars.bind_contextvars(run_id=run["id"], session_id=run["session_id"])
        opened = await self._opener.open(owned, goes_on=False)
        try:
            return await self._finish(run, opened.log, opened.journal, cancelled(opened.journal))
        finally:
            opened.log.close()

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

    async def _outcome(self, owned: Owned, opened: Opened) -> Outcome:
        if opened.is_broken:
            return failed(ErrorCode.INTERNAL, INTERNAL)
        run, request, journal = owned.run, owned.run["request"], opened.journal
        deadline = asyncio.timeout(max(0.0, request["deadline_seconds"] - run["worked_seconds"]))
        try:
            async with deadline:
                return await self._loop(owned, opened)
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
        except RedactionFailed as error:
            return _redaction_failed(error)
        except BaseExceptionGroup as group:
            if failure := group.subgroup(RedactionFailed):
                return _redaction_failed(failure)
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
        return failed(ErrorCode.INTERNAL, INTERNAL)

    async def _loop(self, owned: Owned, opened: Opened) -> Outcome:
        run, request, lease = owned.run, owned.run["request"], owned.lease
        run_log, journal = opened.log, opened.journal
        attempts = await lease.lasting(lambda: attempts_made(self._pool, run["id"])) if run["epoch"] > 1 else 0
        vault = await lease.lasting(lambda: self._redactions.open(run))
        toolbox = await lease.lasting(lambda: self._toolbox_for(run))
        turn = turn_of(run) if vault is None else asking_for(turn_of(run), vault)
        prompt = await lease.lasting(lambda: self._prompts.build(turn))
        if vault is not None:
            unredacted = prompt
            prompt = await lease.lasting(lambda: redacted_prompt(unredacted, vault))
        journal.history = prompt.history
        if prompt.chosen:
            chosen = step_statements.REMEMBERED, run["id"], owned.claim, prompt.chosen
            await lease.lasting(lambda: self._pool.execute(*chosen))
        port = await lease.lasting(lambda: self._model_for(run, run_log.emit, attempts))
        joiner = Joiner(run, vault, self._hooks, run_log.emit)
        joined = joiner.join(port.provider, toolbox, self._pool, lease)
        task = Task(
            model=run["model"],
            messages=prompt.messages,
            message_id=lambda iteration: message_id_of(run["id"], iteration),
            call_id=lambda iteration, index: call_id_of(run["id"], iteration, index),
            tools=joined.offered,
            tool_choice=request["tool_choice"],
            limits=limits_of(request),
            parse=joiner.parser(),
        )
        held = Held(lease, journal.begin)
        unknown = (
            (lambda asked: run_log.emit(MessageDiscarded(asked.iteration, asked.message_id))) if opened.discards else None
        )
        fitting = Fitting(prompt, run["model"], port.window, self._summarising(run, turn), self._factors)
        fitted = FittedProvider(HeldProvider(held, joined.provider, unknown), fitting)
        with spans_of(run) as spans:
            model, tools = spans.provider(fitted), spans.tools(HeldTools(held, joined.tools))
            outcome = await run_loop(task, model, tools, journal, spans.emit(run_log.emit))
            spans.ended(outcome)
        if vault is not None:
            await lease.lasting(vault.store)
        return outcome

    def _summarising(self, run: Mapping[str, Any], turn: NextTurn) -> Callable[[], Awaitable[History | None]]:
        """For a prompt that does not fit: the history once its older turns were summarised, or None where that is no way."""

        async def summarise() -> History | None:
            stored = run["request"].get("history")
            if turn.session_id is None or stored is None:
                return None
            await self._compressor.compress_now(turn.session_id, options_of(stored))
            return await self._prompts.history(turn)

        return summarise

    async def _is_over_budget(self, run: Mapping[str, Any], journal: RunJournal) -> bool:
        """Whether the session was marked for a summary, now that this run's turn has come to it."""
        stored = run["request"].get("history")
        if journal.history is None or stored is None or run["session_id"] is None or not run["request"]["persist"]:
            return False
        asked = await content_tokens(input_content(run["request"]["input"]))
        try:
            return await self._compressor.mark_if_due(
                run["session_id"], journal.history, [asked + journal.prose_tokens], options_of(stored)
            )
        except Exception as error:
            if not is_out_of_reach(error):
                raise
            log.warning("summary_not_marked", error=type(error).__name__)  # the end of the next run marks it
            return False

    async def _finish(
        self, run: Mapping[str, Any], run_log: RunLog, journal: RunJournal, outcome: Outcome
    ) -> asyncpg.Record:
        if outcome.finish_reason is None:
            row = await journal.suspend()
            await self._flush(run_log)
            return row
        if self._before_end is not None:
            await self._before_end(run)
        is_over_budget = await self._is_over_budget(run, journal)
        row = await journal.finish(outcome)
        await self._flush(run_log)
        if is_over_budget:
            await self._compressor.wake(run["session_id"])
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


def _redaction_failed(error: BaseException) -> Outcome:
    log.error("redaction_failed", reason=str(error))
    return failed(ErrorCode.REDACTION_FAILED, REDACTION_FAILED)


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
