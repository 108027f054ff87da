"""Sessions and their messages (contract, section 3), and how runs, sessions and settings say what a run does."""

import json
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from tests.api import TENANT, Api, call, calls, failing, wanted
from tests.conftest import serving
from tests.contract.test_doors import problem
from tests.tools_app import TestTools

LISTING = {"type": "listing", "id": "7"}
JUAN = {"type": "agent", "id": "juan"}
FULL: dict[str, Any] = {
    "tenant": TENANT, "subject": LISTING, "member": JUAN, "title": "A flat in Vigo", "system_prompt": "Be brief.",
    "model": "scripted/test", "tools": [], "context": {"user_id": 5}, "history": {"token_budget": 500},
    "memory": {"read": False}, "config": {"max_iterations": 3}, "metadata": {"source": "web"},
}  # fmt: skip


class TestOneSession:
    async def test_it_is_given_as_it_was_made(self, api: Api) -> None:
        made = await api.post("/v1/sessions", FULL)
        assert {name: made[name] for name in FULL if name not in ("history", "memory", "config")} == {
            name: value for name, value in FULL.items() if name not in ("history", "memory", "config")
        }
        for name in ("history", "memory", "config"):
            assert FULL[name].items() <= made[name].items()
        assert await api.get(f"/v1/sessions/{made['id']}") == made

    async def test_a_tenant_is_all_it_needs(self, api: Api) -> None:
        made = await api.post("/v1/sessions", {"tenant": TENANT})
        for name in ("subject", "member", "title", "agent_id", "system_prompt", "model", "tools"):
            assert made[name] is None, name
        assert made["metadata"] == {}

    @pytest.mark.parametrize(
        "wrong",
        [
            {"tenant": None}, {"tenant": "organization:42"}, {"title": 5}, {"model": "nameless"}, {"model": []},
            {"tools": "search"}, {"metadata": []}, {"context": "x"}, {"config": {"max_iterations": 0}},
            {"config": {"max_iterations": 51}}, {"history": {"token_budget": -1}}, {"id": "ses_1"},
        ],
    )  # fmt: skip
    async def test_what_is_wrong_is_refused(self, api: Api, wrong: dict[str, Any]) -> None:
        problem(await api.call("POST", "/v1/sessions", {"tenant": TENANT, **wrong}), 422)

    async def test_a_deleted_one_is_gone_with_all_that_was_its(self, api: Api) -> None:
        run = await api.run(await api.new_session(), "Hi.")
        path = f"/v1/sessions/{run['session_id']}"
        response = await api.call("DELETE", path)
        assert (response.status_code, response.content) == (204, b"")
        for gone in (path, f"{path}/messages", f"/v1/runs/{run['id']}", f"/v1/runs/{run['id']}/events"):
            problem(await api.call("GET", gone), 404)
        problem(await api.call("DELETE", path), 404)
        assert await api.get("/v1/runs") == {"data": [], "next": None}


class TestChanges:
    async def test_what_is_named_changes_and_nothing_else(self, api: Api) -> None:
        made = await api.post("/v1/sessions", FULL)
        changed = (await api.call("PATCH", f"/v1/sessions/{made['id']}", {"title": "Sold"})).json()
        assert {**changed, "updated_at": None} == {**made, "title": "Sold", "updated_at": None}
        assert changed["updated_at"] > made["updated_at"]
        assert await api.get(f"/v1/sessions/{made['id']}") == changed

    @pytest.mark.parametrize("name", ["title", "system_prompt", "model", "tools", "context", "history", "memory", "config"])
    async def test_null_clears(self, api: Api, name: str) -> None:
        empty = (await api.post("/v1/sessions", {"tenant": TENANT}))[name]
        made = await api.post("/v1/sessions", FULL)
        assert made[name] != empty
        changed = (await api.call("PATCH", f"/v1/sessions/{made['id']}", {name: None})).json()
        assert {**changed, "updated_at": None} == {**made, name: empty, "updated_at": None}

    async def test_null_clears_the_metadata_too(self, api: Api) -> None:
        made = await api.post("/v1/sessions", FULL)
        changed = (await api.call("PATCH", f"/v1/sessions/{made['id']}", {"metadata": None})).json()
        assert changed["metadata"] == {}

    async def test_nothing_named_changes_nothing(self, api: Api) -> None:
        made = await api.post("/v1/sessions", FULL)
        changed = (await api.call("PATCH", f"/v1/sessions/{made['id']}", {})).json()
        assert {**changed, "updated_at": None} == {**made, "updated_at": None}

    @pytest.mark.parametrize("field", ["tenant", "subject", "member"])
    async def test_whose_it_is_does_not_change(self, api: Api, field: str) -> None:
        session_id = await api.new_session()
        problem(await api.call("PATCH", f"/v1/sessions/{session_id}", {field: TENANT}), 422)

    async def test_a_change_holds_from_the_next_run_on(self, api: Api) -> None:
        session_id = await api.new_session(config={"script": ["Before."]})
        assert (await api.post(f"/v1/sessions/{session_id}/runs", {"input": "Hello"}, 200))["output"] == "Before."
        await api.call("PATCH", f"/v1/sessions/{session_id}", {"config": {"script": ["After."]}})
        assert (await api.post(f"/v1/sessions/{session_id}/runs", {"input": "Hello"}, 200))["output"] == "After."


