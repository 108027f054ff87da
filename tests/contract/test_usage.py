"""What was spent (contract, section 9), and what models get wrong with tools."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from app.infra.database import Database
from app.infra.settings import Settings, SettingsError
from app.main import create_app
from tests.api import TENANT, Api, TestTools, call, calls, schema, wanted
from tests.conftest import serving
from tests.contract.summing import Model, Stand, working
from tests.contract.test_doors import problem

OTHER = {"type": "organization", "id": "43"}
PRICES = '{"scripted/test": {"input": 2, "cached": 0.5, "output": "10"}, "scripted/free": {"input": 0, "output": 0}}'
SPENT = {"input_tokens": 1000, "output_tokens": 100, "cached_tokens": 400, "reasoning_tokens": 50}


def spent(text: str = "Hi.", **fields: int) -> dict[str, Any]:
    return {"text": text, "usage": {**SPENT, **fields}}


async def usage(api: Api, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.get(f"/v1/usage{query}"))["data"]
    return found


class TestUsage:
    async def test_each_model_call_counts_with_its_tokens(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", {"items": [1]})
        turn = {**call("search"), "usage": SPENT}
        run = await api.run(await api.new_session(), turn, spent(input_tokens=500))
        (whole,) = await usage(api)
        assert whole == {
            "calls": 2, "input_tokens": 1500, "output_tokens": 200, "cached_tokens": 800, "reasoning_tokens": 100,
            "cost": None,
        }  # fmt: skip
        assert {name: whole[name] for name in run["usage"]} == run["usage"]

    async def test_it_is_grouped_by_whatever_is_named(self, api: Api) -> None:
        agent = await api.new_agent(spent())
        for tenant, model in ((TENANT, "scripted/a"), (TENANT, "scripted/b"), (OTHER, "scripted/a")):
            await api.run(await api.new_session(tenant=tenant), spent(), model=model)
        fired = await api.post(f"/v1/agents/{agent['id']}/runs", {"tenant": OTHER}, 202)
        await api.ended(fired["id"])
        today = datetime.now(UTC).date().isoformat()
        by_tenant = await usage(api, "?group_by=tenant")
        assert [(one["tenant"], one["calls"]) for one in by_tenant] == [(TENANT, 2), (OTHER, 2)]
        by_model = await usage(api, "?group_by=model")
        assert [(one["model"], one["calls"]) for one in by_model] == [
            ("scripted/a", 2), ("scripted/b", 1), ("scripted/test", 1),
        ]  # fmt: skip
        by_both = await usage(api, "?group_by=agent,day")
        assert [(one["agent_id"], one["day"], one["calls"]) for one in by_both] == [
            (None, today, 3),
            (agent["id"], today, 1),
        ]
        (ours,) = await usage(api, "?tenant=organization:42&group_by=day")
        assert (ours["day"], ours["calls"]) == (today, 2)

    async def test_pages_hold_each_group_once(self, api: Api) -> None:
        for number in range(3):
            await api.run(await api.new_session(), spent(), model=f"scripted/{number}")
        first = await api.get("/v1/usage?group_by=model&limit=2")
        rest = await api.get(f"/v1/usage?group_by=model&limit=2&after={first['next']}")
        assert [one["model"] for one in [*first["data"], *rest["data"]]] == ["scripted/0", "scripted/1", "scripted/2"]
        assert rest["next"] is None

    async def test_a_span_has_its_beginning_and_not_its_end(self, api: Api, migrated: Database) -> None:
        await api.run(await api.new_session(), spent())
        moment = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
        query = "UPDATE usage_records SET at = $2 WHERE workspace_id = $1"
        await migrated.pool.execute(query, api.workspace_id, moment)
        for span, expected in (
            ("from=2026-01-01&to=2026-02-01", 1),
            ("from=2026-01-31T23:59:59Z&to=2026-02-01", 1),
            ("from=2026-01-01&to=2026-01-31T23:59:59Z", 0),
            ("from=2026-02-01T00:59:59%2B01:00&to=2026-02-02", 1),
        ):
            assert len(await usage(api, f"?{span}")) == expected, span
        (row,) = await usage(api, "?from=2026-01-01&to=2026-02-01&group_by=day")
        assert row["day"] == "2026-01-31"

    @pytest.mark.parametrize(
        "query", ["group_by=colour", "from=yesterday", "from=2026-02-01&to=2026-01-01", "to=2026-01-01T00:00:00", "tenant=x"]
    )
    async def test_what_is_wrong_is_refused(self, api: Api, query: str) -> None:
        problem(await api.call("GET", f"/v1/usage?{query}"), 422)

    async def test_prices_of_the_settings_make_costs(self, settings: Settings, api: Api, base_url: str) -> None:
        priced = settings.model_copy(update={"prices": PRICES})
        async with serving(priced) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            here = Api(http, api.key, api.workspace_id)
            await here.run(await here.new_session(), spent())
            await here.run(await here.new_session(), spent(), model="scripted/unpriced")
            await here.run(await here.new_session(), spent(), model="scripted/free")
            found = {one["model"]: one["cost"] for one in await usage(here, "?group_by=model")}
        # 600 of the 1000 input tokens were not cached
        assert found == {"scripted/test": 0.0024, "scripted/unpriced": None, "scripted/free": 0.0}

    @pytest.mark.parametrize("prices", ["x", '{"a": 1}', '{"a": {"input": -1, "output": 1}}', '{"a": {"input": 1}}'])
    def test_wrong_prices_stop_the_start_and_name_themselves(self, settings: Settings, prices: str) -> None:
        with pytest.raises(SettingsError, match="RONDO_PRICES"):
            create_app(settings.model_copy(update={"prices": prices}))

    async def test_another_workspace_sees_nothing_of_it(self, api: Api, admin: Api) -> None:
        await api.run(await api.new_session(), spent())
        assert await usage(await admin.new_workspace()) == []

    async def test_it_outlives_its_session_and_goes_with_its_tenant(self, api: Api) -> None:
        session = await api.new_session()
        await api.run(session, spent())
        assert (await api.call("DELETE", f"/v1/sessions/{session}")).status_code == 204
        assert (await usage(api))[0]["calls"] == 1
        assert (await api.call("DELETE", "/v1/data?tenant=organization:42&confirm=tenant")).status_code == 200
        assert await usage(api) == []

    async def test_summaries_count_too(self, settings: Settings, api: Api, base_url: str) -> None:
        async with Model(lambda body: "Fine.") as chat, Model(lambda body: "A summary.") as summariser:
            changed = settings.model_copy(update={"openai_base_url": chat.base_url})
            async with (
                serving(changed) as url,
                httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
                working(changed),
            ):
                stand = Stand(Api(http, api.key, api.workspace_id), chat, summariser)
                provider = {"kind": "openai", "base_url": summariser.base_url, "api_key": "k"}
                assert (await stand.api.call("PUT", "/v1/providers/lab", provider)).status_code == 201
                session = await stand.session(budget=200, keep=2)
                await stand.turns(session, 7)
                await stand.summarised(session)
                by_model = {one["model"]: one["calls"] for one in await usage(stand.api, "?group_by=model")}
        assert by_model["openai/chat"] == 7
        assert by_model["lab/sum"] >= 1


class TestInsights:
    async def test_they_tell_by_tool_and_model_what_became_of_the_calls(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", {"items": []}, {"items": []}, {"items": [1]})
        await test_tools.host(api, "book", {"ok": True}, parameters=schema(("n",), n={"type": "integer"}))
        turn = calls(wanted("search"), wanted("book", {"n": "x"}), wanted("guess"))
        await api.run(await api.new_session(), turn, call("search"), call("search"), "Done.", parallel_tools=1)
        rows = {one["tool"]: one for one in (await api.get("/v1/insights"))["data"]}
        assert {name: rows["search"][name] for name in ("calls", "empty", "ok", "model")} == {
            "calls": 3, "empty": 2, "ok": 1, "model": "scripted/test",
        }  # fmt: skip
        assert (rows["book"]["invalid"], rows["guess"]["unknown"]) == (1, 1)
        assert sum(row["hints"] for row in rows.values()) >= 1
        (by_model,) = (await api.get("/v1/insights?by=model"))["data"]
        assert (by_model["model"], by_model["calls"]) == ("scripted/test", 5)
        assert "tool" not in by_model

    async def test_calls_that_the_cap_left_are_skipped_ones(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", {"items": [1]})
        await api.run(await api.new_session(), call("search"), call("search"), max_iterations=2, on_cap="stop")
        (row,) = (await api.get("/v1/insights?by=tool"))["data"]
        assert (row["calls"], row["ok"], row["skipped"]) == (2, 1, 1)

    async def test_a_span_goes_by_when_the_run_was_accepted(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", {"items": [1]})
        await api.run(await api.new_session(), call("search"), "Done.")
        now = datetime.now(UTC)
        for start, expected in ((now - timedelta(minutes=5), 1), (now + timedelta(seconds=5), 0)):
            span = f"from={start.strftime('%Y-%m-%dT%H:%M:%SZ')}&to=2999-01-01"
            assert len((await api.get(f"/v1/insights?{span}"))["data"]) == expected

    async def test_what_is_wrong_is_refused(self, api: Api) -> None:
        problem(await api.call("GET", "/v1/insights?by=tenant"), 422)
