"""Each row of "What the loop does with each case" (contract, section 4) in both providers' wire formats, over HTTP: the
model is a server that sends such bytes, and what it is told in return is read from the request that follows.

Rows and details without a meaning in one of the formats:

| row | format | why |
|---|---|---|
| a provider's call id that comes twice | anthropic | that API never does it; a server of its format may, so it is shown |
| a turn that the provider pauses, to be asked again | openai | chat completions know no such stop reason |
| overloaded (529) | openai | a status of the other API; 503 stands for it there |

`test_loop_table.py` shows every detail of the rows with the scripted model, which goes through the same loop.
"""

import asyncio
import json
from typing import Any

import httpx
import pytest

from app.infra.database import Database
from app.infra.settings import Settings
from tests.api import Api, TestTools, call, calls, failing, schema, wanted
from tests.conftest import serving
from tests.contract.test_recovery import left_by_a_dead_process
from tests.contract.wires import Wire
from tests.providers.model_server import Answer, json_answer
from tests.tools_app import Reply

UNAVAILABLE = '{"error":"The tool search is temporarily unavailable."}'


class TestToolNames:
    async def test_one_that_is_not_offered_is_told_and_its_siblings_run(self, wire: Wire, test_tools: TestTools) -> None:
        search = await test_tools.host(wire.api, "search", {"items": [1]})
        played = await wire.play(calls(wanted("gamma"), wanted("search")), "done")
        assert wire.results() == ['{"error":"Tool \'gamma\' does not exist. Available tools: search."}', '{"items":[1]}']
        assert played.outcomes == ["unknown", "ok"]
        assert len(search.requests) == 1
        assert played.ending == ("completed", "stop")

    async def test_without_tools_the_list_says_none(self, wire: Wire) -> None:
        await wire.play(call("gamma"), "done")
        assert wire.results() == ['{"error":"Tool \'gamma\' does not exist. Available tools: none."}']

    async def test_one_that_differs_in_writing_only_is_executed(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "order_status", {"status": "sent"})
        played = await wire.play(call("orderStatus"), "done")
        assert played.of("tool.invoked")[0]["tool"] == "order_status"
        assert wire.results() == ['{"status":"sent"}']


class TestArguments:
    @pytest.mark.parametrize("text", ["{", '{"q": "cut', "[]", "null", "42", '"x"', '{"q": NaN}'])
    async def test_those_that_are_no_object_are_told_and_not_executed(
        self, wire: Wire, test_tools: TestTools, text: str
    ) -> None:
        search = await test_tools.host(wire.api, "search")
        played = await wire.play(call("search", text), "done")
        assert (search.requests, played.outcomes) == ([], ["invalid"])
        assert "JSON object" in json.loads(wire.results()[0])["error"]

    async def test_those_that_break_the_schema_have_each_place_named(self, wire: Wire, test_tools: TestTools) -> None:
        parameters = schema(("city",), city="string", limit={"type": "integer", "minimum": 1})
        search = await test_tools.host(wire.api, "search", parameters=parameters)
        played = await wire.play(call("search", {"limit": 0}), "done")
        error = json.loads(wire.results()[0])["error"]
        assert "city" in error and "limit" in error
        assert (search.requests, played.outcomes) == ([], ["invalid"])

    async def test_blank_ones_are_an_object_and_exact_texts_the_wanted_number(
        self, wire: Wire, test_tools: TestTools
    ) -> None:
        search = await test_tools.host(wire.api, "search", parameters=schema((), n="integer"))
        await wire.play(calls(wanted("search", " "), wanted("search", {"n": "5"})), "done", parallel_tools=1)
        assert search.arguments == [{}, {"n": 5}]