class TestFilters:
    async def made(self, api: Api) -> dict[str, str]:
        scopes: dict[str, dict[str, Any]] = {
            "tenant": {},
            "listing": {"subject": LISTING},
            "other": {"subject": {"type": "listing", "id": "8"}},
            "juan": {"member": JUAN},
            "both": {"subject": LISTING, "member": JUAN},
            "elsewhere": {"tenant": {"type": "organization", "id": "43"}, "subject": LISTING},
        }
        return {await api.new_session(**{"tenant": TENANT, **axes}): name for name, axes in scopes.items()}

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("", {"tenant", "listing", "other", "juan", "both", "elsewhere"}),
            ("tenant=organization:42", {"tenant", "listing", "other", "juan", "both"}),
            ("tenant=organization:43", {"elsewhere"}),
            ("tenant=Organization:42", set()),
            ("subject=listing:7", {"listing", "both", "elsewhere"}),
            ("tenant=organization:42&subject=listing:7", {"listing", "both"}),
            ("subject=null", {"tenant", "juan"}),
            ("member=null", {"tenant", "listing", "other", "elsewhere"}),
            ("member=agent:juan", {"juan", "both"}),
            ("subject=null&member=null", {"tenant"}),
            ("subject=listing:7&member=agent:juan", {"both"}),
            ("agent_id=agt_01a22f37597e7dfcb8b2fa9a6f564258", set()),
        ],
    )
    async def test_a_filter_is_exact_on_each_axis_it_names(self, api: Api, query: str, found: set[str]) -> None:
        made = await self.made(api)
        listed = (await api.get(f"/v1/sessions?{query}"))["data"]
        assert {made[item["id"]] for item in listed} == found

    async def test_a_filtered_list_is_paged_within_its_filter(self, api: Api) -> None:
        for number in range(6):
            await api.new_session(tenant={"type": "organization", "id": str(number % 2)})
        first = await api.get("/v1/sessions?tenant=organization:1&limit=2")
        second = await api.get(f"/v1/sessions?tenant=organization:1&limit=2&after={first['next']}")
        assert [item["tenant"]["id"] for item in first["data"] + second["data"]] == ["1", "1", "1"]
        assert second["next"] is None


