"""Every row of the contract's table of the loop, on fakes of its ports."""

import asyncio
from typing import Any

import pytest

from app.infra import ids
from app.loop.messages import (
    AnsweredCall,
    ErrorCode,
    FinishReason,
    ModelFailure,
    Reply,
    RunFinish,
    RunStatus,
    ToolCall,
    ToolOutcome,
    ToolResult,
    Usage,
)
from app.loop.ports import CheckedArguments, StoredIteration
from app.loop.turn import Limits
from tests.fakes import RUN_ID, calls, draft, offered, play


def ended(played: Any) -> tuple[RunStatus, RunFinish, str | None]:
    return played.outcome.status, played.outcome.finish_reason, played.outcome.output


class TestAnswer:
    async def test_prose_completes_the_run(self) -> None:
        played = await play(Reply("Hi there"))
        assert ended(played) == (RunStatus.COMPLETED, RunFinish.STOP, "Hi there")
        assert played.types() == ["iteration.started", "iteration.completed"]

    async def test_a_result_is_sent_back_and_the_next_reply_answers(self) -> None:
        played = await play(calls(draft("search", '{"q": 1}')), Reply("Found it"), answers={"search": {"items": [1]}})
        assert ended(played)[2] == "Found it"
        second = played.provider.requests[1].messages
        assert [message.role for message in second] == ["user", "assistant", "tool"]
        assert second[2].content == '{"items":[1]}'
        assert second[2].tool_call_id == second[1].tool_calls[0].id

    async def test_the_assistants_turn_is_stored_before_its_tools_run(self) -> None:
        order: list[str] = []

        def answer(call: ToolCall) -> dict[str, Any]:
            order.append("called")
            return {}

        played = await play(calls(draft()), Reply("ok"), answers={"search": answer})
        assert played.journal.replies[0][2][0].id == ids.derived(ids.CALL, RUN_ID, 1, 0)
        assert order == ["called"]

    async def test_calls_are_run_whatever_finish_reason_the_model_gave(self) -> None:
        played = await play(calls(draft(), finish=FinishReason.STOP), Reply("ok"), answers={"search": {}})
        assert len(played.tools.calls) == 1

    async def test_text_beside_calls_is_no_answer(self) -> None:
        played = await play(calls(draft(), text="Let me look"), Reply("Done"), answers={"search": {}})
        assert ended(played)[2] == "Done"

    @pytest.mark.parametrize(
        ("finish", "reason"),
        [(FinishReason.LENGTH, RunFinish.LENGTH), (FinishReason.CONTENT_FILTER, RunFinish.CONTENT_FILTER)],
    )
    async def test_a_cut_or_filtered_text_is_never_passed_off_as_an_answer(
        self, finish: FinishReason, reason: RunFinish
    ) -> None:
        played = await play(Reply("Half a", finish_reason=finish))
        assert ended(played) == (RunStatus.INCOMPLETE, reason, "Half a")
        assert len(played.provider.requests) == 1


class TestUnknownTool:
    async def test_it_is_not_executed_and_its_siblings_are(self) -> None:
        played = await play(calls(draft("nope"), draft("search")), Reply("ok"), answers={"search": {"items": [1]}})
        assert played.contents == [
            '{"error":"Tool \'nope\' does not exist. Available tools: search."}',
            '{"items":[1]}',
        ]
        assert played.outcomes == [ToolOutcome.UNKNOWN, ToolOutcome.OK]

    async def test_without_tools_the_model_reads_none(self) -> None:
        played = await play(calls(draft("x")), Reply("ok"), tools=())
        assert "Available tools: none." in played.contents[0]

    @pytest.mark.parametrize("name", ["listProperties", "LIST_PROPERTIES", "list-properties", "ListProperties"])
    async def test_a_name_that_differs_in_writing_only_is_executed(self, name: str) -> None:
        tools = (offered("list_properties"), offered("other"))
        played = await play(calls(draft(name)), Reply("ok"), tools=tools, answers={"list_properties": {}})
        assert [call.name for call in played.tools.calls] == ["list_properties"]

    async def test_a_name_that_could_mean_two_tools_is_unknown(self) -> None:
        tools = (offered("a_b"), offered("a-b"))
        played = await play(calls(draft("aB")), Reply("ok"), tools=tools)
        assert played.outcomes == [ToolOutcome.UNKNOWN]