class TestWebhookAnswers:
    @pytest.mark.parametrize(
        ("reply", "told", "outcome"),
        [
            (Reply(body={"items": ["é"]}), '{"items":["é"]}', "ok"),
            (Reply(201, "Sunny", {"content-type": "text/plain"}), '{"content":"Sunny"}', "neutral"),
            (Reply(204), '{"ok":true}', "neutral"),
            (Reply(400, {"message": "No such day."}), '{"error":"No such day."}', "error"),
            (Reply(404, b""), '{"error":"The tool search refused the call (404)."}', "error"),
            (Reply(409, {"detail": "Taken."}), '{"error":"Taken."}', "error"),
            (Reply(422, "Too late.", {"content-type": "text/plain"}), '{"error":"Too late."}', "error"),
            (Reply(500, {"exception": "SQLSTATE secret"}), UNAVAILABLE, "failed"),
            (Reply(403, {"error": "secret"}), UNAVAILABLE, "failed"),
            (Reply(302, b"", {"location": "http://127.0.0.1/"}), UNAVAILABLE, "failed"),
            (Reply(200, "x", ending="cut"), UNAVAILABLE, "failed"),
            (Reply(200, b"x" * (2 * 1024 * 1024 + 1)), UNAVAILABLE, "failed"),
        ],
        ids=["json", "text", "nothing", "400", "404", "409", "422", "500", "403", "redirect", "cut", "too_large"],
    )
    async def test_what_the_model_is_told(
        self, wire: Wire, test_tools: TestTools, reply: Reply, told: str, outcome: str
    ) -> None:
        await test_tools.host(wire.api, "search", reply)
        played = await wire.play(call("search"), "done")
        assert (wire.results(), played.outcomes) == ([told], [outcome])
        assert b"secret" not in wire.server.requests[-1].body
        assert played.ending == ("completed", "stop")

    async def test_a_time_out(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", Reply(ending="hang"), timeout_seconds=0.2)
        await wire.play(call("search"), "done")
        assert wire.results() == [UNAVAILABLE]


class TestCallsThatAreSentTwice:
    async def test_the_same_call_is_executed_once_and_both_are_answered(self, wire: Wire, test_tools: TestTools) -> None:
        search = await test_tools.host(wire.api, "search", {"items": [1]}, {"items": [2]})
        twice = wanted("search", {"q": "a"}, id="c1")
        await wire.play(calls(twice, twice), "done")
        assert len(search.requests) == 1
        assert wire.results() == ['{"items":[1]}'] * 2

    async def test_with_other_arguments_they_are_two(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", lambda request: Reply(body=request.json["data"]["arguments"]))
        await wire.play(calls(wanted("search", {"q": 1}, id="c1"), wanted("search", {"q": 2}, id="c1")), "done")
        assert wire.results() == ['{"q":1}', '{"q":2}']


class TestCarriedOnAfterACrash:
    async def test_what_is_stored_is_not_done_again_and_goes_back_as_it_came(
        self, wire: Wire, migrated: Database, test_tools: TestTools
    ) -> None:
        """The run waits for an approval when its process dies; its turn, thoughts and one result are stored."""
        search = await test_tools.host(wire.api, "search", {"items": [1]})
        pay = await test_tools.host(wire.api, "pay", {"paid": True}, requires_approval=True)
        turn = calls(wanted("search"), wanted("pay"), reasoning="I should pay.", text="Paying.")
        run = await wire.run(await wire.api.new_session(), turn, "Paid.")
        await left_by_a_dead_process(migrated, run)
        async for event in wire.api.follow(f"/v1/runs/{run['id']}/events"):
            if event.type == "run.resumed":
                break
        while (run := await wire.api.get(f"/v1/runs/{run['id']}"))["status"] != "waiting":
            await asyncio.sleep(0.02)
        decision = {"call_id": run["pending"][0]["call_id"], "decision": "approve"}
        await wire.api.post(f"/v1/runs/{run['id']}/approvals", {"decisions": [decision]}, 200)
        await wire.api.events(run["id"])
        run = await wire.api.get(f"/v1/runs/{run['id']}")
        assert (run["status"], run["output"]) == ("completed", "Paid.")
        assert (len(wire.server.requests), len(search.requests), len(pay.requests)) == (2, 1, 1)
        assert wire.results() == ['{"items":[1]}', '{"paid":true}']
        assert b"I should pay." in wire.server.requests[1].body


class TestFinishReasonsWithCalls:
    @pytest.mark.parametrize(
        "reason", [None, "stop", "tool_calls", "function_call", "content_filter", "odd", "stop_sequence"]
    )
    async def test_calls_are_run_whatever_it_is(self, wire: Wire, test_tools: TestTools, reason: str | None) -> None:
        search = await test_tools.host(wire.api, "search", {"items": [1]})
        played = await wire.play(call("search", finish_reason=reason), "done")
        assert (len(search.requests), played.ending) == (1, ("completed", "stop"))

    async def test_cut_off_by_length_the_last_call_is_invalid(self, wire: Wire, test_tools: TestTools) -> None:
        search = await test_tools.host(wire.api, "search", {"items": [1]})
        cut = calls(wanted("search", {"n": 1}), wanted("search", '{"n": 2'), finish_reason="length")
        played = await wire.play(cut, "done")
        assert (search.arguments, played.outcomes) == ([{"n": 1}], ["ok", "invalid"])
        first, second = wire.results()
        assert first == '{"items":[1]}'
        assert "error" in json.loads(second)


class TestTheResultAsTheModelSeesIt:
    @pytest.mark.parametrize(
        ("value", "seen"),
        [
            ('María said "no"\n', 'María said "no"\n'),
            ({"name": "María 🎉", "list": [1, 2.5, None]}, '{"name":"María 🎉","list":[1,2.5,null]}'),
            ("🎉" * 201, "🎉" * 200 + "…"),
        ],
        ids=["text", "json", "too_long"],
    )
    async def test_it_is_told_so(self, wire: Wire, test_tools: TestTools, value: Any, seen: str) -> None:
        await test_tools.host(wire.api, "search", Reply(200, json.dumps(value), {"content-type": "application/json"}))
        await wire.play(call("search"), "done", max_tool_result_chars=200)
        assert wire.results() == [seen]

    async def test_the_guards_hint_stands_behind_it(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", {"items": []})
        await wire.play(call("search", {"n": 1}), call("search", {"n": 2}), "None.", empty_streak_hint="<:count>")
        assert wire.results(1) == ['{"items":[]}']
        assert wire.results(2) == ['{"items":[]}\n\n<2>']


class TestProviderTrouble:
    @pytest.mark.parametrize("status", [429, 500, 503, 529])
    async def test_trouble_that_may_pass_is_tried_again(self, wire: Wire, status: int) -> None:
        played = await wire.play(failing(status, "slow down"), "done")
        assert [made["attempt"] for made in played.model_calls] == [1, 2]
        assert str(status) in played.model_calls[0]["error"]
        assert wire.server.requests[0].body == wire.server.requests[1].body
        assert "message.discarded" not in played.types

    @pytest.mark.parametrize("how", ["no_answer", "cut", "reset", "error"])
    async def test_so_is_a_connection_that_drops_before_the_first_delta(self, wire: Wire, how: Any) -> None:
        start = wire.format.stream({"error": True})
        drop = {
            "no_answer": Answer(status=None),
            "error": wire.format.answer([*start, wire.format.error(529, "Overloaded")]),
        }
        played = await wire.play(drop.get(how) or wire.format.answer([*start, 0.02], end=how), "done")
        assert (played.run["output"], len(played.model_calls)) == ("done", 2)
        assert "message.discarded" not in played.types

    async def test_so_is_one_that_says_nothing_more(self, wire: Wire, settings: Settings) -> None:
        stalled = wire.format.answer(wire.format.stream({"error": True}), end="hold")
        changed = wire.format.settings(settings, wire.server).model_copy(update={"model_first_token_seconds": 0.2})
        async with serving(changed) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            there = Wire(wire.format, wire.server, http, wire.api)
            assert (await there.play(stalled, "done")).run["output"] == "done"

    async def test_retry_after_is_obeyed(self, wire: Wire) -> None:
        played = await wire.play(json_answer(wire.format.error(429, "slow"), 429, Retry_After="0.3"), "done")
        assert played.trace[0]["model_calls"][1]["attempt"] == 2
        assert played.of("iteration.completed")[0]["seconds"] >= 0.3

    async def test_a_longer_one_goes_to_the_next_model_at_once(self, wire: Wire) -> None:
        later = json_answer(wire.format.error(429, "slow"), 429, Retry_After="3600")
        played = await wire.play(later, "done", model=[wire.format.model, f"{wire.format.model}-b"])
        assert [made["model"] for made in played.model_calls] == [wire.format.model, f"{wire.format.model}-b"]

    async def test_four_attempts_then_failover_then_unavailable(self, wire: Wire) -> None:
        models = [wire.format.model, f"{wire.format.model}-b"]
        played = await wire.play(*[failing(503)] * 4, "from the second", model=models)
        assert [body["model"] for body in wire.bodies] == [*[models[0].split("/")[1]] * 4, models[1].split("/")[1]]
        assert played.run["output"] == "from the second"
        played = await wire.play(*[failing(503)] * 8, model=models)
        assert played.run["error"]["code"] == "provider_unavailable"

    async def test_used_up_credits_go_to_the_next_model(self, wire: Wire) -> None:
        said = "Your credit balance is too low to access the API."
        models = [wire.format.model, f"{wire.format.model}-b"]
        played = await wire.play(*[failing(400, said)] * 4, "from the second", model=models)
        assert played.run["output"] == "from the second"

    @pytest.mark.parametrize("how", ["cut", "reset", "error"])
    async def test_after_a_delta_the_call_is_made_anew_and_clients_drop_what_they_have(self, wire: Wire, how: Any) -> None:
        half = {"text": "Half an ans", "error": {"status": 500, "message": "broken"}}
        dropped = wire.format.answer([*wire.format.stream(half), 0.02], end=how) if how != "error" else half
        played = await wire.play(dropped, "Whole", model=[wire.format.model, "scripted/never"])
        shown = [event for event in played.types if event.startswith("message.")]
        assert shown == ["message.delta", "message.discarded", "message.delta", "message.completed"]
        assert [message["content"] for message in played.messages] == ["Hello", "Whole"]

    async def test_a_call_that_was_dropped_half_way_is_never_executed(self, wire: Wire, test_tools: TestTools) -> None:
        hook = await test_tools.host(wire.api, "search")
        await wire.play({**call("search", '{"q": '), "error": {"status": 500, "message": "broken"}}, "done")
        assert hook.requests == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "code"),
        [(400, "rejected"), (404, "rejected"), (422, "rejected"), (401, "auth"), (403, "auth")],
    )
    async def test_one_is_final(self, wire: Wire, status: int, code: str) -> None:
        played = await wire.play(failing(status, "no, sk-abcdefgh1234"), model=[wire.format.model, "scripted/never"])
        assert played.run["error"]["code"] == f"provider_{code}"
        assert "sk-abcdefgh" not in json.dumps([played.run, played.trace])

    @pytest.mark.parametrize(
        ("status", "message"),
        [(400, "maximum context length is 8192 tokens"), (400, "prompt is too long: 210000 tokens > 200000 maximum"),
         (413, "Request exceeds the maximum size")],
    )  # fmt: skip
    async def test_a_context_overflow_is_told_as_that(self, wire: Wire, status: int, message: str) -> None:
        run = await wire.run(await wire.api.new_session(), *[failing(status, message)] * 2)
        assert (run["status"], run["error"]["code"]) == ("failed", "context_overflow")


class TestOpenCallsOfARunThatIsEnded:
    SCRIPT = calls(wanted("quick"), wanted("slow", {"n": 1}))

    async def started(self, wire: Wire, test_tools: TestTools, session: str) -> dict[str, Any]:
        await test_tools.host(wire.api, "quick", {"items": [1]})
        slow = await test_tools.host(wire.api, "slow", Reply(ending="hang"))
        run: dict[str, Any] = await wire.run(session, self.SCRIPT, background=True, status=202)
        await slow.received()
        async for event in wire.api.follow(f"/v1/runs/{run['id']}/events"):
            if event.type == "tool.invoked":
                break
        return run

    async def check(self, wire: Wire, api: Api, session: str, run: dict[str, Any]) -> None:
        """Its calls are all answered, and a next run of the session is sent a history that its API takes."""
        played = await api.played(await api.get(f"/v1/runs/{run['id']}"))
        assert played.outcomes == ["ok", "cancelled"]
        assert [message["role"] for message in played.messages] == ["user", "assistant", "tool", "tool"]
        await wire.play("Still here.", session=session, input="And now?")
        assert [text.split("\n\n")[-1] for role, text in wire.prose() if role == "user"][-1] == "And now?"

    async def test_cancel(self, wire: Wire, test_tools: TestTools) -> None:
        session = await wire.api.new_session()
        run = await self.started(wire, test_tools, session)
        ended = await wire.api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        assert ended["status"] == "cancelled"
        await self.check(wire, wire.api, session, run)

    async def test_deadline(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "quick", {"items": [1]})
        await test_tools.host(wire.api, "slow", Reply(ending="hang"))
        session = await wire.api.new_session()
        run = await wire.run(session, self.SCRIPT, deadline_seconds=0.7)
        assert run["finish_reason"] == "deadline"
        await self.check(wire, wire.api, session, run)

    async def test_interrupt(self, wire: Wire, test_tools: TestTools) -> None:
        session = await wire.api.new_session()
        run = await self.started(wire, test_tools, session)
        second = await wire.run(session, "Instead.", input="Stop that", on_conflict="interrupt")
        assert second["output"] == "Instead."
        await self.check(wire, wire.api, session, run)
