"""Redis is stopped, hung or emptied under runs: it costs live deltas and a little time, never work, and no event."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from time import monotonic
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from tests.api import Api, Event, TestTools, call, calls, read_events, schema, wanted
from tests.conftest import ADMIN_KEY, serving
from tests.outages import Outages, outages_on
from tests.tools_app import Held, Hook

DELTAS = {"message.delta", "reasoning.delta"}
ENDS = {"run.completed", "run.incomplete", "run.failed", "run.cancelled"}


@pytest.fixture(scope="module")
async def outages(settings: Settings) -> AsyncIterator[Outages]:
    async with outages_on(settings) as outages:
        yield outages


@pytest.fixture(scope="module")
async def replicas(outages: Outages) -> AsyncIterator[tuple[Api, Api]]:
    async with AsyncExitStack() as stack:
        apis = []
        for _ in range(2):
            url = await stack.enter_async_context(serving(outages.settings))
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30, trust_env=False))
            apis.append(Api(http, ADMIN_KEY))
        yield apis[0], apis[1]


@pytest.fixture
async def here(replicas: tuple[Api, Api]) -> Api:
    return await replicas[0].new_workspace()


@pytest.fixture
def there(replicas: tuple[Api, Api], here: Api) -> Api:
    """The same workspace at another replica."""
    return Api(replicas[1].http, here.key, here.workspace_id)


class Client:
    """Follows a run in its own task."""

    def __init__(self, api: Api, run_id: str, after: int | None = None) -> None:
        self._api, self._run_id, self._after = api, run_id, after
        self.seen: list[Event] = []
        self._changed = asyncio.Condition()
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        headers = {} if self._after is None else {"Last-Event-ID": str(self._after)}
        async for event in self._api.follow(f"/v1/runs/{self._run_id}/events", headers):
            async with self._changed:
                self.seen.append(event)
                self._changed.notify_all()

    async def saw(self, kind: str, count: int = 1) -> None:
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: [event.type for event in self.seen].count(kind) >= count)

    async def ended(self) -> list[Event]:
        async with asyncio.timeout(60):
            await self.task
        return self.seen


def whole(events: list[Event]) -> list[tuple[int | None, str]]:
    """Ids and types, without deltas: what every client sees, however it followed. Checks that ids only grow."""
    ids = [event.id for event in events if event.id is not None]
    assert ids == sorted(set(ids))
    assert events[-1].type in ENDS
    return [(event.id, event.type) for event in events if event.type not in DELTAS and event.id is not None]


def text_of(events: list[Event]) -> dict[str, str]:
    """The text of each message as a client has put it together."""
    texts: dict[str, str] = {}
    for event in events:
        if event.type == "message.discarded":
            texts.pop(event.data["message_id"], None)
        elif event.type == "message.delta":
            texts[event.data["message_id"]] = texts.get(event.data["message_id"], "") + event.data["text"]
    return texts


async def redis_is(api: Api, state: str) -> None:
    async with asyncio.timeout(30):
        while (await api.http.get("/readyz")).json()["checks"]["redis"] != state:
            await asyncio.sleep(0.02)


async def slow_tool(api: Api, test_tools: TestTools, name: str = "slow", **fields: Any) -> tuple[Held, Hook]:
    held = Held(body={"items": [1]})
    return held, await test_tools.host(api, name, held, **fields)


@pytest.mark.parametrize("hung", [False, True], ids=["stopped", "hung"])
class TestWithoutRedis:
    async def test_a_run_starts_calls_waits_goes_on_and_ends(
        self, here: Api, outages: Outages, test_tools: TestTools, hung: bool
    ) -> None:
        pay = await test_tools.host(here, "pay", {"paid": True}, requires_approval=True)
        search = await test_tools.host(here, "search", {"items": [1]})
        script = [call("search"), calls(wanted("pay"), wanted("search")), "Paid.", "never"]
        async with outages.without_redis(hung=hung):
            started = monotonic()
            run = await here.run(await here.new_session(), *script)
            assert (run["status"], [item["tool"] for item in run["pending"]]) == ("waiting", ["pay"])
            decision = {"decisions": [{"call_id": "*", "decision": "approve"}]}
            await here.post(f"/v1/runs/{run['id']}/approvals", decision, 200)
            events = await here.events(run["id"])
            assert events[-1].data["run"]["output"] == "Paid."
            assert monotonic() - started < 6
            assert (len(pay.requests), len(search.requests)) == (1, 2)
        await redis_is(here, "ok")
        assert whole(await here.events(run["id"])) == whole(events)
        assert text_of(events) == text_of(await here.events(run["id"]))

    async def test_both_ways_to_follow_show_all_but_deltas_from_the_rows(
        self, here: Api, outages: Outages, test_tools: TestTools, hung: bool
    ) -> None:
        await test_tools.host(here, "search", {"items": [1]})
        async with outages.without_redis(hung=hung):
            posted = await here.stream_run(await here.new_session(), call("search", text="Let me look."), "Found.")
            got = await here.events(posted[0].data["run_id"])
        assert whole(posted) == whole(got)
        assert list(text_of(posted).values()) == list(text_of(got).values()) == ["Let me look.", "Found."]
        types = [event.type for event in posted if event.type not in DELTAS]
        assert types == [
            "run.queued", "run.started", "iteration.started", "message.completed", "tool.invoking", "tool.invoked",
            "iteration.completed", "iteration.started", "message.completed", "iteration.completed", "run.completed",
        ]  # fmt: skip
        await redis_is(here, "ok")

    async def test_a_run_is_cancelled(
        self, here: Api, there: Api, outages: Outages, test_tools: TestTools, hung: bool
    ) -> None:
        _, hook = await slow_tool(here, test_tools)
        runs = [await here.run(await here.new_session(), call("slow"), background=True, status=202) for _ in range(2)]
        await hook.received(2)
        async with outages.without_redis(hung=hung):
            for api, run in zip((here, there), runs, strict=True):
                started = monotonic()
                ended = await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
                assert (ended["status"], monotonic() - started < 4) == ("cancelled", True)
        await redis_is(here, "ok")
        await redis_is(there, "ok")

    async def test_who_follows_sees_the_rest_from_the_rows_and_what_comes_later_live(
        self, here: Api, there: Api, outages: Outages, test_tools: TestTools, hung: bool
    ) -> None:
        first, one = await slow_tool(here, test_tools, "one")
        second, two = await slow_tool(here, test_tools, "two")
        last = {"text": "All of it is done.", "chunk_chars": 3, "delay_ms": 5}
        run = await here.run(await here.new_session(), call("one"), call("two"), last, background=True, status=202)
        clients = [Client(here, run["id"]), Client(there, run["id"])]
        await one.received()
        for client in clients:
            await client.saw("tool.invoking")
        async with outages.without_redis(hung=hung):
            first.gate.set()
            await two.received()
            for client in clients:
                await client.saw("tool.invoked")
        await redis_is(here, "ok")
        await redis_is(there, "ok")
        second.gate.set()
        seen = [await client.ended() for client in clients]
        assert whole(seen[0]) == whole(seen[1]) == whole(await here.events(run["id"]))
        for events in seen:
            assert list(text_of(events).values()) == ["All of it is done."]
            assert len([event for event in events if event.type == "message.delta"]) > 3, "live again"

    async def test_readiness_tells_and_health_does_not(self, here: Api, outages: Outages, hung: bool) -> None:
        async with outages.without_redis(hung=hung):
            started = monotonic()
            ready, alive = await here.http.get("/readyz"), await here.http.get("/healthz")
            assert (ready.status_code, ready.json()["checks"]["redis"], alive.status_code) == (503, "unreachable", 200)
            assert monotonic() - started < 3
        await redis_is(here, "ok")
        assert (await here.http.get("/readyz")).status_code == 200

    async def test_a_queued_run_is_accepted_at_once_and_begins_in_its_turn(
        self, here: Api, outages: Outages, test_tools: TestTools, hung: bool
    ) -> None:
        held, hook = await slow_tool(here, test_tools)
        session = await here.new_session()
        async with outages.without_redis(hung=hung):
            await here.run(session, call("slow"), "First.", background=True, status=202)
            second = await here.run(session, "Second.", on_conflict="queue", background=True, status=202)
            await hook.received()
            held.gate.set()
            events = await here.events(second["id"])
        assert [event.type for event in events][:2] == ["run.queued", "run.started"]
        assert events[-1].data["run"]["output"] == "Second."
        await redis_is(here, "ok")

    async def test_a_session_is_deleted(self, here: Api, outages: Outages, test_tools: TestTools, hung: bool) -> None:
        _, hook = await slow_tool(here, test_tools)
        session = await here.new_session()
        run = await here.run(session, call("slow"), background=True, status=202)
        await hook.received()
        client = Client(here, run["id"])
        await client.saw("tool.invoking")
        async with outages.without_redis(hung=hung):
            assert (await here.call("DELETE", f"/v1/sessions/{session}")).status_code == 204
            async with asyncio.timeout(30):
                await client.task
        assert client.seen[-1].type == "tool.invoking"
        await redis_is(here, "ok")


class TestEmptied:
    async def test_in_the_middle_of_a_message_nobody_misses_or_doubles_anything(
        self, here: Api, there: Api, outages: Outages
    ) -> None:
        for replica in (here, there):  # both have noticed that an earlier outage is over
            await redis_is(replica, "ok")
        text = "One two three four five six seven eight nine ten. " * 4
        script = [{"text": text, "chunk_chars": 2, "delay_ms": 30}]
        run = await here.run(await here.new_session(), *script, background=True, status=202)
        early = [Client(here, run["id"]), Client(there, run["id"])]
        for client in early:
            await client.saw("message.delta", 3)
        await outages.empty_redis()
        await early[0].saw("message.delta", 8)
        cut = next(event.id for event in early[1].seen[4:])
        late = [Client(here, run["id"]), Client(there, run["id"]), Client(there, run["id"], cut)]
        told = [await client.ended() for client in [*early, *late]]
        expected = whole(await here.events(run["id"]))
        for events in told[:4]:
            assert whole(events) == expected
            assert list(text_of(events).values()) == [text]
        assert text_of([*early[1].seen[:5], *told[4]]) == text_of(told[0])

    async def test_while_a_run_waits_its_ids_go_on_where_they_were(self, here: Api, outages: Outages) -> None:
        await here.call("PUT", "/v1/tools/ask", {"description": "Asks.", "parameters": schema(), "kind": "client"})
        run = await here.run(await here.new_session(), call("ask"), "Done.")
        before = [event async for event in until(here, run["id"], "run.waiting")]
        await outages.empty_redis()
        result = {"call_id": run["pending"][0]["call_id"], "result": 1}
        await here.post(f"/v1/runs/{run['id']}/tool-results", {"results": [result]}, 200)
        after = await here.events(run["id"], before[-1].id)
        assert [event.id for event in [*before, *after]] == list(range(1, len(before) + len(after) + 1))
        assert after[0].type == "run.resumed"


class TestErased:
    async def test_who_follows_on_another_replica_is_let_go_at_once(
        self, here: Api, there: Api, outages: Outages, test_tools: TestTools
    ) -> None:
        for replica in (here, there):
            await redis_is(replica, "ok")
        _, hook = await slow_tool(here, test_tools)
        session = await here.new_session()
        run = await here.run(session, call("slow"), background=True, status=202)
        await hook.received()
        client = Client(there, run["id"])
        await client.saw("tool.invoking")
        started = monotonic()
        assert (await here.call("DELETE", f"/v1/sessions/{session}")).status_code == 204
        await client.task
        assert monotonic() - started < 5, "without waiting for the next ping"
        assert client.seen[-1].type == "tool.invoking"


class TestBufferIsFull:
    async def test_what_waits_for_redis_is_bounded_and_the_rest_comes_from_the_rows(self, outages: Outages) -> None:
        text = "".join(f"{number} " for number in range(40_000))
        settings = outages.settings.model_copy(update={"event_buffer_bytes": 20_000, "event_buffer_total_bytes": 100_000})
        async with serving(settings) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            api = await Api(http, ADMIN_KEY).new_workspace()
            before = await dropped(api)
            async with outages.without_redis():
                run = await api.run(await api.new_session(), {"text": text, "chunk_chars": 50}, "never")
                assert run["output"] == text
                assert await dropped(api) - before > 1000
            await redis_is(api, "ok")
            events = await api.events(run["id"])
            assert list(text_of(events).values()) == [text]
            assert whole(events)[-1][1] == "run.completed"
            assert list(text_of(await api.events(run["id"])).values()) == [text]


async def dropped(api: Api) -> float:
    lines = (await api.http.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("rondo_events_dropped_total "))


async def until(api: Api, run_id: str, kind: str) -> AsyncIterator[Event]:
    async with api.http.stream("GET", f"/v1/runs/{run_id}/events", headers=api.headers()) as response:
        async for event in read_events(response):
            yield event
            if event.type == kind:
                return
