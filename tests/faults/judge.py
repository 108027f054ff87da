"""Says what of the evidence breaks a promise. Pure: it asks nobody.

The promises are those of the contract, sections 1, 4 and 5, as far as they can be seen from outside.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.faults import streams
from tests.faults.evidence import Evidence, RunStory
from tests.faults.outside import Delivery
from tests.faults.plans import Turn

TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Objection:
    """`kind` is what the report counts by; `evidence` what a person needs to see."""

    kind: str
    run_id: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.kind} [{self.run_id}] {self.evidence}"


def judge(evidence: Evidence) -> list[Objection]:
    """All objections; none when every promise was kept."""
    return [
        *_accepted_once(evidence),
        *(objection for story in evidence.stories for objection in _story(story)),
        *_deliveries(evidence),
        *_model_calls(evidence),
        *(
            objection
            for session, messages in evidence.messages.items()
            for objection in _messages(session, messages, evidence)
        ),
        *(Objection("stuck session", session, why) for session, why in evidence.stuck.items()),
        *(Objection("unforeseen error", "", text) for text in evidence.unforeseen),
    ]


# ---- every accepted run is one run, and ends once


def _accepted_once(evidence: Evidence) -> Iterator[Objection]:
    by_key: dict[str, list[str]] = defaultdict(list)
    for run in evidence.listed:
        by_key[run["metadata"].get("key", "")].append(run["id"])
    for key, run_ids in by_key.items():
        if len(run_ids) > 1:
            yield Objection("two runs of one key", run_ids[0], f"{key}: {run_ids}")
    for story in evidence.stories:
        if story.id and story.id not in by_key[story.plan.key]:
            yield Objection("lost run", story.id, f"{story.plan.key} is {by_key[story.plan.key]}")


def _story(story: RunStory) -> Iterator[Objection]:
    for refusal in story.refusals:
        yield Objection("refused", story.id, f"{story.plan.key}: {refusal}")
    if story.is_late or not story.id or story.run.get("status") not in TERMINAL:
        seen = [stream[-3:] for stream in story.streams]
        yield Objection("late run", story.id, f"{story.plan.key} is {story.run.get('status')}, last seen {seen}")
    if story.run.get("status") not in TERMINAL:
        return
    for kind, text in streams.compare(story.fresh, story.fresh):
        yield Objection(kind, story.id, f"fresh: {text}")
    for stream in story.streams:
        for kind, text in streams.compare(stream, story.fresh):
            yield Objection(kind, story.id, f"{text}\n  seen {streams.short(stream)}\n  told {streams.short(story.fresh)}")
    yield from _ending(story)
    yield from _turns(story)
    yield from _decisions(story)


def _ending(story: RunStory) -> Iterator[Objection]:
    if story.fresh and story.fresh[-1].data.get("run") != story.run:
        yield Objection("two ends", story.id, f"{story.fresh[-1].data} and {story.run}")
    status = story.run["status"]
    if story.plan.cancelled_after is not None and status == "completed":
        was = story.cancelled or {}
        if was.get("status") != "completed":
            yield Objection("cancel was lost", story.id, f"the cancel was answered {was}, the run is {status}")
    elif status != "completed" and not (status == "cancelled" and story.plan.may_be_cancelled):
        yield Objection("wrong end", story.id, f"{story.plan.key}: {status}, {story.run['error']}")


# ---- what the run says is what the model said, and was asked for no more often than needed


def _turns(story: RunStory) -> Iterator[Objection]:
    completed = [event.data["message"] for event in story.fresh if event.type == "message.completed"]
    for number, message in enumerate(completed):
        turn = story.plan.turns[number] if number < len(story.plan.turns) else None
        if turn is None or message["content"] != turn.text or not _asks_for(message, turn):
            yield Objection("wrong message", story.id, f"turn {number + 1} is {message}, planned was {turn}")
    if story.run["status"] == "completed" and len(completed) != len(story.plan.turns):
        yield Objection("wrong message", story.id, f"{len(completed)} messages, planned were {len(story.plan.turns)}")
    for iteration in story.trace:
        turn = story.plan.turns[iteration["iteration"] - 1]
        allowed = 1 if turn.act == "ok" else 2
        if len(iteration["model_calls"]) > allowed:
            yield Objection("repeated model call", story.id, f"the trace holds {iteration['model_calls']}")


def _asks_for(message: dict[str, Any], turn: Turn) -> bool:
    asked = [(call["name"], call["arguments"]) for call in message["tool_calls"]]
    return asked == [(call.tool, call.arguments) for call in turn.calls]


def _model_calls(evidence: Evidence) -> Iterator[Objection]:
    """Requests at the model: none after the reply was seen stored, and at most one for each owner and planned failure."""
    for story in evidence.stories:
        own = [asked for asked in evidence.asked if asked.key == story.plan.key]
        seen = _first_seen(story, "message.completed", lambda data: data["iteration"])
        counts = Counter(asked.iteration for asked in own)
        for asked in own:
            if asked.at > seen.get(asked.iteration, asked.at):
                late = asked.at - seen[asked.iteration]
                yield Objection(
                    "repeated model call", story.id, f"iteration {asked.iteration}, {late:.3f} s after its reply"
                )
        for iteration, count in counts.items():
            turn = story.plan.turns[iteration - 1] if iteration <= len(story.plan.turns) else None
            allowed = 1 + (turn is not None and turn.act != "ok") + story.recoveries
            if turn is None or (count > allowed and story.run.get("status") in TERMINAL):
                yield Objection(
                    "repeated model call", story.id, f"iteration {iteration}: {count} requests, {allowed} allowed"
                )


# ---- tools


def _deliveries(evidence: Evidence) -> Iterator[Objection]:
    stories = {story.id: story for story in evidence.stories}
    by_call: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in evidence.deliveries:
        by_call[delivery.call_id].append(delivery)
    for call_id, deliveries in by_call.items():
        run_id = deliveries[0].run_id
        story = stories.get(run_id)
        if len({(delivery.key, delivery.body) for delivery in deliveries}) > 1 or deliveries[0].key != call_id:
            yield Objection("changed webhook", run_id, f"{call_id} came with other bytes or another key: {deliveries}")
        if deliveries[0].tool == "book" and len(deliveries) > 1:
            yield Objection("doubled at_most_once webhook", run_id, f"{call_id} came {len(deliveries)} times")
        if story is None:
            yield Objection("webhook of nobody", run_id, call_id)
            continue
        yield from _repeated(story, call_id, deliveries)


def _repeated(story: RunStory, call_id: str, deliveries: list[Delivery]) -> Iterator[Objection]:
    answered = _first_seen(story, "tool.invoked", lambda data: data["call_id"])
    stored = answered.get(call_id, _first_waiting(story).get(call_id))
    for delivery in deliveries[1:]:
        if stored is not None and delivery.at > stored:
            late = delivery.at - stored
            yield Objection("doubled webhook", story.id, f"{call_id} came again {late:.3f} s after its result was stored")
    first_attempts = sum(delivery.attempt == 1 for delivery in deliveries)
    if first_attempts > 1 + story.recoveries and story.run.get("status") in TERMINAL:
        yield Objection(
            "doubled webhook", story.id, f"{call_id}: {first_attempts} first attempts, {story.recoveries} recoveries"
        )
    decided = story.decided_at.get(call_id)
    if deliveries[0].tool == "pay" and (decided is None or deliveries[0].at < decided):
        yield Objection("approval passed over", story.id, f"{call_id} was sent before it was approved")


def _first_seen(story: RunStory, kind: str, name: Any) -> dict[Any, float]:
    """When any follower first saw an event of this type, by what names it."""
    found: dict[Any, float] = {}
    for event in (event for stream in story.streams for event in stream if event.type == kind):
        found[name(event.data)] = min(event.at, found.get(name(event.data), event.at))
    return found


def _first_waiting(story: RunStory) -> dict[str, float]:
    """When a call that was answered 202 was first seen to wait for its result."""
    found: dict[str, float] = {}
    for event in (event for stream in story.streams for event in stream if event.type == "run.waiting"):
        for item in event.data["pending"]:
            if item["reason"] == "async":
                found[item["call_id"]] = min(event.at, found.get(item["call_id"], event.at))
    return found


def _decisions(story: RunStory) -> Iterator[Objection]:
    """Each call has the outcome that the plan gives it, once."""
    asked = {call_id: event for event in story.fresh if event.type == "tool.invoking" for call_id in [event.data["call_id"]]}
    invoked = Counter(event.data["call_id"] for event in story.fresh if event.type == "tool.invoked")
    if invoked.keys() != asked.keys() or any(count > 1 for count in invoked.values()):
        yield Objection("unanswered call", story.id, f"asked {list(asked)}, answered {dict(invoked)}")
    for event in story.fresh:
        if event.type == "tool.invoked" and event.data["call_id"] in asked:
            arguments = asked[event.data["call_id"]].data["arguments"]
            allowed = _outcomes(event.data["tool"], arguments, story)
            result = json.dumps(event.data["result"])
            if event.data["outcome"] not in allowed:
                yield Objection("wrong result", story.id, f"{event.data}, allowed were {allowed}")
            elif event.data["outcome"] == "ok" and result != json.dumps({"items": [arguments["n"]]}):
                yield Objection("wrong result", story.id, f"{event.data} for {arguments}")


def _outcomes(tool: str, arguments: dict[str, Any], story: RunStory) -> set[str]:
    more = {"cancelled"} if story.run["status"] == "cancelled" else set()
    if tool == "pay" and arguments["decision"] == "reject":
        return more | {"denied"}
    if tool == "book":  # its only delivery may be the one whose answer was lost
        return more | ({"ok", "failed"} if arguments["act"] == "ok" and story.recoveries else _booked(arguments))
    return more | {"ok"}


def _booked(arguments: dict[str, Any]) -> set[str]:
    return {"ok"} if arguments["act"] == "ok" else {"failed"}


# ---- histories


def _messages(session: str, messages: list[dict[str, Any]], evidence: Evidence) -> Iterator[Objection]:
    """Positions without a hole, each turn's results right behind it, one input for each run."""
    positions = [message["position"] for message in messages]
    if positions and positions != list(range(positions[0], positions[0] + len(positions))):
        yield Objection("invalid history", session, f"positions {positions}")
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not open_calls or open_calls.pop(0) != message["tool_call_id"]:
                yield Objection("invalid history", session, f"a result out of its place: {message}")
            continue
        if open_calls:
            yield Objection("invalid history", session, f"{open_calls} have no result before {message}")
        open_calls = [call["id"] for call in message["tool_calls"] or ()]
    if open_calls:
        yield Objection("invalid history", session, f"{open_calls} have no result at the end")
    inputs = Counter(message["run_id"] for message in messages if message["role"] == "user")
    for run_id, count in inputs.items():
        if count > 1:
            yield Objection("doubled message", run_id, f"{count} inputs")
    yield from _told(session, messages, evidence)


def _told(session: str, messages: list[dict[str, Any]], evidence: Evidence) -> Iterator[Objection]:
    """What the events of the session's runs say was completed is what is stored."""
    stored = {message["id"]: message for message in messages if message["role"] == "assistant"}
    for story in evidence.stories:
        if story.session_id != session:
            continue
        told = {
            event.data["message"]["id"]: event.data["message"] for event in story.fresh if event.type == "message.completed"
        }
        own = {message_id: message for message_id, message in stored.items() if message["run_id"] == story.id}
        if story.fresh and told != own:
            yield Objection("events and messages differ", story.id, f"{told}\n  and {own}")
