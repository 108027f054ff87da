"""Agents as tools (contract, section 7): a call of `agent_NAME` is a run of its own under the run that made it."""

import asyncio
from typing import Any

from app.infra.database import Database
from app.infra.settings import Settings
from tests.api import TENANT, Api, TestTools, call, calls, schema, wanted
from tests.contract.test_custom_providers import HELLO, provider
from tests.contract.test_doors import problem
from tests.contract.test_recovery import Replica, fleet_on, template
from tests.contract.test_waiting import approve, decide, until
from tests.providers.model_server import ModelServer
from tests.tools_app import Held, Reply

__all__ = ["template"]

SPENT = {"input_tokens": 100, "output_tokens": 10}


async def children(api: Api, run_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.get(f"/v1/runs?parent_run_id={run_id}"))["data"]
    return found


def ask(name: str = "agent_helper", task: str = "Count the ships.") -> dict[str, Any]:
    return call(name, {"task": task})


async def start(api: Api, *script: Any, tools: tuple[str, ...] = ("agent:helper",), **fields: Any) -> dict[str, Any]:
    """A run in a session, under way."""
    session = await api.new_session()
    run: dict[str, Any] = await api.run(session, *script, tools=list(tools), background=True, status=202, **fields)
    return run


class TestACall:
    async def test_runs_the_agent_and_gives_its_answer(self, api: Api) -> None:
        helper = await api.new_agent({"text": "Three.", "usage": SPENT})
        played = await api.play({**ask(), "usage": SPENT}, {"text": "So: 3.", "usage": SPENT}, tools=["agent:helper"])
        (child,) = await children(api, played.run["id"])
        assert played.ending == ("completed", "stop")
        assert played.results == [{"run_id": child["id"], "status": "completed", "output": "Three."}]
        assert (child["agent_id"], child["session_id"], child["status"]) == (helper["id"], None, "completed")
        assert child["metadata"] == {"parent_call_id": played.calls[0]["call_id"]}

    async def test_the_task_is_all_that_the_agent_is_told(self, api: Api) -> None:
        async with ModelServer() as server:
            server.play(HELLO)
            await api.call("PUT", "/v1/providers/lab", provider(server))
            await api.new_agent(model="lab/tiny", input="Its own input.")
            await api.play(ask(task="Count."), "Well.", input="A secret of this chat.", tools=["agent:helper"])
            assert [message["content"] for message in server.requests[0].json["messages"]] == ["Help.", "Count."]

    async def test_its_usage_is_in_that_of_the_run_that_asked(self, api: Api) -> None:
        await api.new_agent({"text": "Three.", "usage": SPENT})
        played = await api.play({**ask(), "usage": SPENT}, {"text": "So: 3.", "usage": SPENT}, tools=["agent:helper"])
        assert (played.run["usage"]["input_tokens"], played.run["usage"]["output_tokens"]) == (300, 30)
        assert played.events[-1].data["run"]["usage"]["input_tokens"] == 300
        assert (await children(api, played.run["id"]))[0]["usage"]["input_tokens"] == 100

    async def test_scope_and_context_go_on_to_its_tools(self, api: Api, test_tools: TestTools) -> None:
        lookup = await test_tools.host(api, "lookup", {"items": [1]})
        helper = await api.new_agent(call("lookup"), "One.", allowed_tools=["lookup"])
        session = await api.new_session(subject={"type": "ship", "id": "9"}, context={"user": 5})
        played = await api.play(ask(), "Well.", session=session, tools=["agent:helper"])
        data = lookup.requests[0].json["data"]
        assert (data["subject"], data["context"]) == ({"type": "ship", "id": "9"}, {"user": 5})
        assert (data["agent_id"], data["session_id"]) == (helper["id"], None)
        assert data["run_id"] == (await children(api, played.run["id"]))[0]["id"]

    async def test_its_events_and_trace_are_its_own(self, api: Api) -> None:
        await api.new_agent("Three.")
        played = await api.play(ask(), "So: 3.", tools=["agent:helper"])
        child = await api.played((await children(api, played.run["id"]))[0])
        assert (child.types[0], child.types[-1]) == ("run.queued", "run.completed")
        assert len(child.trace) == 1
        assert "Three." not in str([event.data for event in played.events if event.type != "tool.invoked"])

    async def test_a_failed_one_is_an_error_to_the_model(self, api: Api) -> None:
        await api.new_agent({"error": {"status": 401, "message": "no"}})
        played = await api.play(ask(), "It failed.", tools=["agent:helper"])
        assert (played.ending, played.outcomes) == (("completed", "stop"), ["error"])
        assert played.results[0]["error"] == "The agent ended without an answer."

    async def test_without_a_task_it_is_not_run(self, api: Api) -> None:
        await api.new_agent()
        played = await api.play(call("agent_helper", {}), "Well.", tools=["agent:helper"])
        assert played.outcomes == ["invalid"]
        assert await children(api, played.run["id"]) == []

    async def test_several_at_once_are_a_run_each(self, api: Api) -> None:
        await api.new_agent("Done.")
        several = calls(*(wanted("agent_helper", {"task": f"Number {number}."}) for number in range(3)))
        played = await api.play(several, "All done.", tools=["agent:helper"])
        assert played.outcomes == ["neutral"] * 3
        assert len({run["id"] for run in await children(api, played.run["id"])}) == 3


