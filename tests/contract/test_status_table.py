"""Every status and finish reason that a run can end with (contract, section 4): its row, events, output and messages."""

import asyncio
from typing import Any

import pytest

from tests.api import Api, Played, TestTools, call, calls, failing, wanted
from tests.tools_app import Hook, Reply

TERMINAL = {"run.completed", "run.incomplete", "run.failed", "run.cancelled"}


async def ended(api: Api, played: Played, status: str, finish_reason: str, output: str | None) -> None:
    """What holds for every end."""
    run = played.run
    assert (run["status"], run["finish_reason"], run["output"]) == (status, finish_reason, output)
    assert await api.get(f"/v1/runs/{run['id']}") == run
    assert (run["error"] is not None) == (status == "failed")
    assert run["pending"] == []
    assert run["finished_at"] >= run["created_at"]
    assert [event.type for event in played.events if event.type in TERMINAL] == [f"run.{status}"]
    assert played.events[-1].data["run"] == run
    assert [event.id for event in played.events] == list(range(1, len(played.events) + 1))
    assert [event.data["seq"] for event in played.events] == [event.id for event in played.events]
    assert played.types[0] == "run.queued"
    for kind in ("run.queued", "run.started"):
        for event in played.of(kind):
            assert event["run"]["id"] == run["id"]
            assert event["run"]["status"] == {"run.queued": "queued", "run.started": "running"}[kind]
            assert event["run"]["finish_reason"] is None
    if run["started_at"] is not None:
        assert played.types[1] == "run.started"
    answered = [event["call_id"] for event in played.of("tool.invoked")]
    assert sorted(answered) == sorted(event["call_id"] for event in played.of("tool.invoking"))
    assert run["tool_calls"] == len(played.calls) == len(answered)
    completed = [event["message"] for event in played.of("message.completed")]
    assert completed == [message for message in played.messages if message["role"] == "assistant"]
    again = await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
    assert again == run


async def searching(api: Api, test_tools: TestTools) -> Hook:
    return await test_tools.host(api, "search", {"items": [1]})


class TestCompleted:
    async def test_an_answer_is_completed_stop(self, api: Api) -> None:
        played = await api.play({"text": "Hello!", "usage": {"input_tokens": 3, "output_tokens": 2}}, metadata={"a": [1]})
        await ended(api, played, "completed", "stop", "Hello!")
        assert played.run["iterations"] == 1
        assert played.run["usage"] == {"input_tokens": 3, "output_tokens": 2, "cached_tokens": 0, "reasoning_tokens": 0}
        assert played.run["metadata"] == {"a": [1]}
        assert played.run["model"] == "scripted/test"
        assert played.run["parent_run_id"] is None
        assert played.types == [
            "run.queued", "run.started", "iteration.started", "message.delta", "message.completed", "iteration.completed",
            "run.completed",
        ]  # fmt: skip

    async def test_after_tools_the_events_come_in_the_order_of_what_happened(self, api: Api, test_tools: TestTools) -> None:
        await searching(api, test_tools)
        usage = {"input_tokens": 10, "output_tokens": 1}
        played = await api.play(call("search", usage=usage), {"text": "One.", "usage": usage})
        await ended(api, played, "completed", "stop", "One.")
        assert played.types == [
            "run.queued", "run.started",
            "iteration.started", "message.completed", "tool.invoking", "tool.invoked", "iteration.completed",
            "iteration.started", "message.delta", "message.completed", "iteration.completed",
            "run.completed",
        ]  # fmt: skip
        assert (played.run["iterations"], played.run["tool_calls"]) == (2, 1)
        assert played.run["usage"]["input_tokens"] == 20
        assert [event["iteration"] for event in played.of("iteration.started", "iteration.completed")] == [1, 1, 2, 2]

    @pytest.mark.parametrize("reason", [None, "stop", "end_turn", "eos", "tool_calls", "something_new"])
    async def test_an_unknown_stop_reason_with_text_counts_as_stop(self, api: Api, reason: str | None) -> None:
        played = await api.play({"text": "Hi", "finish_reason": reason})
        await ended(api, played, "completed", "stop", "Hi")
        assert played.of("iteration.completed")[0]["finish_reason"] == "stop"

    async def test_reasoning_is_shown_but_is_no_output(self, api: Api) -> None:
        played = await api.play({"reasoning": "Let me think.", "text": "Hi"})
        await ended(api, played, "completed", "stop", "Hi")
        assert "".join(event["text"] for event in played.of("reasoning.delta")) == "Let me think."
        assert "think" not in str(played.messages)


