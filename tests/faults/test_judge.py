"""The judge must object: a storm that nobody judges shows nothing."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.clients import Seen
from tests.faults.evidence import Evidence, RunStory
from tests.faults.faults import Fault
from tests.faults.judge import judge
from tests.faults.outside import Asked, Delivery
from tests.faults.plans import Call, Plan, Turn
from tests.faults.report import recovery_seconds, report

CALLS = (Call("search", 70), Call("book", 71), Call("pay", 72))
PLAN = Plan("1-0-1", (Turn("Let me look.", CALLS), Turn("It rains.")), "openai/storm", "background", 10, 4)
RUN = {
    "id": "run_1", "session_id": "ses_1", "status": "completed", "finish_reason": "stop", "error": None,
    "finished_at": "2026-01-01T00:00:09Z", "metadata": {"key": "1-0-1"},
}  # fmt: skip


def message(number: int) -> dict[str, Any]:
    turn = PLAN.turns[number]
    asked = [{"id": f"call_{call.tool}", "name": call.tool, "arguments": call.arguments} for call in turn.calls]
    shown = {"id": f"msg_{number}", "run_id": "run_1", "role": "assistant", "content": turn.text, "tool_calls": asked}
    return {**shown, "position": 2 if number == 0 else 6, "tool_call_id": None}


def invoking(call: Call) -> tuple[str, dict[str, Any]]:
    return "tool.invoking", {"iteration": 1, "call_id": f"call_{call.tool}", "tool": call.tool, "arguments": call.arguments}


def invoked(call: Call) -> tuple[str, dict[str, Any]]:
    fields = {"iteration": 1, "call_id": f"call_{call.tool}", "tool": call.tool}
    return "tool.invoked", {**fields, "result": {"items": [call.number]}, "outcome": "ok"}


def good_events() -> list[Seen]:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("run.queued", {}),
        ("run.started", {}),
        ("message.delta", {"message_id": "msg_0", "text": "Let me "}),
        ("message.delta", {"message_id": "msg_0", "text": "look."}),
        ("message.completed", {"iteration": 1, "message": message(0)}),
        *map(invoking, CALLS),
        *map(invoked, CALLS),
        ("run.resumed", {"reason": "recovered"}),
        ("message.delta", {"message_id": "msg_1", "text": "It rains."}),
        ("message.completed", {"iteration": 2, "message": message(1)}),
        ("run.completed", {"run": RUN}),
    ]
    return [
        Seen(number, kind, {"type": kind, "seq": number, "at": f"2026-01-01T00:00:{number:02}Z", **fields}, 100.0 + number)
        for number, (kind, fields) in enumerate(bodies, 1)
    ]


def good() -> Evidence:
    """One run, as it should be; it was recovered once."""
    story = RunStory(PLAN, "run_1", "ses_1", [good_events(), good_events()], 3, run=RUN, fresh=good_events())
    story.decided_at = {"call_pay": 105.0}
    story.trace = [{"iteration": 1, "model_calls": [{}]}, {"iteration": 2, "model_calls": [{}]}]
    deliveries = [
        Delivery(f"call_{call.tool}", "run_1", call.tool, f"call_{call.tool}", 1, b"{}", 106.0 + place)
        for place, call in enumerate(CALLS)
    ]
    user = {"id": "msg_u", "run_id": "run_1", "role": "user", "content": "Hi", "tool_calls": [], "position": 1}
    results = [
        {
            "id": f"msg_{call.tool}",
            "run_id": "run_1",
            "role": "tool",
            "tool_call_id": f"call_{call.tool}",
            "position": 3 + place,
        }
        for place, call in enumerate(CALLS)
    ]
    history = [user, message(0), *results, message(1)]
    asked = [Asked("1-0-1", 1, 101.5), Asked("1-0-1", 2, 112.5)]
    return Evidence(1, [story], deliveries, asked, {"ses_1": history}, [RUN], {})


def kinds(evidence: Evidence) -> set[str]:
    return {objection.kind for objection in judge(evidence)}


def drop(events: list[Seen], kind: str) -> None:
    del events[next(place for place, event in enumerate(events) if event.type == kind)]


def twice(events: list[Seen], kind: str) -> None:
    place = next(place for place, event in enumerate(events) if event.type == kind)
    events.insert(place, events[place])


def change(events: list[Seen], number: int, **fields: Any) -> None:
    events[number - 1] = replace(events[number - 1], data={**events[number - 1].data, **fields})


def swap(items: list[Any], one: int, other: int) -> None:
    items[one], items[other] = items[other], items[one]


def again(evidence: Evidence, place: int, **fields: Any) -> None:
    evidence.deliveries.append(replace(evidence.deliveries[place], **fields))


class TestStreams:
    def test_it_has_nothing_against_what_is_as_it_should_be(self) -> None:
        assert judge(good()) == []

    @pytest.mark.parametrize("kind", ["tool.invoked", "message.completed", "run.started", "run.resumed"])
    def test_it_objects_to_a_lost_event(self, kind: str) -> None:
        evidence = good()
        drop(evidence.stories[0].streams[1], kind)
        assert "lost event" in kinds(evidence)

    @pytest.mark.parametrize("kind", ["tool.invoked", "message.delta"])
    def test_it_objects_to_a_doubled_event(self, kind: str) -> None:
        evidence = good()
        twice(evidence.stories[0].streams[0], kind)
        assert "doubled event" in kinds(evidence)

    def test_it_objects_to_two_events_in_another_order(self) -> None:
        evidence = good()
        swap(evidence.stories[0].streams[0], 8, 9)
        assert kinds(evidence) == {"doubled event"}

    def test_it_objects_to_a_lost_delta(self) -> None:
        evidence = good()
        drop(evidence.stories[0].streams[0], "message.delta")
        assert kinds(evidence) == {"wrong text"}

    def test_it_allows_deltas_that_were_joined_and_told_anew(self) -> None:
        evidence = good()
        stream, fresh = evidence.stories[0].streams[0], evidence.stories[0].fresh
        stream.insert(3, replace(stream[3], id=None, type="message.discarded"))
        change(stream, 5, text="Let me look.")
        stream[4] = replace(stream[4], type="message.delta")
        del fresh[2]
        change(fresh, 3, text="Let me look.")
        assert kinds(evidence) == set()

    def test_it_objects_to_two_different_events_with_one_id(self) -> None:
        evidence = good()
        change(evidence.stories[0].streams[0], 9, outcome="failed")
        assert kinds(evidence) == {"two events with one id"}

    def test_it_objects_to_an_event_that_nobody_else_was_told(self) -> None:
        evidence = good()
        drop(evidence.stories[0].fresh, "run.resumed")
        assert "event of nobody" in kinds(evidence)

    @pytest.mark.parametrize("alter", [lambda events: events.pop(), lambda events: events.append(events[-1])])
    def test_it_objects_to_no_and_to_two_terminal_events(self, alter: Callable[[list[Seen]], None]) -> None:
        evidence = good()
        alter(evidence.stories[0].streams[0])
        assert "wrong terminal event" in kinds(evidence)


class TestWebhooks:
    def test_it_objects_to_a_delivery_after_the_result_was_seen(self) -> None:
        evidence = good()
        again(evidence, 0, at=109.5)
        assert kinds(evidence) == {"doubled webhook"}

    def test_it_allows_as_many_as_there_were_owners(self) -> None:
        evidence = good()
        again(evidence, 0, at=108.5)
        assert kinds(evidence) == set()
        again(evidence, 0, at=108.6)
        assert kinds(evidence) == {"doubled webhook"}

    def test_it_objects_to_other_bytes_under_one_key(self) -> None:
        evidence = good()
        again(evidence, 0, at=108.5, body=b"{} ")
        assert kinds(evidence) == {"changed webhook"}

    def test_it_objects_to_any_second_delivery_of_a_tool_that_is_at_most_once(self) -> None:
        evidence = good()
        again(evidence, 1, at=107.5)
        assert kinds(evidence) == {"doubled at_most_once webhook"}

    def test_it_objects_to_a_call_that_was_sent_before_it_was_approved(self) -> None:
        evidence = good()
        evidence.stories[0].decided_at = {"call_pay": 108.5}
        assert kinds(evidence) == {"approval passed over"}

    def test_it_objects_to_another_result_than_the_tool_gave(self) -> None:
        evidence = good()
        for events in (*evidence.stories[0].streams, evidence.stories[0].fresh):
            change(events, 9, result={"items": [1]})
        assert kinds(evidence) == {"wrong result"}


class TestModelCalls:
    def test_it_objects_to_a_request_after_the_reply_was_seen(self) -> None:
        evidence = good()
        evidence.asked.append(Asked("1-0-1", 1, 105.5))
        assert kinds(evidence) == {"repeated model call"}

    def test_it_allows_as_many_as_there_were_owners(self) -> None:
        evidence = good()
        evidence.asked.append(Asked("1-0-1", 1, 102.5))
        assert kinds(evidence) == set()
        evidence.asked.append(Asked("1-0-1", 1, 102.6))
        assert kinds(evidence) == {"repeated model call"}

    def test_it_objects_to_two_stored_replies(self) -> None:
        evidence = good()
        evidence.stories[0].trace[0]["model_calls"] = [{}, {}]
        assert kinds(evidence) == {"repeated model call"}


class TestRuns:
    def test_it_objects_to_two_runs_of_one_key(self) -> None:
        evidence = good()
        evidence.listed.append({**RUN, "id": "run_2"})
        assert kinds(evidence) == {"two runs of one key"}

    def test_it_objects_to_a_run_that_is_gone(self) -> None:
        evidence = good()
        evidence.listed.clear()
        assert kinds(evidence) == {"lost run"}

    def test_it_objects_to_a_run_that_did_not_end(self) -> None:
        evidence = good()
        evidence.stories[0].run = {**RUN, "status": "running"}
        assert "late run" in kinds(evidence)

    def test_it_objects_to_a_status_that_changed_after_the_end(self) -> None:
        evidence = good()
        evidence.stories[0].run = {**RUN, "output": "changed"}
        assert kinds(evidence) == {"two ends"}

    def test_it_objects_to_a_failed_run(self) -> None:
        evidence = good()
        run = {**RUN, "status": "failed"}
        evidence.stories[0].run = run
        for events in (*evidence.stories[0].streams, evidence.stories[0].fresh):
            change(events, len(events), run=run)
        assert kinds(evidence) == {"wrong end"}

    def test_it_objects_to_a_cancel_that_changed_nothing(self) -> None:
        evidence = good()
        story = evidence.stories[0]
        story.plan = replace(PLAN, cancelled_after=0.1)
        story.cancelled = {**RUN, "status": "running"}
        assert kinds(evidence) == {"cancel was lost"}

    def test_it_objects_to_a_stuck_session_and_to_an_answer_that_nobody_deserved(self) -> None:
        evidence = good()
        evidence.stuck = {"ses_1": "409"}
        evidence.stories[0].refusals.append("422")
        assert kinds(evidence) == {"stuck session", "refused"}


class TestHistories:
    @pytest.mark.parametrize("place", [3, 2])
    def test_it_objects_to_a_missing_result_or_message(self, place: int) -> None:
        evidence = good()
        del evidence.messages["ses_1"][place]
        assert "invalid history" in kinds(evidence)

    def test_it_objects_to_results_out_of_order(self) -> None:
        evidence = good()
        swap(evidence.messages["ses_1"], 2, 3)
        assert kinds(evidence) == {"invalid history"}

    def test_it_objects_to_a_doubled_input(self) -> None:
        evidence = good()
        evidence.messages["ses_1"].append({**evidence.messages["ses_1"][0], "position": 7})
        assert kinds(evidence) == {"doubled message"}

    def test_it_objects_to_a_stored_text_that_is_not_what_was_told(self) -> None:
        evidence = good()
        evidence.messages["ses_1"][1] = {**copy.deepcopy(message(0)), "content": "Something else."}
        assert kinds(evidence) == {"events and messages differ"}


class TestReport:
    def test_a_recovery_is_measured_from_the_fault_after_the_last_event_before_it(self) -> None:
        evidence = good()
        epoch = 1_767_225_600.0
        evidence.faults = [Fault("kill", "api-1", epoch + 5), Fault("kill", "api-2", epoch + 11.5)]
        assert recovery_seconds(evidence, evidence.stories[0]) == [0.5]

    def test_it_counts_what_was_objected_to(self) -> None:
        evidence = good()
        again(evidence, 0, at=109.5)
        text = report(evidence, judge(evidence))
        assert "doubled webhooks after a stored result = 1" in text
        assert "lost or doubled events = 0" in text
        assert "recoveries: 1" in text
