"""Providers that a workspace brings: `PUT /v1/providers/{name}`, used as `NAME/MODEL`."""

import httpx

from app.infra.database import Database
from app.infra.settings import Settings
from tests.api import Api
from tests.conftest import serving
from tests.providers.model_server import DONE, ModelServer, sse

HELLO = sse({"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}]}, DONE)


def provider(server: ModelServer, **fields: object) -> dict[str, object]:
    return {"kind": "openai", "base_url": server.base_url, "api_key": "sk-own-secret-key", **fields}


class TestProviders:
    async def test_a_run_is_answered_by_the_workspaces_own_server(self, api: Api) -> None:
        async with ModelServer() as server:
            server.play(HELLO)
            made = await api.call("PUT", "/v1/providers/lab", provider(server, headers={"X-Team": "blue"}))
            assert made.status_code == 201
            run = await api.run(await api.new_session(model="lab/tiny"))
            assert (run["output"], run["model"]) == ("Hello", "lab/tiny")
            asked = server.requests[0]
            assert asked.json["model"] == "tiny"
            assert asked.headers["authorization"] == "Bearer sk-own-secret-key"
            assert asked.headers["x-team"] == "blue"

    async def test_its_options_go_with_every_call_and_a_runs_own_win(self, api: Api) -> None:
        async with ModelServer() as server:
            server.play(HELLO)
            await api.call("PUT", "/v1/providers/lab", provider(server, options={"temperature": 0.1, "seed": 7}))
            await api.run(await api.new_session(model="lab/tiny"), model_options={"temperature": 0.9})
            assert (server.requests[0].json["temperature"], server.requests[0].json["seed"]) == (0.9, 7)

    async def test_keys_are_never_shown_again_and_not_kept_in_clear(self, api: Api, migrated: Database) -> None:
        async with ModelServer() as server:
            await api.call("PUT", "/v1/providers/lab", provider(server, headers={"X-Key": "another-secret"}))
        listed = await api.call("GET", "/v1/providers")
        assert listed.json()["data"][0]["headers"] == {"X-Key": "********"}
        assert "secret" not in listed.text
        row = await migrated.pool.fetchrow("SELECT * FROM providers WHERE workspace_id = $1", api.workspace_id)
        assert b"secret" not in row["api_key"] + row["headers"]

    async def test_replacing_is_200_and_deleting_204(self, api: Api) -> None:
        async with ModelServer() as server:
            await api.call("PUT", "/v1/providers/lab", provider(server))
            assert (await api.call("PUT", "/v1/providers/lab", provider(server))).status_code == 200
        assert (await api.call("DELETE", "/v1/providers/lab")).status_code == 204
        assert (await api.call("DELETE", "/v1/providers/lab")).status_code == 404

    async def test_another_workspaces_provider_does_not_exist(self, api: Api, admin: Api) -> None:
        async with ModelServer() as server:
            await api.call("PUT", "/v1/providers/lab", provider(server))
        other = await admin.new_workspace()
        problem = await other.run(await other.new_session(), model="lab/tiny", status=422)
        assert problem["code"] == "unknown_provider"

    async def test_built_in_names_and_the_loops_options_are_refused(self, api: Api) -> None:
        async with ModelServer() as server:
            assert (await api.call("PUT", "/v1/providers/openai", provider(server))).status_code == 422
            wrong = provider(server, options={"stream": False})
            assert (await api.call("PUT", "/v1/providers/lab", wrong)).status_code == 422

    async def test_one_that_is_down_fails_over_to_the_next(self, api: Api) -> None:
        async with ModelServer() as server:
            await api.call("PUT", "/v1/providers/lab", {**provider(server), "base_url": "http://127.0.0.1:1/v1"})
        run = await api.run(await api.new_session(), "From the script", model=["lab/tiny", "scripted/x"])
        assert run["output"] == "From the script"


class TestAddressGuard:
    async def test_private_addresses_are_refused_at_registration_and_at_the_call(
        self, migrated: Database, settings: Settings, api: Api
    ) -> None:
        """Registered where private addresses are allowed, called where they are not."""
        async with ModelServer() as server:
            server.play(HELLO)
            await api.call("PUT", "/v1/providers/lab", provider(server))
            strict = settings.model_copy(update={"allow_private_webhooks": False, "model_attempts": 1})
            async with serving(strict) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
                there = Api(http, api.key, api.workspace_id)
                assert (await there.call("PUT", "/v1/providers/two", provider(server))).status_code == 422
                run = await there.run(await there.new_session(model="lab/tiny"))
                assert run["error"]["code"] == "provider_unavailable"
            assert server.requests == []
