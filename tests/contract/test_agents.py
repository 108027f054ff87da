"""Agents (contract, section 7): what they are made of, what they lend to sessions, and runs that somebody starts."""

from typing import Any

import pytest

from tests.api import TENANT, Api, TestTools, call, failing
from tests.contract.test_doors import UNKNOWN, problem

OTHER = {"type": "organization", "id": "43"}


class TestKeeping:
    async def test_what_was_not_named_has_its_default(self, api: Api) -> None:
        made = await api.post("/v1/agents", {"name": "Night watch", "system_prompt": "Watch."})
        assert made["id"].startswith("agt_")
        shown = {name: made[name] for name in ("tenant", "timezone", "max_tasks_per_day", "debounce_seconds", "active")}
        assert shown == {
            "tenant": None, "timezone": "UTC", "max_tasks_per_day": 200, "debounce_seconds": 30, "active": True,
        }  # fmt: skip
        assert (made["event_triggers"], made["allowed_tools"], made["config"]) == ([], [], {})
        assert await api.get(f"/v1/agents/{made['id']}") == made

    async def test_a_list_is_newest_first_and_can_be_of_one_tenant(self, api: Api) -> None:
        made = [await api.new_agent(name=name, tenant=tenant) for name, tenant in (("a", None), ("b", TENANT), ("c", OTHER))]
        first = await api.get("/v1/agents?limit=2")
        assert [agent["id"] for agent in first["data"]] == [made[2]["id"], made[1]["id"]]
        rest = await api.get(f"/v1/agents?limit=2&after={first['next']}")
        assert ([agent["id"] for agent in rest["data"]], rest["next"]) == ([made[0]["id"]], None)
        assert [agent["name"] for agent in (await api.get("/v1/agents?tenant=organization:42"))["data"]] == ["b"]

    async def test_a_change_is_of_what_it_names(self, api: Api) -> None:
        agent = await api.new_agent(cron="0 9 * * *", tenant=TENANT)
        changed = await api.call("PATCH", f"/v1/agents/{agent['id']}", {"timezone": "Europe/Madrid", "debounce_seconds": 5})
        assert changed.status_code == 200
        same = set(agent) - {"timezone", "debounce_seconds", "next_at", "updated_at"}
        assert {name: changed.json()[name] for name in same} == {name: agent[name] for name in same}
        assert changed.json()["next_at"] != agent["next_at"]

    async def test_a_name_is_there_once(self, api: Api, admin: Api) -> None:
        await api.new_agent(name="one")
        two = await api.new_agent(name="two")
        problem(await api.call("POST", "/v1/agents", {"name": "one", "system_prompt": "x"}), 409, "agent_exists")
        problem(await api.call("PATCH", f"/v1/agents/{two['id']}", {"name": "one"}), 409, "agent_exists")
        await (await admin.new_workspace()).new_agent(name="one")

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"cron": "0 9 * * *"}, "tenant"),
            ({"cron": "0 9 * *", "tenant": TENANT}, "cron"),
            ({"cron": "0 0 30 2 *", "tenant": TENANT}, "cron"),
            ({"timezone": "Mars/Olympus"}, "timezone"),
            ({"name": ""}, "name"),
            ({"input": " "}, "input"),
            ({"debounce_seconds": -1}, "debounce_seconds"),
            ({"config": {"max_iterations": 0}}, "config"),
            ({"nonsense": 1}, "nonsense"),
            ({"event_triggers": ["a\nb"]}, "event_triggers"),
        ],
    )
    async def test_what_cannot_work_is_refused_and_not_kept(self, api: Api, fields: dict[str, Any], field: str) -> None:
        refused = problem(await api.call("POST", "/v1/agents", {"name": "a", "system_prompt": "x", **fields}), 422)
        assert refused["errors"][0]["loc"][:2] == ["body", field]
        assert (await api.get("/v1/agents"))["data"] == []

    async def test_cron_cannot_be_given_later_to_one_without_a_tenant(self, api: Api) -> None:
        agent = await api.new_agent()
        problem(await api.call("PATCH", f"/v1/agents/{agent['id']}", {"cron": "0 9 * * *"}), 422)
        assert (await api.get(f"/v1/agents/{agent['id']}"))["cron"] is None

    async def test_a_tool_that_is_not_registered_is_told_at_once(self, api: Api) -> None:
        body = {"name": "a", "system_prompt": "x", "allowed_tools": ["nope"]}
        problem(await api.call("POST", "/v1/agents", body), 422, "unknown_tool")
        problem(await api.call("POST", "/v1/agents", {**body, "allowed_tools": ["agent:nope"]}), 422, "unknown_tool")

    async def test_a_repeated_creation_gives_the_first_answer(self, api: Api) -> None:
        body = {"name": "a", "system_prompt": "x"}
        first = await api.call("POST", "/v1/agents", body, Idempotency_Key="k1")
        again = await api.call("POST", "/v1/agents", body, Idempotency_Key="k1")
        assert (again.status_code, again.json()) == (201, first.json())
        assert again.headers["idempotent-replayed"] == "true"

    async def test_a_deleted_one_is_gone_with_its_firings_and_its_runs_stay(self, api: Api) -> None:
        agent = await api.new_agent(event_triggers=["saved"], debounce_seconds=600)
        ran = await api.post(f"/v1/agents/{agent['id']}/runs", {"tenant": TENANT}, 202)
        await api.events(ran["id"])
        (queued,) = (await api.trigger())["fired"]
        assert (await api.call("DELETE", f"/v1/agents/{agent['id']}")).status_code == 204
        problem(await api.call("GET", f"/v1/agents/{agent['id']}"), 404)
        problem(await api.call("GET", f"/v1/agents/{agent['id']}/firings"), 404)
        listed = (await api.get(f"/v1/runs?agent_id={agent['id']}"))["data"]
        assert {run["id"]: run["status"] for run in listed} == {ran["id"]: "completed", queued["run_id"]: "cancelled"}
        assert await api.trigger() == {"fired": [], "skipped": []}


