"""Notes drawn from conversations: the job that joins the rows, a model and the admission. Never inside a request."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from app.infra import clock
from app.infra.database import Pool
from app.infra.errors import NotFound
from app.infra.queue import JobQueue
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import DISTILLATIONS, NOTES_DROPPED, log
from app.loop.messages import Message, ModelFailure, Usage
from app.memories import distillation, distillations
from app.memories.admission import Context, Known, Proposal, Refusal, Refuse, judge, sentences
from app.memories.by_models import Shelf, most_relevant, read_shelf, store
from app.memories.distillation import Stretch, proposals_of, stretch_of
from app.memories.distillations import Claimed, Trigger, Try
from app.memories.writing import Origin
from app.redaction.opened import Vaults
from app.redaction.restorer import restore
from app.rules.repository import applying
from app.runs.answer import answer_parser, read_json
from app.runs.lease import new_claim
from app.runs.renewing import renewed
from app.runs.side_calls import ModelFor, SideCall, ask_once, open_side_call
from app.scope import Scope, axis
from app.sessions import repository as sessions
from app.sessions.models import Session

JOB = "distil"
_CALL_SECONDS = 300.0
_SWEPT = 200


@dataclass(frozen=True, slots=True)
class DistilOptions:
    """Of a session: whether notes may be drawn, by which models in the order of failover, and what its runs are told."""

    write: bool
    models: tuple[str, ...]
    script: tuple[Any, ...] = ()
    system_prompt: str | None = None


OptionsFor = Callable[[Session, Sequence[str]], Awaitable[DistilOptions]]
"""The options of a session, of which the last run had these models."""


class Done(StrEnum):
    MADE = "made"
    PASSED = "passed"
    """Nothing in the stretch was worth a model call."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class _Job:
    """One try on one stretch. `known` are the notes that the model is shown, in their order. `is_redacted`: what it answers
    comes with values that may not stand in clear where there are no notes."""

    claimed: Claimed
    begun: Try
    stretch: Stretch
    scope: Scope
    options: DistilOptions
    known: tuple[Known, ...]
    is_redacted: bool = False


@dataclass(frozen=True, slots=True)
class _Answered:
    """What the model proposes, None for a note that is malformed."""

    proposals: list[Proposal | None]
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class _Unusable:
    reason: str
    usage: Usage = field(default_factory=Usage)


