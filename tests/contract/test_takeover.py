"""A run that changes hands while its event log and its rows are not at one: nothing is shown twice, lost or told apart."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from app.events.frames import Group, frame_of_dict
from app.events.hub import Hub
from app.events.log import EventLog, Room, stream_key
from app.infra import redis as redis_client
from app.infra.database import Database
from app.infra.redis import Line
from app.infra.settings import Settings
from app.main import create_app
from app.request_log import Failures, RequestLog
from app.runs.recovery import catch_up
from app.runs.replay import rebuild
from tests.api import Api, Event, TestTools, call, calls, wanted
from tests.contract.test_events import lose_log
from tests.contract.test_recovery import left_by_a_dead_process
from tests.providers.model_server import DONE, ModelServer, chunk, sse
from tests.tools_app import Held

APPROVED = "UPDATE tool_calls SET resolution = $2 WHERE id = $1"


@pytest.fixture
async def redis(settings: Settings) -> AsyncIterator[Redis]:
    assert settings.redis_url is not None
    client = redis_client.connect(settings.redis_url, settings.redis_timeout_seconds)
    yield client
    await client.aclose()


@pytest.fixture
async def other(redis: Redis) -> AsyncIterator[EventLog]:
    """The event log as another process has it."""
    line = Line(redis)
    hub = Hub(line)
    log = EventLog(line, hub, 60, Room(1_000_000, 1_000_000))
    hub.start(lambda word: None)
    log.start()
    yield log
    await log.stop()
    await hub.stop()


def told(events: list[Event]) -> list[tuple[int | None, str]]:
    """All but the deltas."""
    return [(event.id, event.type) for event in events if event.type != "message.delta"]


def frame(run_id: str, seq: int, kind: str, **fields: Any) -> Group:
    body = {"type": kind, "run_id": run_id, "seq": seq, "at": "2026-01-01T00:00:00.000Z", **fields}
    return Group(seq, seq, frame_of_dict(body), False)


async def approved(api: Api, database: Database, test_tools: TestTools) -> dict[str, Any]:
    """A run whose approval came, and that nobody has carried on yet."""
    await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
    run: dict[str, Any] = await api.run(await api.new_session(), call("pay"), "Paid.")
    (item,) = run["pending"]
    await database.pool.execute(APPROVED, item["call_id"], {"kind": "approve", "arguments": None})
    return run


class TestShownAndNotStored:
    """An owner has shown an event, and died before the change that would have stored it."""

    async def test_the_next_owner_stores_it_so_that_a_lost_log_can_tell_it_too(
        self, api: Api, migrated: Database, test_tools: TestTools, settings: Settings, other: EventLog
    ) -> None:
        run = await approved(api, migrated, test_tools)
        top = await other.top(run["id"])
        epoch = await migrated.pool.fetchval("SELECT epoch FROM runs WHERE id = $1", run["id"])
        assert await other.append(run["id"], epoch, frame(run["id"], top + 1, "run.resumed", reason="recovered"))
        await left_by_a_dead_process(migrated, run)
        before = told(await api.events(run["id"]))
        assert (top + 1, "run.resumed") in before
        assert before[-1][1] == "run.completed"
        await lose_log(settings, run["id"])
        assert told(await api.events(run["id"])) == before


class TestLateOwner:
    """A process that was held up still writes, when another one owns the run by now."""

    async def test_it_is_refused_from_the_moment_on_that_the_new_owner_reads_the_log(
        self, api: Api, migrated: Database, test_tools: TestTools, other: EventLog
    ) -> None:
        await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        run = await api.run(await api.new_session(), call("pay"), "Paid.")
        row = dict(await migrated.pool.fetchrow("SELECT * FROM runs WHERE id = $1", run["id"]))
        shown = await catch_up(other, migrated.pool, {**row, "epoch": row["epoch"] + 1})
        late = frame(run["id"], shown.last_seq + 1, "iteration.started", iteration=9, model="late")
        assert not await other.append(run["id"], row["epoch"], late)
        assert await other.top(run["id"]) == shown.last_seq


class TestLogThatIsBehind:
    """The end of a run is stored, and the log has not been told of it yet."""

    async def test_a_client_inside_a_message_gets_the_rest_of_it_and_not_the_whole_anew(
        self, api: Api, redis: Redis
    ) -> None:
        played = await api.play({"text": "One two three four.", "chunk_chars": 4, "delay_ms": 5})
        deltas = [event for event in played.events if event.type == "message.delta"]
        after = deltas[1].id or 0
        key = stream_key(played.run["id"])
        later = [entry for entry, _ in await redis.xrange(key, min=f"({after}-0")]
        await redis.xdel(key, *later)
        rest, *others = await api.events(played.run["id"], after)
        assert (rest.id, rest.type, rest.data["text"]) == (deltas[-1].id, "message.delta", "three four.")
        assert told(others) == [(event.id, event.type) for event in played.events if (event.id or 0) > (deltas[-1].id or 0)]
        whole = [event for event in await api.events(played.run["id"]) if event.type == "message.delta"]
        assert "".join(event.data["text"] for event in whole) == "One two three four."


class TestCalledOff:
    """A run is cancelled while some of its calls wait for their turn."""

    async def test_every_call_that_is_answered_was_shown_before(self, api: Api, test_tools: TestTools) -> None:
        search = await test_tools.host(api, "search", Held(body={}))
        turn = calls(wanted("search", {"n": 1}), wanted("search", {"n": 2}))
        run = await api.run(await api.new_session(), turn, "never", parallel_tools=1, background=True, status=202)
        await search.received()
        await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        events = await api.events(run["id"])
        shown = [(event.type, event.data["call_id"]) for event in events if event.type.startswith("tool.")]
        call_ids = [call_id for kind, call_id in shown if kind == "tool.invoked"]
        assert len(set(call_ids)) == 2
        assert [call_id for kind, call_id in shown if kind == "tool.invoking"] == call_ids
        assert len(search.requests) == 1


class TestInterruptOfAProcessThatLeaves:
    async def test_who_would_interrupt_a_run_that_is_slow_to_end_is_sent_to_another_process(
        self, settings: Settings, api: Api, test_tools: TestTools, tmp_path: Path
    ) -> None:
        gate, hooks = tmp_path / "gate", tmp_path / "hooks.py"
        hooks.write_text(_HOLDS.format(gate=str(gate)))
        await test_tools.host(api, "search", {})
        app = create_app(settings.model_copy(update={"hooks": str(hooks)}))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here", timeout=30) as http:
                there = Api(http, api.key, api.workspace_id)
                session = await there.new_session()
                first = await there.run(session, call("search"), "Done", background=True, status=202)
                async for event in api.follow(f"/v1/runs/{first['id']}/events"):
                    if event.type == "tool.invoking":
                        break
                app.state.process.leave()
                body = {"input": "Stop.", "script": ["Yes"], "on_conflict": "interrupt"}
                refused = await there.call("POST", f"/v1/sessions/{session}/runs", body)
                gate.touch()
        assert refused.status_code == 503, refused.text
        assert refused.headers["Retry-After"] == "1"
        assert (await api.ended(first["id"])).run["status"] == "cancelled"
        again = await api.post(f"/v1/sessions/{session}/runs", body, 200)
        assert again["status"] == "completed"


_HOLDS = """
import asyncio, pathlib