class TestRunsBySomebody:
    async def test_it_is_accepted_and_runs_in_the_very_same_loop(self, api: Api, test_tools: TestTools) -> None:
        lookup = await test_tools.host(api, "lookup", {"items": [1]})
        agent = await api.new_agent(call("lookup"), "Found it.", allowed_tools=["lookup"], tenant=TENANT)
        subject, context = {"type": "order", "id": "7"}, {"user": 5}
        body = {"input": "Look.", "subject": subject, "context": context}
        run = await api.post(f"/v1/agents/{agent['id']}/runs", body, 202)
        assert (run["agent_id"], run["session_id"], run["status"], run["subject"]) == (agent["id"], None, "queued", subject)
        played = await api.ended(run["id"])
        assert (played.ending, played.run["output"], played.outcomes) == (("completed", "stop"), "Found it.", ["ok"])
        assert played.types[:2] == ["run.queued", "run.started"]
        data = lookup.requests[0].json["data"]
        assert (data["agent_id"], data["context"], data["tenant"], data["subject"]) == (
            agent["id"],
            context,
            TENANT,
            subject,
        )
        assert [run["id"] for run in (await api.get(f"/v1/agents/{agent['id']}/runs"))["data"]] == [run["id"]]
        (firing,) = await api.firings(agent)
        assert (firing["kind"], firing["outcome"], firing["run_id"]) == ("manual", "fired", run["id"])

    async def test_an_inactive_agent_refuses(self, api: Api) -> None:
        agent = await api.new_agent(active=False)
        problem(await api.call("POST", f"/v1/agents/{agent['id']}/runs", {"tenant": TENANT}), 409, "agent_inactive")

    async def test_a_tenant_is_needed_and_must_be_the_agents(self, api: Api) -> None:
        anyones = await api.new_agent()
        problem(await api.call("POST", f"/v1/agents/{anyones['id']}/runs", {}), 422)
        theirs = await api.new_agent(name="theirs", tenant=TENANT)
        problem(await api.call("POST", f"/v1/agents/{theirs['id']}/runs", {"tenant": OTHER}), 422)
        assert (await api.post(f"/v1/agents/{theirs['id']}/runs", {}, 202))["tenant"] == TENANT

    async def test_it_is_not_counted(self, api: Api) -> None:
        agent = await api.new_agent(event_triggers=["saved"], max_tasks_per_day=1)
        for _ in range(2):
            await api.post(f"/v1/agents/{agent['id']}/runs", {"tenant": TENANT}, 202)
        assert len((await api.trigger())["fired"]) == 1

    async def test_a_tool_that_is_gone_meanwhile_is_a_422(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "lookup")
        agent = await api.new_agent(allowed_tools=["lookup"])
        await api.call("DELETE", "/v1/tools/lookup")
        body = {"tenant": TENANT}
        problem(await api.call("POST", f"/v1/agents/{agent['id']}/runs", body), 422, "unknown_tool")
        assert (await api.get(f"/v1/agents/{agent['id']}/runs"))["data"] == []

    async def test_a_repeated_start_gives_the_first_answer(self, api: Api) -> None:
        agent = await api.new_agent()
        path, body = f"/v1/agents/{agent['id']}/runs", {"tenant": TENANT}
        first = await api.post(path, body, 202, Idempotency_Key="k")
        assert await api.post(path, body, 202, Idempotency_Key="k") == first
        assert len((await api.get(path))["data"]) == 1

    async def test_a_blank_answer_is_not_asked_for_once_more(self, api: Api) -> None:
        agent = await api.new_agent("", "Second thoughts.")
        run = await api.post(f"/v1/agents/{agent['id']}/runs", {"tenant": TENANT}, 202)
        assert (await api.ended(run["id"])).ending == ("incomplete", "empty")

    async def test_what_stands_outside_config_wins_over_it(self, api: Api) -> None:
        agent = await api.new_agent(model="scripted/outside", config={"model": "scripted/inside", "max_iterations": 3})
        run = await api.post(f"/v1/agents/{agent['id']}/runs", {"tenant": TENANT}, 202)
        assert run["model"] == "scripted/outside"


