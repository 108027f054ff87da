"""Erasing and exporting all that is kept of a scope (contract, section 6)."""

from typing import Any

import orjson
import pytest
from redis.asyncio import Redis

from app import tables
from app.erasure.stores import stores
from app.infra.database import Database
from app.infra.settings import Settings
from app.scope import Reference
from tests.api import TENANT, Api, call

MARIA, JUAN = {"type": "agent", "id": "maria-7f3a"}, {"type": "agent", "id": "juan-2c9b"}
MARIAS = "/v1/data?tenant=organization:42&member=agent:maria-7f3a"
HERS, HIS = "zebrafinch", "nightheron"


async def leave(api: Api, member: dict[str, str], word: str) -> dict[str, Any]:
    """Something in every store that a member can have something in."""
    session = await api.post(
        "/v1/sessions", {"tenant": TENANT, "member": member, "model": "scripted/x", "title": f"Title {word}"},
        Idempotency_Key=f"session-{word}",
    )  # fmt: skip
    turn = call(f"none_{word}", {"about": word})
    asked = {"input": f"Asked {word}", "script": [turn, f"Answer {word}."]}
    run = await api.post(f"/v1/sessions/{session['id']}/runs", asked, 200, Idempotency_Key=f"run-{word}")
    body = {"tenant": TENANT, "member": member, "input": f"Alone {word}", "model": "scripted/x", "script": [f"So {word}."]}
    alone = await api.post("/v1/runs", body, 200)
    note = {"tenant": TENANT, "member": member, "kind": "fact", "importance": 3}
    await api.post("/v1/memories", {**note, "content": f"Likes the {word}."}, Idempotency_Key=f"memory-{word}")
    dropped = await api.post("/v1/memories", {**note, "content": f"Once had a {word}."})
    assert (await api.call("DELETE", f"/v1/memories/{dropped['id']}")).status_code == 204
    await api.post("/v1/rules", {"tenant": TENANT, "member": member, "content": f"Say {word}."})
    await api.post(f"/v1/sessions/{session['id']}/tokens", {})
    fired = await api.trigger(member=member, payload={"about": word})
    for one in fired["fired"]:
        await api.ended(one["run_id"])
    return {"session": session["id"], "runs": [run["id"], alone["id"], *(one["run_id"] for one in fired["fired"])]}


async def where(database: Database, settings: Settings, *words: str) -> set[str]:
    """Every table.column and Redis key in which one of the words stands."""
    found: set[str] = set()
    for (table,) in await database.pool.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        for row in await database.pool.fetch(f'SELECT * FROM "{table}"'):
            found |= {f"{table}.{name}" for name, value in row.items() if any(word in str(value) for word in words)}
    redis: Redis = Redis.from_url(settings.redis_url or "")
    async for key in redis.scan_iter():
        held = repr(await redis.xrange(key)) if await redis.type(key) == b"stream" else ""
        if any(word in held or word in key.decode() for word in words):
            found.add("redis")
    await redis.aclose()
    return found


