"""`Idempotency-Key` (contract, section 1): the same key with the same body gives the first answer, on any replica, while a
run is under way and after it, before anything else is judged."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.infra.database import Database
from app.infra.settings import Settings
from tests.api import TENANT, Api, call
from tests.conftest import serving
from tests.contract.test_doors import problem
from tests.tools_app import Held, Hook, TestTools

KEY = "order-4711"
MODES: dict[str, dict[str, Any]] = {"stream": {"stream": True}, "background": {"background": True}, "waited for": {}}
every_mode = pytest.mark.parametrize("mode", MODES)


def replayed(response: httpx.Response) -> bool:
    return response.headers.get("idempotent-replayed") == "true"


async def post(api: Api, path: str, body: Any, key: str = KEY) -> httpx.Response:
    response = await api.call("POST", path, body, Idempotency_Key=key)
    assert response.status_code < 500, response.text
    return response


def run_of(response: httpx.Response) -> str:
    """The id of the run that an answer is about, whatever kind of answer it is."""
    assert response.status_code in (200, 202), response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        first = response.content.split(b"data: ")[1].split(b"\n")[0]
        return str(json.loads(first)["run_id"])
    return str(response.json()["id"])


async def looking(api: Api, test_tools: TestTools, answer: Any = None) -> tuple[str, dict[str, Any], Hook]:
    """The path and body of a run that calls one tool, and the tool."""
    hook = await test_tools.host(api, "search", answer or {"items": [1]})
    path = f"/v1/sessions/{await api.new_session()}/runs"
    return path, {"input": "Look", "script": [call("search"), "Found."]}, hook


@pytest.fixture
async def replica(settings: Settings, base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A second process of the same service."""
    async with serving(settings) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        yield client


class TestRuns:
    @every_mode
    async def test_five_at_once_are_one_run_with_one_set_of_calls(self, api: Api, test_tools: TestTools, mode: str) -> None:
        path, body, hook = await looking(api, test_tools)
        answers = await asyncio.gather(*(post(api, path, {**body, **MODES[mode]}) for _ in range(5)))
        (run_id,) = {run_of(response) for response in answers}
        assert sorted(replayed(response) for response in answers) == [False, True, True, True, True]
        await api.events(run_id)
        assert len(hook.requests) == 1
        assert [item["id"] for item in (await api.get("/v1/runs"))["data"]] == [run_id]
        messages = await api.messages(path.split("/")[3])
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]

    async def test_ten_at_once_on_two_replicas_are_one_run(
        self, api: Api, test_tools: TestTools, replica: httpx.AsyncClient
    ) -> None:
        path, body, hook = await looking(api, test_tools)
        callers = [api, Api(replica, api.key)] * 5
        answers = await asyncio.gather(*(post(caller, path, body) for caller in callers))
        assert len({response.content for response in answers}) == 1
        assert [replayed(response) for response in answers].count(False) == 1
        assert answers[0].json()["output"] == "Found."
        assert len(hook.requests) == 1

    @every_mode
    async def test_the_same_again_while_it_is_under_way_and_after(self, api: Api, test_tools: TestTools, mode: str) -> None:
        held = Held(body={"items": [1]})
        path, body, hook = await looking(api, test_tools, held)
        body |= MODES[mode]
        first = asyncio.create_task(post(api, path, body))
        await hook.received()
        second = asyncio.create_task(post(api, path, body))
        if mode == "background":
            assert (await second).json()["status"] == "running"
        held.gate.set()
        one, two = await asyncio.gather(first, second)
        await api.events(run_of(one))
        three = await post(api, path, body)
        assert run_of(one) == run_of(two) == run_of(three)
        assert [replayed(response) for response in (one, two, three)] == [False, True, True]
        assert one.status_code == two.status_code == three.status_code == (202 if mode == "background" else 200)
        if mode != "background":
            assert one.content == two.content == three.content
        assert len(hook.requests) == 1

    async def test_it_is_looked_at_before_the_busy_check(self, api: Api, test_tools: TestTools) -> None:
        held = Held(body={"items": [1]})
        path, body, hook = await looking(api, test_tools, held)
        body["background"] = True
        first = await post(api, path, body)
        await hook.received()
        again = await post(api, path, body)
        assert (run_of(again), replayed(again)) == (run_of(first), True)
        problem(await post(api, path, body, "another"), 409, "run_in_progress")
        problem(await api.call("POST", path, body), 409, "run_in_progress")
        held.gate.set()
        await api.events(run_of(first))

    @pytest.mark.parametrize("on_conflict", ["queue", "interrupt"])
    async def test_a_repeated_call_neither_queues_nor_interrupts_itself(
        self, api: Api, test_tools: TestTools, on_conflict: str
    ) -> None:
        held = Held(body={"items": [1]})
        path, body, hook = await looking(api, test_tools, held)
        body |= {"background": True, "on_conflict": on_conflict}
        first = await post(api, path, body)
        await hook.received()
        again = await post(api, path, body)
        assert (run_of(again), again.json()["status"], replayed(again)) == (run_of(first), "running", True)
        held.gate.set()
        await api.events(run_of(first))
        assert len((await api.get("/v1/runs"))["data"]) == 1

    async def test_a_call_that_was_refused_as_busy_may_be_made_again(self, api: Api, test_tools: TestTools) -> None:
        held = Held(body={"items": [1]})
        path, body, hook = await looking(api, test_tools, held)
        first = await api.post(path, {**body, "background": True}, 202)
        await hook.received()
        problem(await post(api, path, {"input": "Again", "script": ["Yes."]}), 409, "run_in_progress")
        held.gate.set()
        await api.events(first["id"])
        again = await post(api, path, {"input": "Again", "script": ["Yes."]})
        assert (again.json()["output"], replayed(again)) == ("Yes.", False)

    async def test_it_holds_for_a_run_without_a_session(self, api: Api) -> None:
        body = {"tenant": TENANT, "model": "scripted/x", "input": "Hello", "script": ["Hi."]}
        answers = await asyncio.gather(*(post(api, "/v1/runs", body) for _ in range(5)))
        assert len({response.content for response in answers}) == 1
        assert len((await api.get("/v1/runs"))["data"]) == 1

    async def test_it_survives_a_restart(self, api: Api, settings: Settings) -> None:
        session_id = await api.new_session()
        path, body = f"/v1/sessions/{session_id}/runs", {"input": "Hello", "script": ["Hi."]}
        answers = []
        for _ in range(2):
            async with serving(settings) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
                answers.append(await post(Api(http, api.key), path, body))
        assert answers[0].content == answers[1].content
        assert [replayed(response) for response in answers] == [False, True]