class TestSessionsOfAnAgent:
    async def test_the_session_takes_what_it_does_not_say_itself(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "lookup", {"items": []})
        await test_tools.host(api, "other")
        agent = await api.new_agent(call("other"), "Well.", allowed_tools=["lookup"], config={"empty_reply": "Nothing."})
        session = (await api.post("/v1/sessions", {"tenant": TENANT, "agent_id": agent["id"]}))["id"]
        run = await api.post(f"/v1/sessions/{session}/runs", {"input": "Hello"}, 200)
        played = await api.played(run)
        assert (run["agent_id"], run["model"], run["output"]) == (agent["id"], "scripted/test", "Well.")
        assert played.results == [{"error": "Tool 'other' does not exist. Available tools: lookup."}]
        parts = (await api.get(f"/v1/sessions/{session}/prompt?input=x"))["parts"]
        assert parts[0] == {"kind": "system_prompt", "content": "Help.", "tokens": parts[0]["tokens"]}

    async def test_the_session_wins_and_the_run_over_both(self, api: Api) -> None:
        agent = await api.new_agent("Agent's.", config={"metadata": {"by": "agent"}})
        fields = {"tenant": TENANT, "agent_id": agent["id"], "config": {"script": ["Session's."]}}
        session = (await api.post("/v1/sessions", fields))["id"]
        run = await api.post(f"/v1/sessions/{session}/runs", {"input": "Hello"}, 200)
        assert (run["output"], run["metadata"]) == ("Session's.", {"by": "agent"})
        run = await api.post(f"/v1/sessions/{session}/runs", {"input": "Hello", "script": ["Run's."]}, 200)
        assert run["output"] == "Run's."

    async def test_a_chat_with_an_agent_is_asked_once_more_for_a_blank_answer(self, api: Api) -> None:
        agent = await api.new_agent("", "Second thoughts.")
        session = (await api.post("/v1/sessions", {"tenant": TENANT, "agent_id": agent["id"]}))["id"]
        run = await api.post(f"/v1/sessions/{session}/runs", {"input": "Hello"}, 200)
        assert run["output"] == "Second thoughts."

    async def test_lists_can_be_of_one_agent(self, api: Api) -> None:
        agent = await api.new_agent()
        session = await api.post("/v1/sessions", {"tenant": TENANT, "agent_id": agent["id"]})
        await api.new_session()
        run = await api.post(f"/v1/sessions/{session['id']}/runs", {"input": "Hello"}, 200)
        await api.play("Hi.")
        assert (await api.get(f"/v1/sessions?agent_id={agent['id']}"))["data"] == [
            await api.get(f"/v1/sessions/{session['id']}")
        ]
        assert (await api.get(f"/v1/runs?agent_id={agent['id']}"))["data"] == [run]

    async def test_an_agent_that_is_not_there_is_a_404(self, api: Api, admin: Api) -> None:
        foreign = await (await admin.new_workspace()).new_agent()
        anothers = await api.new_agent(tenant=OTHER)
        for agent_id in (f"agt_{UNKNOWN}", "nonsense", foreign["id"], anothers["id"]):
            problem(await api.call("POST", "/v1/sessions", {"tenant": TENANT, "agent_id": agent_id}), 404)
        assert (await api.get("/v1/sessions"))["data"] == []

    async def test_it_does_not_run_without_its_agents_instructions(self, api: Api) -> None:
        agent = await api.new_agent()
        session = (await api.post("/v1/sessions", {"tenant": TENANT, "agent_id": agent["id"], "model": "scripted/x"}))["id"]
        await api.call("DELETE", f"/v1/agents/{agent['id']}")
        refused = await api.call("POST", f"/v1/sessions/{session}/runs", {"input": "Hello", "script": ["Hi."]})
        problem(refused, 409, "agent_deleted")