class Distiller:
    """One per process. Single flight per session, over all processes, is held by the row."""

    def __init__(
        self,
        pool: Pool,
        model_for: ModelFor,
        queue: JobQueue,
        lease_seconds: float,
        options_for: OptionsFor,
        vaults: Vaults,
    ) -> None:
        self._pool, self._model_for, self._queue, self._vaults = pool, model_for, queue, vaults
        self._lease_seconds, self._options_for = lease_seconds, options_for

    async def wake(self, session_id: str, trigger: Trigger, delay_seconds: float = 0.0) -> None:
        await self._queue.wake(JOB, session_id, str(trigger), delay_seconds=delay_seconds)

    async def sweep(self, idle_seconds: float) -> int:
        """Wake the sessions that are at rest with something new, and those whose next try has come; returns how many."""
        found = await distillations.overdue(self._pool, idle_seconds, _SWEPT)
        for session_id, trigger in found:
            await self.wake(session_id, trigger)
        return len(found)

    async def distil(self, session_id: str, trigger: Trigger) -> int:
        """Draw notes while there is something new and nobody else does; returns from how many stretches."""
        made = 0
        while (claimed := await self._claim(session_id)) is not None:
            async with renewed(self._lease_seconds / 3, lambda: self._renew(claimed)):
                done = await self._step(claimed, trigger)
            if done is Done.STOPPED:
                break
            made += done is Done.MADE
        return made

    async def _renew(self, claimed: Claimed) -> None:
        await distillations.renew(self._pool, claimed, self._lease_seconds)

    async def _claim(self, session_id: str) -> Claimed | None:
        return await distillations.claim(self._pool, session_id, new_claim(), self._lease_seconds)

    async def _step(self, claimed: Claimed, trigger: Trigger) -> Done:
        """One stretch under the claim."""
        if claimed.to_position < claimed.from_position:  # what is new belongs to a run that is not over
            await distillations.release(self._pool, claimed)
            return Done.STOPPED
        try:
            session = await sessions.find(self._pool, claimed.workspace_id, claimed.session_id)
        except NotFound:
            return Done.STOPPED
        options = await self._options_for(session, claimed.last_models)
        if not options.write or not options.models:
            await distillations.pass_over(self._pool, claimed, claimed.to_position)
            return Done.STOPPED
        scope = Scope.model_validate({name: axis(session, name) for name in ("tenant", "subject", "member")})
        said, is_all = await distillations.said(self._pool, claimed)
        if session.has_vault:  # notes are kept in clear, so that they are held against what was said in clear
            vault = (await self._vaults.read([session.id])).get(session.id)
            said = [replace(one, text=restore(one.text, vault)) for one in said] if vault else said
        stretch = stretch_of(said, claimed.to_position, None if scope.member is None else scope.member.type, is_all=is_all)
        if not stretch.is_worth_it:
            await distillations.pass_over(self._pool, claimed, stretch.to_position)
            return Done.PASSED
        begun = await distillations.begin(self._pool, claimed, stretch.to_position, trigger)
        known = await most_relevant(self._pool, claimed.workspace_id, scope, stretch.words, distillation.MAX_KNOWN)
        return await self._tried(_Job(claimed, begun, stretch, scope, options, known, session.has_vault))

    async def _tried(self, job: _Job) -> Done:
        """A fault of our own counts as a failure, so that nobody comes back to it without end."""
        try:
            answered = await self._asked(job)
            if isinstance(answered, _Answered):
                return await self._stored(job, answered)
        except Exception as error:
            if is_out_of_reach(error):
                raise
            log.exception("distillation_broke", session_id=job.claimed.session_id)
            answered = _Unusable("internal")
        return await self._failed(job, answered)

    async def _asked(self, job: _Job) -> _Answered | _Unusable:
        """The model's proposals. An answer that does not fit is sent back once; what then fits of it is taken."""
        lines, claimed = job.stretch.lines, job.claimed
        schema = distillation.schema(lines, job.known, job.scope)
        call = SideCall(
            claimed.workspace_id, claimed.session_id, "distillation", job.options.models, job.options.script, schema
        )
        port = await open_side_call(self._model_for, call)
        asked = distillation.messages(lines, job.known, job.scope, clock.now().date())
        parse, usage, problem = answer_parser(schema), Usage(), ""
        for is_last in (False, True):
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    reply = await ask_once(self._pool, call, port, asked)
            except TimeoutError:
                return _Unusable("timeout", usage)
            if isinstance(reply, ModelFailure):
                return _Unusable(f"{reply.code}: {reply.message}", usage)
            usage += reply.usage
            problem = parse(reply.text).problem or ""
            proposals = proposals_of(read_json(reply.text).value)
            if proposals is not None and (is_last or not problem):
                return _Answered(proposals, reply.model, usage)
            repair = Message("user", distillation.REPAIR.format(problem=problem))
            asked = [*asked, Message("assistant", reply.text), repair]
        return _Unusable("unreadable" if job.is_redacted else f"unreadable: {problem}", usage)

    async def _stored(self, job: _Job, answered: _Answered) -> Done:
        """The notes, what they rest on, and that the stretch is done: in one transaction, or not at all."""
        claimed, proposals = job.claimed, [one for one in answered.proposals if one is not None]
        dropped = Counter({str(Refusal.SCHEMA): len(answered.proposals) - len(proposals)})
        instructions = await applying(self._pool, claimed.workspace_id, job.scope)
        instructions += [job.options.system_prompt] if job.options.system_prompt else []
        async with self._pool.acquire() as connection, connection.transaction():
            if not await distillations.hold(connection, claimed):
                DISTILLATIONS.labels("lost").inc()
                log.info("distillation_lost", session_id=claimed.session_id)
                return Done.STOPPED
            texts = [one.text for one in proposals]
            shelf = await read_shelf(connection, claimed.workspace_id, job.scope, texts)
            decisions = judge(proposals, _context(job, shelf, instructions))
            await store(connection, claimed.workspace_id, Origin(claimed.session_id, job.begun.id), decisions)
            dropped.update(str(one.reason) for one in decisions if isinstance(one, Refuse))
            kept = sum(not isinstance(one, Refuse) for one in decisions)
            await distillations.move(connection, claimed, job.stretch.to_position)
            await distillations.done(connection, job.begun, answered.model, kept, +dropped, answered.usage)
        DISTILLATIONS.labels("made").inc()
        for reason, count in (+dropped).items():
            NOTES_DROPPED.labels(reason).inc(count)
        log.info("session_distilled", session_id=claimed.session_id, kept=kept, dropped=dict(+dropped))
        return Done.MADE

    async def _failed(self, job: _Job, unusable: _Unusable) -> Done:
        """Another try later; after the last one the stretch is left, so that it does not stand in the way of the next."""
        claimed = job.claimed
        async with self._pool.acquire() as connection, connection.transaction():
            if not await distillations.hold(connection, claimed):
                return Done.STOPPED
            again_seconds = await distillations.fail(connection, job.begun, unusable.reason[:500], unusable.usage)
            if again_seconds is None:
                await distillations.move(connection, claimed, job.stretch.to_position)
            else:
                await connection.execute(distillations.RELEASE, claimed.session_id, claimed.claim)
        DISTILLATIONS.labels("failed" if again_seconds is not None else "given_up").inc()
        log.warning(
            "distillation_failed", session_id=claimed.session_id, problem=unusable.reason[:200], again_seconds=again_seconds
        )
        if again_seconds is None:
            return Done.PASSED
        await self.wake(claimed.session_id, Trigger.IDLE, again_seconds)
        return Done.STOPPED


def _context(job: _Job, shelf: Shelf, instructions: Sequence[str]) -> Context:
    shown = {number: note.id for number, note in enumerate(job.known, 1)}
    return Context(job.scope, job.stretch.lines, sentences(instructions), shelf.notes, shown, shelf.deleted)