class TestMaxIterations:
    async def test_on_cap_answer_what_the_last_call_says_is_output_but_no_completion(
        self, api: Api, test_tools: TestTools
    ) -> None:
        search = await searching(api, test_tools)
        played = await api.play(call("search"), call("search"), "As far as I got.", max_iterations=3)
        await ended(api, played, "incomplete", "max_iterations", "As far as I got.")
        assert played.run["iterations"] == 3
        assert len(search.requests) == 2

    async def test_on_cap_answer_calls_of_the_last_turn_are_skipped_and_output_is_the_last_content(
        self, api: Api, test_tools: TestTools
    ) -> None:
        search = await searching(api, test_tools)
        turns = [call("search", text="First I look."), call("search"), calls(wanted("search"), wanted("search"))]
        played = await api.play(*turns, "never", max_iterations=3)
        await ended(api, played, "incomplete", "max_iterations", "First I look.")
        assert len(search.requests) == 2
        assert played.outcomes == ["ok", "ok", "skipped", "skipped"]
        assert all(result["error"] for result in played.results[2:])
        assert [message["role"] for message in played.messages[-3:]] == ["assistant", "tool", "tool"]

    async def test_on_cap_answer_a_blank_last_turn_gives_the_last_content(self, api: Api, test_tools: TestTools) -> None:
        await searching(api, test_tools)
        played = await api.play(call("search", text="Looking."), "  \n", "never", max_iterations=2)
        await ended(api, played, "incomplete", "max_iterations", "Looking.")

    async def test_on_cap_answer_without_any_content_output_is_null(self, api: Api, test_tools: TestTools) -> None:
        await searching(api, test_tools)
        played = await api.play(call("search"), call("search"), "never", max_iterations=2)
        await ended(api, played, "incomplete", "max_iterations", None)

    async def test_without_any_content_the_empty_reply_is_put_out(self, api: Api, test_tools: TestTools) -> None:
        await searching(api, test_tools)
        played = await api.play(call("search"), call("search"), max_iterations=2, empty_reply="Sorry.")
        await ended(api, played, "incomplete", "max_iterations", "Sorry.")
        assert played.messages[-1]["content"] == "Sorry."

    async def test_what_an_earlier_run_said_is_never_output(self, api: Api, test_tools: TestTools) -> None:
        await searching(api, test_tools)
        session = await api.new_session()
        await api.run(session, "Said before.")
        played = await api.play(call("search"), call("search"), session=session, max_iterations=2)
        await ended(api, played, "incomplete", "max_iterations", None)

    @pytest.mark.parametrize("on_cap", ["answer", "stop"])
    async def test_prose_from_the_only_permitted_call_is_a_normal_end(self, api: Api, on_cap: str) -> None:
        played = await api.play("Hi", max_iterations=1, on_cap=on_cap)
        await ended(api, played, "completed", "stop", "Hi")

    @pytest.mark.parametrize("on_cap", ["answer", "stop"])
    async def test_calls_of_the_only_permitted_call_are_skipped(self, api: Api, test_tools: TestTools, on_cap: str) -> None:
        search = await searching(api, test_tools)
        played = await api.play(call("search", text="Let me see."), "never", max_iterations=1, on_cap=on_cap)
        await ended(api, played, "incomplete", "max_iterations", "Let me see.")
        assert played.outcomes == ["skipped"]
        assert search.requests == []

    async def test_on_cap_stop_prose_from_the_last_call_is_a_normal_end(self, api: Api, test_tools: TestTools) -> None:
        await searching(api, test_tools)
        played = await api.play(call("search"), "Found one.", max_iterations=2, on_cap="stop")
        await ended(api, played, "completed", "stop", "Found one.")

    async def test_on_cap_stop_calls_of_the_last_turn_are_skipped(self, api: Api, test_tools: TestTools) -> None:
        search = await searching(api, test_tools)
        turns = [call("search", text="One."), call("search", text="Two.")]
        played = await api.play(*turns, "never", max_iterations=2, on_cap="stop")
        await ended(api, played, "incomplete", "max_iterations", "Two.")
        assert played.outcomes == ["ok", "skipped"]
        assert len(search.requests) == 1

    async def test_seven_model_calls_is_the_default(self, api: Api, test_tools: TestTools) -> None:
        search = await searching(api, test_tools)
        played = await api.play(*[call("search", {"n": n}) for n in range(20)])
        assert played.ending == ("incomplete", "max_iterations")
        assert (played.run["iterations"], len(played.model_calls), len(search.requests)) == (7, 7, 6)

    async def test_unknown_and_invalid_calls_are_bounded_too(self, api: Api) -> None:
        played = await api.play(*[call("nope", "{")] * 20, max_iterations=4)
        await ended(api, played, "incomplete", "max_iterations", None)
        assert played.outcomes == ["unknown", "unknown", "unknown", "skipped"]


