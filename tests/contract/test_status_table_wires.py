"""Every status and finish reason a run can end with (contract, section 4) in both providers' wire formats, over HTTP.

Rows without a meaning here or in one of the formats:

| row | format | why |
|---|---|---|
| `failed`: `script_exhausted` | both | only a scripted model has a script |
| `failed`: `redaction_failed`, `internal` | both | no model has a part in it |
| `failed`: `hook_failed` | both | shown for every hook in `test_hooks.py`; a hook stands between the loop and any model |
| a turn that the provider pauses | openai | chat completions know no such stop reason |
| `model_context_window_exceeded` | openai | a stop reason of the other API |
"""

from typing import Any

import pytest

from tests.api import TestTools, call, calls, failing, wanted
from tests.contract.test_status_table import ended
from tests.contract.wires import Wire
from tests.providers import messages_api as messages
from tests.tools_app import Hook

USAGE = {"input_tokens": 60, "output_tokens": 40}
SLOW = {"text": "slow", "delay_ms": 60_000}


async def searching(wire: Wire, test_tools: TestTools, **fields: Any) -> Hook:
    return await test_tools.host(wire.api, "search", {"items": [1]}, **fields)


class TestCompleted:
    async def test_an_answer_is_completed_stop(self, wire: Wire) -> None:
        session = await wire.api.new_session(system_prompt="Be kind.")
        played = await wire.play({"text": "Hello!", "chunk_chars": 3, "usage": USAGE}, session=session)
        await ended(wire.api, played, "completed", "stop", "Hello!")
        assert "".join(event["text"] for event in played.of("message.delta")) == "Hello!"
        assert played.run["usage"] == {**USAGE, "cached_tokens": 0, "reasoning_tokens": 0}
        assert played.run["model"] == wire.format.model
        assert wire.prose() == [("system", "Be kind."), ("user", "Hello")]

    async def test_after_tools(self, wire: Wire, test_tools: TestTools) -> None:
        await searching(wire, test_tools)
        played = await wire.play(call("search", text="I look.", usage=USAGE), {"text": "One.", "usage": USAGE})
        await ended(wire.api, played, "completed", "stop", "One.")
        assert (played.run["iterations"], played.run["tool_calls"], played.run["usage"]["input_tokens"]) == (2, 1, 120)
        assert wire.prose() == [("user", "Hello"), ("assistant", "I look.")]
        assert wire.tools(0) == wire.tools(1) == (["search"], "auto")

    @pytest.mark.parametrize("reason", [None, "stop", "stop_sequence", "eos", "tool_calls", "something_new"])
    async def test_an_unknown_stop_reason_with_text_counts_as_stop(self, wire: Wire, reason: str | None) -> None:
        played = await wire.play({"text": "Hi", "finish_reason": reason})
        await ended(wire.api, played, "completed", "stop", "Hi")

    async def test_reasoning_is_shown_but_is_no_output(self, wire: Wire) -> None:
        played = await wire.play({"reasoning": "Let me think.", "text": "Hi"})
        await ended(wire.api, played, "completed", "stop", "Hi")
        assert [event["text"] for event in played.of("reasoning.delta")] == ["Let me think."]

    async def test_a_turn_that_is_paused_is_gone_on_with(self, wire: Wire) -> None:
        if wire.format.name == "openai":  # has no such reason: it counts as a normal end
            played = await wire.play({"text": "Looking.", "finish_reason": "pause_turn"})
            return await ended(wire.api, played, "completed", "stop", "Looking.")
        played = await wire.play({"text": "Looking.", "finish_reason": "pause_turn"}, "Found one.")
        await ended(wire.api, played, "completed", "stop", "Found one.")
        assert wire.bodies[1]["messages"][-1]["role"] == "assistant"


