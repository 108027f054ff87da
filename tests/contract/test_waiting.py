"""Runs that wait (contract, sections 4 and 5): approvals, client tools, asynchronous answers; over HTTP, real webhooks."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from tests.api import Api, Event, Played, TestTools, call, calls, read_events, schema, wanted
from tests.conftest import serving
from tests.tools_app import Hook, Received, Reply

PAY = schema(("sum",), sum={"type": "integer", "minimum": 1})
ACCEPTED = Reply(202)


async def gate(api: Api, test_tools: TestTools, *answers: Any, name: str = "pay", **fields: Any) -> Hook:
    """A tool that needs an approval."""
    given = {"parameters": PAY, "requires_approval": True, **fields}
    return await test_tools.host(api, name, *(answers or ({"paid": True},)), **given)


async def client_tool(api: Api, name: str = "ask", **fields: Any) -> None:
    body = {"description": "Asks the user.", "parameters": schema(), "kind": "client", **fields}
    response = await api.call("PUT", f"/v1/tools/{name}", body)
    assert response.status_code in (200, 201), response.text


async def waiting(api: Api, *script: Any, session: str | None = None, **fields: Any) -> dict[str, Any]:
    """A run that was started by a POST and waits."""
    run: dict[str, Any] = await api.run(session or await api.new_session(), *script, **fields)
    assert run["status"] == "waiting", run
    return run


async def ended(api: Api, run: dict[str, Any]) -> Played:
    """The run at its end, with all that it left."""
    await api.events(run["id"])
    return await api.played(await api.get(f"/v1/runs/{run['id']}"))


async def decide(api: Api, run: dict[str, Any], *decisions: dict[str, Any], status: int = 200) -> Any:
    return await api.post(f"/v1/runs/{run['id']}/approvals", {"decisions": list(decisions)}, status)


async def supply(api: Api, run: dict[str, Any], *results: dict[str, Any], status: int = 200) -> Any:
    return await api.post(f"/v1/runs/{run['id']}/tool-results", {"results": list(results)}, status)


async def until(api: Api, run_id: str, *types: str, after: int = 0) -> list[Event]:
    """The events of a run up to the first of these types that stands after `after`."""
    seen: list[Event] = []
    async for event in api.follow(f"/v1/runs/{run_id}/events"):
        seen.append(event)
        if event.type in types and (event.id or 0) > after:
            return seen
    raise AssertionError(f"the stream ended before {types}: {seen}")


async def waits_again(api: Api, run: dict[str, Any]) -> dict[str, Any]:
    """The run when it waits once more."""
    (first,) = [event for event in await until(api, run["id"], "run.waiting") if event.type == "run.waiting"]
    await until(api, run["id"], "run.waiting", after=first.id or 0)
    again: dict[str, Any] = await api.get(f"/v1/runs/{run['id']}")
    assert again["status"] == "waiting", again
    return again


def ids_of(run: dict[str, Any], tool: str | None = None) -> list[str]:
    """The calls that are waited for, of one tool or of all, by their arguments."""
    items = sorted(run["pending"], key=lambda item: json.dumps(item["arguments"]))
    return [item["call_id"] for item in items if tool in (None, item["tool"])]


def approve(call_id: str = "*") -> dict[str, Any]:
    return {"call_id": call_id, "decision": "approve"}


def edit(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"call_id": call_id, "decision": "edit", "arguments": arguments}


def reject(call_id: str = "*", reason: str | None = None) -> dict[str, Any]:
    return {"call_id": call_id, "decision": "reject"} | ({} if reason is None else {"reason": reason})


def result(call_id: str, value: Any) -> dict[str, Any]:
    return {"call_id": call_id, "result": value}


def paying(*sums: int, **more: Any) -> dict[str, Any]:
    """A turn of the model that calls `pay`, once for each sum."""
    return calls(*(wanted("pay", {"sum": sum}) for sum in sums), **more)


def check_history(played: Played) -> None:
    """Each call of each assistant's turn has its result, right behind it, in the order of the calls; nothing has a gap."""
    positions = [message["position"] for message in played.messages]
    assert positions == list(range(positions[0], positions[0] + len(positions)))
    rest = iter(played.messages)
    for message in rest:
        for made in message["tool_calls"]:
            answer = next(rest)
            assert (answer["role"], answer["tool_call_id"]) == ("tool", made["id"])
            assert answer["content"]
    assert [event.id for event in played.events] == list(range(1, len(played.events) + 1))


