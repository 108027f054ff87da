"""Workspaces, keys and client tokens (contract, section 2): who may what, and what is kept of a key."""

import asyncio
import hashlib
from typing import Any

import httpx
import pytest

from app.infra.database import Database
from app.infra.settings import Settings
from tests.api import TENANT, Api, read_events
from tests.conftest import ADMIN_KEY, serving
from tests.contract.test_doors import problem

CLIENT_FIELDS = {
    "stream": False, "background": True, "on_conflict": "queue", "metadata": {"page": "home"},
}  # fmt: skip
FORBIDDEN_FIELDS: dict[str, Any] = {
    "model": "scripted/other", "tools": [], "context": {"user": 1}, "persist": False, "script": ["Hi."],
    "max_iterations": 2, "model_options": {}, "tool_choice": "none", "empty_reply": "x", "response_schema": {},
    "deadline_seconds": 5, "capabilities": [], "on_cap": "stop", "max_tokens_total": 5,
}  # fmt: skip


async def new_key(admin: Api, api: Api, **fields: Any) -> dict[str, Any]:
    body = {"workspace_id": api.workspace_id, "kind": "service", "name": "test", **fields}
    made: dict[str, Any] = await admin.post("/v1/keys", body)
    return made


async def new_token(api: Api, session_id: str, **fields: Any) -> Api:
    made = await api.post(f"/v1/sessions/{session_id}/tokens", fields)
    return api.with_key(made["token"])


async def listening_session(api: Api, *script: Any) -> str:
    """A session whose runs play this script, so that a client need not say one."""
    return await api.new_session(config={"script": list(script or ["Hi."])})


class TestWorkspaces:
    async def test_one_is_made_and_listed_newest_first(self, admin: Api) -> None:
        made = await admin.post("/v1/workspaces", {"name": "Acme"})
        assert made["name"] == "Acme"
        newest = (await admin.get("/v1/workspaces?limit=1"))["data"]
        assert newest == [made]

    @pytest.mark.parametrize("body", [{}, {"name": ""}, {"name": 5}, {"name": None}, {"name": "x", "id": "y"}])
    async def test_a_name_is_needed(self, admin: Api, body: dict[str, Any]) -> None:
        problem(await admin.call("POST", "/v1/workspaces", body), 422)

    async def test_two_may_have_one_name(self, admin: Api) -> None:
        one, other = [await admin.post("/v1/workspaces", {"name": "twin"}) for _ in range(2)]
        assert one["id"] != other["id"]