class TestArguments:
    @pytest.mark.parametrize("text", ["{", "[]", "null", "42", '"x"', "NaN", "[" * 100_000, '{"a": Infinity}'])
    async def test_what_is_no_object_is_not_executed(self, text: str) -> None:
        played = await play(calls(draft(arguments=text)), Reply("ok"))
        assert played.outcomes == [ToolOutcome.INVALID]
        assert played.tools.calls == []

    @pytest.mark.parametrize("text", ["", "  ", "\n"])
    async def test_blank_is_an_empty_object(self, text: str) -> None:
        played = await play(calls(draft(arguments=text)), Reply("ok"), answers={"search": {}})
        assert played.tools.calls[0].arguments == {}

    async def test_problems_reach_the_model_and_the_retry_runs(self) -> None:
        def check(arguments: dict[str, Any]) -> CheckedArguments:
            return CheckedArguments(arguments, () if "city" in arguments else ("city: is needed",))

        played = await play(
            calls(draft(arguments="{}")),
            calls(draft(arguments='{"city": "Vigo"}')),
            Reply("ok"),
            tools=(offered("search", check),),
            answers={"search": {"items": [1]}},
        )
        assert played.outcomes == [ToolOutcome.INVALID, ToolOutcome.OK]
        assert "city: is needed" in played.contents[0]
        assert ended(played)[0] is RunStatus.COMPLETED

    async def test_the_tool_gets_the_checked_arguments(self) -> None:
        tools = (offered("search", lambda arguments: CheckedArguments({"n": 3})),)
        played = await play(calls(draft(arguments='{"n": "3"}')), Reply("ok"), tools=tools, answers={"search": {}})
        assert played.tools.calls[0].arguments == {"n": 3}

    async def test_nul_and_lone_surrogates_never_get_further(self) -> None:
        text = r'{"a\u0000": "b\ud83d", "c": "\ud83d\ude00"}'
        played = await play(calls(draft(arguments=text)), Reply("ok"), answers={"search": {}})
        assert played.tools.calls[0].arguments == {"a": "b\ufffd", "c": "😀"}

    async def test_cut_off_by_length_the_last_call_is_not_executed(self) -> None:
        reply = calls(draft("search"), draft("search", '{"a'), finish=FinishReason.LENGTH)
        played = await play(reply, Reply("ok"), answers={"search": {"items": [1]}})
        assert played.outcomes == [ToolOutcome.OK, ToolOutcome.INVALID]
        assert "cut off" in played.contents[1]


class TestRepeatedCalls:
    async def test_the_same_id_name_and_arguments_is_executed_once_and_both_are_answered(self) -> None:
        reply = calls(draft(arguments='{"a":1}', provider_id="x"), draft(arguments='{"a": 1}', provider_id="x"))
        played = await play(reply, Reply("ok"), answers={"search": {"items": [1]}})
        assert len(played.tools.calls) == 1
        assert len({answered.call.id for answered in played.journal.answers}) == 2

    async def test_the_same_id_with_other_arguments_is_two_calls(self) -> None:
        reply = calls(draft(arguments='{"a":1}', provider_id="x"), draft(arguments='{"a":2}', provider_id="x"))
        played = await play(reply, Reply("ok"), answers={"search": {}})
        assert len(played.tools.calls) == 2

    async def test_one_provider_id_in_every_round_is_another_call_each_time(self) -> None:
        rounds = [calls(draft(provider_id="call_0")) for _ in range(3)]
        played = await play(*rounds, Reply("ok"), answers={"search": {"ok": True}})
        assert len({call.id for call in played.tools.calls}) == 3


class TestParallelCalls:
    async def test_no_more_run_at_once_than_allowed(self) -> None:
        running = most = 0

        async def answer() -> dict[str, Any]:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return {"ok": 1}

        reply = calls(*(draft(arguments=f'{{"n":{n}}}') for n in range(6)))
        await play(reply, Reply("ok"), answers={"search": lambda call: answer()}, parallel_tools=2)
        assert most == 2

    async def test_the_model_sees_results_in_the_order_of_its_calls(self) -> None:
        first_may_end = asyncio.Event()

        async def answer(call: ToolCall) -> dict[str, Any]:
            if call.arguments == {"n": 0}:
                await first_may_end.wait()
            else:
                first_may_end.set()
            return {"n": call.arguments["n"]} if call.arguments else {}

        reply = calls(draft(arguments='{"n":0}'), draft(arguments='{"n":1}'))
        played = await play(reply, Reply("ok"), answers={"search": answer})
        assert played.contents == ['{"n":1}', '{"n":0}'], "stored as they return"
        shown = [message.content for message in played.provider.requests[1].messages if message.role == "tool"]
        assert shown == ['{"n":0}', '{"n":1}']