@pytest.fixture(scope="module")
async def hasty_http(settings: Settings, base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A replica on which nothing is waited for longer than a moment."""
    async with (
        serving(settings.model_copy(update={"pending_seconds": 0.4})) as url,
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client


@pytest.fixture
def hasty(api: Api, hasty_http: httpx.AsyncClient) -> Api:
    """The same workspace, on that replica."""
    return Api(hasty_http, api.key, api.workspace_id)


class TestPause:
    async def test_a_post_that_is_neither_stream_nor_background_is_answered_when_the_run_waits(
        self, api: Api, test_tools: TestTools
    ) -> None:
        pay = await gate(api, test_tools)
        before = datetime.now(UTC)
        run = await waiting(api, paying(5), "never")
        assert (run["finish_reason"], run["output"], run["finished_at"], run["iterations"]) == (None, None, None, 1)
        (pending,) = run["pending"]
        assert {key: pending[key] for key in ("tool", "arguments", "reason")} == {
            "tool": "pay", "arguments": {"sum": 5}, "reason": "approval",
        }  # fmt: skip
        assert set(pending) == {"call_id", "tool", "arguments", "reason", "expires_at"}
        assert pending["call_id"].startswith("call_")
        expires_at = datetime.fromisoformat(pending["expires_at"])
        assert abs(expires_at - before - timedelta(hours=24)) < timedelta(minutes=1)
        assert pay.requests == []

    async def test_the_run_shows_what_it_waits_for_to_whoever_asks(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5), "never")
        assert await api.get(f"/v1/runs/{run['id']}") == run
        assert (await api.get("/v1/runs?status=waiting"))["data"] == [run]

    async def test_a_run_in_the_background_comes_to_wait_too(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await api.run(await api.new_session(), paying(5), background=True, status=202)
        assert (run["status"], run["pending"]) == ("running", [])
        await until(api, run["id"], "run.waiting")
        assert (await api.get(f"/v1/runs/{run['id']}"))["status"] == "waiting"

    async def test_a_run_without_a_session_waits_as_well(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        body = {"tenant": {"type": "organization", "id": "42"}, "model": "scripted/x", "input": "Pay."}
        run = await api.post("/v1/runs", {**body, "script": [paying(5), "Paid."]}, 200)
        assert run["status"] == "waiting"
        await decide(api, run, approve())
        played = await ended(api, run)
        assert (played.run["output"], pay.arguments) == ("Paid.", [{"sum": 5}])

    async def test_the_events_tell_what_is_waited_for_and_that_it_was_answered(
        self, api: Api, test_tools: TestTools
    ) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5), "Paid.")
        await decide(api, run, approve())
        played = await ended(api, run)
        assert played.types == [
            "run.queued", "run.started", "iteration.started", "message.completed", "tool.invoking", "run.waiting",
            "run.resumed", "tool.invoked", "iteration.completed", "iteration.started", "message.delta",
            "message.completed", "iteration.completed", "run.completed",
        ]  # fmt: skip
        assert played.of("run.waiting")[0]["pending"] == run["pending"]
        assert played.of("run.resumed")[0]["reason"] == "answered"
        assert played.of("tool.invoked")[0]["call_id"] == run["pending"][0]["call_id"]
        check_history(played)

    async def test_while_it_waits_the_assistants_turn_is_stored_and_the_model_not_asked_again(
        self, api: Api, test_tools: TestTools
    ) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5, text="I will pay."), "never")
        stored = await api.messages(run["session_id"])
        assert [message["role"] for message in stored] == ["user", "assistant"]
        assert [made["id"] for made in stored[1]["tool_calls"]] == ids_of(run)
        (iteration,) = await api.trace(run["id"])
        assert len(iteration["model_calls"]) == 1
        assert [made["outcome"] for made in iteration["tool_calls"]] == [None]

    async def test_the_stream_stays_open_while_the_run_waits_and_goes_on_after(
        self, api: Api, test_tools: TestTools
    ) -> None:
        await gate(api, test_tools)
        session = await api.new_session()
        body = {"input": "Pay.", "script": [paying(5), "Paid."], "stream": True}
        path = f"/v1/sessions/{session}/runs"
        seen: list[Event] = []
        async with api.http.stream("POST", path, json=body, headers=api.headers()) as response:
            async for event in read_events(response):
                seen.append(event)
                if event.type == "run.waiting":
                    await decide(api, {"id": response.headers["Rondo-Run"]}, approve())
        assert seen[-1].type == "run.completed"
        assert [event.id for event in seen] == list(range(1, len(seen) + 1))

    async def test_a_follower_on_another_replica_sees_it_wait_and_go_on(
        self, api: Api, hasty: Api, test_tools: TestTools
    ) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5), "Paid.")
        seen: list[Event] = []
        async for event in hasty.follow(f"/v1/runs/{run['id']}/events"):
            seen.append(event)
            if event.type == "run.waiting":
                await decide(api, run, approve())
        assert [event.raw for event in seen] == [event.raw for event in await api.events(run["id"])]
        assert seen[-1].type == "run.completed"

    async def test_the_decision_may_come_to_another_replica(self, api: Api, hasty: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), "Paid.")
        await decide(hasty, run, approve())
        played = await ended(api, run)
        assert (played.run["output"], pay.arguments) == ("Paid.", [{"sum": 5}])
        check_history(played)

    async def test_siblings_that_need_no_approval_run_at_once(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        search = await test_tools.host(api, "search", {"items": [1]})
        run = await waiting(api, calls(wanted("pay", {"sum": 5}), wanted("search")), "Paid.")
        assert len(search.requests) == 1
        assert [item["tool"] for item in run["pending"]] == ["pay"]
        assert [made["outcome"] for made in (await api.trace(run["id"]))[0]["tool_calls"]] == [None, "ok"]
        await decide(api, run, approve())
        played = await ended(api, run)
        assert (played.outcomes, len(search.requests)) == (["neutral", "ok"], 1)
        check_history(played)

    async def test_the_session_is_busy_meanwhile_and_says_with_what(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5), "never")
        told = await api.run(run["session_id"], "Hi", status=409)
        assert (told["code"], told["run_id"], told["pending"]) == ("run_in_progress", run["id"], run["pending"])

    async def test_a_queued_run_starts_when_the_waiting_one_has_ended(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5), "Paid.")
        next_run = await api.run(
            run["session_id"], "Next.", input="And then?", on_conflict="queue", background=True, status=202
        )
        assert next_run["status"] == "queued"
        await decide(api, run, approve())
        assert (await ended(api, run)).run["output"] == "Paid."
        assert (await ended(api, next_run)).run["output"] == "Next."
        roles = [message["role"] for message in await api.messages(run["session_id"])]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]

    async def test_the_same_post_again_gives_the_waiting_run(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        path = f"/v1/sessions/{await api.new_session()}/runs"
        body = {"input": "Pay.", "script": [paying(5), "Paid."]}
        first = await api.call("POST", path, body, Idempotency_Key="pay-once")
        again = await api.call("POST", path, body, Idempotency_Key="pay-once")
        assert (first.status_code, again.status_code) == (200, 200)
        assert again.json() == first.json()
        assert (first.json()["status"], again.headers["Idempotent-Replayed"]) == ("waiting", "true")
        await decide(api, first.json(), approve())
        await ended(api, first.json())
        later = await api.call("POST", path, body, Idempotency_Key="pay-once")
        assert (later.json()["id"], later.json()["output"]) == (first.json()["id"], "Paid.")

    async def test_at_the_last_permitted_model_call_nobody_is_asked(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        await client_tool(api)
        script = calls(wanted("pay", {"sum": 5}), wanted("ask"), text="I will pay.")
        played = await api.play(script, max_iterations=1)
        assert played.ending == ("incomplete", "max_iterations")
        assert (played.outcomes, played.run["output"]) == (["skipped", "skipped"], "I will pay.")
        assert "run.waiting" not in played.types
        assert pay.requests == []
        check_history(played)

    async def test_nobody_is_asked_about_arguments_that_the_tool_does_not_take(
        self, api: Api, test_tools: TestTools
    ) -> None:
        pay = await gate(api, test_tools)
        played = await api.play(paying(0), "Sorry.")
        assert (played.ending, played.outcomes, pay.requests) == (("completed", "stop"), ["invalid"], [])


class TestApproval:
    async def test_the_tool_is_called_and_the_model_goes_on(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), "Paid.")
        (call_id,) = ids_of(run)
        answer = await decide(api, run, approve(call_id))
        assert (answer["id"], answer["pending"]) == (run["id"], [])
        assert answer["status"] != "waiting"
        played = await ended(api, run)
        assert (played.ending, played.run["output"]) == (("completed", "stop"), "Paid.")
        (request,) = pay.requests
        assert (request.headers["webhook-id"], request.json["data"]["arguments"]) == (call_id, {"sum": 5})
        assert played.run["pending"] == []
        check_history(played)

    async def test_a_star_decides_all(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1, 2, 3), "Paid.")
        await decide(api, run, approve("*"))
        await ended(api, run)
        assert sorted(arguments["sum"] for arguments in pay.arguments) == [1, 2, 3]

    async def test_a_star_is_the_default_for_the_rest(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1, 2, 3), "Two paid.")
        second = ids_of(run)[1]
        await decide(api, run, approve("*"), reject(second, "not that one"))
        played = await ended(api, run)
        assert sorted(arguments["sum"] for arguments in pay.arguments) == [1, 3]
        assert played.outcomes == ["neutral", "denied", "neutral"]
        check_history(played)

    async def test_approved_edited_and_rejected_calls_of_one_turn_each_get_what_was_decided(
        self, api: Api, test_tools: TestTools
    ) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1, 2, 3), "Done.")
        first, second, third = ids_of(run)
        await decide(api, run, reject(third, "no"), edit(second, sum=20), approve(first))
        played = await ended(api, run)
        assert {request.headers["webhook-id"]: request.json["data"]["arguments"]["sum"] for request in pay.requests} == {
            first: 1, second: 20,
        }  # fmt: skip
        assert played.outcomes == ["neutral", "neutral", "denied"]

    async def test_edited_arguments_go_to_the_tool(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), "Paid.")
        await decide(api, run, edit(ids_of(run)[0], sum=3))
        assert (await ended(api, run)).ending == ("completed", "stop")
        assert pay.arguments == [{"sum": 3}]

    async def test_edited_arguments_that_the_schema_refuses_are_422_and_the_run_waits_on(
        self, api: Api, test_tools: TestTools
    ) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5, 6), "Paid.")
        first, second = ids_of(run)
        told = await decide(api, run, approve(first), edit(second, sum=0), status=422)
        assert "sum" in json.dumps(told["errors"])
        assert await api.get(f"/v1/runs/{run['id']}") == run
        await decide(api, run, approve(first), edit(second, sum=1))
        await ended(api, run)
        assert sorted(arguments["sum"] for arguments in pay.arguments) == [1, 5]

    @pytest.mark.parametrize(
        "decision",
        [
            {"decision": "edit"}, {"decision": "approve", "arguments": {"sum": 1}}, {"decision": "maybe"},
            {"decision": "approve", "reason": "because"}, {"decision": "approve", "sure": True}, {},
            {"decision": "edit", "arguments": [1]},
        ],
    )  # fmt: skip
    async def test_a_decision_that_makes_no_sense_is_422_and_the_run_waits_on(
        self, api: Api, test_tools: TestTools, decision: dict[str, Any]
    ) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), "never")
        await decide(api, run, {"call_id": ids_of(run)[0], **decision}, status=422)
        assert (await api.get(f"/v1/runs/{run['id']}"), pay.requests) == (run, [])

    async def test_no_decision_at_all_is_422(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5), "never")
        await decide(api, run, status=422)

    async def test_the_next_call_of_the_tool_waits_again(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1), paying(2), "Both paid.")
        await decide(api, run, approve())
        again = await waits_again(api, run)
        assert [item["arguments"] for item in again["pending"]] == [{"sum": 2}]
        await decide(api, again, approve())
        played = await ended(api, run)
        assert (pay.arguments, played.types.count("run.waiting")) == ([{"sum": 1}, {"sum": 2}], 2)
        check_history(played)

    async def test_an_approved_tool_that_answers_202_is_then_waited_for(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools, ACCEPTED)
        run = await waiting(api, paying(5), "Paid.")
        await decide(api, run, edit(ids_of(run)[0], sum=3))
        again = await waits_again(api, run)
        assert [(item["reason"], item["arguments"]) for item in again["pending"]] == [("async", {"sum": 3})]
        assert ids_of(again) == ids_of(run)
        await supply(api, run, result(ids_of(again)[0], {"paid": 3}))
        played = await ended(api, run)
        assert (played.results, len(pay.requests)) == ([{"paid": 3}], 1)

    async def test_a_client_tool_that_needs_an_approval_waits_for_both(self, api: Api) -> None:
        await client_tool(api, requires_approval=True)
        run = await waiting(api, call("ask"), "Thanks.")
        assert [item["reason"] for item in run["pending"]] == ["approval"]
        await supply(api, run, result(ids_of(run)[0], "early"), status=409)
        await decide(api, run, approve())
        again = await waits_again(api, run)
        assert [item["reason"] for item in again["pending"]] == ["client"]
        await supply(api, again, result(ids_of(again)[0], "yes"))
        assert (await ended(api, run)).results == ["yes"]

    async def test_a_tool_that_fails_after_its_approval_fails_like_any_other(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools, Reply(500))
        run = await waiting(api, paying(5), "Sorry.")
        await decide(api, run, approve())
        played = await ended(api, run)
        assert played.outcomes == ["failed"]
        assert played.results == [{"error": "The tool pay is temporarily unavailable."}]


class TestToolsThatChangeMeanwhile:
    async def test_an_approval_that_is_switched_on_holds_for_the_calls_after_the_pause(
        self, api: Api, test_tools: TestTools
    ) -> None:
        pay = await gate(api, test_tools, requires_approval=False)
        await client_tool(api)
        run = await waiting(api, calls(wanted("ask"), wanted("pay", {"sum": 1})), paying(2), "Done.")
        assert len(pay.requests) == 1
        await api.tool("pay", pay.url, parameters=PAY, requires_approval=True)
        await supply(api, run, result(ids_of(run)[0], "yes"))
        again = await waits_again(api, run)
        assert [(item["tool"], item["reason"]) for item in again["pending"]] == [("pay", "approval")]
        assert len(pay.requests) == 1
        await decide(api, again, approve())
        assert (await ended(api, run)).run["output"] == "Done."
        assert pay.arguments == [{"sum": 1}, {"sum": 2}]

    async def test_an_approval_that_is_switched_off_leaves_what_waits_to_be_decided(
        self, api: Api, test_tools: TestTools
    ) -> None:
        pay = await gate(api, test_tools)
        await client_tool(api)
        run = await waiting(api, calls(wanted("pay", {"sum": 5}), wanted("ask")), "Then not.")
        await api.tool("pay", pay.url, parameters=PAY, requires_approval=False)
        await supply(api, run, result(ids_of(run, "ask")[0], "yes"))
        assert ids_of(await api.get(f"/v1/runs/{run['id']}")) == ids_of(run, "pay")
        await decide(api, run, reject(reason="no"))
        assert (await ended(api, run)).outcomes == ["denied", "neutral"]
        assert pay.requests == []

    async def test_a_tool_that_was_deleted_is_not_called_in_spite_of_its_approval(
        self, api: Api, test_tools: TestTools
    ) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), "Sorry.")
        assert (await api.call("DELETE", "/v1/tools/pay")).status_code == 204
        await decide(api, run, approve())
        played = await ended(api, run)
        assert (played.ending, played.outcomes, pay.requests) == (("completed", "stop"), ["unknown"], [])

    async def test_what_came_for_a_tool_that_was_deleted_still_counts(self, api: Api) -> None:
        await client_tool(api)
        run = await waiting(api, call("ask"), "Thanks.")
        assert (await api.call("DELETE", "/v1/tools/ask")).status_code == 204
        await supply(api, run, result(ids_of(run)[0], "yes"))
        assert (await ended(api, run)).contents == ["yes"]


class TestRejectionWithAReason:
    async def test_the_model_reads_it_and_goes_on(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), "Then not.")
        await decide(api, run, reject(ids_of(run)[0], "Too dear: ask for «3» at most."))
        played = await ended(api, run)
        assert (played.ending, played.run["output"]) == (("completed", "stop"), "Then not.")
        assert played.outcomes == ["denied"]
        assert "Too dear: ask for «3» at most." in played.messages[2]["content"]
        assert list(played.results[0]) == ["error"]
        assert pay.requests == []
        check_history(played)

    async def test_the_model_may_ask_again_with_other_arguments(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), paying(3), "Paid 3.")
        await decide(api, run, reject(reason="3 at most"))
        await decide(api, await waits_again(api, run), approve())
        assert (await ended(api, run)).run["output"] == "Paid 3."
        assert pay.arguments == [{"sum": 3}]


class TestRejectionWithoutAReason:
    @pytest.mark.parametrize("reason", [None, "", "  \n"])
    async def test_it_ends_the_run(self, api: Api, test_tools: TestTools, reason: str | None) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5, text="I will pay."), "never")
        await decide(api, run, reject(ids_of(run)[0], reason))
        played = await ended(api, run)
        assert (played.ending, played.run["output"]) == (("incomplete", "rejected"), "I will pay.")
        assert played.outcomes == ["denied"]
        assert len(played.model_calls) == 1
        assert played.types[-1] == "run.incomplete"
        assert pay.requests == []
        check_history(played)

    async def test_its_siblings_are_cancelled_and_the_history_stays_valid(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        await client_tool(api)
        await test_tools.host(api, "search", {"items": [1]})
        script = calls(wanted("ask"), wanted("pay", {"sum": 1}), wanted("search"), wanted("pay", {"sum": 2}))
        run = await waiting(api, script, "never")
        kept, refused = ids_of(run, "pay")
        await decide(api, run, approve(kept), reject(refused))
        played = await ended(api, run)
        assert played.ending == ("incomplete", "rejected")
        assert played.outcomes == ["cancelled", "cancelled", "ok", "denied"]
        assert pay.requests == []
        assert {event["call_id"]: event["outcome"] for event in played.of("tool.invoked")} == {
            made["call_id"]: made["outcome"] for made in played.calls
        }
        check_history(played)
        assert (await api.run(run["session_id"], "Still here."))["output"] == "Still here."

    async def test_a_star_rejects_all(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1, 2), "never")
        await decide(api, run, reject("*"))
        played = await ended(api, run)
        assert (played.ending, played.outcomes) == (("incomplete", "rejected"), ["denied", "denied"])
        assert pay.requests == []

    async def test_the_empty_reply_is_said_when_there_was_no_text(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5), "never", empty_reply="It was not allowed.")
        await decide(api, run, reject())
        played = await ended(api, run)
        assert (*played.ending, played.run["output"]) == ("incomplete", "rejected", "It was not allowed.")
        assert [message["content"] for message in played.messages][-1] == "It was not allowed."


class TestDecisionsThatDoNotFit:
    async def refused(self, api: Api, run: dict[str, Any], *decisions: dict[str, Any]) -> None:
        """409 with what is pending, and nothing has changed."""
        before = await api.get(f"/v1/runs/{run['id']}")
        told = await decide(api, run, *decisions, status=409)
        assert (told["code"], told["pending"]) == ("pending_mismatch", before["pending"])
        assert await api.get(f"/v1/runs/{run['id']}") == before

    async def test_one_that_is_missing(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1, 2), "Paid.")
        await self.refused(api, run, approve(ids_of(run)[0]))
        assert pay.requests == [], "not half of it either"
        await decide(api, run, approve())
        assert (await ended(api, run)).run["output"] == "Paid."

    @pytest.mark.parametrize("call_id", ["call_0190c5a87b6c7def8123456789abcdef", "nonsense", "pay", "**"])
    async def test_one_that_is_unknown(self, api: Api, test_tools: TestTools, call_id: str) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1), "never")
        await self.refused(api, run, approve(call_id))
        await self.refused(api, run, approve(ids_of(run)[0]), approve(call_id))
        await self.refused(api, run, approve("*"), approve(call_id))
        assert pay.requests == []

    async def test_one_of_another_run(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        first, second = await waiting(api, paying(1), "never"), await waiting(api, paying(2), "never")
        await self.refused(api, first, approve(ids_of(second)[0]))
        assert (await api.get(f"/v1/runs/{second['id']}"))["status"] == "waiting"

    async def test_the_same_id_twice(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(1), "never")
        (call_id,) = ids_of(run)
        await self.refused(api, run, approve(call_id), reject(call_id))
        await self.refused(api, run, approve("*"), reject("*"))

    async def test_a_call_that_waits_for_its_result(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        await client_tool(api)
        run = await waiting(api, calls(wanted("pay", {"sum": 1}), wanted("ask")), "never")
        await self.refused(api, run, approve(ids_of(run, "pay")[0]), approve(ids_of(run, "ask")[0]))

    async def test_nothing_that_waits_for_a_decision(self, api: Api) -> None:
        await client_tool(api)
        run = await waiting(api, call("ask"), "never")
        await self.refused(api, run, approve("*"))

    async def test_a_stale_one_for_a_call_that_was_decided(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1), paying(2), "never")
        await decide(api, run, approve(ids_of(run)[0]))
        again = await waits_again(api, run)
        await self.refused(api, again, approve(ids_of(run)[0]))
        assert pay.arguments == [{"sum": 1}]

    @pytest.mark.parametrize("late", [approve("*"), reject("*")])
    async def test_a_stale_one_for_a_run_that_has_ended(self, api: Api, test_tools: TestTools, late: dict[str, Any]) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1), "Paid.")
        await decide(api, run, approve())
        await ended(api, run)
        await self.refused(api, run, late)
        await self.refused(api, run, approve(ids_of(run)[0]))
        assert len(pay.requests) == 1

    async def test_of_two_at_the_same_moment_one_is_taken(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(1), "Paid.")
        path, body = f"/v1/runs/{run['id']}/approvals", {"decisions": [approve("*")]}
        answers = await asyncio.gather(*(api.call("POST", path, body) for _ in range(5)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
        await ended(api, run)
        assert len(pay.requests) == 1

    async def test_a_run_of_another_workspace_is_not_found(self, api: Api, admin: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(1), "never")
        stranger = await admin.new_workspace()
        await decide(stranger, run, approve(), status=404)
        await supply(stranger, run, result(ids_of(run)[0], 1), status=404)

    async def test_a_client_token_may_not_decide(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(1), "never")
        token = await api.post(f"/v1/sessions/{run['session_id']}/tokens", {"can": ["read", "run"]})
        browser = api.with_key(token["token"])
        await decide(browser, run, approve(), status=403)
        await supply(browser, run, result(ids_of(run)[0], 1), status=403)


class TestResultsFromOutside:
    async def test_a_webhook_that_answers_202_is_waited_for(self, api: Api, test_tools: TestTools) -> None:
        export = await test_tools.host(api, "export", Reply(202, {"job": 7}))
        run = await waiting(api, call("export", {"a": 1}), "Here it is.")
        (pending,) = run["pending"]
        assert (pending["tool"], pending["arguments"], pending["reason"]) == ("export", {"a": 1}, "async")
        answer = await supply(api, run, result(pending["call_id"], {"items": ["file"]}))
        assert (answer["id"], answer["pending"]) == (run["id"], [])
        played = await ended(api, run)
        assert (played.run["output"], played.results, played.outcomes) == ("Here it is.", [{"items": ["file"]}], ["ok"])
        assert len(export.requests) == 1
        assert played.of("run.resumed")[0]["reason"] == "answered"
        check_history(played)

    async def test_a_client_tool_is_the_callers_own_to_execute(self, api: Api) -> None:
        await client_tool(api)
        run = await waiting(api, call("ask"), "Thanks.")
        assert [item["reason"] for item in run["pending"]] == ["client"]
        await supply(api, run, result(ids_of(run)[0], "yes"))
        played = await ended(api, run)
        assert (played.ending, played.contents) == (("completed", "stop"), ["yes"])

    async def test_with_some_of_them_the_run_waits_for_the_rest(self, api: Api) -> None:
        await client_tool(api)
        run = await waiting(api, calls(wanted("ask", {"n": 1}), wanted("ask", {"n": 2})), "Thanks.")
        first, second = ids_of(run)
        answer = await supply(api, run, result(second, "two"))
        assert (answer["status"], ids_of(answer)) == ("waiting", [first])
        assert ids_of(await api.get(f"/v1/runs/{run['id']}")) == [first]
        await supply(api, run, result(first, "one"))
        played = await ended(api, run)
        assert (played.results, played.types.count("run.waiting")) == (["one", "two"], 1)
        check_history(played)

    async def test_with_all_of_them_at_once_it_goes_on(self, api: Api) -> None:
        await client_tool(api)
        run = await waiting(api, calls(wanted("ask", {"n": 1}), wanted("ask", {"n": 2})), "Thanks.")
        await supply(api, run, *(result(call_id, number) for number, call_id in enumerate(ids_of(run))))
        assert (await ended(api, run)).results == [0, 1]

    async def test_results_and_decisions_of_one_turn_come_in_any_order(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        await client_tool(api)
        turn = calls(wanted("ask"), wanted("pay", {"sum": 5}))
        for results_first in (True, False):
            run = await waiting(api, turn, "Done.")
            assert sorted(item["reason"] for item in run["pending"]) == ["approval", "client"]
            if results_first:
                left = await supply(api, run, result(ids_of(run, "ask")[0], "yes"))
                assert ids_of(left) == ids_of(run, "pay")
                await decide(api, run, approve())
            else:
                await decide(api, run, approve())
                again = await waits_again(api, run)
                assert ids_of(again) == ids_of(run, "ask")
                await supply(api, run, result(ids_of(run, "ask")[0], "yes"))
            played = await ended(api, run)
            assert played.results == ["yes", {"paid": True}]
            check_history(played)
        assert len(pay.requests) == 2

    async def test_the_same_answer_again_is_200_and_changes_nothing(self, api: Api) -> None:
        await client_tool(api)
        run = await waiting(api, calls(wanted("ask", {"n": 1}), wanted("ask", {"n": 2})), "Thanks.")
        first, second = ids_of(run)
        given = {"b": [1, 2.5, None], "a": "María"}
        before = await supply(api, run, result(first, given))
        assert await supply(api, run, result(first, given)) == before
        await supply(api, run, result(first, given), {"call_id": second, "error": "gone"})
        played = await ended(api, run)
        answer = await supply(api, run, result(first, given), {"call_id": second, "error": "gone"})
        assert answer == played.run

    @pytest.mark.parametrize("other", [{"result": "no"}, {"error": "yes"}, {"result": None}])
    async def test_another_answer_is_409_and_the_first_stays(self, api: Api, other: dict[str, Any]) -> None:
        await client_tool(api)
        run = await waiting(api, calls(wanted("ask", {"n": 1}), wanted("ask", {"n": 2})), "Thanks.")
        first, second = ids_of(run)
        await supply(api, run, result(first, "yes"))
        told = await supply(api, run, {"call_id": first, **other}, result(second, "x"), status=409)
        assert (told["code"], ids_of(told)) == ("pending_mismatch", [second])
        assert ids_of(await api.get(f"/v1/runs/{run['id']}")) == [second], "nothing of it was kept"
        await supply(api, run, result(second, "two"))
        assert (await ended(api, run)).results == ["yes", "two"]
        await supply(api, run, {"call_id": first, **other}, status=409)

    @pytest.mark.parametrize("which", ["unknown", "approval", "answered"])
    async def test_a_result_that_nobody_waits_for_is_409(self, api: Api, test_tools: TestTools, which: str) -> None:
        pay = await gate(api, test_tools)
        await client_tool(api)
        await test_tools.host(api, "search", {"items": [1]})
        run = await waiting(api, calls(wanted("pay", {"sum": 5}), wanted("ask"), wanted("search")), "never")
        answered = next(made["call_id"] for made in (await api.trace(run["id"]))[0]["tool_calls"] if made["outcome"])
        call_id = {"unknown": "call_x", "approval": ids_of(run, "pay")[0], "answered": answered}[which]
        told = await supply(api, run, result(ids_of(run, "ask")[0], "yes"), result(call_id, {"items": [1]}), status=409)
        assert (told["code"], told["pending"]) == ("pending_mismatch", run["pending"])
        assert await api.get(f"/v1/runs/{run['id']}") == run
        assert pay.requests == []

    @pytest.mark.parametrize(
        "given", [{}, {"result": 1, "error": "x"}, {"error": ""}, {"error": None}, {"error": 5}, {"result": 1, "why": 2}]
    )
    async def test_a_result_that_makes_no_sense_is_422(self, api: Api, given: dict[str, Any]) -> None:
        await client_tool(api)
        run = await waiting(api, call("ask"), "never")
        await supply(api, run, {"call_id": ids_of(run)[0], **given}, status=422)
        await supply(api, run, status=422)
        assert await api.get(f"/v1/runs/{run['id']}") == run

    @pytest.mark.parametrize(
        ("value", "outcome", "content"),
        [
            ({"items": ["ñ"]}, "ok", '{"items":["ñ"]}'), ({"items": []}, "empty", '{"items":[]}'),
            ("text", "neutral", "text"), (None, "neutral", "null"), ({"error": "no"}, "error", '{"error":"no"}'),
        ],
    )  # fmt: skip
    async def test_a_result_is_judged_and_shown_like_any_other(
        self, api: Api, value: Any, outcome: str, content: str
    ) -> None:
        await client_tool(api)
        run = await waiting(api, call("ask"), "Thanks.")
        await supply(api, run, result(ids_of(run)[0], value))
        played = await ended(api, run)
        assert (played.outcomes, played.contents, played.results) == ([outcome], [content], [value])
        assert played.of("tool.invoked")[0]["result"] == value

    async def test_an_error_is_what_the_model_reads(self, api: Api) -> None:
        await client_tool(api)
        run = await waiting(api, call("ask"), "Sorry.")
        await supply(api, run, {"call_id": ids_of(run)[0], "error": "The user has left."})
        played = await ended(api, run)
        assert (played.outcomes, played.results) == (["error"], [{"error": "The user has left."}])

    async def test_a_result_is_cut_and_hinted_like_any_other(self, api: Api) -> None:
        await client_tool(api)
        limits = {"max_tool_result_chars": 100, "empty_streak_hint": "(:count in a row)"}
        run = await waiting(api, call("ask"), call("ask"), "Nothing.", **limits)
        given = {"items": [], "q": "🎉" * 200}
        await supply(api, run, result(ids_of(run)[0], given))
        again = await waits_again(api, run)
        await supply(api, again, result(ids_of(again)[0], given))
        played = await ended(api, run)
        first, second = played.contents
        assert (len(first), first[-1]) == (101, "…")
        assert second == f"{first}\n\n(2 in a row)"
        assert [event["truncated"] for event in played.of("tool.invoked")] == [True, True]
        assert [event["streak"] for event in played.of("guard.hint")] == [2]

    async def test_a_result_may_come_before_the_turn_is_done_with_its_other_calls(
        self, api: Api, test_tools: TestTools
    ) -> None:
        await test_tools.host(api, "export", ACCEPTED)
        supplied = asyncio.Event()

        def slow(request: Received) -> Reply:
            return Reply(body={"items": [1]}, delay_seconds=0.0 if supplied.is_set() else 0.5)

        search = await test_tools.host(api, "search", slow)
        turn = calls(wanted("export"), wanted("search"))
        run = await api.run(await api.new_session(), turn, "Both.", background=True, status=202)
        await search.received()
        invoking = [event for event in await until(api, run["id"], "tool.invoking") if event.type == "tool.invoking"]
        await supply(api, run, result(invoking[0].data["call_id"], {"items": ["file"]}))
        supplied.set()
        assert (await ended(api, run)).results == [{"items": ["file"]}, {"items": [1]}]


class TestNothingComesInTime:
    async def test_an_approval_that_runs_out_is_a_refusal(self, hasty: Api, test_tools: TestTools) -> None:
        pay = await gate(hasty, test_tools)
        run = await waiting(hasty, paying(5, text="I will pay."), "never")
        played = await ended(hasty, run)
        assert (played.ending, played.run["output"]) == (("incomplete", "rejected"), "I will pay.")
        assert (played.outcomes, pay.requests) == (["denied"], []), "a decision that never comes never calls the tool"
        assert datetime.fromisoformat(played.run["finished_at"]) >= datetime.fromisoformat(run["pending"][0]["expires_at"])
        check_history(played)
        await decide(hasty, run, approve("*"), status=409)
        assert (await hasty.run(run["session_id"], "Still here."))["output"] == "Still here."

    @pytest.mark.parametrize("kind", ["async", "client"])
    async def test_a_result_that_does_not_come_is_a_tool_that_is_unavailable(
        self, hasty: Api, test_tools: TestTools, kind: str
    ) -> None:
        if kind == "async":
            await test_tools.host(hasty, "ask", ACCEPTED)
        else:
            await client_tool(hasty)
        await client_tool(hasty, "other")
        run = await waiting(hasty, calls(wanted("ask"), wanted("other")), "Sorry.")
        await supply(hasty, run, result(ids_of(run, "other")[0], "came"))
        played = await ended(hasty, run)
        assert (played.ending, played.run["output"]) == (("completed", "stop"), "Sorry.")
        assert played.results == [{"error": "The tool ask is temporarily unavailable."}, "came"]
        assert played.outcomes == ["failed", "neutral"]
        check_history(played)
        await supply(hasty, run, result(ids_of(run, "ask")[0], "late"), status=409)

    async def test_an_approved_tool_that_answered_202_is_not_called_again_when_nothing_comes(
        self, hasty: Api, test_tools: TestTools
    ) -> None:
        pay = await gate(hasty, test_tools, ACCEPTED, {"paid": "twice"})
        run = await waiting(hasty, paying(5), "Sorry.")
        await decide(hasty, run, approve())
        played = await ended(hasty, run)
        assert (played.outcomes, len(pay.requests)) == (["failed"], 1)


class TestEndedWhileItWaits:
    async def test_cancel(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        await client_tool(api)
        run = await waiting(api, calls(wanted("pay", {"sum": 5}), wanted("ask"), text="I will pay."), "never")
        cancelled = await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        assert (cancelled["status"], cancelled["finish_reason"], cancelled["pending"]) == ("cancelled", "cancelled", [])
        played = await ended(api, run)
        assert (played.outcomes, played.types[-1]) == (["cancelled", "cancelled"], "run.cancelled")
        check_history(played)
        await decide(api, run, approve("*"), status=409)
        await supply(api, run, result(ids_of(run, "ask")[0], "late"), status=409)
        assert await api.post(f"/v1/runs/{run['id']}/cancel", status=200) == cancelled
        assert pay.requests == []
        assert (await api.run(run["session_id"], "Still here."))["output"] == "Still here."

    async def test_interrupt(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), "never")
        second = await api.run(run["session_id"], "Instead.", input="Stop that.", on_conflict="interrupt")
        assert second["output"] == "Instead."
        played = await ended(api, run)
        assert (played.ending, played.outcomes) == (("cancelled", "cancelled"), ["cancelled"])
        roles = [message["role"] for message in await api.messages(run["session_id"])]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]
        assert pay.requests == []

    async def test_a_follower_sees_the_end_of_a_run_that_is_cancelled(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5), "never")
        seen: list[Event] = []
        async for event in api.follow(f"/v1/runs/{run['id']}/events"):
            seen.append(event)
            if event.type == "run.waiting":
                await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        assert [event.type for event in seen][-2:] == ["tool.invoked", "run.cancelled"]

    async def test_its_session_may_be_deleted(self, api: Api, test_tools: TestTools) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), "never")
        assert (await api.call("DELETE", f"/v1/sessions/{run['session_id']}")).status_code == 204
        assert (await api.call("GET", f"/v1/runs/{run['id']}")).status_code == 404
        await decide(api, run, approve(), status=404)
        assert pay.requests == []

    async def test_cancel_and_a_decision_at_the_same_moment_end_in_one_of_both(
        self, api: Api, test_tools: TestTools
    ) -> None:
        pay = await gate(api, test_tools)
        run = await waiting(api, paying(5), "Paid.")
        path = f"/v1/runs/{run['id']}"
        cancelled, decided = await asyncio.gather(
            api.call("POST", f"{path}/cancel"), api.call("POST", f"{path}/approvals", {"decisions": [approve()]})
        )
        assert (cancelled.status_code, decided.status_code in (200, 409)) == (200, True)
        played = await ended(api, run)
        assert played.ending in [("cancelled", "cancelled"), ("completed", "stop")]
        if decided.status_code == 409:
            assert (played.ending, pay.requests) == (("cancelled", "cancelled"), [])
        check_history(played)


class TestDeadline:
    async def passed(self, api: Api, seconds: float) -> None:
        """That much time has gone by: another run had it as its deadline."""
        slow = {"text": "never", "delay_ms": 60_000}
        run = await api.run(await api.new_session(), slow, deadline_seconds=seconds)
        assert run["finish_reason"] == "deadline"

    async def test_it_does_not_run_while_the_run_waits(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools)
        run = await waiting(api, paying(5), "Paid.", deadline_seconds=1.5)
        await self.passed(api, 1.6)
        await decide(api, run, approve())
        assert (await ended(api, run)).run["output"] == "Paid."

    async def test_it_runs_on_when_the_run_does(self, api: Api, test_tools: TestTools) -> None:
        await gate(api, test_tools, Reply(ending="hang"))
        run = await waiting(api, paying(5), "never", deadline_seconds=0.8)
        await decide(api, run, approve())
        played = await ended(api, run)
        assert (played.ending, played.outcomes) == (("incomplete", "deadline"), ["cancelled"])
        check_history(played)