class TestKeys:
    async def test_the_answer_to_a_creation_shows_the_key(self, admin: Api, api: Api) -> None:
        made = await new_key(admin, api, name="backend")
        assert {"id", "kind", "workspace_id", "name", "key"} <= set(made)
        assert (made["kind"], made["workspace_id"], made["name"]) == ("service", api.workspace_id, "backend")
        assert len(made["key"]) >= 32
        assert await api.with_key(made["key"]).get("/v1/sessions") == {"data": [], "next": None}

    async def test_nothing_shows_it_again(self, admin: Api, api: Api) -> None:
        made = await new_key(admin, api)
        listed = await admin.call("GET", "/v1/keys?limit=200")
        (found,) = [item for item in listed.json()["data"] if item["id"] == made["id"]]
        assert "key" not in found
        assert made["key"] not in listed.text

    async def test_only_its_hash_is_kept(self, admin: Api, api: Api, migrated: Database) -> None:
        made = await new_key(admin, api, name="hashed")
        token = await api.post(f"/v1/sessions/{await api.new_session()}/tokens", {})
        row = await migrated.pool.fetchrow("SELECT * FROM api_keys WHERE id = $1", made["id"])
        assert row["hash"] == hashlib.sha256(made["key"].encode()).digest()
        for table in ("api_keys", "client_tokens", "idempotency_keys"):
            rows = await migrated.pool.fetch(f"SELECT * FROM {table}")
            for secret in (made["key"], token["token"]):
                assert not any(secret in str(value) for row in rows for value in row.values())

    async def test_no_two_are_alike(self, admin: Api, api: Api) -> None:
        made = [await new_key(admin, api) for _ in range(5)]
        assert len({item["key"] for item in made}) == len({item["id"] for item in made}) == 5

    async def test_a_deleted_one_is_refused_at_once_on_every_replica(self, admin: Api, api: Api, settings: Settings) -> None:
        made = await new_key(admin, api)
        async with serving(settings) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            here, there = api.with_key(made["key"]), Api(http, made["key"])
            for replica in (here, there):
                assert (await replica.call("GET", "/v1/sessions")).status_code == 200
            assert (await admin.call("DELETE", f"/v1/keys/{made['id']}")).status_code == 204
            for replica in (here, there):
                problem(await replica.call("GET", "/v1/sessions"), 401, "unauthenticated")
        problem(await admin.call("DELETE", f"/v1/keys/{made['id']}"), 404)
        assert (await api.call("GET", "/v1/sessions")).status_code == 200

    async def test_an_admin_key_has_no_workspace_and_a_service_key_needs_one(self, admin: Api, api: Api) -> None:
        made = await admin.post("/v1/keys", {"kind": "admin", "name": "second"})
        assert made["workspace_id"] is None
        second = admin.with_key(made["key"])
        assert (await second.call("GET", "/v1/keys")).status_code == 200
        problem(await second.call("GET", "/v1/sessions"), 403)
        assert (await admin.call("DELETE", f"/v1/keys/{made['id']}")).status_code == 204
        problem(await second.call("GET", "/v1/keys"), 401)
        problem(await admin.call("POST", "/v1/keys", {"kind": "service", "name": "x"}), 422)
        body = {"kind": "admin", "name": "x", "workspace_id": api.workspace_id}
        problem(await admin.call("POST", "/v1/keys", body), 422)

    @pytest.mark.parametrize("kind", ["client", "root", "", None, "ADMIN"])
    async def test_only_admin_and_service_keys_are_made_like_this(self, admin: Api, api: Api, kind: Any) -> None:
        body = {"workspace_id": api.workspace_id, "kind": kind, "name": "x"}
        problem(await admin.call("POST", "/v1/keys", body), 422)

    @pytest.mark.parametrize(
        "header",
        [
            None, "", "Bearer", "Basic YTpi", "Bearer nonsense", "Token {key}", "Bearer {key}x", "bearer{key}",
            "Bearer\u00a0{key}", "Bearer {key},{key}",
        ],
    )  # fmt: skip
    async def test_a_missing_or_wrong_one_is_a_401(self, api: Api, header: str | None) -> None:
        headers = {} if header is None else {"Authorization": header.format(key=api.key).encode("latin-1")}
        response = await api.http.get("/v1/sessions", headers=headers)
        problem(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"].startswith("Bearer")

    @pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
    async def test_the_scheme_is_written_in_any_case(self, api: Api, scheme: str) -> None:
        response = await api.http.get("/v1/sessions", headers={"Authorization": f"{scheme} {api.key}"})
        assert response.status_code == 200

    async def test_two_keys_of_a_workspace_see_the_same_things(self, admin: Api, api: Api) -> None:
        session_id = await api.new_session()
        second = api.with_key((await new_key(admin, api))["key"])
        assert (await second.get(f"/v1/sessions/{session_id}"))["id"] == session_id

    async def test_something_of_another_workspace_cannot_be_told_from_nothing(self, admin: Api, api: Api) -> None:
        session_id = await api.new_session()
        stranger = await admin.new_workspace()
        foreign = await stranger.call("GET", f"/v1/sessions/{session_id}")
        missing = await stranger.call("GET", f"/v1/sessions/{session_id[:-1]}{'0' if session_id[-1] != '0' else '1'}")
        assert problem(foreign, 404) == problem(missing, 404)

    @pytest.mark.parametrize("path", ["/v1/sessions", "/v1/runs", "/v1/tools", "/v1/providers"])
    async def test_an_admin_key_is_for_workspaces_and_keys_only(self, admin: Api, path: str) -> None:
        problem(await admin.call("GET", path), 403, "forbidden")

    @pytest.mark.parametrize("path", ["/v1/workspaces", "/v1/keys"])
    async def test_a_service_key_is_not_for_workspaces_and_keys(self, api: Api, path: str) -> None:
        problem(await api.call("GET", path), 403, "forbidden")
        problem(await api.call("POST", path, {"name": "x"}), 403, "forbidden")
        problem(await api.call("POST", path, {"nonsense": 1}), 403, "forbidden")


class TestClientTokens:
    async def test_one_is_good_for_fifteen_minutes_when_nothing_is_said(self, api: Api) -> None:
        session_id = await api.new_session()
        made = await api.post(f"/v1/sessions/{session_id}/tokens", {})
        assert set(made) == {"token", "expires_at"}
        session = await api.get(f"/v1/sessions/{session_id}")
        assert session["created_at"] < made["expires_at"]

    @pytest.mark.parametrize(
        "body",
        [
            {"ttl_seconds": 0}, {"ttl_seconds": 86_401}, {"ttl_seconds": "60"}, {"ttl_seconds": 1.5}, {"ttl_seconds": True},
            {"can": []}, {"can": ["write"]}, {"can": "read"}, {"can": None}, {"session_id": "x"},
        ],
    )  # fmt: skip
    async def test_its_life_and_rights_have_bounds(self, api: Api, body: dict[str, Any]) -> None:
        problem(await api.call("POST", f"/v1/sessions/{await api.new_session()}/tokens", body), 422)

    async def test_its_bounds_are_inclusive(self, api: Api) -> None:
        session_id = await api.new_session()
        for seconds in (1, 86_400):
            await api.post(f"/v1/sessions/{session_id}/tokens", {"ttl_seconds": seconds})

    async def test_it_reads_the_session_its_messages_and_runs(self, api: Api) -> None:
        session_id = await listening_session(api)
        run = await api.run(session_id, "Hi.")
        client = await new_token(api, session_id, can=["read"])
        assert (await client.get(f"/v1/sessions/{session_id}"))["id"] == session_id
        assert len(await client.messages(session_id)) == 2
        assert (await client.get(f"/v1/runs/{run['id']}"))["output"] == "Hi."
        assert [item["id"] for item in (await client.get("/v1/runs"))["data"]] == [run["id"]]
        assert [item["id"] for item in (await client.get(f"/v1/runs?session_id={session_id}"))["data"]] == [run["id"]]
        assert (await client.events(run["id"]))[-1].type == "run.completed"

    async def test_one_that_may_only_read_starts_and_cancels_nothing(self, api: Api) -> None:
        session_id = await listening_session(api)
        run = await api.run(session_id, "Hi.")
        client = await new_token(api, session_id, can=["read"])
        problem(await client.call("POST", f"/v1/sessions/{session_id}/runs", {"input": "Hello"}), 403)
        problem(await client.call("POST", f"/v1/runs/{run['id']}/cancel"), 403)
        assert len(await api.messages(session_id)) == 2

    async def test_one_that_may_only_run_starts_follows_and_cancels_but_reads_nothing_else(self, api: Api) -> None:
        session_id = await listening_session(api, {"text": "Hi.", "delay_ms": 60_000})
        client = await new_token(api, session_id, can=["run"])
        run = await client.post(f"/v1/sessions/{session_id}/runs", {"input": "Hello", "background": True}, 202)
        async with client.http.stream("GET", f"/v1/runs/{run['id']}/events", headers=client.headers()) as response:
            events = read_events(response)
            assert (await anext(events)).type == "run.queued"
            cancelled = await client.post(f"/v1/runs/{run['id']}/cancel", status=200)
            assert [event.type async for event in events][-1] == "run.cancelled"
        assert cancelled["status"] == "cancelled"
        problem(await client.call("GET", f"/v1/sessions/{session_id}/messages"), 403)
        problem(await client.call("GET", f"/v1/sessions/{session_id}"), 403)

    async def test_it_starts_runs_with_what_a_browser_may_say(self, api: Api) -> None:
        session_id = await listening_session(api)
        client = await new_token(api, session_id)
        run = await client.post(f"/v1/sessions/{session_id}/runs", {"input": "Hello", **CLIENT_FIELDS}, 202)
        assert run["metadata"] == {"page": "home"}
        body = {"input": "Hello", "stream": True, "on_conflict": "queue"}
        async with client.http.stream(
            "POST", f"/v1/sessions/{session_id}/runs", json=body, headers=client.headers()
        ) as response:
            assert [event.type async for event in read_events(response)][-1] == "run.completed"

    @pytest.mark.parametrize("field", FORBIDDEN_FIELDS)
    async def test_anything_else_in_a_run_is_a_403(self, api: Api, field: str) -> None:
        session_id = await listening_session(api)
        client = await new_token(api, session_id)
        body = {"input": "Hello", field: FORBIDDEN_FIELDS[field]}
        problem(await client.call("POST", f"/v1/sessions/{session_id}/runs", body), 403, "forbidden")
        assert await api.messages(session_id) == []

    async def test_any_other_session_is_a_404(self, api: Api) -> None:
        own, other = await listening_session(api), await listening_session(api)
        run = await api.run(other, "Hi.")
        alone = await api.post("/v1/runs", {"tenant": TENANT, "model": "scripted/x", "input": "Hi", "script": ["Hi."]}, 200)
        client = await new_token(api, own)
        for method, path, body in (
            ("GET", f"/v1/sessions/{other}", None),
            ("GET", f"/v1/sessions/{other}/messages", None),
            ("POST", f"/v1/sessions/{other}/runs", {"input": "Hello"}),
            ("GET", f"/v1/runs?session_id={other}", None),
            ("GET", f"/v1/runs/{run['id']}", None),
            ("GET", f"/v1/runs/{run['id']}/events", None),
            ("GET", f"/v1/runs/{run['id']}/trace", None),
            ("POST", f"/v1/runs/{run['id']}/cancel", None),
            ("GET", f"/v1/runs/{alone['id']}", None),
        ):
            problem(await client.call(method, path, body), 404, "not_found")
        assert await client.get("/v1/runs") == {"data": [], "next": None}

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v1/sessions"), ("POST", "/v1/sessions"), ("PATCH", "/v1/sessions/{}"), ("DELETE", "/v1/sessions/{}"),
            ("POST", "/v1/sessions/{}/messages"), ("POST", "/v1/sessions/{}/tokens"), ("GET", "/v1/sessions/{}/prompt"),
            ("GET", "/v1/tools"), ("PUT", "/v1/tools/x"), ("POST", "/v1/runs"), ("GET", "/v1/workspaces"),
            ("GET", "/v1/keys"), ("GET", "/v1/providers"),
        ],
    )  # fmt: skip
    async def test_what_is_for_a_backend_is_a_403(self, api: Api, method: str, path: str) -> None:
        session_id = await api.new_session()
        client = await new_token(api, session_id)
        problem(await client.call(method, path.format(session_id), {} if method != "GET" else None), 403, "forbidden")

    async def test_an_expired_one_is_a_401(self, api: Api, migrated: Database) -> None:
        session_id = await api.new_session()
        client = await new_token(api, session_id, ttl_seconds=60)
        assert (await client.call("GET", f"/v1/sessions/{session_id}")).status_code == 200
        await migrated.pool.execute("UPDATE client_tokens SET expires_at = now() WHERE session_id = $1", session_id)
        problem(await client.call("GET", f"/v1/sessions/{session_id}"), 401, "unauthenticated")

    async def test_it_is_gone_with_its_session(self, api: Api) -> None:
        session_id = await api.new_session()
        client = await new_token(api, session_id)
        await api.call("DELETE", f"/v1/sessions/{session_id}")
        assert (await client.call("GET", f"/v1/sessions/{session_id}")).status_code in (401, 404)