class TestMessages:
    async def test_a_thousand_are_brought_in_at_once_in_order(self, api: Api) -> None:
        session_id = await api.new_session()
        messages = [{"role": ("user", "assistant")[index % 2], "content": f"Turn {index}"} for index in range(1000)]
        made = (await api.post(f"/v1/sessions/{session_id}/messages", {"messages": messages}))["data"]
        assert [(item["role"], item["content"]) for item in made] == [(m["role"], m["content"]) for m in messages]
        seen: list[dict[str, Any]] = []
        more = ""
        while True:
            page = await api.get(f"/v1/sessions/{session_id}/messages?limit=200{more}")
            seen += page["data"]
            if page["next"] is None:
                break
            more = f"&after={page['next']}"
        assert seen == made
        assert [item["position"] for item in seen] == list(range(1, 1001))
        assert {(item["run_id"], item["tool_call_id"], str(item["tool_calls"])) for item in seen} == {(None, None, "[]")}

    @pytest.mark.parametrize(
        "messages",
        [
            [], [{"role": "tool", "content": "x"}], [{"role": "system", "content": "x"}], [{"role": "user"}],
            [{"role": "user", "content": ""}], [{"role": "user", "content": " \n"}], [{"content": "x"}], "x", None,
            [{"role": "user", "content": "x"}] * 1001, [{"role": "user", "content": "x", "tool_calls": []}],
            [{"role": "user", "content": "good"}, {"role": "user", "content": 5}],
        ],
    )  # fmt: skip
    async def test_only_prose_of_users_and_assistants_is_taken_and_all_or_nothing(self, api: Api, messages: Any) -> None:
        session_id = await api.new_session()
        problem(await api.call("POST", f"/v1/sessions/{session_id}/messages", {"messages": messages}), 422)
        assert await api.messages(session_id) == []

    async def test_they_stand_between_the_runs_and_are_seen_by_the_next(self, api: Api) -> None:
        session_id = await api.new_session()
        await api.run(session_id, "One.", input="First")
        await api.post(f"/v1/sessions/{session_id}/messages", {"messages": [{"role": "user", "content": "Between"}]})
        await api.run(session_id, "Two.", input="Second")
        messages = await api.messages(session_id)
        assert [item["content"] for item in messages] == ["First", "One.", "Between", "Second", "Two."]
        assert [item["position"] for item in messages] == [1, 2, 3, 4, 5]
        shown = await api.get(f"/v1/sessions/{session_id}/prompt?input=Third")
        history = json.dumps([part["content"] for part in shown["parts"] if part["kind"] == "history"])
        for text in ("First", "One.", "Between", "Second", "Two."):
            assert text in history

    async def test_none_are_brought_in_while_a_run_is_active(self, api: Api) -> None:
        session_id = await api.new_session()
        run = await api.run(session_id, {"text": "Hi.", "delay_ms": 60_000}, background=True, status=202)
        body = {"messages": [{"role": "user", "content": "Between"}]}
        document = problem(await api.call("POST", f"/v1/sessions/{session_id}/messages", body), 409, "run_in_progress")
        assert document["run_id"] == run["id"]
        await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        await api.post(f"/v1/sessions/{session_id}/messages", body)
        assert [item["content"] for item in await api.messages(session_id)] == ["Hello", "Between"]

    @pytest.mark.parametrize(
        "text", ["\u2028\u2029\u0085", "a\r\nb", "😀", "‏עברית", "event: x\n\ndata: y", "\ufeff", "\\u0000"]
    )
    async def test_any_other_text_is_kept_as_it_is(self, api: Api, text: str) -> None:
        session_id = await api.new_session()
        content = f"<{text}>"
        await api.post(f"/v1/sessions/{session_id}/messages", {"messages": [{"role": "user", "content": content}]})
        assert [item["content"] for item in await api.messages(session_id)] == [content]

    async def test_a_run_stores_every_turn_in_the_order_of_the_calls(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "a", {"items": [1]})
        played = await api.play(calls(wanted("a"), wanted("missing")), "Done.", input="Look")
        assert [item["role"] for item in played.messages] == ["user", "assistant", "tool", "tool", "assistant"]
        assert [item["position"] for item in played.messages] == [1, 2, 3, 4, 5]
        asked = [item["id"] for item in played.messages[1]["tool_calls"]]
        assert [item["tool_call_id"] for item in played.messages[2:4]] == asked
        assert [item["name"] for item in played.messages[1]["tool_calls"]] == ["a", "missing"]
        assert played.messages[1]["content"] == ""
        for item in played.messages:
            assert set(item) == {
                "id", "session_id", "run_id", "position", "role", "content", "tool_calls", "tool_call_id", "created_at",
            }  # fmt: skip

    async def test_a_run_that_does_not_persist_stores_none(self, api: Api) -> None:
        session_id = await api.new_session()
        run = await api.run(session_id, call("missing"), "Done.", persist=False)
        assert run["output"] == "Done."
        assert await api.messages(session_id) == []


