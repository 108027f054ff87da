"""Calls that wait for something outside, on fakes of the loop's ports: gates, results from outside, paused model turns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.infra import ids
from app.loop.events import Event, IterationCompleted, ToolInvoking
from app.loop.loop import Limits, Task, run_loop
from app.loop.messages import (
    AnsweredCall,
    Approved,
    FinishReason,
    Message,
    Outcome,
    PendingCall,
    PendingReason,
    Rejected,
    Reply,
    Resolution,
    RunFinish,
    RunStatus,
    ToolCall,
    ToolOutcome,
    ToolResult,
    Usage,
)
from app.loop.ports import CheckedArguments, OfferedTool, StoredIteration
from tests.fakes import RUN_ID, FakeJournal, FakeProvider, FakeTools, calls, draft, offered


def call_id(index: int = 0, iteration: int = 1) -> str:
    return ids.derived(ids.CALL, RUN_ID, iteration, index)


def gated(name: str = "pay", **more: Any) -> OfferedTool:
    return replace(offered(name, **more), requires_approval=True)


def later(reason: PendingReason) -> Any:
    """The answer of a tool whose result comes from outside."""
    return lambda call: PendingCall(call, reason)


def found(value: Any) -> ToolResult:
    return ToolResult(value, ToolOutcome.OK)


class WaitingTools(FakeTools):
    async def call(self, call: ToolCall) -> ToolResult | PendingCall:  # type: ignore[override]
        answered = await super().call(call)
        return answered.result if isinstance(answered.result, PendingCall) else answered


class Run:
    """A run that may be carried on: each `go` is a new owner, who finds what the ones before it wrote down."""

    def __init__(
        self,
        *replies: Reply,
        tools: Sequence[OfferedTool] = (gated(),),
        answers: Mapping[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        self.provider, self.port = FakeProvider(replies), WaitingTools({"pay": {"paid": True}, **(answers or {})})
        self.offered, self.limits = tuple(tools), Limits(**limits)
        self.stored: dict[int, StoredIteration] = {}
        self.events: list[Event] = []
        self.asked: list[PendingCall] = []
        self.answered: list[AnsweredCall] = []
        self.said: list[str] = []

    async def go(self, came: Mapping[int, Resolution] | None = None, *, iteration: int = 1) -> Outcome:
        """Run until it ends or waits. `came`: by index of the call, what came for calls of that iteration."""
        if came:
            waited = self.stored[iteration]
            given = {call_id(index, iteration): resolution for index, resolution in came.items()}
            self.stored[iteration] = replace(waited, resolutions={**waited.resolutions, **given})
        journal = FakeJournal(dict(self.stored))
        task = Task(
            model="scripted/test",
            messages=(Message("user", "Hello"),),
            message_id=lambda number: ids.derived(ids.MESSAGE, RUN_ID, number),
            call_id=lambda number, index: call_id(index, number),
            tools=self.offered,
            limits=self.limits,
        )
        outcome = await run_loop(task, self.provider, self.port, journal, self.events.append)
        self._keep(journal)
        return outcome

    def _keep(self, journal: FakeJournal) -> None:
        for number, reply, made in journal.replies:
            self.stored[number] = StoredIteration(replace(reply, model="scripted/test"), made)
        for number, kept in self.stored.items():
            own = {call.id for call in kept.calls}
            answers = {answer.call.id: answer for answer in journal.answers if answer.call.id in own}
            pending = {waits.call.id: waits for waits in journal.waiting if waits.call.id in own}
            self.stored[number] = replace(kept, answers={**kept.answers, **answers}, pending={**kept.pending, **pending})
        self.asked += journal.waiting
        self.answered += journal.answers
        self.said += journal.said

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """What was waited for, in order: the tool and why."""
        return [(waits.call.name, waits.reason) for waits in self.asked]

    @property
    def outcomes(self) -> list[tuple[str, ToolOutcome]]:
        return [(answer.call.name, answer.result.outcome) for answer in self.answered]

    @property
    def contents(self) -> list[str]:
        return [answer.content for answer in self.answered]

    @property
    def called(self) -> list[tuple[str, Any]]:
        return [(call.name, call.arguments) for call in self.port.calls]

    def seen_by_the_model(self) -> list[str]:
        """The results in the last request, as the model reads them."""
        return [message.text for message in self.provider.requests[-1].messages if message.role == "tool"]


WAITS = (RunStatus.WAITING, None)
DONE = (RunStatus.COMPLETED, RunFinish.STOP)
REFUSED = (RunStatus.INCOMPLETE, RunFinish.REJECTED)
CAPPED = (RunStatus.INCOMPLETE, RunFinish.MAX_ITERATIONS)


def ending(outcome: Outcome) -> tuple[RunStatus, RunFinish | None]:
    return outcome.status, outcome.finish_reason


class TestGate:
    async def test_a_call_that_needs_an_approval_waits_and_is_not_made(self) -> None:
        run = Run(calls(draft("pay", '{"sum": 5}')), Reply("done"))
        outcome = await run.go()
        assert ending(outcome) == WAITS
        assert (outcome.output, outcome.iterations) == (None, 1)
        assert run.reasons == [("pay", "approval")]
        assert run.asked[0].call.arguments == {"sum": 5}
        assert (run.called, run.answered, len(run.provider.requests)) == ([], [], 1)

    async def test_it_is_shown_as_invoked_and_its_iteration_stays_open(self) -> None:
        run = Run(calls(draft("pay")))
        await run.go()
        assert [event.type for event in run.events] == ["iteration.started", "tool.invoking"]

    async def test_siblings_that_need_none_run_at_once(self) -> None:
        tools = (gated(), offered("search"))
        run = Run(calls(draft("pay"), draft("search")), tools=tools, answers={"search": {"items": [1]}})
        assert ending(await run.go()) == WAITS
        assert run.outcomes == [("search", ToolOutcome.OK)]
        assert run.reasons == [("pay", "approval")]

    async def test_all_gates_of_a_turn_are_asked_at_once_however_few_calls_may_run_together(self) -> None:
        run = Run(calls(*(draft("pay", f'{{"n": {n}}}') for n in range(5))), parallel_tools=2)
        assert ending(await run.go()) == WAITS
        assert [waits.call.arguments for waits in run.asked] == [{"n": n} for n in range(5)]

    async def test_a_mixed_turn_waits_for_all_kinds_and_runs_the_rest(self) -> None:
        tools = (gated(), offered("ask_user"), offered("export"), offered("search"))
        answers = {
            "ask_user": later(PendingReason.CLIENT), "export": later(PendingReason.ASYNC), "search": {"items": [1]},
        }  # fmt: skip
        reply = calls(draft("pay"), draft("nope"), draft("ask_user"), draft("export"), draft("search"))
        run = Run(reply, tools=tools, answers=answers)
        assert ending(await run.go()) == WAITS
        assert sorted(run.reasons) == [("ask_user", "client"), ("export", "async"), ("pay", "approval")]
        assert sorted(run.outcomes) == [("nope", ToolOutcome.UNKNOWN), ("search", ToolOutcome.OK)]

    async def test_nobody_is_asked_about_arguments_that_the_tool_would_not_take(self) -> None:
        tool = gated(check=lambda arguments: CheckedArguments(arguments, ("sum: is needed",)))
        run = Run(calls(draft("pay")), Reply("done"), tools=(tool,))
        assert ending(await run.go()) == DONE
        assert (run.reasons, run.outcomes) == ([], [("pay", ToolOutcome.INVALID)])

    async def test_nobody_is_asked_about_a_call_that_was_cut_off(self) -> None:
        run = Run(calls(draft("pay", '{"sum": 5}'), finish=FinishReason.LENGTH), Reply("done"))
        assert ending(await run.go()) == DONE
        assert (run.reasons, run.outcomes) == ([], [("pay", ToolOutcome.INVALID)])

    async def test_carried_on_with_nothing_new_it_waits_on_and_asks_nobody_twice(self) -> None:
        run = Run(calls(draft("pay")))
        await run.go()
        assert ending(await run.go()) == WAITS
        assert (len(run.asked), run.called, len(run.provider.requests)) == (1, [], 1)


class TestApproval:
    async def test_the_call_is_made_and_the_run_goes_on(self) -> None:
        run = Run(calls(draft("pay", '{"sum": 5}')), Reply("Paid."))
        await run.go()
        outcome = await run.go({0: Approved()})
        assert (*ending(outcome), outcome.output) == (*DONE, "Paid.")
        assert run.called == [("pay", {"sum": 5})]
        assert run.seen_by_the_model() == ['{"paid":true}']
        assert run.port.calls[0].id == run.asked[0].call.id == call_id()

    async def test_the_model_is_not_asked_again_for_a_turn_that_is_stored(self) -> None:
        run = Run(calls(draft("pay")), Reply("Paid."))
        await run.go()
        await run.go({0: Approved()})
        assert [request.iteration for request in run.provider.requests] == [1, 2]

    async def test_its_iteration_ends_after_its_calls(self) -> None:
        run = Run(calls(draft("pay")), Reply("Paid."))
        await run.go()
        await run.go({0: Approved()})
        assert [event.iteration for event in run.events if isinstance(event, IterationCompleted)] == [1, 2]

    async def test_edited_arguments_are_what_the_tool_gets(self) -> None:
        run = Run(calls(draft("pay", '{"sum": 5}')), Reply("Paid."))
        await run.go()
        await run.go({0: Approved({"sum": 3})})
        assert run.called == [("pay", {"sum": 3})]

    async def test_edited_arguments_are_taken_as_the_schema_wants_them(self) -> None:
        tool = gated(check=lambda arguments: CheckedArguments({"sum": int(arguments["sum"])}))
        run = Run(calls(draft("pay", '{"sum": 5}')), Reply("Paid."), tools=(tool,))
        await run.go()
        await run.go({0: Approved({"sum": "3"})})
        assert run.called == [("pay", {"sum": 3})]

    async def test_edited_arguments_that_the_tool_does_not_take_are_told_to_the_model(self) -> None:
        tool = gated(check=lambda arguments: CheckedArguments(arguments, () if "sum" in arguments else ("sum: needed",)))
        run = Run(calls(draft("pay", '{"sum": 5}')), Reply("done"), tools=(tool,))
        await run.go()
        assert ending(await run.go({0: Approved({})})) == DONE
        assert (run.called, run.outcomes) == ([], [("pay", ToolOutcome.INVALID)])

    async def test_siblings_that_had_run_are_not_run_again(self) -> None:
        tools = (gated(), offered("search"))
        reply = calls(draft("search"), draft("pay"))
        run = Run(reply, Reply("Paid."), tools=tools, answers={"search": {"items": [1]}})
        await run.go()
        await run.go({1: Approved()})
        assert run.called == [("search", {}), ("pay", {})]
        assert run.seen_by_the_model() == ['{"items":[1]}', '{"paid":true}']

    async def test_results_stand_in_the_order_of_the_calls_however_late_they_came(self) -> None:
        tools = (gated(), offered("search"))
        reply = calls(draft("pay"), draft("search"))
        run = Run(reply, Reply("Paid."), tools=tools, answers={"search": {"items": [1]}})
        await run.go()
        await run.go({0: Approved()})
        assert run.seen_by_the_model() == ['{"paid":true}', '{"items":[1]}']

    async def test_a_later_call_of_the_same_tool_is_asked_about_again(self) -> None:
        run = Run(calls(draft("pay")), calls(draft("pay")), Reply("Paid twice."))
        await run.go()
        assert ending(await run.go({0: Approved()})) == WAITS
        assert ending(await run.go({0: Approved()}, iteration=2)) == DONE
        assert [waits.call.id for waits in run.asked] == [call_id(), call_id(iteration=2)]

    async def test_a_tool_that_answers_later_is_then_waited_for(self) -> None:
        run = Run(calls(draft("pay")), Reply("Paid."), answers={"pay": later(PendingReason.ASYNC)})
        await run.go()
        assert ending(await run.go({0: Approved()})) == WAITS
        assert run.reasons == [("pay", "approval"), ("pay", "async")]
        assert ending(await run.go({0: found({"paid": True})})) == DONE
        assert len(run.called) == 1

    async def test_the_result_counts_for_the_streak_like_any_other(self) -> None:
        rounds = [calls(draft("pay")), calls(draft("pay")), Reply("Nothing.")]
        run = Run(*rounds, answers={"pay": {"items": []}}, empty_streak_hint="(:count)")
        await run.go()
        await run.go({0: Approved()})
        await run.go({0: Approved()}, iteration=2)
        assert run.contents == ['{"items":[]}', '{"items":[]}\n\n(2)']


class TestRejectionWithAReason:
    async def test_the_model_reads_the_reason_and_goes_on(self) -> None:
        run = Run(calls(draft("pay")), Reply("Then not."))
        await run.go()
        outcome = await run.go({0: Rejected("Too dear: ask for less.")})
        assert (*ending(outcome), outcome.output) == (*DONE, "Then not.")
        assert "Too dear: ask for less." in run.seen_by_the_model()[0]
        assert (run.called, run.outcomes) == ([], [("pay", ToolOutcome.DENIED)])

    async def test_approved_siblings_are_made(self) -> None:
        reply = calls(draft("pay", '{"n": 1}'), draft("pay", '{"n": 2}'))
        run = Run(reply, Reply("One of two."))
        await run.go()
        assert ending(await run.go({0: Rejected("no"), 1: Approved()})) == DONE
        assert run.called == [("pay", {"n": 2})]

    async def test_it_is_not_judged_by_the_guard(self) -> None:
        tools = (gated(), offered("search"))
        rounds = [calls(draft("search")), calls(draft("pay")), calls(draft("search")), Reply("Nothing.")]
        run = Run(*rounds, tools=tools, answers={"search": {"items": []}}, empty_streak_hint="(:count)")
        await run.go()
        await run.go({0: Rejected("no")}, iteration=2)
        assert [content.endswith("(2)") for content in run.contents] == [False, False, True]


class TestRejectionWithoutAReason:
    @pytest.mark.parametrize("reason", [None, ""])
    async def test_it_ends_the_run_and_the_model_is_not_asked_again(self, reason: str | None) -> None:
        run = Run(calls(draft("pay"), text="I will pay."), Reply("never"))
        await run.go()
        outcome = await run.go({0: Rejected(reason)})
        assert (*ending(outcome), outcome.output) == (*REFUSED, "I will pay.")
        assert (run.outcomes, len(run.provider.requests)) == ([("pay", ToolOutcome.DENIED)], 1)

    async def test_siblings_that_were_approved_are_not_made_any_more(self) -> None:
        reply = calls(draft("pay", '{"n": 1}'), draft("pay", '{"n": 2}'))
        run = Run(reply, Reply("never"))
        await run.go()
        assert ending(await run.go({0: Approved(), 1: Rejected()})) == REFUSED
        assert run.called == []
        assert [answer.call.id for answer in run.answered] == [call_id(1)], "whoever ends the run answers the rest"

    async def test_beside_one_with_a_reason_both_are_denied(self) -> None:
        reply = calls(draft("pay", '{"n": 1}'), draft("pay", '{"n": 2}'))
        run = Run(reply, Reply("never"))
        await run.go()
        assert ending(await run.go({0: Rejected("too dear"), 1: Rejected()})) == REFUSED
        assert run.outcomes == [("pay", ToolOutcome.DENIED)] * 2
        assert "too dear" in run.contents[0]

    async def test_without_any_text_the_empty_reply_is_said(self) -> None:
        run = Run(calls(draft("pay")), empty_reply="It was not allowed.")
        await run.go()
        outcome = await run.go({0: Rejected()})
        assert (*ending(outcome), outcome.output) == (*REFUSED, "It was not allowed.")
        assert run.said == ["It was not allowed."]

    async def test_a_process_that_died_between_the_refusal_and_the_end_of_the_run_changes_nothing(self) -> None:
        reply = calls(draft("pay", '{"n": 1}'), draft("pay", '{"n": 2}'))
        run = Run(reply, Reply("never"))
        await run.go()
        await run.go({0: Rejected(), 1: Approved()})
        assert ending(await run.go()) == REFUSED
        assert (run.called, len(run.answered), len(run.provider.requests)) == ([], 1, 1)


class TestResultFromOutside:
    def waiting(self, *replies: Reply, reason: PendingReason = PendingReason.CLIENT, **limits: Any) -> Run:
        return Run(*replies, tools=(offered("ask"),), answers={"ask": later(reason)}, **limits)

    @pytest.mark.parametrize("reason", [PendingReason.CLIENT, PendingReason.ASYNC])
    async def test_the_run_waits_for_it_and_goes_on_with_it(self, reason: PendingReason) -> None:
        run = self.waiting(calls(draft("ask", '{"q": 1}')), Reply("Thanks."), reason=reason)
        assert ending(await run.go()) == WAITS
        assert run.reasons == [("ask", reason)]
        assert ending(await run.go({0: found({"answer": "yes"})})) == DONE
        assert run.called == [("ask", {"q": 1})], "asked once"
        assert run.seen_by_the_model() == ['{"answer":"yes"}']

    async def test_with_some_of_them_it_waits_for_the_rest(self) -> None:
        run = self.waiting(calls(draft("ask", '{"n": 1}'), draft("ask", '{"n": 2}')), Reply("Thanks."))
        await run.go()
        assert ending(await run.go({1: found("two")})) == WAITS
        assert run.contents == ["two"]
        assert ending(await run.go({0: found("one")})) == DONE
        assert run.seen_by_the_model() == ["one", "two"]
        assert len(run.called) == len(run.asked) == 2

    @pytest.mark.parametrize(
        ("value", "outcome"),
        [
            ({"items": [1]}, ToolOutcome.OK), ({"items": []}, ToolOutcome.EMPTY), ([], ToolOutcome.EMPTY),
            ({"ok": True}, ToolOutcome.NEUTRAL), (None, ToolOutcome.NEUTRAL), ({"error": "x"}, ToolOutcome.ERROR),
        ],
    )  # fmt: skip
    async def test_it_is_judged_like_any_other(self, value: Any, outcome: ToolOutcome) -> None:
        run = self.waiting(calls(draft("ask")), Reply("Thanks."))
        await run.go()
        await run.go({0: found(value)})
        assert run.outcomes == [("ask", outcome)]

    async def test_it_is_cut_and_hinted_like_any_other(self) -> None:
        run = self.waiting(
            calls(draft("ask")), calls(draft("ask")), Reply("No."), max_tool_result_chars=20, empty_streak_hint="(:count)"
        )
        await run.go()
        await run.go({0: found({"items": [], "about": "x" * 50})})
        await run.go({0: found({"items": [], "about": "x" * 50})}, iteration=2)
        cut = '{"items":[],"about":…'
        assert run.contents == [cut, f"{cut}\n\n(2)"]
        assert [answer.truncated for answer in run.answered] == [True, True]

    async def test_it_is_cleaned_like_any_other(self) -> None:
        run = self.waiting(calls(draft("ask")), Reply("Thanks."))
        await run.go()
        await run.go({0: found({"a": "x\x00y\ud83d"})})
        assert run.contents == ['{"a":"xy\ufffd"}']

    @pytest.mark.parametrize("outcome", [ToolOutcome.ERROR, ToolOutcome.FAILED])
    async def test_an_error_is_told_to_the_model_and_counts_as_empty(self, outcome: ToolOutcome) -> None:
        run = self.waiting(calls(draft("ask")), calls(draft("ask")), Reply("No."), empty_streak_hint="(:count)")
        await run.go()
        await run.go({0: ToolResult({"error": "gone"}, outcome)})
        await run.go({0: ToolResult({"error": "gone"}, outcome)}, iteration=2)
        assert run.outcomes == [("ask", outcome)] * 2
        assert run.contents == ['{"error":"gone"}', '{"error":"gone"}\n\n(2)']

    @pytest.mark.parametrize("outcome", [ToolOutcome.OK, ToolOutcome.FAILED])
    async def test_it_counts_although_the_tool_is_offered_no_more(self, outcome: ToolOutcome) -> None:
        run = self.waiting(calls(draft("ask")), Reply("Thanks."))
        await run.go()
        run.offered = ()
        await run.go({0: ToolResult("what came", outcome)})
        assert run.contents == ["what came"]

    async def test_an_approval_does_not_bring_back_a_tool_that_is_offered_no_more(self) -> None:
        run = Run(calls(draft("pay")), Reply("Then not."))
        await run.go()
        run.offered = ()
        assert ending(await run.go({0: Approved()})) == DONE
        assert (run.called, run.outcomes) == ([], [("pay", ToolOutcome.UNKNOWN)])

    async def test_a_tool_that_needs_an_approval_and_is_the_clients_waits_for_both(self) -> None:
        run = Run(calls(draft("pay")), Reply("Paid."), answers={"pay": later(PendingReason.CLIENT)})
        await run.go()
        await run.go({0: Approved({"sum": 3})})
        assert run.reasons == [("pay", "approval"), ("pay", "client")]
        assert run.asked[1].call.arguments == {"sum": 3}
        assert ending(await run.go({0: found({"paid": 3})})) == DONE
        assert run.seen_by_the_model() == ['{"paid":3}']

    async def test_a_result_needs_no_approval_that_was_asked_for_since(self) -> None:
        run = self.waiting(calls(draft("ask")), Reply("Thanks."))
        await run.go()
        run.offered = (gated("ask"),)
        assert ending(await run.go({0: found("yes")})) == DONE
        assert run.reasons == [("ask", "client")]


class TestRepeatedCalls:
    REPLY = calls(draft("pay", '{"n":1}', "x"), draft("pay", '{"n": 1}', "x"))

    async def test_one_call_made_twice_is_asked_about_once_and_both_get_its_answer(self) -> None:
        run = Run(self.REPLY, Reply("Paid."))
        assert ending(await run.go()) == WAITS
        assert [waits.call.id for waits in run.asked] == [call_id(0)]
        assert ending(await run.go({0: Approved()})) == DONE
        assert len(run.called) == 1
        assert run.seen_by_the_model() == ['{"paid":true}'] * 2

    async def test_a_rejection_answers_both(self) -> None:
        run = Run(self.REPLY, Reply("Then not."))
        await run.go()
        assert ending(await run.go({0: Rejected("no")})) == DONE
        assert run.outcomes == [("pay", ToolOutcome.DENIED)] * 2

    async def test_each_is_shown_as_invoked(self) -> None:
        run = Run(self.REPLY, Reply("Paid."))
        await run.go()
        await run.go({0: Approved()})
        assert {event.call_id for event in run.events if isinstance(event, ToolInvoking)} == {call_id(0), call_id(1)}

    async def test_another_id_is_another_call_and_asked_about_too(self) -> None:
        run = Run(calls(draft("pay", "{}", "x"), draft("pay", "{}", "y")), Reply("Paid."))
        await run.go()
        assert len(run.asked) == 2


class TestLimits:
    async def test_at_the_last_permitted_model_call_nobody_is_asked(self) -> None:
        run = Run(calls(draft("pay"), text="I will pay."), max_iterations=1)
        outcome = await run.go()
        assert (*ending(outcome), outcome.output) == (*CAPPED, "I will pay.")
        assert (run.reasons, run.called) == ([], [])
        assert run.outcomes == [("pay", ToolOutcome.SKIPPED)]

    @pytest.mark.parametrize("on_cap", ["answer", "stop"])
    async def test_nor_is_anything_waited_for_then(self, on_cap: str) -> None:
        run = Run(
            calls(draft("pay")), calls(draft("ask"), draft("pay")), tools=(gated(), offered("ask")),
            answers={"ask": later(PendingReason.CLIENT)}, max_iterations=2, on_cap=on_cap,
        )  # fmt: skip
        await run.go()
        assert ending(await run.go({0: Approved()})) == CAPPED
        assert run.reasons == [("pay", "approval")]
        assert run.outcomes[1:] == [("ask", ToolOutcome.SKIPPED), ("pay", ToolOutcome.SKIPPED)]

    async def test_waiting_uses_up_no_iteration(self) -> None:
        run = Run(calls(draft("pay")), Reply("Paid."), max_iterations=2, on_cap="stop")
        await run.go()
        await run.go()
        assert ending(await run.go({0: Approved()})) == DONE

    async def test_with_a_used_up_budget_nobody_is_asked(self) -> None:
        run = Run(Reply("", (draft("pay"),), usage=Usage(90, 10)), max_tokens_total=100)
        assert ending(await run.go()) == (RunStatus.INCOMPLETE, RunFinish.BUDGET)
        assert (run.reasons, run.outcomes) == ([], [("pay", ToolOutcome.SKIPPED)])


class TestPausedTurn:
    """A provider ends its turn with the wish to be asked again, with what it said so far."""

    def paused(self, text: str = "So far", **more: Any) -> Reply:
        return Reply(text, finish_reason=FinishReason.PAUSE, native={"signature": "abc"}, **more)

    async def test_it_is_asked_again_with_the_very_same_content(self) -> None:
        run = Run(self.paused(), Reply("All of it."))
        outcome = await run.go()
        assert (*ending(outcome), outcome.output) == (*DONE, "All of it.")
        first, second = run.provider.requests
        assert second.messages[:-1] == first.messages
        sent = second.messages[-1]
        assert (sent.role, sent.text, sent.native, sent.native_model) == (
            "assistant", "So far", {"signature": "abc"}, "scripted/test",
        )  # fmt: skip

    async def test_a_blank_one_is_sent_back_too_and_not_nudged(self) -> None:
        run = Run(self.paused(""), Reply("Here."))
        assert ending(await run.go()) == DONE
        assert [message.role for message in run.provider.requests[1].messages] == ["user", "assistant"]

    async def test_it_counts_as_an_iteration(self) -> None:
        run = Run(self.paused(), self.paused("more"), Reply("All."))
        assert (await run.go()).iterations == 3
        assert [event.iteration for event in run.events if isinstance(event, IterationCompleted)] == [1, 2, 3]

    @pytest.mark.parametrize("on_cap", ["answer", "stop"])
    async def test_an_endless_pauser_is_bounded_and_its_words_are_no_answer(self, on_cap: str) -> None:
        run = Run(self.paused(), max_iterations=3, on_cap=on_cap)
        outcome = await run.go()
        assert (*ending(outcome), outcome.output) == (*CAPPED, "So far")
        assert len(run.provider.requests) == 3

    async def test_its_calls_are_run_as_of_any_turn(self) -> None:
        run = Run(self.paused(calls=(draft("search"),)), Reply("Found."), tools=(offered("search"),), answers={"search": {}})
        assert ending(await run.go()) == DONE
        assert run.called == [("search", {})]

    async def test_carried_on_after_a_crash_it_is_not_asked_for_again(self) -> None:
        run = Run(Reply("All of it."))
        run.stored[1] = StoredIteration(replace(self.paused(), model="scripted/test"), ())
        assert ending(await run.go()) == DONE
        assert [request.iteration for request in run.provider.requests] == [2]
        assert run.provider.requests[0].messages[-1].text == "So far"
