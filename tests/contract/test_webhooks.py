"""Tools are webhooks (contract, section 5): registration, what is sent, signatures, attempts, and addresses."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from app.infra.settings import Settings
from tests.api import TENANT, Api, TestTools, call, calls, wanted
from tests.conftest import serving
from tests.tools_app import Held, Received, Reply

BODY = {"description": "Finds.", "parameters": {"type": "object", "properties": {}}}
MEMBER = {"type": "user", "id": "maría-7"}
SUBJECT = {"type": "expediente", "id": "8"}


def verified(secret: str, request: Received) -> Any:
    """The body, once the signature over its exact bytes is found right."""
    return Webhook(secret).verify(request.body, dict(request.headers))


async def put(api: Api, name: str, **fields: Any) -> httpx.Response:
    return await api.call("PUT", f"/v1/tools/{name}", {**BODY, **fields})


class TestRegistration:
    async def test_it_is_created_with_its_defaults_and_shows_its_secret_once(self, api: Api, test_tools: TestTools) -> None:
        url = test_tools.url("search")
        made = await put(api, "search", url=url)
        assert made.status_code == 201
        tool = made.json()
        assert re.fullmatch(r"whsec_[A-Za-z0-9+/]+=*", tool.pop("secret"))
        assert tool["name"] == "search"
        expected = {
            "kind": "webhook", "url": url, "timeout_seconds": 30, "requires_approval": False, "at_most_once": False,
            "result_keys": None, "headers": None, "active": True, **BODY,
        }  # fmt: skip
        assert {key: tool[key] for key in expected} == expected
        shown = await api.get("/v1/tools/search")
        assert shown.get("secret") is None
        assert {**shown, "secret": None} == {**tool, "secret": None}
        assert "whsec_" not in (await api.call("GET", "/v1/tools")).text

    async def test_it_is_replaced_with_200_and_keeps_its_secret(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search", timeout_seconds=5, headers={"X-Key": "value-1"}, result_keys=["hits"])
        replaced = await put(api, "search", url=hook.url, description="Finds better.")
        assert replaced.status_code == 200
        assert replaced.json().get("secret") is None
        tool = await api.get("/v1/tools/search")
        assert tool["description"] == "Finds better."
        assert (tool["timeout_seconds"], tool["headers"], tool["result_keys"]) == (30, None, None)
        await api.play(call("search"), "done")
        assert verified(hook.secret, hook.requests[0])

    async def test_a_deleted_tool_is_gone(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search")
        assert (await api.call("DELETE", "/v1/tools/search")).status_code == 204
        assert (await api.call("GET", "/v1/tools/search")).status_code == 404
        assert (await api.call("DELETE", "/v1/tools/search")).status_code == 404
        assert (await api.get("/v1/tools"))["data"] == []
        played = await api.play(call("search"), "done")
        assert played.results == [{"error": "Tool 'search' does not exist. Available tools: none."}]
        assert hook.requests == []
        assert (await put(api, "search", url=hook.url)).status_code == 201

    async def test_a_new_registration_after_deletion_has_a_new_secret(self, api: Api, test_tools: TestTools) -> None:
        first = await test_tools.host(api, "search")
        await api.call("DELETE", "/v1/tools/search")
        second = await test_tools.host(api, "search")
        assert first.secret != second.secret

    @pytest.mark.parametrize("name", ["a.b", "a b", "niño", "x" * 65, "a:b", "a%2Fb"])
    async def test_a_bad_name_is_refused(self, api: Api, test_tools: TestTools, name: str) -> None:
        refused = await put(api, name, url=test_tools.url("search"))
        assert refused.status_code in (404, 422) if "%" in name else refused.status_code == 422
        assert refused.headers["content-type"] == "application/problem+json"

    @pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 64, "-", "_"])
    async def test_any_other_name_is_taken(self, api: Api, test_tools: TestTools, name: str) -> None:
        assert (await put(api, name, url=test_tools.url("search"))).status_code == 201

    @pytest.mark.parametrize(
        "schema",
        [{"type": "array"}, {"type": "string"}, {"type": "object", "properties": []}, {"type": "objct"},
         {"type": "object", "properties": {"a": {"type": "strin"}}}, {"type": "object", "required": "a"}, [], "x", None, 7],
    )  # fmt: skip
    async def test_a_schema_that_is_none_is_refused(self, api: Api, test_tools: TestTools, schema: Any) -> None:
        refused = await put(api, "search", url=test_tools.url("search"), parameters=schema)
        assert refused.status_code == 422
        assert any("parameters" in error["loc"] for error in refused.json()["errors"])
        assert (await api.get("/v1/tools"))["data"] == []

    @pytest.mark.parametrize(
        "fields",
        [{"url": None}, {"url": "ftp://example.com/x"}, {"url": "no address"}, {"timeout_seconds": 0}, {"secret": "x"},
         {"kind": "magic"}, {"headers": {"X-Key": "é"}}, {"headers": {"X-Key": "a\nb"}}, {"headers": {"X-Key": " a"}},
         {"headers": {"bad name": "a"}}],
    )  # fmt: skip
    async def test_what_cannot_work_is_refused(self, api: Api, test_tools: TestTools, fields: dict[str, Any]) -> None:
        refused = await put(api, "search", **{"url": test_tools.url("search"), **fields})
        assert refused.status_code == 422

    async def test_header_values_are_sent_but_never_shown(self, api: Api, test_tools: TestTools) -> None:
        headers = {"Authorization": "Bearer hush-hush-77", "X-Plan": "gold-plan"}
        hook = await test_tools.host(api, "search", headers=headers)
        texts = [json.dumps(hook.tool)]
        texts += [(await api.call("GET", path)).text for path in ("/v1/tools", "/v1/tools/search")]
        for text in texts:
            assert "hush-hush" not in text
            assert "gold-plan" not in text
            assert "X-Plan" in text
        await api.play(call("search"), "done")
        sent = hook.requests[0].headers
        assert (sent["authorization"], sent["x-plan"]) == ("Bearer hush-hush-77", "gold-plan")

    async def test_an_echoed_header_value_does_not_come_back_in_an_error(self, api: Api, test_tools: TestTools) -> None:
        def echo(request: Received) -> Reply:
            return Reply(422, {"error": f"bad key {request.headers['x-key']}"})

        await test_tools.host(api, "search", echo, headers={"X-Key": "hush-hush-77"})
        played = await api.play(call("search"), "done")
        assert "hush-hush" not in played.shown() + json.dumps(played.trace)

    async def test_an_inactive_tool_is_neither_offered_nor_nameable(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search", active=False)
        session = await api.new_session()
        refused = await api.run(session, "never", tools=["search"], status=422)
        assert refused["code"] == "unknown_tool"
        played = await api.play(call("search"), "done")
        assert played.outcomes == ["unknown"]
        assert hook.requests == []

    async def test_a_tool_that_is_not_registered_cannot_be_named(self, api: Api) -> None:
        refused = await api.run(await api.new_session(), "never", tools=["nope"], status=422)
        assert refused["code"] == "unknown_tool"

    async def test_a_foreign_tool_is_not_found(self, api: Api, admin: Api, test_tools: TestTools) -> None:
        await test_tools.host(await admin.new_workspace(), "search")
        assert (await api.call("GET", "/v1/tools/search")).status_code == 404
        assert (await api.call("POST", "/v1/tools/search/rotate-secret")).status_code == 404


class TestWhatIsSent:
    async def test_the_body_has_exactly_the_fields_of_the_contract(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search")
        session = await api.new_session(subject=SUBJECT, member=MEMBER, context={"a": 1})
        played = await api.play(call("search", {"q": "ñandú"}), "done", session=session)
        request = hook.requests[0]
        body = request.json
        assert (request.method, request.path) == ("POST", hook.path)
        assert set(body) == {"type", "timestamp", "data"}
        assert body["type"] == "tool.call"
        sent_at = datetime.fromisoformat(body["timestamp"].replace("Z", "+00:00"))
        assert abs((datetime.now(UTC) - sent_at).total_seconds()) < 60
        assert body["data"] == {
            "tool": "search", "call_id": played.calls[0]["call_id"], "arguments": {"q": "ñandú"}, "context": {"a": 1},
            "tenant": TENANT, "subject": SUBJECT, "member": MEMBER, "session_id": session, "run_id": played.run["id"],
            "agent_id": None,
        }  # fmt: skip

    async def test_the_headers_are_those_of_standard_webhooks_and_our_own(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search")
        played = await api.play(call("search"), "done")
        headers = hook.requests[0].headers
        call_id = played.calls[0]["call_id"]
        assert re.fullmatch(r"call_[0-9a-f]{32}", call_id)
        assert headers["content-type"] == "application/json"
        assert headers["webhook-id"] == headers["idempotency-key"] == call_id
        assert headers["rondo-run"] == played.run["id"]
        assert headers["rondo-attempt"] == "1"
        assert abs(int(headers["webhook-timestamp"]) - datetime.now(UTC).timestamp()) < 60
        assert re.fullmatch(r"v1,[A-Za-z0-9+/]+=*", headers["webhook-signature"])

    async def test_the_signature_is_right_over_the_exact_bytes_and_only_over_them(
        self, api: Api, test_tools: TestTools
    ) -> None:
        hook = await test_tools.host(api, "search")
        await api.play(call("search", {"q": "María 🎉"}), "done")
        request = hook.requests[0]
        assert verified(hook.secret, request) == request.json
        with pytest.raises(Exception, match=r"[Ss]ignature"):
            Webhook(hook.secret).verify(request.body + b" ", dict(request.headers))

    async def test_after_a_rotation_both_secrets_sign_the_new_one_first(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search")
        rotated = await api.post("/v1/tools/search/rotate-secret", status=200)
        assert set(rotated) == {"secret"}
        assert rotated["secret"] != hook.secret
        await api.play(call("search"), "done")
        signatures = hook.requests[0].headers["webhook-signature"].split(" ")
        assert len(signatures) == 2
        for secret, signature in zip((rotated["secret"], hook.secret), signatures, strict=True):
            headers = {**hook.requests[0].headers, "webhook-signature": signature}
            assert Webhook(secret).verify(hook.requests[0].body, headers)
        assert (await api.get("/v1/tools/search")).get("secret") is None

    async def test_a_run_of_no_session_sends_its_tenant_and_null_for_the_rest(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search")
        body = {"tenant": {"type": "org", "id": 7}, "input": "Hi", "model": "scripted/x", "script": [call("search"), "done"]}
        run = await api.post("/v1/runs", body, 200)
        data = hook.requests[0].json["data"]
        assert data["tenant"] == {"type": "org", "id": "7"}
        assert (data["subject"], data["member"], data["session_id"], data["context"]) == (None, None, None, {})
        assert data["run_id"] == run["id"]

    async def test_the_context_of_the_run_is_merged_over_the_sessions(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search")
        session = await api.new_session(context={"user": 1, "plan": {"name": "old", "seats": 3}})
        context = {"plan": {"name": "new"}, "locale": "es"}
        played = await api.play(call("search"), "done", session=session, context=context)
        sent = hook.requests[0].json["data"]["context"]
        assert sent == {"user": 1, "plan": {"name": "new"}, "locale": "es"}
        assert "locale" not in played.shown()
        assert "seats" not in played.shown()

    async def test_arguments_never_become_identity(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search")
        claim = {"tenant": {"type": "organization", "id": "1"}, "member": "admin", "context": {"admin": True}}
        await api.play(call("search", claim), "done")
        data = hook.requests[0].json["data"]
        assert data["arguments"] == claim
        assert (data["tenant"], data["member"], data["context"]) == (TENANT, None, {})

    async def test_every_call_has_a_key_of_its_own(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search")
        session = await api.new_session()
        turn = calls(wanted("search", id="call_0"), wanted("search", {"n": 1}, id="call_1"))
        for _ in range(2):
            await api.play(turn, turn, "done", session=session)
        assert len({request.headers["webhook-id"] for request in hook.requests}) == len(hook.requests) == 8


class TestAttempts:
    @pytest.mark.parametrize("trouble", [Reply(502), Reply(503), Reply(504), Reply(ending="close"), Reply(ending="reset")])
    async def test_what_may_pass_is_sent_once_more_with_the_same_key_and_bytes(
        self, api: Api, test_tools: TestTools, trouble: Reply
    ) -> None:
        hook = await test_tools.host(api, "search", trouble, {"items": [1]})
        played = await api.play(call("search"), "done")
        first, second = hook.requests
        assert first.body == second.body
        for name in ("webhook-id", "idempotency-key", "rondo-run"):
            assert first.headers[name] == second.headers[name]
        assert (first.headers["rondo-attempt"], second.headers["rondo-attempt"]) == ("1", "2")
        assert verified(hook.secret, first) == verified(hook.secret, second)
        assert played.results == [{"items": [1]}]
        assert played.calls[0]["attempts"] == 2
        assert played.of("tool.invoked")[0]["attempts"] == 2

    async def test_it_is_sent_twice_at_most(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search", Reply(503))
        played = await api.play(call("search"), "done")
        assert len(hook.requests) == 2
        assert played.outcomes == ["failed"]
        assert (played.calls[0]["status"], played.calls[0]["attempts"]) == (503, 2)

    async def test_no_other_status_is_sent_again(self, api: Api, test_tools: TestTools) -> None:
        statuses = [400, 401, 404, 409, 422, 429, 500, 501, 505]
        hook = await test_tools.host(api, "search", *[Reply(status) for status in statuses])
        turn = calls(*[wanted("search", {"n": status}) for status in statuses])
        played = await api.play(turn, "done", parallel_tools=1)
        assert [made["status"] for made in played.calls] == statuses
        assert [made["attempts"] for made in played.calls] == [1] * len(statuses)
        assert {request.headers["rondo-attempt"] for request in hook.requests} == {"1"}
        assert len(hook.requests) == len(statuses)

    async def test_a_time_out_is_not_sent_again(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search", Reply(ending="hang"), {"items": [1]}, timeout_seconds=0.3)
        played = await api.play(call("search"), "done")
        assert len(hook.requests) == 1
        assert played.outcomes == ["failed"]

    async def test_the_second_attempt_stays_within_the_time_out(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search", Reply(503), Reply(ending="hang"), timeout_seconds=0.6)
        played = await api.play(call("search"), "done")
        assert len(hook.requests) == 2
        assert played.outcomes == ["failed"]
        assert played.calls[0]["seconds"] < 1.2

    @pytest.mark.parametrize("trouble", [Reply(503), Reply(ending="close"), Reply(ending="reset")])
    async def test_a_tool_that_is_at_most_once_is_never_sent_again(
        self, api: Api, test_tools: TestTools, trouble: Reply
    ) -> None:
        hook = await test_tools.host(api, "pay", trouble, {"items": [1]}, at_most_once=True)
        played = await api.play(call("pay"), "done")
        assert len(hook.requests) == 1
        assert played.outcomes == ["failed"]

    async def test_a_call_that_cannot_be_made_any_more_does_not_stop_the_run(self, api: Api, test_tools: TestTools) -> None:
        """The tool is deleted while the model speaks: what the run was offered stays, or the call fails; it ends."""
        hook = await test_tools.host(api, "search", {"items": [1]})
        session = await api.new_session()
        run = await api.run(session, call("search", delay_ms=300), "done", background=True, status=202)
        await api.call("DELETE", "/v1/tools/search")
        events = await api.events(run["id"])
        assert events[-1].type == "run.completed"
        assert len(hook.requests) <= 1


class TestSeveralCallsOfOneTurn:
    async def test_so_many_calls_run_at_once_as_parallel_tools_says(self, api: Api, test_tools: TestTools) -> None:
        held = Held(body={"items": [1]})
        hook = await test_tools.host(api, "search", held)
        session = await api.new_session()
        turn = calls(*[wanted("search", {"n": n}) for n in range(5)])
        run = await api.run(session, turn, "done", parallel_tools=3, background=True, status=202)
        await hook.received(3)
        invoking = 0
        async for event in api.follow(f"/v1/runs/{run['id']}/events"):
            invoking += event.type == "tool.invoking"
            if invoking == 3 and not held.gate.is_set():
                assert len(hook.requests) == 3
                held.gate.set()
        assert [call["outcome"] for call in (await api.trace(run["id"]))[0]["tool_calls"]] == ["ok"] * 5
        assert len(hook.requests) == 5

    async def test_one_at_a_time_keeps_the_order(self, api: Api, test_tools: TestTools) -> None:
        hook = await test_tools.host(api, "search")
        await api.play(calls(*[wanted("search", {"n": n}) for n in range(4)]), "done", parallel_tools=1)
        assert [arguments["n"] for arguments in hook.arguments] == [0, 1, 2, 3]

    async def test_results_are_stored_as_they_return_at_the_positions_of_their_calls(
        self, api: Api, test_tools: TestTools
    ) -> None:
        slow = Held(body={"items": ["slow"]})
        await test_tools.host(api, "slow", slow)
        await test_tools.host(api, "quick", {"items": ["quick"]})
        session = await api.new_session()
        turn = calls(wanted("slow"), wanted("quick"))
        run = await api.run(session, turn, "done", background=True, status=202)
        invoked: list[str] = []
        async for event in api.follow(f"/v1/runs/{run['id']}/events"):
            if event.type == "tool.invoked":
                invoked.append(event.data["tool"])
                if not slow.gate.is_set():
                    stored = [message for message in await api.messages(session) if message["role"] == "tool"]
                    assert [message["content"] for message in stored] == ['{"items":["quick"]}']
                    slow.gate.set()
        assert invoked == ["quick", "slow"]
        messages = await api.messages(session)
        assert [message["content"] for message in messages[2:4]] == ['{"items":["slow"]}', '{"items":["quick"]}']
        assert [message["position"] for message in messages] == sorted(message["position"] for message in messages)
        ids = [made["id"] for made in messages[1]["tool_calls"]]
        assert [message["tool_call_id"] for message in messages[2:4]] == ids


PRIVATE = [
    "http://127.0.0.1:9/x", "http://localhost:9/x", "http://10.1.2.3/x", "http://192.168.1.1/x", "http://172.16.0.1/x",
    "http://169.254.169.254/latest/meta-data", "http://[::1]:9/x", "http://[fe80::1]/x", "http://[fd00::1]/x",
    "http://[::ffff:127.0.0.1]:9/x", "http://[::ffff:a9fe:a9fe]/x", "http://[64:ff9b::7f00:1]/x", "http://0.0.0.0/x",
    "http://100.64.0.1/x", "http://2130706433/x", "http://0x7f.1/x", "http://127.1:9/x",
]  # fmt: skip


@pytest.fixture(scope="module")
async def strict(settings: Settings, base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A second replica that does not allow private addresses."""
    async with (
        serving(settings.model_copy(update={"allow_private_webhooks": False})) as url,
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client,
    ):
        yield client