class TestPrecedence:
    """run > session > its config > setting."""

    @pytest.fixture
    async def looking(self, api: Api) -> tuple[Api, list[Any]]:
        return api, [call("missing")] * 9

    async def iterations(self, api: Api, script: list[Any], session_id: str, **fields: Any) -> int:
        run = await api.run(session_id, *script, on_cap="stop", empty_streak_after=0, **fields)
        assert run["finish_reason"] == "max_iterations"
        return int(run["iterations"])

    async def test_the_setting_holds_when_nothing_is_said(self, looking: Any) -> None:
        api, script = looking
        assert await self.iterations(api, script, await api.new_session()) == 7

    async def test_the_session_overrides_it_and_the_run_the_session(self, looking: Any) -> None:
        api, script = looking
        session_id = await api.new_session(config={"max_iterations": 4})
        assert await self.iterations(api, script, session_id) == 4
        assert await self.iterations(api, script, session_id, max_iterations=2) == 2
        assert await self.iterations(api, script, session_id, max_iterations=None) == 4

    async def test_the_operator_s_setting_is_the_default(self, looking: Any, settings: Settings) -> None:
        api, script = looking
        changed = settings.model_copy(update={"max_iterations": 3})
        async with serving(changed) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            there = Api(http, api.key)
            assert await self.iterations(there, script, await there.new_session()) == 3
            assert await self.iterations(there, script, await there.new_session(config={"max_iterations": 5})) == 5

    async def test_what_stands_beside_config_wins_over_it(self, api: Api) -> None:
        session_id = await api.new_session(model="scripted/outer", config={"model": "scripted/inner"})
        assert (await api.run(session_id, "Hi."))["model"] == "scripted/outer"
        assert (await api.run(session_id, "Hi.", model="scripted/run"))["model"] == "scripted/run"
        only = await api.new_session(model=None, config={"model": "scripted/inner"})
        assert (await api.run(only, "Hi."))["model"] == "scripted/inner"

    async def test_without_any_model_a_run_is_refused(self, api: Api) -> None:
        session_id = await api.new_session(model=None)
        problem(await api.call("POST", f"/v1/sessions/{session_id}/runs", {"input": "Hello"}), 422)

    async def test_tools_are_those_of_the_run_else_the_session_else_all(self, api: Api, test_tools: TestTools) -> None:
        for name in ("a", "b", "c"):
            await test_tools.host(api, name)
        narrow = await api.new_session(tools=["a"])

        async def offered(session_id: str, **fields: Any) -> str:
            run = await api.run(session_id, call("nonsense"), "Done.", **fields)
            return str((await api.trace(run["id"]))[0]["tool_calls"][0]["result"]["error"])

        assert "Available tools: a." in await offered(narrow)
        assert "Available tools: b, c." in await offered(narrow, tools=["b", "c"])
        assert "none" in await offered(narrow, tools=[])
        assert "Available tools: a, b, c." in await offered(narrow, tools=None)
        assert "Available tools: a, b, c." in await offered(await api.new_session())

    async def test_an_unknown_tool_is_refused(self, api: Api) -> None:
        session_id = await api.new_session()
        body = {"input": "Hello", "script": ["Hi."], "tools": ["nonsense"]}
        problem(await api.call("POST", f"/v1/sessions/{session_id}/runs", body), 422, "unknown_tool")

    async def test_the_context_of_a_run_is_merged_over_the_session_s(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "a")
        session_id = await api.new_session(context={"user": 1, "kept": True})
        await api.run(session_id, call("a"), "Done.", context={"user": 2})
        assert hook.requests[0].json["data"]["context"] == {"user": 2, "kept": True}

    async def test_a_context_in_the_config_of_a_session_is_one(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "a")
        session_id = await api.new_session(config={"context": {"user": 1, "kept": True}})
        await api.run(session_id, call("a"), "Done.", context={"user": 2})
        assert hook.requests[0].json["data"]["context"] == {"user": 2, "kept": True}

    async def test_a_session_s_config_says_how_to_answer_too(self, api: Api) -> None:
        session_id = await api.new_session(config={"background": True, "script": ["Hi."]})
        run = await api.post(f"/v1/sessions/{session_id}/runs", {"input": "Hello"}, 202)
        assert (await api.events(run["id"]))[-1].type == "run.completed"
        body = {"input": "Hello", "background": False, "on_conflict": "queue"}
        assert (await api.post(f"/v1/sessions/{session_id}/runs", body, 200))["status"] == "completed"


