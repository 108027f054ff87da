"""Summaries of sessions joined to what makes them: the rows, a model, the queue. A job, or a run that cannot wait."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from app.infra.database import Pool
from app.infra.queue import JobQueue
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import COMPRESSIONS, log
from app.loop.messages import FinishReason, ModelFailure, Reply
from app.memories.distillations import Trigger
from app.providers.tokens import count_tokens_of
from app.runs import distiller
from app.runs.lease import new_claim
from app.runs.prompt import input_message_id
from app.runs.renewing import renewed
from app.runs.side_calls import ModelFor, SideCall, ask_once, open_side_call
from app.sessions import summaries
from app.sessions.compression import HistoryOptions, bounded, is_due, next_chunk, summary_request
from app.sessions.history import History, read_history
from app.sessions.summaries import Claimed

JOB = "compress"
_LOOK_AGAIN_SECONDS = 0.2
_CALL_SECONDS = 300.0
_WAIT_SECONDS = 60.0
_SWEPT = 200


class Done(StrEnum):
    MADE = "made"
    NOTHING = "nothing"
    FAILED = "failed"


class Compressor:
    """One per process. Single flight per session, over all processes, is held by the row."""

    def __init__(self, pool: Pool, model_for: ModelFor, queue: JobQueue, lease_seconds: float) -> None:
        self._pool, self._model_for, self._queue = pool, model_for, queue
        self._lease_seconds = lease_seconds

    async def mark_if_due(
        self, session_id: str, history: History, added_tokens: Sequence[int], options: HistoryOptions
    ) -> bool:
        """Mark a session whose history, with the turns that came to it, is over its budget. Whoever marks wakes, later."""
        tokens = [*(turn.tokens for turn in history.turns), *added_tokens]
        if not is_due(history.summary_tokens, tokens, options):
            return False
        return await summaries.mark(self._pool, session_id, options)

    async def wake(self, session_id: str, delay_seconds: float = 0.0) -> None:
        await self._queue.wake(JOB, session_id, delay_seconds=delay_seconds)

    async def sweep(self) -> int:
        """Wake what is due and lost its wake-up; returns how many."""
        found = await summaries.overdue(self._pool, _SWEPT)
        for session_id in found:
            await self.wake(session_id)
        return len(found)

    async def compress(self, session_id: str) -> int:
        """Summarise while the session is due and nobody else does; returns how many summaries were stored."""
        made = 0
        while (claimed := await summaries.claim(self._pool, session_id, new_claim(), self._lease_seconds)) is not None:
            async with renewed(self._lease_seconds / 3, lambda: self._renew(claimed)):
                done = await self._guarded(claimed)
            if done is Done.FAILED:
                break
            made += done is Done.MADE
        return made

    async def compress_now(self, session_id: str, options: HistoryOptions) -> None:
        """For a run that would overflow: summarise what may be, or wait a while for whoever is at it."""
        await summaries.mark(self._pool, session_id, replace(options, force=True))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SECONDS):
                # whoever is at it may be another process, so that there is no event to wait for
                while not await self.compress(session_id) and await summaries.is_claimed(self._pool, session_id):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _renew(self, claimed: Claimed) -> None:
        await summaries.renew(self._pool, claimed, self._lease_seconds)

    async def _guarded(self, claimed: Claimed) -> "Done":
        """A fault of our own counts as a failure, so that nobody comes back to it without end."""
        try:
            return await self._summarise(claimed)
        except Exception as error:
            if is_out_of_reach(error):
                raise
            log.exception("compression_broke", session_id=claimed.session_id)
            return await self._failed(claimed, "internal")

    async def _summarise(self, claimed: Claimed) -> "Done":
        """One step under the claim: a summary, nothing to do, or a failure."""
        if not claimed.models:
            await summaries.release(self._pool, claimed)
            return Done.NOTHING
        call = SideCall(claimed.workspace_id, claimed.session_id, "compression", claimed.models, claimed.options.script)
        port = await open_side_call(self._model_for, call)
        active = claimed.active_run_id
        history = await read_history(self._pool, claimed.session_id, "" if active is None else input_message_id(active))
        chunk = next_chunk(history, claimed.options, port.window.room)
        if chunk is None or history.through_position != claimed.through_position:
            await summaries.release(self._pool, claimed)
            return Done.NOTHING
        asked = summary_request(history.summary, chunk.turns, claimed.options, port.window.room)
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                reply = await ask_once(self._pool, call, port, asked)
        except TimeoutError:
            return await self._failed(claimed, "timeout")
        if (problem := _problem(reply)) is not None or isinstance(reply, ModelFailure):
            return await self._failed(claimed, problem or "")
        summary = await asyncio.to_thread(bounded, reply.text, claimed.options)
        tokens = await count_tokens_of(summary)
        stored = await summaries.commit(
            self._pool, claimed, summary, tokens, reply.model, chunk.through_position, has_more=chunk.has_more
        )
        COMPRESSIONS.labels("made" if stored else "lost").inc()
        if stored:
            await self._queue.wake(distiller.JOB, claimed.session_id, str(Trigger.COMPRESSION))
        log.info("session_compressed", session_id=claimed.session_id, turns=len(chunk.turns), stored=stored)
        return Done.MADE if stored else Done.NOTHING

    async def _failed(self, claimed: Claimed, problem: str) -> "Done":
        again_seconds = await summaries.fail(self._pool, claimed)
        COMPRESSIONS.labels("failed").inc()
        log.warning("compression_failed", session_id=claimed.session_id, problem=problem, again_seconds=again_seconds)
        if again_seconds is not None:
            await self.wake(claimed.session_id, again_seconds)
        return Done.FAILED


def _problem(reply: Reply | ModelFailure) -> str | None:
    """Why an answer is no summary."""
    if isinstance(reply, ModelFailure):
        return f"{reply.code}: {reply.message}"
    if not reply.text.strip():
        return "empty"
    if reply.finish_reason not in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        return str(reply.finish_reason)
    return None