class TestErasingAMember:
    async def test_no_string_of_theirs_is_left_and_others_are_untouched(
        self, api: Api, migrated: Database, settings: Settings
    ) -> None:
        await api.new_agent(event_triggers=["saved"])
        hers, his = await leave(api, MARIA, HERS), await leave(api, JUAN, HIS)
        mine, others = (HERS, MARIA["id"], hers["session"], *hers["runs"]), (HIS, JUAN["id"], his["session"], *his["runs"])
        before, kept = await where(migrated, settings, *mine), await where(migrated, settings, *others)
        assert {name.partition(".")[0] for name in before} >= {
            "sessions", "messages", "runs", "iterations", "tool_calls", "run_events", "memories", "memory_tombstones",
            "rules", "firings", "client_tokens", "idempotency_keys", "redis",
        }  # fmt: skip
        exported = await api.get(MARIAS)
        answer = await api.call("DELETE", MARIAS)
        assert answer.status_code == 200, answer.text
        assert await where(migrated, settings, *mine) == set()
        assert await where(migrated, settings, *others) == kept
        deleted = answer.json()["deleted"]
        assert {name: deleted[name] for name in ("sessions", "runs", "memories", "rules", "idempotency_keys")} == {
            "sessions": 1, "runs": 3, "memories": 1, "rules": 1, "idempotency_keys": 3,
        }  # fmt: skip
        assert {name: len(rows) for name, rows in exported["data"].items()} == {
            name: count for name, count in deleted.items() if name not in ("idempotency_keys", "event_logs")
        }
        assert HERS in orjson.dumps(exported["data"]["messages"]).decode()
        assert not any(HIS in orjson.dumps(rows).decode() for name, rows in exported["data"].items())
        again = (await api.call("DELETE", MARIAS)).json()["deleted"]
        assert set(again.values()) == {0}

    async def test_an_export_of_several_pages_has_every_row_once(self, api: Api) -> None:
        session = await api.new_session(member=MARIA)
        for start in (0, 300):
            lines = [{"role": "user", "content": f"Line {number}."} for number in range(start, start + 300)]
            await api.post(f"/v1/sessions/{session}/messages", {"messages": lines})
        exported = (await api.get(MARIAS))["data"]["messages"]
        assert sorted(row["content"] for row in exported) == sorted(f"Line {number}." for number in range(600))

    async def test_active_runs_are_stopped_first(self, api: Api) -> None:
        session = await api.new_session(member=MARIA)
        slow = {"text": "Never said.", "delay_ms": 60_000}
        run = await api.run(session, slow, background=True, status=202)
        assert (await api.call("DELETE", MARIAS)).json()["deleted"]["runs"] == 1
        assert (await api.call("GET", f"/v1/runs/{run['id']}")).status_code == 404

    async def test_another_workspace_has_nothing_to_erase(self, api: Api, admin: Api) -> None:
        session = await api.new_session(member=MARIA)
        other = await admin.new_workspace()
        assert set((await other.call("DELETE", MARIAS)).json()["deleted"].values()) == {0}
        await api.get(f"/v1/sessions/{session}")


class TestTheQuery:
    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    @pytest.mark.parametrize("query", ["", "?member=null", "?subject=null&confirm=tenant"])
    async def test_without_a_reference_it_is_refused(self, api: Api, method: str, query: str) -> None:
        answer = await api.call(method, f"/v1/data{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, "scope_required")

    async def test_a_tenant_alone_asks_to_be_confirmed(self, api: Api) -> None:
        session = await api.new_session()
        answer = await api.call("DELETE", "/v1/data?tenant=organization:42")
        assert (answer.status_code, answer.json()["code"]) == (422, "confirmation_required")
        await api.new_agent(tenant=TENANT)
        answer = await api.call("DELETE", "/v1/data?tenant=organization:42&confirm=tenant")
        assert (answer.json()["deleted"]["sessions"], answer.json()["deleted"]["agents"]) == (1, 1)
        assert (await api.call("GET", f"/v1/sessions/{session}")).status_code == 404

    async def test_null_is_an_axis_that_is_absent(self, api: Api) -> None:
        await api.new_session(member=MARIA)
        bare = await api.new_session()
        answer = await api.call("DELETE", "/v1/data?tenant=organization:42&member=null")
        assert answer.json()["deleted"]["sessions"] == 1
        assert (await api.call("GET", f"/v1/sessions/{bare}")).status_code == 404
        assert len((await api.get("/v1/sessions"))["data"]) == 1


class TestStores:
    def test_every_table_is_erased_or_named_here_as_one_that_holds_nothing_of_a_scope(self) -> None:
        known = {store.table for store in stores({"tenant": Reference(type="a", id="1")})}
        configured = {"workspaces", "api_keys", "providers", "tools", "subscriptions"}
        assert set(tables.agents.SQLModel.metadata.tables) == known | configured | {"idempotency_keys"}