class TestLengthAndContentFilter:
    @pytest.mark.parametrize(
        ("reason", "finish"), [("length", "length"), ("max_tokens", "length"), ("content_filter", "content_filter")]
    )
    async def test_a_cut_answer_is_incomplete_with_its_text(self, api: Api, reason: str, finish: str) -> None:
        played = await api.play({"text": "Once upon a", "finish_reason": reason}, "never")
        await ended(api, played, "incomplete", finish, "Once upon a")
        assert played.messages[-1]["content"] == "Once upon a"
        assert len(played.model_calls) == 1

    @pytest.mark.parametrize("finish", ["length", "content_filter"])
    async def test_without_text_the_output_is_null(self, api: Api, finish: str) -> None:
        played = await api.play({"finish_reason": finish}, "never")
        await ended(api, played, "incomplete", finish, None)

    @pytest.mark.parametrize("finish", ["length", "content_filter"])
    async def test_without_text_the_empty_reply_is_put_out(self, api: Api, finish: str) -> None:
        played = await api.play({"finish_reason": finish}, empty_reply="Sorry.")
        await ended(api, played, "incomplete", finish, "Sorry.")


class TestEmpty:
    @pytest.mark.parametrize("blank", ["", "  \n ", {"reasoning": "hm"}, {"text": "", "finish_reason": "odd"}])
    async def test_a_blank_answer_is_asked_for_once_more(self, api: Api, blank: Any) -> None:
        played = await api.play(blank, "There it is.")
        await ended(api, played, "completed", "stop", "There it is.")
        assert played.run["iterations"] == 2

    @pytest.mark.parametrize("blank", ["", "  \n "])
    async def test_still_blank_is_empty_after_exactly_one_more_call(self, api: Api, blank: str) -> None:
        played = await api.play(blank, blank, "never")
        await ended(api, played, "incomplete", "empty", None)
        assert len(played.model_calls) == 2

    async def test_after_tools_as_well(self, api: Api, test_tools: TestTools) -> None:
        await searching(api, test_tools)
        played = await api.play(call("search", text="I look."), "", "", "never")
        assert played.ending == ("incomplete", "empty")
        assert len(played.model_calls) == 3

    async def test_without_the_nudge_it_is_empty_at_once(self, api: Api) -> None:
        played = await api.play("", "never", empty_nudge=False)
        await ended(api, played, "incomplete", "empty", None)
        assert len(played.model_calls) == 1

    async def test_the_cap_leaves_no_call_for_a_nudge(self, api: Api) -> None:
        played = await api.play("", "never", max_iterations=1)
        await ended(api, played, "incomplete", "empty", None)

    async def test_the_empty_reply_is_output_and_a_stored_message_with_its_events(self, api: Api) -> None:
        played = await api.play("", "", empty_reply="I have no answer.")
        await ended(api, played, "incomplete", "empty", "I have no answer.")
        last = played.messages[-1]
        assert (last["role"], last["content"]) == ("assistant", "I have no answer.")
        shown = [event for event in played.events if event.type.startswith("message.")][-2:]
        assert [event.type for event in shown] == ["message.delta", "message.completed"]
        assert shown[0].data["text"] == "I have no answer."
        assert shown[0].data["message_id"] == last["id"]
        assert shown[1].data["message"] == last

    async def test_the_empty_reply_of_a_run_that_persists_nothing_is_output_only(self, api: Api) -> None:
        session = await api.new_session()
        run = await api.run(session, "", "", empty_reply="I have no answer.", persist=False)
        assert (run["finish_reason"], run["output"]) == ("empty", "I have no answer.")
        assert await api.messages(session) == []

    async def test_the_empty_reply_of_the_session_holds_and_the_run_may_take_it_back(self, api: Api) -> None:
        session = await api.new_session(config={"empty_reply": "From the session.", "empty_nudge": False})
        assert (await api.run(session, ""))["output"] == "From the session."
        assert (await api.run(session, "", empty_reply=None))["output"] is None
        assert (await api.run(session, "", empty_reply="From the run."))["output"] == "From the run."

    async def test_blank_turns_are_stored_as_they_happen(self, api: Api) -> None:
        played = await api.play("", "There.")
        assert [(message["role"], message["content"]) for message in played.messages] == [
            ("user", "Hello"), ("assistant", ""), ("assistant", "There."),
        ]  # fmt: skip