class TestCap:
    async def test_answer_keeps_the_tools_but_forbids_them_and_asks_for_honesty(self) -> None:
        answers = {"search": {"items": [1]}}
        played = await play(calls(draft()), calls(draft()), Reply("What I have"), answers=answers, max_iterations=3)
        last = played.provider.requests[2]
        assert (last.tool_choice, len(last.tools)) == ("none", 1)
        assert "could not be looked up" in last.messages[-1].text
        assert ended(played) == (RunStatus.INCOMPLETE, RunFinish.MAX_ITERATIONS, "What I have")

    async def test_an_endless_caller_is_bounded_and_its_last_calls_are_skipped(self) -> None:
        played = await play(calls(draft(), text="Looking"), answers={"search": {"items": [1]}}, max_iterations=3)
        assert len(played.provider.requests) == 3
        assert len(played.tools.calls) == 2
        assert played.outcomes[-1] is ToolOutcome.SKIPPED
        assert ended(played) == (RunStatus.INCOMPLETE, RunFinish.MAX_ITERATIONS, "Looking")

    async def test_stop_takes_prose_of_the_last_call_as_a_normal_end(self) -> None:
        played = await play(calls(draft()), Reply("Done"), answers={"search": {}}, max_iterations=2, on_cap="stop")
        assert played.provider.requests[1].tool_choice == "auto"
        assert ended(played) == (RunStatus.COMPLETED, RunFinish.STOP, "Done")

    async def test_a_single_permitted_call_that_answers_is_a_normal_end(self) -> None:
        assert ended(await play(Reply("Hi"), max_iterations=1))[0] is RunStatus.COMPLETED

    async def test_with_no_text_at_all_the_empty_reply_is_said(self) -> None:
        played = await play(calls(draft()), answers={"search": {}}, max_iterations=2, empty_reply="Sorry.")
        assert ended(played) == (RunStatus.INCOMPLETE, RunFinish.MAX_ITERATIONS, "Sorry.")
        assert played.journal.said == ["Sorry."]


class TestToolChoice:
    async def test_a_forced_choice_holds_for_the_first_call_only(self) -> None:
        played = await play(calls(draft()), Reply("ok"), answers={"search": {}}, tool_choice="required")
        assert [request.tool_choice for request in played.provider.requests] == ["required", "auto"]

    async def test_none_holds_for_all(self) -> None:
        played = await play(Reply(""), Reply("ok"), tool_choice="none")
        assert [request.tool_choice for request in played.provider.requests] == ["none", "none"]


class TestBlankAnswer:
    async def test_it_is_asked_for_once_more(self) -> None:
        played = await play(Reply(" "), Reply("Here"))
        assert ended(played)[2] == "Here"
        roles = [message.role for message in played.provider.requests[1].messages]
        assert roles == ["user", "user"], "the blank turn itself is not sent back"

    async def test_still_blank_is_empty_without_output(self) -> None:
        played = await play(Reply(""))
        assert ended(played) == (RunStatus.INCOMPLETE, RunFinish.EMPTY, None)
        assert len(played.provider.requests) == 2

    async def test_it_is_not_asked_for_when_the_cap_leaves_no_call(self) -> None:
        assert len((await play(Reply(""), max_iterations=1)).provider.requests) == 1

    async def test_it_is_not_asked_for_when_that_is_turned_off(self) -> None:
        assert len((await play(Reply(""), empty_nudge=False)).provider.requests) == 1

    async def test_the_empty_reply_is_said_and_the_reason_stays_empty(self) -> None:
        played = await play(Reply(""), empty_reply="Nothing to say.")
        assert ended(played) == (RunStatus.INCOMPLETE, RunFinish.EMPTY, "Nothing to say.")

    async def test_reasoning_alone_is_no_answer(self) -> None:
        played = await play(Reply("", reasoning="hm"), empty_nudge=False)
        assert ended(played)[1] is RunFinish.EMPTY


class TestBudget:
    async def test_when_it_is_used_up_the_calls_are_skipped(self) -> None:
        reply = Reply("", (draft(),), usage=Usage(90, 10))
        played = await play(reply, answers={"search": {}}, max_tokens_total=100)
        assert ended(played)[:2] == (RunStatus.INCOMPLETE, RunFinish.BUDGET)
        assert played.outcomes == [ToolOutcome.SKIPPED]

    async def test_an_answer_that_used_it_up_is_still_an_answer(self) -> None:
        played = await play(Reply("Hi", usage=Usage(90, 10)), max_tokens_total=100)
        assert ended(played)[0] is RunStatus.COMPLETED

    async def test_the_model_is_not_asked_again_for_a_blank_answer(self) -> None:
        played = await play(Reply(" ", usage=Usage(90, 10)), Reply("never"), max_tokens_total=100)
        assert ended(played) == (RunStatus.INCOMPLETE, RunFinish.EMPTY, None)
        assert len(played.provider.requests) == 1

    async def test_nor_for_the_rest_of_a_turn_that_the_provider_paused(self) -> None:
        paused = Reply("So far", finish_reason=FinishReason.PAUSE, usage=Usage(90, 10))
        played = await play(paused, Reply("never"), max_tokens_total=100)
        assert ended(played) == (RunStatus.INCOMPLETE, RunFinish.BUDGET, "So far")