class TestMaxIterations:
    async def test_on_cap_answer_the_last_call_may_not_call_and_is_told_so(self, wire: Wire, test_tools: TestTools) -> None:
        await searching(wire, test_tools)
        played = await wire.play(call("search"), "As far as I got.", max_iterations=2)
        await ended(wire.api, played, "incomplete", "max_iterations", "As far as I got.")
        assert (wire.tools(0), wire.tools(1)) == ((["search"], "auto"), (["search"], "none"))
        role, note = wire.prose()[-1]
        assert (role, "No further tool calls" in note) == ("user", True)
        assert wire.results() == ['{"items":[1]}']

    @pytest.mark.parametrize("on_cap", ["answer", "stop"])
    async def test_calls_of_the_last_turn_are_skipped(self, wire: Wire, test_tools: TestTools, on_cap: str) -> None:
        search = await searching(wire, test_tools)
        turns = [call("search", text="One."), call("search")]
        played = await wire.play(*turns, max_iterations=2, on_cap=on_cap)
        await ended(wire.api, played, "incomplete", "max_iterations", "One.")
        assert (len(search.requests), played.outcomes) == (1, ["ok", "skipped"])

    async def test_on_cap_stop_the_last_call_is_like_the_others(self, wire: Wire, test_tools: TestTools) -> None:
        await searching(wire, test_tools)
        played = await wire.play(call("search"), "Found one.", max_iterations=2, on_cap="stop")
        await ended(wire.api, played, "completed", "stop", "Found one.")
        assert wire.tools(1) == (["search"], "auto")
        assert wire.prose(1) == [("user", "Hello")]

    async def test_without_any_content_the_empty_reply_is_put_out(self, wire: Wire, test_tools: TestTools) -> None:
        await searching(wire, test_tools)
        played = await wire.play(call("search"), call("search"), max_iterations=2, empty_reply="Sorry.")
        await ended(wire.api, played, "incomplete", "max_iterations", "Sorry.")


class TestLengthAndContentFilter:
    @pytest.mark.parametrize("finish", ["length", "content_filter"])
    @pytest.mark.parametrize("text", ["Once upon a", None])
    async def test_a_cut_answer_is_incomplete_with_its_text(self, wire: Wire, finish: str, text: str | None) -> None:
        played = await wire.play({"text": text or "", "finish_reason": finish})
        await ended(wire.api, played, "incomplete", finish, text)

    async def test_a_window_that_is_full_is_a_length(self, wire: Wire) -> None:
        reason = "model_context_window_exceeded" if wire.format.name == "anthropic" else "length"
        played = await wire.play({"text": "Once", "finish_reason": reason})
        await ended(wire.api, played, "incomplete", "length", "Once")


class TestEmpty:
    async def test_a_blank_answer_is_asked_for_once_more(self, wire: Wire) -> None:
        played = await wire.play({"reasoning": "hm", "text": " \n"}, "There it is.")
        await ended(wire.api, played, "completed", "stop", "There it is.")
        role, nudge = wire.prose()[-1]
        assert (role, "blank" in nudge) == ("user", True)

    async def test_still_blank_is_empty(self, wire: Wire) -> None:
        played = await wire.play("", "")
        await ended(wire.api, played, "incomplete", "empty", None)

    async def test_the_empty_reply_is_put_out_and_part_of_the_history(self, wire: Wire) -> None:
        session = await wire.api.new_session()
        played = await wire.play("", session=session, empty_nudge=False, empty_reply="I have none.")
        await ended(wire.api, played, "incomplete", "empty", "I have none.")
        await wire.play("Fine.", session=session, input="And now?")
        assert wire.prose() == [("user", "Hello"), ("assistant", "I have none."), ("user", "And now?")]


class TestDeadlineAndBudget:
    async def test_a_slow_model_meets_the_deadline(self, wire: Wire) -> None:
        played = await wire.play(SLOW, deadline_seconds=0.3)
        await ended(wire.api, played, "incomplete", "deadline", None)

    async def test_the_run_ends_when_its_tokens_are_spent(self, wire: Wire, test_tools: TestTools) -> None:
        await searching(wire, test_tools)
        turns = [call("search", text="I look.", usage=USAGE), call("search", usage=USAGE)]
        played = await wire.play(*turns, max_tokens_total=150)
        await ended(wire.api, played, "incomplete", "budget", "I look.")
        assert played.outcomes == ["ok", "skipped"]