async def before_tool(call, run):
    while not pathlib.Path({gate!r}).exists():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass
    return call
"""


class TestRequestCutOffByAShutdown:
    async def test_it_is_answered_503(self) -> None:
        sent: list[Any] = []
        begun = asyncio.Event()

        async def endless(scope: Any, receive: Any, send: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/runs", "headers": []}
        task = asyncio.ensure_future(RequestLog(Failures(endless))(scope, lambda: asyncio.sleep(0), send))  # type: ignore[arg-type,return-value]
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sent[0]["status"] == 503
        assert b'"capacity"' in sent[1]["body"]


class TestStoredBeforeShown:
    async def test_that_a_message_is_discarded_stands_in_the_rows_when_it_is_seen(
        self, api: Api, migrated: Database, settings: Settings
    ) -> None:
        async with ModelServer() as model:
            half = sse(chunk("Half an "), chunk("answer"), 0.05, end="reset")
            model.play(half, sse(chunk("Whole."), 0.5, chunk(finish="stop"), DONE))
            provider = {"kind": "openai", "base_url": model.base_url, "api_key": "k"}
            assert (await api.call("PUT", "/v1/providers/lab", provider)).status_code == 201
            run = await api.run(await api.new_session(), model="lab/x", background=True, status=202)
            async for event in api.follow(f"/v1/runs/{run['id']}/events"):
                if event.type == "message.discarded":
                    query = "SELECT type FROM run_events WHERE run_id = $1 AND seq = $2"
                    assert await migrated.pool.fetchval(query, run["id"], event.id) == "message.discarded"
                    break
            ended = await api.ended(run["id"])
            assert ended.run["output"] == "Whole."


class TestOfALostLog:
    async def test_a_client_that_saw_a_queued_run_may_come_back(
        self, api: Api, test_tools: TestTools, settings: Settings
    ) -> None:
        held = Held(body={})
        await test_tools.host(api, "slow", held)
        session = await api.new_session()
        await api.run(session, call("slow"), "Done.", background=True, status=202)
        queued = await api.run(session, "Second.", on_conflict="queue", background=True, status=202)
        await lose_log(settings, queued["id"])
        following = asyncio.create_task(api.events(queued["id"], 1))
        held.gate.set()
        assert (await following)[0].id == 2

    async def test_a_row_that_was_read_before_the_end_tells_the_end_all_the_same(
        self, api: Api, migrated: Database, test_tools: TestTools
    ) -> None:
        run = await approved(api, migrated, test_tools)
        before = await migrated.pool.fetchrow("SELECT * FROM runs WHERE id = $1", run["id"])
        await left_by_a_dead_process(migrated, run)
        events = await api.events(run["id"])
        told_late = await rebuild(migrated.pool, before)
        assert told_late[-1] == events[-1].data
        assert told_late[-1]["run"]["status"] == "completed"