class TestRuns:
    async def test_one_has_exactly_these_fields(self, api: Api) -> None:
        run = await api.run(await api.new_session(), {"text": "Hi.", "usage": {"input_tokens": 5}}, metadata={"a": 1})
        assert {
            "id", "session_id", "agent_id", "parent_run_id", "status", "finish_reason", "output", "output_parsed", "error",
            "model", "iterations", "tool_calls", "usage", "pending", "created_at", "started_at", "finished_at", "metadata",
        } <= set(run)  # fmt: skip
        assert set(run["usage"]) == {"input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"}
        assert (run["status"], run["finish_reason"], run["output"]) == ("completed", "stop", "Hi.")
        assert (run["error"], run["pending"], run["metadata"]) == (None, [], {"a": 1})
        assert await api.get(f"/v1/runs/{run['id']}") == run

    @pytest.mark.parametrize("given", ["", " \n\t", None, [], [{"type": "text", "text": " "}], 5, [{"type": "video"}]])
    async def test_a_blank_input_is_refused(self, api: Api, given: Any) -> None:
        session_id = await api.new_session()
        problem(await api.call("POST", f"/v1/sessions/{session_id}/runs", {"input": given, "script": ["x"]}), 422)
        assert await api.messages(session_id) == []

    async def test_the_list_is_filtered(self, api: Api) -> None:
        one = await api.run(await api.new_session(), "Hi.")
        two = await api.run(await api.new_session(tenant={"type": "organization", "id": "43"}), failing(400), "unused")
        alone = await api.post(
            "/v1/runs", {"tenant": TENANT, "model": "scripted/x", "input": "Hi", "script": ["Hi."]}, 200
        )  # fmt: skip
        for query, found in (
            ("", [alone, two, one]),
            (f"session_id={one['session_id']}", [one]),
            ("status=completed", [alone, one]),
            ("status=failed", [two]),
            ("status=running", []),
            ("tenant=organization:42", [alone, one]),
            ("tenant=organization:43&status=failed", [two]),
            ("tenant=organization:43&status=completed", []),
        ):
            assert [item["id"] for item in (await api.get(f"/v1/runs?{query}"))["data"]] == [run["id"] for run in found]

    async def test_an_unknown_session_in_the_filter_is_a_404(self, api: Api) -> None:
        problem(await api.call("GET", "/v1/runs?session_id=ses_01a22f37597e7dfcb8b2fa9a6f564258"), 404)

    async def test_one_without_a_session_stores_no_messages(self, api: Api) -> None:
        body = {"tenant": TENANT, "model": "scripted/x", "script": ["Hi."]}
        messages = [
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "Two"},
            {"role": "user", "content": "3"},
        ]
        run = await api.post("/v1/runs", {**body, "messages": messages}, 200)
        assert (run["session_id"], run["output"]) == (None, "Hi.")
        for wrong in ({}, {"input": "x", "messages": messages}, {"messages": []}):
            problem(await api.call("POST", "/v1/runs", {**body, **wrong}), 422)

    async def test_the_trace_tells_every_attempt_and_every_call(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "a", {"items": ["ñ"]})
        played = await api.play(failing(429), call("a", {"q": 1}), "Done.")
        first, second = played.trace
        assert (first["iteration"], second["iteration"]) == (1, 2)
        assert [attempt["attempt"] for attempt in first["model_calls"]] == [1, 2]
        for attempt in first["model_calls"] + second["model_calls"]:
            assert {
                "model", "attempt", "input_tokens", "output_tokens", "seconds", "first_token_seconds", "finish_reason",
                "error",
            } <= set(attempt)  # fmt: skip
        assert first["model_calls"][0]["error"]
        (made,) = first["tool_calls"]
        assert {
            "call_id", "tool", "arguments", "result", "content", "outcome", "status", "seconds", "attempts",
        } <= set(made)  # fmt: skip
        assert (made["arguments"], made["result"], made["content"]) == ({"q": 1}, {"items": ["ñ"]}, '{"items":["ñ"]}')
        assert (made["outcome"], made["status"], made["attempts"]) == ("ok", 200, 1)

    async def test_the_script_of_a_run_plays_it_again(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "a", {"items": []})
        turns = [
            {"text": "Let me see.", "reasoning": "Hm.", "tool_calls": [{"name": "a", "arguments": {"q": "ñ"}}]},
            {"tool_calls": [{"name": "a", "arguments": '{"q": '}, {"name": "nonsense"}], "usage": {"output_tokens": 3}},
            {"text": "Half an ans", "finish_reason": "length"},
        ]
        first = await api.play(*turns)
        script = (await api.get(f"/v1/runs/{first.run['id']}/script"))["script"]
        second = await api.play(*script)
        assert [stripped(event.data) for event in second.events] == [stripped(event.data) for event in first.events]
        assert second.ending == first.ending == ("incomplete", "length")


def stripped(value: Any) -> Any:
    """An event without what differs from run to run: ids, times and durations."""
    if isinstance(value, dict):
        return {
            name: stripped(item)
            for name, item in value.items()
            if name not in ("at", "id", "run_id", "session_id", "call_id", "message_id", "tool_call_id", "seconds")
            and not name.endswith("_at")
        }
    return [stripped(item) for item in value] if isinstance(value, list) else value