class TestDeadline:
    async def test_a_slow_model_meets_the_deadline(self, api: Api) -> None:
        played = await api.play({"text": "slow", "delay_ms": 60_000}, deadline_seconds=0.2)
        await ended(api, played, "incomplete", "deadline", None)

    async def test_the_last_content_is_output(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", Reply(ending="hang"))
        played = await api.play(call("search", text="I look."), "never", deadline_seconds=0.7)
        await ended(api, played, "incomplete", "deadline", "I look.")
        assert played.outcomes == ["cancelled"]

    async def test_the_empty_reply_is_put_out(self, api: Api) -> None:
        slow = {"text": "slow", "delay_ms": 60_000}
        played = await api.play(slow, deadline_seconds=0.2, empty_reply="That took too long.")
        await ended(api, played, "incomplete", "deadline", "That took too long.")
        assert played.messages[-1]["content"] == "That took too long."

    async def test_it_holds_over_the_waits_between_attempts_too(self, api: Api) -> None:
        slow_errors = [failing(503, delay_ms=200)] * 4
        played = await api.play(*slow_errors, deadline_seconds=0.3)
        await ended(api, played, "incomplete", "deadline", None)


class TestBudget:
    USAGE = {"input_tokens": 60, "output_tokens": 40}

    async def test_the_run_ends_when_its_tokens_are_spent(self, api: Api, test_tools: TestTools) -> None:
        search = await searching(api, test_tools)
        turns = [call("search", text="I look.", usage=self.USAGE), call("search", usage=self.USAGE)]
        played = await api.play(*turns, "never", max_tokens_total=150)
        await ended(api, played, "incomplete", "budget", "I look.")
        assert len(played.model_calls) == 2
        assert len(search.requests) == 1
        assert played.outcomes == ["ok", "skipped"]

    async def test_a_run_within_its_budget_is_not_touched(self, api: Api, test_tools: TestTools) -> None:
        await searching(api, test_tools)
        turns = [call("search", usage=self.USAGE), {"text": "One.", "usage": self.USAGE}]
        played = await api.play(*turns, max_tokens_total=250)
        await ended(api, played, "completed", "stop", "One.")


class TestFailed:
    @pytest.mark.parametrize(
        ("turns", "code"),
        [
            ([failing(503)] * 4, "provider_unavailable"),
            ([failing(400, "no such parameter")], "provider_rejected"),
            ([failing(401, "bad key sk-abcdefgh1234")], "provider_auth"),
            ([failing(400, "maximum context length is 8192 tokens")] * 2, "context_overflow"),
            ([], "script_exhausted"),
        ],
    )
    async def test_each_code(self, api: Api, turns: list[Any], code: str) -> None:
        played = await api.play(*turns)
        await ended(api, played, "failed", "error", None)
        assert played.run["error"]["code"] == code
        assert played.run["error"]["message"]
        assert "sk-abcdefgh" not in str(played.run)
        assert [message["role"] for message in played.messages] == ["user"]

    async def test_a_used_up_script_names_how_many_turns_there_were(self, api: Api, test_tools: TestTools) -> None:
        await searching(api, test_tools)
        played = await api.play(call("search"), call("search"))
        assert played.ending == ("failed", "error")
        assert played.run["error"]["code"] == "script_exhausted"
        assert "2 turns" in played.run["error"]["message"]
        assert played.run["iterations"] == 3

    async def test_a_failed_run_frees_its_session(self, api: Api) -> None:
        session = await api.new_session()
        await api.run(session, failing(400))
        assert (await api.run(session, "Fine."))["status"] == "completed"


class TestCancelled:
    async def test_a_running_run(self, api: Api) -> None:
        session = await api.new_session()
        slow = {"text": "slow", "delay_ms": 60_000}
        run = await api.run(session, slow, background=True, status=202)
        assert (run["status"], run["finish_reason"]) in [("running", None), ("queued", None)]
        run = await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        await ended(api, await api.played(run), "cancelled", "cancelled", None)
        assert (await api.run(session, "Fine."))["status"] == "completed"

    async def test_a_run_that_is_cancelled_while_queued_never_starts(self, api: Api) -> None:
        session = await api.new_session()
        slow = {"text": "slow", "delay_ms": 60_000}
        first = await api.run(session, slow, background=True, status=202)
        second = await api.run(session, "never", input="Second", on_conflict="queue", background=True, status=202)
        assert second["status"] == "queued"
        second = await api.post(f"/v1/runs/{second['id']}/cancel", status=200)
        played = await api.played(second)
        assert played.types == ["run.queued", "run.cancelled"]
        assert played.run["started_at"] is None
        await ended(api, played, "cancelled", "cancelled", None)
        await api.post(f"/v1/runs/{first['id']}/cancel", status=200)

    async def test_who_waits_for_the_run_gets_it_cancelled(self, api: Api) -> None:
        session = await api.new_session()
        slow = {"text": "slow", "delay_ms": 60_000}
        waiting = asyncio.create_task(api.stream_run(session, slow))
        while not (runs := (await api.get(f"/v1/runs?session_id={session}"))["data"]):
            await asyncio.sleep(0.01)
        await api.post(f"/v1/runs/{runs[0]['id']}/cancel", status=200)
        assert (await waiting)[-1].type == "run.cancelled"