class TestFailure:
    async def test_a_model_that_fails_ends_the_run_with_its_code(self) -> None:
        played = await play(ModelFailure(ErrorCode.PROVIDER_AUTH, "The key was refused."))
        assert ended(played)[:2] == (RunStatus.FAILED, RunFinish.ERROR)
        assert played.outcome.error_code is ErrorCode.PROVIDER_AUTH
        assert len(played.journal.failures) == 1


class TestEmptyStreak:
    async def test_the_hint_comes_with_the_second_empty_result_and_each_further_one(self) -> None:
        rounds = [calls(draft(arguments=f'{{"n":{n}}}')) for n in range(3)]
        played = await play(*rounds, Reply("ok"), answers={"search": {"items": []}}, empty_streak_hint="(:count)")
        assert [content.rpartition("(")[2] for content in played.contents] == ['{"items":[]}', "2)", "3)"]
        assert played.types().count("guard.hint") == 2

    async def test_a_hit_resets_it(self) -> None:
        answers = iter([{"items": []}, {"items": [1]}, {"items": []}])
        played = await play(*(calls(draft()) for _ in range(3)), Reply("ok"), answers={"search": lambda call: next(answers)})
        assert "guard.hint" not in played.types()

    async def test_a_neutral_result_neither_raises_nor_resets_it(self) -> None:
        answers = iter([{"items": []}, {"ok": True}, {"items": []}])
        played = await play(*(calls(draft()) for _ in range(3)), Reply("ok"), answers={"search": lambda call: next(answers)})
        assert played.types().count("guard.hint") == 1

    async def test_unknown_and_failed_calls_count(self) -> None:
        failed = ToolResult({"error": "x"}, ToolOutcome.FAILED)
        played = await play(calls(draft("nope")), calls(draft()), Reply("ok"), answers={"search": failed})
        assert played.types().count("guard.hint") == 1

    async def test_zero_turns_it_off(self) -> None:
        played = await play(*(calls(draft()) for _ in range(4)), Reply("ok"), answers={"search": []}, empty_streak_after=0)
        assert "guard.hint" not in played.types()

    async def test_it_is_judged_before_the_result_is_cut_and_the_hint_survives(self) -> None:
        padded = {"items": [], "padding": "x" * 1000}
        played = await play(
            calls(draft()), calls(draft()), Reply("ok"), answers={"search": padded}, max_tool_result_chars=100
        )
        assert played.outcomes == [ToolOutcome.EMPTY, ToolOutcome.EMPTY]
        assert played.contents[1].startswith('{"items":[]') and played.contents[1].endswith("]")
        assert played.journal.answers[1].truncated


class TestCarryingOn:
    def stored(self, *answered: int) -> dict[int, StoredIteration]:
        drafts = (draft(arguments='{"n":0}'), draft(arguments='{"n":1}'))
        made = tuple(ToolCall(ids.derived(ids.CALL, RUN_ID, 1, n), "search", {"n": n}, f'{{"n":{n}}}') for n in range(2))
        answers = {
            made[n].id: AnsweredCall(made[n], ToolResult({"items": []}, ToolOutcome.EMPTY), '{"items":[]}') for n in answered
        }
        return {1: StoredIteration(Reply("", drafts, model="scripted/test"), made, answers)}

    async def test_a_stored_reply_is_not_asked_for_again_and_a_stored_result_not_called_for(self) -> None:
        played = await play(Reply("Done"), stored=self.stored(0), answers={"search": {"items": [7]}})
        assert [call.arguments for call in played.tools.calls] == [{"n": 1}]
        assert [request.iteration for request in played.provider.requests] == [2]
        shown = [message.content for message in played.provider.requests[0].messages if message.role == "tool"]
        assert shown == ['{"items":[]}', '{"items":[7]}']

    async def test_the_streak_goes_on_where_it_was(self) -> None:
        played = await play(Reply("Done"), stored=self.stored(0), answers={"search": {"items": []}})
        assert played.types().count("guard.hint") == 1

    async def test_a_call_gets_the_id_it_had(self) -> None:
        played = await play(Reply("Done"), stored=self.stored(), answers={"search": {}})
        assert played.tools.calls[0].id == ids.derived(ids.CALL, RUN_ID, 1, 0)


def test_the_defaults_are_the_contracts() -> None:
    limits = Limits()
    assert (limits.max_iterations, limits.on_cap, limits.empty_streak_after) == (7, "answer", 2)
    assert (limits.max_tool_result_chars, limits.parallel_tools) == (16_000, 4)


class TestForbiddenTools:
    async def test_a_call_despite_tool_choice_none_is_not_executed(self) -> None:
        played = await play(calls(draft()), Reply("ok"), tool_choice="none")
        assert played.outcomes == [ToolOutcome.UNKNOWN]
        assert played.tools.calls == []
