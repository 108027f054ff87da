"""What a new owner of a run finds: what was written down, and what was already shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from app.events.frames import Group, KeptEvent, frame_of_dict, kept_of_dict, read, split
from app.events.likeness import identify_json
from app.events.log import EventLog
from app.infra.database import Pool
from app.infra.errors import LeaseLost
from app.infra.redis import RedisAway
from app.loop.events import TERMINAL_TYPES, Event, IterationCompleted, IterationStarted
from app.loop.messages import ToolCall
from app.loop.ports import StoredIteration
from app.runs.replay import rebuild
from app.runs.stored import answered_of, call_of, pending_of, reply_of, resolution_of
from app.runs.timing import Timing


@dataclass(frozen=True, slots=True)
class Shown:
    """What the event log says. `partial` is a message that was begun and not completed, with the `text` shown of it.

    `unkept`: what was shown and is not in the rows, since its owner died before the next change. `above`: the log was lost,
    in whole or in part; what was shown after `last_seq` is not all known, but nothing beyond `above`, and what was shown
    from `until` on is.
    """

    last_seq: int
    identities: frozenset[tuple[object, ...]]
    partial: tuple[int, str] | None
    text: str
    above: int | None = None
    until: int | None = None
    unkept: tuple[KeptEvent, ...] = ()

    def missing(self, bodies: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the log lacks of the rebuilt events, behind its last one. Of the message that was begun the delta holds only
        what was not shown of it, unless it is discarded before."""
        begun = None if self.partial is None else self.partial[1]
        missing: list[dict[str, Any]] = []
        for body in bodies:
            if body["seq"] <= self.last_seq:
                continue
            if body["type"] == "message.discarded" and body["message_id"] == begun:
                begun = None
            if body["type"] == "message.delta" and body["message_id"] == begun:
                body = {**body, "text": body["text"].removeprefix(self.text)}
            if body.get("text") != "":
                missing.append(body)
        return missing


async def stored_iterations(pool: Pool, run_id: str) -> tuple[dict[int, StoredIteration], Timing]:
    """The iterations whose reply is stored, with the answers in the order in which they came, and how long they took."""
    rows = await pool.fetch(
        "SELECT iteration, reply, model_calls, created_at FROM iterations WHERE run_id = $1 AND reply IS NOT NULL"
        " ORDER BY iteration",
        run_id,
    )
    timing = Timing()
    calls = await pool.fetch("SELECT * FROM tool_calls WHERE run_id = $1 ORDER BY iteration, index", run_id)
    stored: dict[int, StoredIteration] = {}
    for row in rows:
        own = [call for call in calls if call["iteration"] == row["iteration"]]
        answered = sorted((call for call in own if call["answered_at"] is not None), key=lambda call: call["answered_at"])
        answers = {call["id"]: answered_of(call) for call in answered}
        spent = (attempt["seconds"] + attempt.get("paused_seconds", 0.0) for attempt in row["model_calls"])
        timing.replied(row["iteration"], spent, row["created_at"])
        for call in answered:
            timing.answered(row["iteration"], call["answered_at"])
        waited = [call for call in own if call["pending_reason"] is not None]
        came = {call["id"]: resolution for call in waited if (resolution := resolution_of(call)) is not None}
        stored[row["iteration"]] = StoredIteration(
            reply_of(row["reply"]),
            tuple(map(call_of, own)),
            answers,
            {call["id"]: pending_of(call) for call in waited if call["answered_at"] is None},
            came,
        )
    return stored, timing


def passed_by(stored: Mapping[int, StoredIteration], timing: Timing, run: Mapping[str, Any]) -> list[Event]:
    """What the last owner may have shown after the last stored event, of a log that is lost, where no loop comes by it
    again: the end of the iteration that had all its results, and the beginning of the next one."""
    last = max(stored, default=0)
    events: list[Event] = []
    if last:
        iteration = stored[last]
        if any(call.id not in iteration.answers for call in iteration.calls):
            return []
        reply = iteration.reply
        events.append(IterationCompleted(last, reply.finish_reason, reply.usage.as_dict(), timing.seconds(last)))
        if not iteration.calls or last >= run["request"]["max_iterations"]:
            return events
    return [*events, IterationStarted(last + 1, run["model"])]