class TestPrivateAddresses:
    async def test_they_are_refused_at_registration(self, api: Api, strict: httpx.AsyncClient) -> None:
        guarded = Api(strict, api.key, api.workspace_id)
        for url in PRIVATE:
            refused = await put(guarded, "search", url=url)
            assert refused.status_code == 422, url
            assert ["body", "url"] in [error["loc"] for error in refused.json()["errors"]]
        assert (await guarded.get("/v1/tools"))["data"] == []

    async def test_they_are_refused_at_the_call_as_well(
        self, api: Api, test_tools: TestTools, strict: httpx.AsyncClient
    ) -> None:
        hook = await test_tools.host(api, "search", {"items": [1]})
        guarded = Api(strict, api.key, api.workspace_id)
        played = await guarded.play(call("search"), "done")
        assert played.results == [{"error": "The tool search is temporarily unavailable."}]
        assert played.outcomes == ["failed"]
        assert "address" in played.calls[0]["cause"]
        assert hook.requests == []
        assert "127.0.0.1" not in played.shown()

    async def test_networks_that_are_not_allowed_stay_refused(self, api: Api) -> None:
        assert (await put(api, "inside", url="http://127.8.8.8:9/x")).status_code == 201
        for url in ("http://10.1.2.3/x", "http://169.254.169.254/x", "http://[::1]:9/x"):
            assert (await put(api, "search", url=url)).status_code == 422, url
