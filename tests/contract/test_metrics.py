"""`GET /metrics`: what is counted, and by what: never by who asked or what for."""

import asyncio
import re
import sys

import httpx
from prometheus_client.parser import text_string_to_metric_families

from app.infra.settings import Settings
from tests.api import Api
from tests.conftest import serving
from tests.contract.test_conflicts import SLOW, begin, cancel
from tests.contract.test_recovery import REPOSITORY, fleet_on, template
from tests.ports import free_port

__all__ = ["template"]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(http: httpx.AsyncClient) -> Samples:
    response = await http.get("/metrics")
    assert response.status_code == 200
    families = text_string_to_metric_families(response.text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0.0)


class TestRequests:
    async def test_they_are_counted_by_the_template_of_their_route(self, api: Api) -> None:
        labels = {"method": "GET", "route": "/v1/sessions/{session_id}"}
        before = await scraped(api.http)
        session_id = await api.new_session()
        await api.get(f"/v1/sessions/{session_id}")
        await api.call("GET", f"/v1/sessions/{session_id[:-1]}_")
        after = await scraped(api.http)
        for status in ("200", "404"):
            name = "rondo_http_requests_total"
            assert value(after, name, **labels, status=status) == value(before, name, **labels, status=status) + 1
        count = "rondo_http_request_seconds_count"
        assert value(after, count, **labels) == value(before, count, **labels) + 2

    async def test_what_a_caller_makes_up_makes_no_series(self, api: Api) -> None:
        for number in range(3):
            await api.http.get(f"/nothing/{number}")
            await api.http.request(f"BREW{number}", "/v1/sessions")
        samples = await scraped(api.http)
        assert value(samples, "rondo_http_requests_total", method="GET", route="none", status="404") >= 3
        assert not any("BREW" in str(labels) or "nothing" in str(labels) for _, labels in samples)

    async def test_no_label_tells_a_tenant_a_session_a_run_or_a_key(self, api: Api) -> None:
        run = await api.run(await api.new_session(tenant={"type": "organization", "id": "label-canary"}), "Hi.")
        text = (await api.http.get("/metrics")).text
        for secret in (run["id"], run["session_id"], api.key, str(api.workspace_id), "label-canary"):
            assert secret not in text
        assert not re.search(r"(ses|run|msg|call|key|wsp)_[0-9a-f]{32}", text)


class TestStores:
    async def test_pools_and_redis_are_told(self, api: Api) -> None:
        samples = await scraped(api.http)
        assert value(samples, "rondo_database_up") == value(samples, "rondo_redis_up") == 1
        for pool in ("runs", "configuration"):
            most = value(samples, "rondo_pool_connections_most", pool=pool)
            used = value(samples, "rondo_pool_connections", pool=pool, state="used")
            assert 0 <= used + value(samples, "rondo_pool_connections", pool=pool, state="idle") <= most

    async def test_a_redis_out_of_reach_is_a_zero_and_no_failure(self, api: Api, settings: Settings) -> None:
        away = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
        async with serving(away) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
            assert value(await scraped(http), "rondo_redis_up") == 0


class TestStreams:
    async def test_an_open_stream_is_counted_until_it_ends(self, api: Api) -> None:
        run = await begin(api, await api.new_session(), SLOW)
        before = value(await scraped(api.http), "rondo_open_streams")
        async with api.http.stream("GET", f"/v1/runs/{run['id']}/events", headers=api.headers()) as held:
            chunks = held.aiter_raw()
            await anext(chunks)
            assert value(await scraped(api.http), "rondo_open_streams") == before + 1
            await cancel(api, run)
            async for _ in chunks:
                pass
        assert value(await scraped(api.http), "rondo_open_streams") == before


class TestOfAWorker:
    async def test_it_serves_its_own_where_a_port_is_set(self, settings: Settings, template: str) -> None:
        port = free_port()
        async with fleet_on(settings, "metrics_worker", template, RONDO_WORKER_METRICS_PORT=str(port)) as fleet:
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "app.cli", "worker", cwd=REPOSITORY, env=fleet.environment,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
                    assert "rondo_jobs" in await _answered(http)
            finally:
                worker.terminate()
                await asyncio.wait_for(worker.wait(), 60)


async def _answered(http: httpx.AsyncClient) -> str:
    async with asyncio.timeout(60):
        while True:
            try:
                return (await http.get("/metrics")).text
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