class TestWhichAreOffered:
    async def test_one_that_is_not_there_or_not_active_is_a_422(self, api: Api) -> None:
        await api.new_agent(name="asleep", active=False)
        session = await api.new_session()
        for name in ("agent:nobody", "agent:asleep"):
            body = {"input": "Hello", "tools": [name], "script": ["Hi."]}
            problem(await api.call("POST", f"/v1/sessions/{session}/runs", body), 422, "unknown_tool")

    async def test_two_that_would_have_one_name_are_refused(self, api: Api) -> None:
        await api.new_agent(name="the helper")
        await api.new_agent(name="the_helper")
        body = {"input": "Hello", "tools": ["agent:the helper", "agent:the_helper"], "script": ["Hi."]}
        session = await api.new_session()
        problem(await api.call("POST", f"/v1/sessions/{session}/runs", body), 422, "tool_name_taken")

    async def test_all_tools_are_not_agents(self, api: Api) -> None:
        await api.new_agent()
        played = await api.play(ask(), "Well.")
        assert played.outcomes == ["unknown"]

    async def test_another_tenants_agent_is_not_offered(self, api: Api) -> None:
        await api.new_agent(tenant={"type": "organization", "id": "43"})
        played = await api.play(ask(), "Well.", tools=["agent:helper"])
        assert played.outcomes == ["unknown"]

    async def test_an_agent_that_calls_itself_is_nested_three_deep(self, api: Api) -> None:
        agent = await api.new_agent(ask("agent_self"), "Enough.", name="self", allowed_tools=["agent:self"])
        run = await api.post(f"/v1/agents/{agent['id']}/runs", {"tenant": TENANT}, 202)
        played = await api.ended(run["id"])
        chain = [run["id"]]
        while found := await children(api, chain[-1]):
            chain.append(found[0]["id"])
        assert (played.run["output"], len(chain)) == ("Enough.", 4)
        assert (await api.ended(chain[-1])).outcomes == ["unknown"]


class TestTheBudget:
    async def test_what_an_agent_has_spent_counts_for_the_run_that_asked_it(self, api: Api) -> None:
        await api.new_agent({"text": "Three.", "usage": SPENT})
        turns = ({**ask(), "usage": {"input_tokens": 1, "output_tokens": 1}}, "never")
        played = await api.play(*turns, tools=["agent:helper"], max_tokens_total=100)
        assert (played.run["status"], played.run["finish_reason"]) == ("incomplete", "budget")
        assert (played.run["iterations"], played.outcomes) == (1, ["neutral"])
        assert played.types[-2:] == ["iteration.completed", "run.incomplete"]

    async def test_also_where_the_run_had_to_wait_for_it(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "pay", {"ok": True}, requires_approval=True)
        await api.new_agent({**call("pay"), "usage": SPENT}, {"text": "Paid.", "usage": SPENT}, allowed_tools=["pay"])
        parent = await api.run(await api.new_session(), ask(), "never", tools=["agent:helper"], max_tokens_total=215)
        (child,) = await children(api, parent["id"])
        await api.post(f"/v1/runs/{child['id']}/approvals", {"decisions": [{"call_id": "*", "decision": "approve"}]}, 200)
        played = await api.ended(parent["id"])
        assert (played.run["status"], played.run["finish_reason"], played.run["iterations"]) == ("incomplete", "budget", 1)
        assert played.calls[0]["result"]["output"] == "Paid."


class TestEndings:
    async def test_cancelling_the_run_cancels_the_child(self, api: Api, test_tools: TestTools) -> None:
        held = Held()
        slow = await test_tools.host(api, "slow", held)
        await api.new_agent(call("slow"), "Never.", allowed_tools=["slow"])
        run = await start(api, ask(), "Never.")
        await slow.received()
        ended = await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        assert ended["status"] == "cancelled"
        assert [child["status"] for child in await children(api, run["id"])] == ["cancelled"]
        assert (await api.ended(run["id"])).outcomes == ["cancelled"]
        held.gate.set()

    async def test_so_does_its_deadline(self, api: Api, test_tools: TestTools) -> None:
        held = Held()
        await test_tools.host(api, "slow", held)
        await api.new_agent(call("slow"), "Never.", allowed_tools=["slow"])
        played = await api.play(ask(), "Never.", tools=["agent:helper"], deadline_seconds=0.5)
        assert played.ending == ("incomplete", "deadline")
        assert [child["status"] for child in await children(api, played.run["id"])] == ["cancelled"]
        held.gate.set()

    async def test_a_child_that_waits_for_an_approval_lets_the_run_wait(self, api: Api, test_tools: TestTools) -> None:
        pay = await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        await api.new_agent(call("pay"), "Paid.", allowed_tools=["pay"])
        run = await start(api, ask(), "It is paid.")
        waits = (await until(api, run["id"], "run.waiting"))[-1].data
        assert [(item["tool"], item["reason"]) for item in waits["pending"]] == [("agent_helper", "async")]
        (child,) = await children(api, run["id"])
        assert [(item["tool"], item["reason"]) for item in child["pending"]] == [("pay", "approval")]
        await decide(api, child, approve())
        played = await api.ended(run["id"])
        assert (played.ending, played.run["output"]) == (("completed", "stop"), "It is paid.")
        assert played.results == [{"run_id": child["id"], "status": "completed", "output": "Paid."}]
        assert len(pay.requests) == 1

    async def test_cancelling_a_run_that_waits_cancels_the_child_that_waits(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "pay", requires_approval=True)
        await api.new_agent(call("pay"), "Paid.", allowed_tools=["pay"])
        run = await start(api, ask(), "It is paid.")
        await until(api, run["id"], "run.waiting")
        assert (await api.post(f"/v1/runs/{run['id']}/cancel", status=200))["status"] == "cancelled"
        assert [child["status"] for child in await children(api, run["id"])] == ["cancelled"]