class TestAnAgentThatAlwaysFails:
    """Paused after five failures in a row (`RONDO_AGENT_FAILURES`)."""

    async def fail(self, api: Api, agent: dict[str, Any], times: int) -> None:
        for _ in range(times):
            run = await api.post(f"/v1/agents/{agent['id']}/runs", {"tenant": TENANT}, 202)
            assert (await api.ended(run["id"])).ending[0] == "failed"

    async def paused(self, api: Api, agent: dict[str, Any]) -> dict[str, Any]:
        """The agent once it is paused: that follows its run's end."""
        while (now := await api.get(f"/v1/agents/{agent['id']}"))["active"]:
            pass
        shown: dict[str, Any] = now
        return shown

    async def test_it_is_paused_and_says_so(self, api: Api) -> None:
        agent = await api.new_agent(failing(401), event_triggers=["saved"])
        await self.fail(api, agent, 5)
        now = await self.paused(api, agent)
        assert now["paused_at"] is not None
        assert now["paused_reason"] == "5 runs in a row have failed, the last one with provider_auth."
        firing = (await api.firings(agent))[0]
        assert (firing["kind"], firing["outcome"], firing["detail"]) == ("pause", "paused", now["paused_reason"])
        assert (await api.trigger())["skipped"] == [{"agent_id": agent["id"], "reason": "inactive"}]

    async def test_activating_it_ends_the_pause_and_counts_anew(self, api: Api) -> None:
        agent = await api.new_agent(failing(401))
        await self.fail(api, agent, 5)
        await self.paused(api, agent)
        active = (await api.call("PATCH", f"/v1/agents/{agent['id']}", {"active": True})).json()
        assert (active["active"], active["paused_at"], active["paused_reason"]) == (True, None, None)
        await self.fail(api, agent, 4)
        assert (await api.get(f"/v1/agents/{agent['id']}"))["active"] is True

    async def test_one_success_in_between_keeps_it_going(self, api: Api) -> None:
        agent = await api.new_agent(failing(401))
        await self.fail(api, agent, 4)
        await api.call("PATCH", f"/v1/agents/{agent['id']}", {"config": {"script": ["Done."]}})
        run = await api.post(f"/v1/agents/{agent['id']}/runs", {"tenant": TENANT}, 202)
        assert (await api.ended(run["id"])).ending[0] == "completed"
        await api.call("PATCH", f"/v1/agents/{agent['id']}", {"config": {"script": [failing(401)]}})
        await self.fail(api, agent, 4)
        assert (await api.get(f"/v1/agents/{agent['id']}"))["active"] is True