async def open_calls(pool: Pool, run_id: str) -> list[tuple[int, ToolCall]]:
    """The calls without a result, with their iterations, by their names alone."""
    query = "SELECT id, iteration, tool FROM tool_calls WHERE run_id = $1 AND answered_at IS NULL ORDER BY iteration, index"
    return [(row["iteration"], ToolCall(row["id"], row["tool"], {}, "")) for row in await pool.fetch(query, run_id)]


async def attempts_made(pool: Pool, run_id: str) -> int:
    """How many attempts at model calls are stored: where a script goes on."""
    made: int = await pool.fetchval(
        "SELECT coalesce(sum(jsonb_array_length(model_calls)), 0)::int FROM iterations WHERE run_id = $1", run_id
    )
    return made


async def catch_up(log: EventLog, pool: Pool, run: Mapping[str, Any]) -> Shown:
    """What was shown of a run: by its event log, which is brought up to what the rows say, under the new epoch.

    An owner that is late is kept out first: what it still wrote after the log was read would get ids that are given again.
    The rows are ahead when the last owner died between a commit and its append. The log is lost when Redis has forgotten
    it, or part of it, or is away: then nothing is added to it, so that readers take what is missing from the rows.
    """
    bodies = await rebuild(pool, run)
    try:
        if not await log.fence(run["id"], run["epoch"]):
            raise LeaseLost
        groups = await log.read_all(run["id"])
    except RedisAway:
        groups = []
    shown = replace(read_shown(groups, identities_of(bodies)), unkept=_unkept(groups, bodies))
    if not (is_whole(groups) or (not groups and run["epoch"] == 1)):
        return _of_the_lost(shown, groups, bodies[-1]["seq"], run["reserved_seq"])
    missing = shown.missing(bodies)
    if not missing:
        return shown
    frames = b"".join(map(frame_of_dict, missing))
    group = Group(shown.last_seq + 1, missing[-1]["seq"], frames, missing[-1]["type"] in TERMINAL_TYPES)
    written = log.append(run["id"], run["epoch"], group)
    if await log.settled(written) and not written.result():
        raise LeaseLost
    return replace(read_shown([*groups, group], identities_of(bodies)), unkept=shown.unkept)


def _of_the_lost(shown: Shown, groups: Iterable[Group], stored: int, reserved: int) -> Shown:
    """Of a log that has lost something: how far what was shown is known without a gap, and from where on again."""
    last, until = stored, None
    for group in groups:
        if group.first > last + 1:
            until = group.first
            break
        last = max(last, group.last)
    above = max(reserved, stored, shown.last_seq)
    return replace(shown, last_seq=last, partial=None, above=above, until=until)


def identities_of(bodies: list[dict[str, Any]]) -> set[tuple[object, ...]]:
    return {identity for body in bodies if (identity := identify_json(body)) is not None}


def is_whole(groups: Sequence[Group]) -> bool:
    """Whether the log has all that was shown: something from its begin on, without a gap."""
    return bool(groups) and groups[0].first == 1 and all(one.last + 1 == other.first for one, other in pairwise(groups))


def _unkept(groups: Iterable[Group], bodies: Iterable[dict[str, Any]]) -> tuple[KeptEvent, ...]:
    stored = {body["seq"] for body in bodies}
    shown = (read(frame) for group in groups for seq, frame in split(group.frames) if seq not in stored)
    return tuple(event for body in shown if (event := kept_of_dict(body)) is not None)


def read_shown(groups: Sequence[Group], stored: Iterable[tuple[object, ...]] = ()) -> Shown:
    """What these groups, all that the log has of a run, have shown; `stored` are the identities of events in the rows."""
    identities = set(stored)
    partial: tuple[int, str] | None = None
    text = ""
    for group in groups:
        for _, frame in split(group.frames):
            body = read(frame)
            identity = identify_json(body)
            if identity is not None:
                identities.add(identity)
            match body["type"]:
                case "message.delta":
                    partial = (body["iteration"], body["message_id"])
                    text += body["text"]
                case "message.completed" | "message.discarded":
                    partial, text = None, ""
    return Shown(groups[-1].last if groups else 0, frozenset(identities), partial, text)