class TestWhatAProcessDidNotSayBeforeItDied:
    """The rows are as it left them; a sweep of another one finds what they lack."""

    async def family(self, api: Api, test_tools: TestTools) -> tuple[dict[str, Any], dict[str, Any]]:
        """A run that waits for its child, which waits for an approval."""
        await test_tools.host(api, "pay", requires_approval=True)
        await api.new_agent(call("pay"), "Paid.", allowed_tools=["pay"])
        run = await start(api, ask(), "It is paid.")
        await until(api, run["id"], "run.waiting")
        return run, (await children(api, run["id"]))[0]

    async def test_a_child_that_has_ended_is_told_to_its_parent(
        self, api: Api, test_tools: TestTools, migrated: Database
    ) -> None:
        run, child = await self.family(api, test_tools)
        await migrated.pool.execute(
            "UPDATE runs SET status = 'completed', finish_reason = 'stop', output = 'Paid.' WHERE id = $1", child["id"]
        )
        played = await api.ended(run["id"])
        assert played.results == [{"run_id": child["id"], "status": "completed", "output": "Paid."}]

    async def test_a_child_whose_parent_has_ended_ends_too(
        self, api: Api, test_tools: TestTools, migrated: Database
    ) -> None:
        run, child = await self.family(api, test_tools)
        await migrated.pool.execute("UPDATE runs SET status = 'cancelled', last_seq = 9 WHERE id = $1", run["id"])
        assert (await api.ended(child["id"])).ending == ("cancelled", "cancelled")


async def refuses(replica: Replica) -> None:
    """Wait until a process takes no connections any more."""
    while True:
        try:
            _, writer = await asyncio.open_connection(replica.http.base_url.host, replica.http.base_url.port)
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0.05)


class TestACrash:
    async def test_whoever_carries_the_run_on_finds_its_child_again(
        self, settings: Settings, template: str, test_tools: TestTools
    ) -> None:
        """The process dies while the child's tool is being called; another one carries both on."""
        async with fleet_on(settings, "agents_crash", template) as fleet:
            first, second = await asyncio.gather(fleet.start(), fleet.start())
            api = await first.admin.new_workspace()
            held = Held(body={"items": [1]})
            slow = await test_tools.host(api, "slow", held, Reply(body={"items": [1]}), parameters=schema())
            await api.new_agent(call("slow"), "Three.", allowed_tools=["slow"])
            run = await start(api, ask(), "So: 3.")
            await slow.received()
            await first.kill()
            held.gate.set()
            survivor = second.api(api)
            played = await survivor.ended(run["id"])
            (child,) = await children(survivor, run["id"])
        assert (played.ending, played.run["output"]) == (("completed", "stop"), "So: 3.")
        assert played.results == [{"run_id": child["id"], "status": "completed", "output": "Three."}]
        assert {request.headers["idempotency-key"] for request in slow.requests} == {
            slow.requests[0].json["data"]["call_id"]
        }

    async def test_a_process_that_leaves_lets_go_of_both_as_soon_as_the_child_s_call_is_stored(
        self, settings: Settings, template: str, test_tools: TestTools
    ) -> None:
        """Also when nobody else is there to carry them on."""
        async with fleet_on(settings, "agents_leaving", template, RONDO_DRAIN_SECONDS="50") as fleet:
            first = await fleet.start()
            api = await first.admin.new_workspace()
            held = Held(body={"items": [1]})
            slow = await test_tools.host(api, "slow", held, parameters=schema())
            await api.new_agent(call("slow"), "Three.", allowed_tools=["slow"])
            run = await start(api, ask(), "So: 3.")
            await slow.received()
            first.process.terminate()
            async with asyncio.timeout(20):
                await refuses(first)
                held.gate.set()
                await first.process.wait()
            second = await fleet.start()
            played = await second.api(api).ended(run["id"])
        assert (played.run["output"], played.outcomes, len(slow.requests)) == ("So: 3.", ["neutral"], 1)
