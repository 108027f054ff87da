"""How an owner begins with a run: what it shows and writes down goes on from what is stored and was shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.events.log import EventLog
from app.events.ownership import Resumption
from app.events.writer import RunLog
from app.infra.database import Pool
from app.infra.errors import LeaseLost
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import log
from app.loop.events import Event, MessageDiscarded, RunQueued, RunResumed, RunStarted
from app.runs import statements
from app.runs.journal import RunJournal
from app.runs.lease import Lease
from app.runs.prompt import input_content, input_message
from app.runs.recovery import Shown, catch_up, open_calls, passed_by, stored_iterations
from app.runs.shapes import queued_json, started_json
from app.sessions.history import content_tokens


@dataclass(frozen=True, slots=True)
class Owned:
    """A run that this process has claimed. `fresh`: it was accepted by this process just now, nothing is stored yet."""

    run: Mapping[str, Any]
    lease: Lease
    fresh: bool = False

    @property
    def id(self) -> str:
        run_id: str = self.run["id"]
        return run_id

    @property
    def claim(self) -> str:
        token: str = self.run["claim"]
        return token


@dataclass(frozen=True, slots=True)
class Opened:
    """`discards`: a message may have been begun of which nothing is known. `is_broken`: what is stored cannot be read, so
    that the run can only be ended."""

    log: RunLog
    journal: RunJournal
    discards: bool = False
    is_broken: bool = False


class Opener:
    """Of a process. `pending_seconds` is how long a call may wait for something outside."""

    def __init__(self, pool: Pool, event_log: EventLog, pending_seconds: float) -> None:
        self._pool, self._event_log, self._pending_seconds = pool, event_log, pending_seconds

    async def open(self, owned: Owned, *, goes_on: bool = True) -> Opened:
        """Raises LeaseLost, and what tells that the database is out of reach.

        Any other fault is one of ours or of the rows, and would be the same for every owner to come: nobody is left to try
        it again and again.
        """
        try:
            return self._begun(owned) if owned.fresh else await self._resumed(owned, goes_on=goes_on)
        except LeaseLost:
            raise
        except Exception as error:
            if is_out_of_reach(error):
                raise
            log.exception("run_not_opened", run_id=owned.id)
            return await self._broken(owned)

    def _begun(self, owned: Owned) -> Opened:
        run_log = self._log(owned, 0)
        run_log.emit(RunQueued(queued_json(owned.run)))
        run_log.emit(RunStarted(started_json(owned.run)))
        return Opened(run_log, self._journal(owned, run_log))

    async def _resumed(self, owned: Owned, *, goes_on: bool) -> Opened:
        run, lease = owned.run, owned.lease
        if _is_in_session(run) and goes_on:  # the input of a run that was queued becomes part of the history now
            given = run["request"]["input"]
            message = input_message(run["id"], given, await content_tokens(input_content(given)))
            await lease.lasting(lambda: self._pool.execute(statements.ASK, run["session_id"], run["id"], message))
        stored, timing = await lease.lasting(lambda: stored_iterations(self._pool, run["id"]))
        shown = await lease.lasting(lambda: catch_up(self._event_log, self._pool, run))
        resumes = goes_on and run["epoch"] > 1 and run["started_at"] is not None
        run_log = RunLog(
            self._event_log, run["id"], run["epoch"], shown.last_seq, shown.identities, shown.unkept,
            holder=lease, reserved=run["reserved_seq"], in_session=_is_in_session(run),
            resumption=Resumption(_preamble(run, shown) if resumes else (), shown.above, shown.until)
            if resumes or shown.above is not None
            else None,
        )  # fmt: skip
        journal = RunJournal(self._pool, run_log, run, lease, stored, timing, pending_seconds=self._pending_seconds)
        if not goes_on and shown.above is not None:
            for event in passed_by(stored, timing, run):
                run_log.emit(event)
        return Opened(run_log, journal, resumes and shown.above is not None and shown.above > shown.last_seq)

    async def _broken(self, owned: Owned) -> Opened:
        """Above all that may have been shown, with the calls that its end has to settle."""
        run_log = self._log(owned, owned.run["reserved_seq"])
        journal = self._journal(owned, run_log)
        for iteration, call in await owned.lease.lasting(lambda: open_calls(self._pool, owned.id)):
            journal.leave_open(iteration, call)
        return Opened(run_log, journal, is_broken=True)

    def _log(self, owned: Owned, last_seq: int) -> RunLog:
        run = owned.run
        return RunLog(
            self._event_log, run["id"], run["epoch"], last_seq,
            holder=owned.lease, reserved=run["reserved_seq"], in_session=_is_in_session(run),
        )  # fmt: skip

    def _journal(self, owned: Owned, run_log: RunLog) -> RunJournal:
        return RunJournal(self._pool, run_log, owned.run, owned.lease, pending_seconds=self._pending_seconds)


def _is_in_session(run: Mapping[str, Any]) -> bool:
    return run["session_id"] is not None and bool(run["request"]["persist"])


def _preamble(run: Mapping[str, Any], shown: Shown) -> list[Event]:
    """What a new owner of a run that was under way shows first."""
    answered = run["answered_epoch"] is not None and run["epoch"] == run["answered_epoch"] + 1
    resumed = RunResumed("answered" if answered else "recovered")
    return [resumed] if shown.partial is None else [resumed, MessageDiscarded(*shown.partial)]