class TestWaitingAndRejected:
    async def decided(self, wire: Wire, test_tools: TestTools, *turns: Any, **decision: Any) -> Any:
        await searching(wire, test_tools, requires_approval=True)
        run = await wire.run(await wire.api.new_session(), *turns)
        assert (run["status"], run["finish_reason"]) == ("waiting", None)
        assert [item["reason"] for item in run["pending"]] == ["approval"] * len(run["pending"])
        await wire.api.post(f"/v1/runs/{run['id']}/approvals", {"decisions": [{"call_id": "*", **decision}]}, 200)
        await wire.api.events(run["id"])
        return await wire.api.played(await wire.api.get(f"/v1/runs/{run['id']}"))

    async def test_a_rejection_without_a_reason(self, wire: Wire, test_tools: TestTools) -> None:
        played = await self.decided(wire, test_tools, call("search", text="May I?"), decision="reject")
        assert (played.ending, played.run["output"]) == (("incomplete", "rejected"), "May I?")
        assert len(wire.bodies) == 1

    async def test_one_with_a_reason_goes_to_the_model(self, wire: Wire, test_tools: TestTools) -> None:
        turn = calls(wanted("search", {"n": 1}), wanted("search", {"n": 2}))
        played = await self.decided(wire, test_tools, turn, "As you wish.", decision="reject", reason="Not today.")
        assert (played.ending, played.outcomes) == (("completed", "stop"), ["denied", "denied"])
        assert ["Not today." in told for told in wire.results()] == [True, True]


class TestFailed:
    @pytest.mark.parametrize(
        ("turns", "code"),
        [
            ([failing(503)] * 4, "provider_unavailable"),
            ([failing(400, "no such parameter")], "provider_rejected"),
            ([failing(401, "bad key")], "provider_auth"),
            ([failing(400, "maximum context length is 8192 tokens")], "context_overflow"),
        ],
    )
    async def test_each_code_that_a_provider_can_bring_about(self, wire: Wire, turns: list[Any], code: str) -> None:
        played = await wire.play(*turns)
        await ended(wire.api, played, "failed", "error", None)
        assert played.run["error"]["code"] == code
        assert [message["role"] for message in played.messages] == ["user"]

    async def test_after_a_turn_the_last_content_is_output(self, wire: Wire, test_tools: TestTools) -> None:
        await searching(wire, test_tools)
        played = await wire.play(call("search", text="I look."), failing(400, "no"))
        await ended(wire.api, played, "failed", "error", "I look.")


class TestCancelled:
    async def test_a_running_run(self, wire: Wire) -> None:
        session = await wire.api.new_session()
        run = await wire.run(session, SLOW, background=True, status=202)
        await wire.server.asked.wait()
        run = await wire.api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        await ended(wire.api, await wire.api.played(run), "cancelled", "cancelled", None)
        assert (await wire.run(session, "Fine."))["status"] == "completed"

    async def test_a_run_that_is_cancelled_while_queued_never_starts(self, wire: Wire) -> None:
        session = await wire.api.new_session()
        first = await wire.run(session, SLOW, background=True, status=202)
        second = await wire.run(session, on_conflict="queue", background=True, status=202)
        second = await wire.api.post(f"/v1/runs/{second['id']}/cancel", status=200)
        await ended(wire.api, await wire.api.played(second), "cancelled", "cancelled", None)
        await wire.api.post(f"/v1/runs/{first['id']}/cancel", status=200)
        assert len(wire.bodies) <= 1


class TestTheEndOfAStream:
    async def test_of_the_official_kind_nothing_is_missed_when_the_connection_then_breaks(self, wire: Wire) -> None:
        played = await wire.play(wire.format.answer([*wire.format.stream({"text": "All of it."}), 0.01], end="reset"))
        await ended(wire.api, played, "completed", "stop", "All of it.")

    async def test_cut_before_its_finish_reason_it_is_made_anew(self, wire: Wire) -> None:
        events = [frame for frame in wire.format.stream({"text": "Half"}) if not _ends(frame)]
        played = await wire.play(wire.format.answer(events), "Whole.")
        await ended(wire.api, played, "completed", "stop", "Whole.")


def _ends(frame: Any) -> bool:
    if not isinstance(frame, dict):
        return True
    return frame.get("type") in (messages.STOP["type"], "message_delta") or any(
        choice["finish_reason"] for choice in frame.get("choices", ())
    )