class TestBodies:
    async def test_another_body_is_refused(self, api: Api) -> None:
        path = f"/v1/sessions/{await api.new_session()}/runs"
        await post(api, path, {"input": "Hello", "script": ["Hi."]})
        for other in ({"input": "Hello!", "script": ["Hi."]}, {"input": "Hello", "script": ["Hi."], "stream": True}):
            problem(await post(api, path, other), 422, "idempotency_conflict")
        problem(await self.twice(api, "/v1/sessions", {"tenant": TENANT}, {"tenant": TENANT, "title": "x"}), 422)

    async def twice(self, api: Api, path: str, first: Any, second: Any) -> httpx.Response:
        assert (await post(api, path, first)).status_code == 201
        return await post(api, path, second)

    async def test_another_order_of_the_fields_is_the_same_body(self, api: Api) -> None:
        one = await post(api, "/v1/sessions", {"tenant": TENANT, "title": "x"})
        two = await post(api, "/v1/sessions", {"title": "x", "tenant": {"id": "42", "type": "organization"}})
        assert one.content == two.content
        assert replayed(two)

    async def test_a_request_that_was_not_valid_does_not_use_up_its_key(self, api: Api) -> None:
        problem(await post(api, "/v1/sessions", {"tenant": TENANT, "title": 5}), 422)
        assert (await post(api, "/v1/sessions", {"tenant": TENANT, "title": "x"})).status_code == 201

    async def test_without_a_key_the_same_body_is_done_twice(self, api: Api) -> None:
        assert await api.new_session() != await api.new_session()


class TestPlaces:
    async def test_another_path_is_independent(self, api: Api) -> None:
        body = {"input": "Hello", "script": ["Hi."]}
        one, two = [await post(api, f"/v1/sessions/{await api.new_session()}/runs", body) for _ in range(2)]
        assert run_of(one) != run_of(two)
        assert not replayed(two)

    async def test_another_workspace_is_independent(self, api: Api, admin: Api) -> None:
        stranger = await admin.new_workspace()
        one, two = [await post(caller, "/v1/sessions", {"tenant": TENANT}) for caller in (api, stranger)]
        assert one.json()["id"] != two.json()["id"]
        assert not replayed(two)

    async def test_a_browser_cannot_take_what_its_backend_started(self, api: Api) -> None:
        session_id = await api.new_session(config={"script": ["Hi."]})
        client = api.with_key((await api.post(f"/v1/sessions/{session_id}/tokens", {}))["token"])
        path = f"/v1/sessions/{session_id}/runs"
        one, two = [await post(caller, path, {"input": "Hello"}) for caller in (api, client)]
        assert run_of(one) != run_of(two)

    async def test_two_keys_of_one_workspace_share_it(self, api: Api, admin: Api) -> None:
        body = {"workspace_id": api.workspace_id, "kind": "service", "name": "second"}
        second = api.with_key((await admin.post("/v1/keys", body))["key"])
        one, two = [await post(caller, "/v1/sessions", {"tenant": TENANT}) for caller in (api, second)]
        assert one.content == two.content