class TestTokenInTheQuery:
    async def test_it_opens_the_stream_of_events(self, api: Api) -> None:
        run = await api.run(await api.new_session(), "Hi.")
        client = await new_token(api, run["session_id"], can=["read"])
        async with api.http.stream("GET", f"/v1/runs/{run['id']}/events?access_token={client.key}") as response:
            assert response.status_code == 200
            assert [event.type async for event in read_events(response)][-1] == "run.completed"

    async def test_a_wrong_one_is_a_401_there(self, api: Api) -> None:
        run = await api.run(await api.new_session(), "Hi.")
        for token in ("", "nonsense", "%00"):
            response = await api.http.get(f"/v1/runs/{run['id']}/events?access_token={token}")
            problem(response, 401)

    async def test_it_opens_nothing_else(self, api: Api) -> None:
        run = await api.run(await api.new_session(), "Hi.")
        client = await new_token(api, run["session_id"])
        for method, path in (
            ("GET", f"/v1/runs/{run['id']}"), ("GET", f"/v1/runs/{run['id']}/trace"), ("GET", "/v1/runs"),
            ("GET", f"/v1/sessions/{run['session_id']}"), ("GET", f"/v1/sessions/{run['session_id']}/messages"),
            ("POST", f"/v1/sessions/{run['session_id']}/runs"), ("POST", f"/v1/runs/{run['id']}/cancel"),
        ):  # fmt: skip
            problem(await api.http.request(method, f"{path}?access_token={client.key}"), 401)
        for key in (api.key, ADMIN_KEY):
            problem(await api.http.get(f"/v1/sessions?access_token={key}"), 401)

    async def test_many_may_follow_with_one_token(self, api: Api) -> None:
        run = await api.run(await api.new_session(), "Hi.")
        client = await new_token(api, run["session_id"], can=["read"])
        path = f"/v1/runs/{run['id']}/events?access_token={client.key}"
        answers = await asyncio.gather(*(api.http.get(path) for _ in range(10)))
        assert len({response.content for response in answers}) == 1
