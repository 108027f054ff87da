"""Above a limit a request is refused and told when to come back (contract, section 1: overload); what was accepted ends."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from tests.api import TENANT, Api
from tests.conftest import ADMIN_KEY, serving
from tests.contract.test_conflicts import SLOW, begin, cancel
from tests.contract.test_doors import problem
from tests.contract.test_metrics import scraped, value
from tests.databases import own_database

ALONE = {"tenant": TENANT, "model": "scripted/x", "input": "Hello", "script": ["Hi."], "background": True}


@pytest.fixture(scope="module")
async def own(settings: Settings) -> AsyncIterator[Settings]:
    """On a database where no other process takes what waits."""
    async with own_database(settings, "limits") as made:
        yield made


@asynccontextmanager
async def limited(own: Settings, **limits: Any) -> AsyncIterator[Api]:
    """A service with these limits, and the key of a workspace there."""
    without = httpx.Limits()
    async with (
        serving(own.model_copy(update=limits)) as url,
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, limits=without) as http,
    ):
        yield await Api(http, ADMIN_KEY).new_workspace()


def refused(response: httpx.Response, status: int) -> int:
    """The seconds after which to come back."""
    problem(response, status, "capacity")
    assert response.headers["retry-after"].isdigit()
    return int(response.headers["retry-after"])


def at_once(runs: list[dict[str, Any]]) -> int:
    """How many of them were under way at the same moment, at most."""
    moments = [(datetime.fromisoformat(run["started_at"]), 1) for run in runs]
    moments += [(datetime.fromisoformat(run["finished_at"]), -1) for run in runs]
    most = under_way = 0
    for _, step in sorted(moments):
        under_way += step
        most = max(most, under_way)
    return most


class TestAFlood:
    async def test_every_accepted_run_ends_and_every_refusal_says_when_to_come_back(self, own: Settings) -> None:
        async with limited(own, max_concurrent_runs=4, max_queued_runs=6) as api:
            body = {**ALONE, "script": [{"text": "Hi.", "delay_ms": 30}]}
            answers = await asyncio.gather(*(api.call("POST", "/v1/runs", body) for _ in range(30)))
            accepted = [answer.json()["id"] for answer in answers if answer.status_code == 202]
            for answer in answers:
                assert answer.status_code == 202 or refused(answer, 503) >= 1
            assert 10 <= len(accepted) < 30
            for run_id in accepted:
                assert (await api.events(run_id))[-1].type == "run.completed"
            runs = (await api.get("/v1/runs?limit=200"))["data"]
            assert sorted(run["id"] for run in runs) == sorted(accepted), "a refused run was stored"
            assert at_once(runs) <= 4


class TestTheQueue:
    async def test_a_full_one_refuses_but_not_what_was_accepted_before(self, own: Settings) -> None:
        async with limited(own, max_concurrent_runs=1, max_queued_runs=0) as api:
            body = {**ALONE, "script": [SLOW]}
            first = await api.call("POST", "/v1/runs", body, Idempotency_Key="one")
            refused(await api.call("POST", "/v1/runs", body, Idempotency_Key="two"), 503)
            again = await api.call("POST", "/v1/runs", body, Idempotency_Key="one")
            assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
            assert again.headers["idempotent-replayed"] == "true"
            await cancel(api, first.json())

    async def test_how_many_wait_for_a_place_and_how_long_is_told(self, own: Settings) -> None:
        async with limited(own, max_concurrent_runs=1, sweep_seconds=60.0) as api:
            slow = await begin(api, await api.new_session(), SLOW)
            behind = await begin(api, slow["session_id"], "Hi.", on_conflict="queue")
            before = await scraped(api.http)
            waits = await api.post("/v1/runs", ALONE, 202)
            after = await scraped(api.http)
            assert value(before, "rondo_queued_runs") == 0, "one behind its session waits for no place"
            assert (value(after, "rondo_queued_runs"), value(after, "rondo_queue_wait_seconds") > 0) == (1, True)
            await cancel(api, slow)
            for run in (waits, behind):
                assert (await api.events(run["id"]))[-1].type == "run.completed"

    async def test_a_session_has_a_queue_of_its_own_that_takes_nobody_s_place(self, own: Settings) -> None:
        async with limited(own, max_queued_runs=1, max_session_queued_runs=1) as api:
            session_id = await api.new_session()
            first = await begin(api, session_id, SLOW)
            second = await begin(api, session_id, "Hi.", on_conflict="queue")
            body = {"input": "Hello", "script": ["Hi."], "background": True, "on_conflict": "queue"}
            refused(await api.call("POST", f"/v1/sessions/{session_id}/runs", body), 429)
            other = await begin(api, await api.new_session(), "Hi.")
            assert (await api.events(other["id"]))[-1].type == "run.completed"
            await cancel(api, first)
            assert (await api.events(second["id"]))[-1].type == "run.completed"


class TestAWorkspace:
    async def test_one_has_its_share_of_the_runs(self, own: Settings) -> None:
        async with limited(own, max_workspace_runs=1) as api:
            other = await Api(api.http, ADMIN_KEY).new_workspace()
            session_id = await api.new_session()
            first = await begin(api, await api.new_session(), SLOW)
            body = {"input": "Hello", "script": ["Hi."], "background": True}
            refused(await api.call("POST", f"/v1/sessions/{session_id}/runs", body), 429)
            assert await api.messages(session_id) == []
            assert (await other.call("POST", "/v1/runs", ALONE)).status_code == 202
            await cancel(api, first)
            assert (await api.call("POST", f"/v1/sessions/{session_id}/runs", body)).status_code == 202


class TestTheRateOfAKey:
    async def test_a_key_may_ask_so_often_on_all_replicas_together(self, api: Api, settings: Settings) -> None:
        slow = settings.model_copy(update={"requests_per_second": 0.01, "request_burst": 4})
        other = await Api(api.http, ADMIN_KEY).new_workspace()
        async with serving(slow) as one, serving(slow) as two, httpx.AsyncClient(trust_env=False) as http:
            for url in (one, two, one, two):
                assert (await http.get(f"{url}/v1/sessions", headers=api.headers())).status_code == 200
            for url in (one, two):
                assert 90 <= refused(await http.get(f"{url}/v1/sessions", headers=api.headers()), 429) <= 100
            assert (await http.get(f"{one}/v1/sessions", headers=other.headers())).status_code == 200
            assert (await http.get(f"{one}/v1/sessions")).status_code == 401

    async def test_a_repeated_post_gets_its_first_answer_all_the_same(self, api: Api, settings: Settings) -> None:
        slow = settings.model_copy(update={"requests_per_second": 0.01, "request_burst": 2})
        async with serving(slow) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            there = Api(http, api.key)
            run = await there.call("POST", "/v1/runs", ALONE, Idempotency_Key="rate-run")
            made = await there.call("POST", "/v1/sessions", {"tenant": TENANT}, Idempotency_Key="rate-session")
            for path, body, key, first in (
                ("/v1/runs", ALONE, "rate-run", run),
                ("/v1/sessions", {"tenant": TENANT}, "rate-session", made),
            ):
                again = await there.call("POST", path, body, Idempotency_Key=key)
                assert (again.status_code, again.json()["id"]) == (first.status_code, first.json()["id"])
                refused(await there.call("POST", path, body, Idempotency_Key="rate-new"), 429)
                refused(await there.call("POST", path, body), 429)
            cancelling = await there.call("POST", f"/v1/runs/{run.json()['id']}/cancel", Idempotency_Key="rate-run")
            refused(cancelling, 429)


class TestOpenStreams:
    async def test_a_full_process_refuses_before_a_run_is_accepted(self, api: Api, settings: Settings) -> None:
        small = settings.model_copy(update={"max_streams": 1})
        async with serving(small) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
            there = Api(http, api.key)
            session_id = await there.new_session()
            slow = await begin(there, await there.new_session(), SLOW)
            body = {"input": "Hello", "script": ["Hi."], "stream": True}
            async with http.stream("GET", f"/v1/runs/{slow['id']}/events", headers=there.headers()) as held:
                assert held.status_code == 200
                refused(await there.call("GET", f"/v1/runs/{slow['id']}/events"), 503)
                refused(await there.call("POST", f"/v1/sessions/{session_id}/runs", body), 503)
                assert (await there.get(f"/v1/runs?session_id={session_id}"))["data"] == []
                await cancel(there, slow)
                async for _ in held.aiter_raw():
                    pass
            assert (await there.stream_run(session_id, "Hi."))[-1].type == "run.completed"

    async def test_a_stream_whose_client_went_away_gives_its_place_back(self, api: Api, settings: Settings) -> None:
        small = settings.model_copy(update={"max_workspace_streams": 1})
        async with serving(small) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
            there = Api(http, api.key)
            slow = await begin(there, await there.new_session(), SLOW)
            path = f"/v1/runs/{slow['id']}/events"
            for _ in range(3):
                async with http.stream("GET", path, headers=there.headers()) as held:
                    assert held.status_code == 200
                    refused(await there.call("GET", path), 429)
                await self._free(http, path, there)
            await cancel(there, slow)

    async def _free(self, http: httpx.AsyncClient, path: str, there: Api) -> None:
        """The service hears of a closed connection a little later."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            async with http.stream("GET", path, headers=there.headers()) as response:
                if response.status_code == 200:
                    return
            await asyncio.sleep(0.02)
        pytest.fail("the place was never given back")