class TestOtherCreations:
    async def test_a_session_is_made_once(self, api: Api) -> None:
        one, two = [await post(api, "/v1/sessions", {"tenant": TENANT}) for _ in range(2)]
        assert (one.status_code, two.status_code) == (201, 201)
        assert one.content == two.content
        assert (replayed(one), replayed(two)) == (False, True)
        assert len((await api.get("/v1/sessions"))["data"]) == 1

    async def test_a_workspace_and_a_key_are_made_once_and_the_key_is_shown_again(self, api: Api, admin: Api) -> None:
        unique = f"made-for-{api.workspace_id}"
        one, two = [await post(admin, "/v1/workspaces", {"name": unique}, unique) for _ in range(2)]
        assert one.content == two.content
        body = {"workspace_id": one.json()["id"], "kind": "service", "name": "x"}
        one, two = [await post(admin, "/v1/keys", body, unique) for _ in range(2)]
        assert one.content == two.content
        assert (await api.with_key(two.json()["key"]).call("GET", "/v1/sessions")).status_code == 200

    async def test_what_is_kept_of_an_answer_does_not_show_a_key(self, api: Api, admin: Api, migrated: Database) -> None:
        body = {"workspace_id": api.workspace_id, "kind": "service", "name": "x"}
        key = (await post(admin, "/v1/keys", body, f"kept-{api.workspace_id}")).json()["key"]
        rows = await migrated.pool.fetch("SELECT answer FROM idempotency_keys WHERE answer IS NOT NULL")
        assert rows
        assert not any(key.encode() in row["answer"] for row in rows)

    async def test_messages_are_brought_in_once(self, api: Api) -> None:
        session_id = await api.new_session()
        body = {"messages": [{"role": "user", "content": "Hello"}]}
        one, two = [await post(api, f"/v1/sessions/{session_id}/messages", body) for _ in range(2)]
        assert one.content == two.content
        assert len(await api.messages(session_id)) == 1

    async def test_a_token_is_made_once_and_shown_again(self, api: Api) -> None:
        session_id = await api.new_session()
        one, two = [await post(api, f"/v1/sessions/{session_id}/tokens", {}) for _ in range(2)]
        assert one.content == two.content
        client = api.with_key(two.json()["token"])
        assert (await client.get(f"/v1/sessions/{session_id}"))["id"] == session_id

    async def test_a_secret_is_rotated_once(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search")
        one, two = [await post(api, "/v1/tools/search/rotate-secret", None) for _ in range(2)]
        assert one.content == two.content
        assert replayed(two)

    async def test_many_at_once_make_one_thing(self, api: Api) -> None:
        answers = await asyncio.gather(*(post(api, "/v1/sessions", {"tenant": TENANT}) for _ in range(10)))
        made = {response.json()["id"] for response in answers if response.status_code == 201}
        assert len(made) == 1
        for response in answers:
            if response.status_code != 201:
                problem(response, 409, "idempotency_in_progress")
        assert len((await api.get("/v1/sessions"))["data"]) == 1

    async def test_a_first_call_that_is_not_answered_yet_is_a_409(
        self, api: Api, test_tools: TestTools, migrated: Database
    ) -> None:
        await test_tools.host(api, "search")
        path = "/v1/tools/search/rotate-secret"
        async with migrated.pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            where = (api.workspace_id, "search")
            await connection.execute("SELECT 1 FROM tools WHERE workspace_id = $1 AND name = $2 FOR UPDATE", *where)
            first = asyncio.create_task(post(api, path, None))
            while not await migrated.pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
            problem(await post(api, path, None), 409, "idempotency_in_progress")
            await transaction.rollback()
        one = await first
        assert (one.status_code, replayed(one)) == (200, False)
        two = await post(api, path, None)
        assert (two.content, replayed(two)) == (one.content, True)
