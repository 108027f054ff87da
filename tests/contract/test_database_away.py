"""PostgreSQL is restarted under runs, in good order and by a kill: requests are told to come back, and the runs carry on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from tests.api import Api, Event, Played, TestTools, calls, wanted
from tests.conftest import ADMIN_KEY, serving
from tests.faults.proxy import Proxy
from tests.outages import Outages, outages_on
from tests.providers.model_server import DONE, ModelServer, chunk, sse
from tests.tools_app import Held


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as model:
        yield model


@pytest.fixture(scope="module")
async def outages(settings: Settings, model: ModelServer) -> AsyncIterator[Outages]:
    async with outages_on(settings.model_copy(update={"openai_base_url": model.base_url})) as outages:
        yield outages


@pytest.fixture(scope="module")
async def admin_here(outages: Outages) -> AsyncIterator[Api]:
    async with serving(outages.settings) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        yield Api(http, ADMIN_KEY)


@pytest.fixture
async def here(admin_here: Api) -> Api:
    return await admin_here.new_workspace()


@asynccontextmanager
async def without_database(outages: Outages, *, killed: bool) -> AsyncIterator[None]:
    if killed:
        await outages.kill(outages.postgres)
    else:
        await outages.stop(outages.postgres)
    try:
        yield
    finally:
        await outages.start(outages.postgres)


async def events_of(api: Api, run_id: str) -> list[Event]:
    async with asyncio.timeout(60):
        return await api.events(run_id)


def once_each(played: Played) -> None:
    """Every message and result once, in order; ids without a gap."""
    assert [event.id for event in played.events] == list(range(1, len(played.events) + 1))
    positions = [message["position"] for message in played.messages]
    assert positions == list(range(positions[0], positions[0] + len(positions)))


@pytest.mark.parametrize("killed", [False, True], ids=["restarted", "killed"])
class TestUnderARun:
    async def test_the_owner_stores_what_came_meanwhile_and_goes_on(
        self, here: Api, outages: Outages, test_tools: TestTools, killed: bool
    ) -> None:
        held = Held(body={"items": [1]})
        slow = await test_tools.host(here, "slow", held)
        quick = await test_tools.host(here, "quick", {"items": [2]})
        turn = calls(wanted("quick"), wanted("slow"))
        run = await here.run(await here.new_session(), turn, "Done.", background=True, status=202)
        await slow.received()
        async with without_database(outages, killed=killed):
            held.gate.set()
            refused = await here.call("GET", f"/v1/runs/{run['id']}")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            ready = (await here.http.get("/readyz")).json()["checks"]
            assert (ready["database"], ready["redis"]) == ("unreachable", "ok")
        await events_of(here, run["id"])
        played = await here.played(await here.get(f"/v1/runs/{run['id']}"))
        assert (*played.ending, played.run["output"]) == ("completed", "stop", "Done.")
        assert "run.resumed" not in played.types, "by its owner"
        assert (len(slow.requests), len(quick.requests)) == (1, 1)
        once_each(played)

    async def test_a_reply_that_came_meanwhile_is_not_asked_for_again(
        self, here: Api, outages: Outages, model: ModelServer, killed: bool
    ) -> None:
        asked = len(model.requests)
        model.play(sse(chunk("Good "), 0.6, chunk("morning"), chunk(finish="stop"), DONE))
        run = await here.run(await here.new_session(), model="openai/x", background=True, status=202)
        async with asyncio.timeout(30):
            while len(model.requests) == asked:
                await asyncio.sleep(0.01)
        async with without_database(outages, killed=killed):
            await asyncio.sleep(0.8)
        await events_of(here, run["id"])
        played = await here.played(await here.get(f"/v1/runs/{run['id']}"))
        assert played.run["output"] == "Good morning"
        assert len(model.requests) == asked + 1
        assert len(played.model_calls) == 1
        once_each(played)

    async def test_every_kind_of_request_works_again_afterwards(self, here: Api, outages: Outages, killed: bool) -> None:
        session = await here.new_session()
        async with without_database(outages, killed=killed):
            for method, path, body in requests(session):
                answer = await here.call(method, path, body)
                assert (answer.status_code, answer.json()["code"]) == (503, "capacity"), path
                assert answer.headers["retry-after"]
        for method, path, body in requests(session):
            assert (await here.call(method, path, body)).is_success, path


def requests(session: str) -> list[tuple[str, str, Any]]:
    return [
        ("GET", "/v1/tools", None),
        ("GET", f"/v1/sessions/{session}", None),
        ("PATCH", f"/v1/sessions/{session}", {"title": "New"}),
        ("POST", f"/v1/sessions/{session}/runs", {"input": "Hello", "script": ["Hi."]}),
        ("POST", "/v1/sessions", {"tenant": {"type": "a", "id": "1"}}),
    ]


class TestStandsStill:
    """The server, or the network before it, takes everything and never answers."""

    async def test_requests_are_told_to_come_back_and_a_run_goes_on_afterwards(
        self, outages: Outages, test_tools: TestTools
    ) -> None:
        line = await Proxy.open(outages.postgres.port)
        url = (outages.settings.database_url or "").replace(f":{outages.postgres.port}/", f":{line.port}/")
        settings = outages.settings.model_copy(update={"database_url": url, "database_timeout_seconds": 1.0})
        try:
            async with serving(settings) as base, httpx.AsyncClient(base_url=base, timeout=30, trust_env=False) as http:
                here = await Api(http, ADMIN_KEY).new_workspace()
                held = Held(body={"items": [1]})
                slow = await test_tools.host(here, "slow", held)
                session = await here.new_session()
                run = await here.run(session, calls(wanted("slow")), "Done.", background=True, status=202)
                await slow.received()
                line.hold()
                held.gate.set()
                for method, path, body in requests(session):
                    answer = await here.call(method, path, body)
                    assert (answer.status_code, answer.json()["code"]) == (503, "capacity"), path
                assert (await here.http.get("/readyz")).json()["checks"]["database"] == "unreachable"
                line.flow()
                await events_of(here, run["id"])
                played = await here.played(await here.get(f"/v1/runs/{run['id']}"))
                assert (*played.ending, played.run["output"]) == ("completed", "stop", "Done.")
                assert len({request.headers["idempotency-key"] for request in slow.requests}) == 1
                once_each(played)
        finally:
            line.flow()
            await line.close()


class CuttingProxy:
    """A way to PostgreSQL that breaks once the server has answered a statement that holds `mark`: the answer is lost."""

    def __init__(self, port: int) -> None:
        self._port, self.mark, self.cuts = port, b"", 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        cut = asyncio.Event()

        async def there() -> None:
            while data := await reader.read(65536):
                if self.mark and self.mark in data:
                    self.mark, self.cuts = b"", self.cuts + 1
                    cut.set()
                to_server.write(data)

        async def back() -> None:
            while data := await from_server.read(65536):
                if cut.is_set():
                    return
                writer.write(data)

        ways = [asyncio.create_task(there()), asyncio.create_task(back())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, to_server):
                end.transport.abort()


@pytest.fixture(scope="module")
async def proxied(outages: Outages) -> AsyncIterator[tuple[CuttingProxy, Api]]:
    proxy = CuttingProxy(outages.postgres.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = (outages.settings.database_url or "").replace(f":{outages.postgres.port}/", f":{port}/")
    settings = outages.settings.model_copy(update={"database_url": url})
    async with serving(settings) as base, httpx.AsyncClient(base_url=base, timeout=30, trust_env=False) as http:
        yield proxy, Api(http, ADMIN_KEY)
    server.close()


class TestLostAnswers:
    """The connection breaks between a commit and its answer, so that nobody knows whether the step was stored."""

    @pytest.mark.parametrize("lost", ["reply", "answer", "end", "wait"])
    async def test_no_step_is_stored_twice(
        self, proxied: tuple[CuttingProxy, Api], test_tools: TestTools, lost: str
    ) -> None:
        proxy, admin = proxied
        api = await admin.new_workspace()
        held = Held(body={"items": ["the-result"]})
        slow = await test_tools.host(api, "slow", held)
        pay = await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        turn = calls(wanted("slow"), wanted("pay", {"sum": "the-pending"}), text="the-question")
        proxy.cuts = 0
        script = [{**turn, "delay_ms": 60}, {"text": "the-end", "delay_ms": 60}]
        run = await api.run(await api.new_session(), *script, background=True, status=202)
        proxy.mark = b"the-question" if lost == "reply" else b""
        await slow.received()
        proxy.mark = {"answer": b"the-result", "wait": b"the-pending"}.get(lost, b"")
        held.gate.set()
        async with asyncio.timeout(30):
            while (await api.get(f"/v1/runs/{run['id']}"))["status"] != "waiting":
                await asyncio.sleep(0.02)
        decision = {"decisions": [{"call_id": "*", "decision": "approve"}]}
        await api.post(f"/v1/runs/{run['id']}/approvals", decision, 200)
        await pay.received()
        proxy.mark = b"completed" if lost == "end" else b""
        await events_of(api, run["id"])
        assert proxy.cuts == 1 or lost == "reply"
        played = await api.played(await api.get(f"/v1/runs/{run['id']}"))
        assert (*played.ending, played.run["output"]) == ("completed", "stop", "the-end")
        roles = ["user", "assistant", "tool", "tool", "assistant"]
        assert [message["role"] for message in played.messages] == roles
        assert (played.run["tool_calls"], played.run["iterations"]) == (2, 2)
        assert [len(iteration["model_calls"]) for iteration in played.trace] == [1, 1]
        assert (len(slow.requests), len(pay.requests)) == (1, 1)
        once_each(played)
