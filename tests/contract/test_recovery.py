"""What becomes of runs when processes die (contract, section 4): real processes, killed and told to stop."""

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
from redis.asyncio import Redis

from app import migrations
from app.infra.database import Database, connect
from app.infra.settings import Settings
from tests.api import Api, Event, Played, TestTools, call, calls, read_events, wanted
from tests.conftest import ADMIN_KEY
from tests.providers.model_server import DONE, Answer, ModelServer, chunk, sse
from tests.tools_app import Held, Hook, Reply

REPOSITORY = Path(__file__).parents[2]
LEASE_SECONDS = 2


class Replica:
    """`rondo serve` as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.http = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)
        self.admin = Api(self.http, ADMIN_KEY)

    def api(self, of: Api) -> Api:
        """The same workspace, on this replica."""
        return Api(self.http, of.key, of.workspace_id)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.http.aclose()


class Fleet:
    """Replicas on a database of their own, so that nobody else carries their runs on."""

    def __init__(self, environment: dict[str, str], errors: Path) -> None:
        self.environment, self._errors = environment, errors
        self._replicas: list[Replica] = []

    async def start(self) -> Replica:
        with self._errors.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "app.cli", "serve", cwd=REPOSITORY, env=self.environment,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        try:
            url = await asyncio.wait_for(_address(process), 60)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert url is not None, self._errors.read_text()
        replica = Replica(process, url)
        self._replicas.append(replica)
        return replica

    async def forget_log(self, run_id: str) -> None:
        """Redis loses what it has of a run."""
        async with Redis.from_url(self.environment["REDIS_URL"]) as redis:
            keys = [key async for key in redis.scan_iter(match=f"*{run_id}*", count=1000)]
            assert keys
            await redis.delete(*keys)

    async def close(self) -> None:
        for replica in self._replicas:
            await replica.kill()


async def _address(process: asyncio.subprocess.Process) -> str | None:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b"Rondo listens on "):
            return line.decode().split()[-1]
    return None


@pytest.fixture(scope="module")
async def template(settings: Settings) -> str:
    """The name of a database that is up to date and that nobody is connected to."""
    assert settings.database_url is not None
    await create_database(settings.database_url, "recovery_template")
    database = await connect(database_url(settings.database_url, "recovery_template"))
    try:
        await migrations.upgrade(database.engine)
    finally:
        await database.close()
    return "recovery_template"


async def create_database(url: str, name: str, template: str = "template1") -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {name}")
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    finally:
        await connection.close()


def database_url(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


@asynccontextmanager
async def fleet_on(settings: Settings, name: str, template: str, **more: str) -> AsyncIterator[Fleet]:
    assert settings.database_url is not None
    assert settings.redis_url is not None
    assert settings.encryption_keys is not None
    await create_database(settings.database_url, name, template)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RONDO_", "PYTHON", "OPENAI_"))}
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **inherited,
            # a process starts much sooner when what it imports is compiled
            "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "rondo-tests-bytecode"),
            "DATABASE_URL": database_url(settings.database_url, name),
            "REDIS_URL": settings.redis_url,
            "HOST": "127.0.0.1",
            "PORT": "0",
            "RONDO_DATA_DIR": folder,
            "RONDO_ADMIN_KEY": ADMIN_KEY,
            "RONDO_SERVICE_KEY": "service-key-of-the-fleet-0123456789",
            "RONDO_ENCRYPTION_KEYS": settings.encryption_keys,
            "RONDO_ALLOW_PRIVATE_WEBHOOKS": "127.0.0.0/8",
            "RONDO_LEASE_SECONDS": str(LEASE_SECONDS),
            "RONDO_SWEEP_SECONDS": "0.5",
            "RONDO_HEARTBEAT_SECONDS": "0.2",
            "RONDO_DRAIN_SECONDS": "0.5",
            "RONDO_LOG_LEVEL": "error",
            **more,
        }
        fleet = Fleet(environment, Path(folder) / "errors.log")
        try:
            yield fleet
        finally:
            await fleet.close()


class Follower:
    """A client that follows a run, keeps its last id, and comes back to another replica when its connection breaks."""

    def __init__(self, run_id: str, *apis: Api) -> None:
        self.run_id, self._apis = run_id, list(apis)
        self.seen: list[Event] = []
        self.broken = 0
        self._changed = asyncio.Condition()
        self.task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        for api in self._apis:
            last = next((event.id for event in reversed(self.seen) if event.id is not None), None)
            headers = api.headers(**({} if last is None else {"Last-Event-ID": str(last)}))
            try:
                async with api.http.stream("GET", f"/v1/runs/{self.run_id}/events", headers=headers) as response:
                    assert response.status_code == 200, await response.aread()
                    async for event in read_events(response):
                        async with self._changed:
                            self.seen.append(event)
                            self._changed.notify_all()
                    if self.seen and self.seen[-1].data["type"] in ENDS:
                        return
            except httpx.TransportError:
                pass
            self.broken += 1

    async def until(self, reached: Callable[[list[Event]], bool]) -> None:
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: reached(self.seen))

    async def saw(self, type_: str, count: int = 1) -> None:
        await self.until(lambda seen: [event.type for event in seen].count(type_) >= count)

    @property
    def ids(self) -> list[int | None]:
        return [event.id for event in self.seen]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.seen]


ENDS = ("run.completed", "run.incomplete", "run.failed", "run.cancelled")


async def ended(api: Api, run: dict[str, Any]) -> Played:
    async with asyncio.timeout(30):
        await api.events(run["id"])
    return await api.played(await api.get(f"/v1/runs/{run['id']}"))


def check(played: Played) -> None:
    """One run, as if nothing had happened: ids without a gap, each thing shown once, a valid history."""
    assert [event.id for event in played.events] == list(range(1, len(played.events) + 1))
    for kind in ("iteration.started", "iteration.completed"):
        shown = [event["iteration"] for event in played.of(kind)]
        assert shown == sorted(set(shown)), kind
    for kind in ("tool.invoking", "tool.invoked"):
        shown = [event["call_id"] for event in played.of(kind)]
        assert len(shown) == len(set(shown)), kind
    positions = [message["position"] for message in played.messages]
    assert positions == list(range(positions[0], positions[0] + len(positions)))
    made = [made["id"] for message in played.messages for made in message["tool_calls"]]
    assert made == [message["tool_call_id"] for message in played.messages if message["role"] == "tool"]


def said(text: str) -> Answer:
    return sse(chunk(text), chunk(finish="stop"), DONE)


def tool_call(name: str) -> Answer:
    function = {"name": name, "arguments": "{}"}
    return sse(
        chunk(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": function}]),
        chunk(finish="tool_calls"),
        DONE,
    )


@dataclass
class Crash:
    """What happened when one of two replicas was killed in the middle of everything."""

    model: ModelServer
    hooks: dict[str, Hook] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    played: dict[str, Played] = field(default_factory=dict)
    elsewhere: Follower | None = None
    """Followed the message on the replica that lived on."""
    returned: Follower | None = None
    """Followed it on the one that was killed, then came back to the other."""
    cancelled: dict[str, Any] = field(default_factory=dict)

    def asked(self, input: str) -> int:
        """How often the model was asked for the run with that input."""
        return sum(request.json["messages"][0]["content"] == input for request in self.model.requests)


@pytest.fixture(scope="module")
async def crash(settings: Settings, template: str, test_tools: TestTools) -> AsyncIterator[Crash]:
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelServer())
        urls = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "sk-test"}
        fleet = await stack.enter_async_context(fleet_on(settings, "recovery_crash", template, **urls))
        doomed, survivor = await asyncio.gather(fleet.start(), fleet.start())
        api = await doomed.admin.new_workspace()
        other = survivor.api(api)
        happened = Crash(model)
        hooks, runs = happened.hooks, happened.runs
        for name in ("slow", "counted", "stopped"):
            hooks[name] = await test_tools.host(api, name, Reply(ending="hang"), {"items": [name]})
        hooks["once"] = await test_tools.host(api, "once", Reply(ending="hang"), {"items": ["again"]}, at_most_once=True)
        hooks["quick"] = await test_tools.host(api, "quick", {"items": ["quick"]})
        hooks["pay"] = await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        hooks["edited"] = await test_tools.host(api, "edited", Reply(ending="hang"), {"items": [1]}, requires_approval=True)

        async def start(name: str, *script: Any, **fields: Any) -> None:
            given = {"background": True, "input": name, "script": list(script), **fields}
            runs[name] = await api.post(f"/v1/sessions/{await api.new_session()}/runs", given, 202)

        await start("pay", call("pay"), "Paid.")
        await start("slow", calls(wanted("quick"), wanted("slow", {"b": 1, "a": {"z": 1, "y": 2}})), "Slow done.")
        await start("once", call("once"), "Once done.")
        await start("stopped", call("stopped"), "never")
        await start("edited", call("edited", {"n": 1}), "Edited done.")
        model.play(tool_call("counted"))
        await start("counted", model="openai/x")
        await hooks["counted"].received()
        model.play(sse(chunk("Good "), 0.05, chunk("mor"), end="hold"))
        await start("message", model="openai/x")
        happened.elsewhere = Follower(runs["message"]["id"], other)
        happened.returned = Follower(runs["message"]["id"], api, other)
        await happened.elsewhere.saw("message.delta", 2)
        await happened.returned.saw("message.delta", 2)
        edited = Follower(runs["edited"]["id"], other)
        await edited.saw("run.waiting")
        waits = await api.get(f"/v1/runs/{runs['edited']['id']}")
        decision = {"call_id": waits["pending"][0]["call_id"], "decision": "edit", "arguments": {"n": 2}}
        await api.post(f"/v1/runs/{waits['id']}/approvals", {"decisions": [decision]}, 200)
        for name in ("slow", "once", "stopped", "edited", "quick"):
            await hooks[name].received()
        await Follower(runs["slow"]["id"], other).saw("tool.invoked")
        await Follower(runs["pay"]["id"], other).saw("run.waiting")
        model.play(said("The end."), said("The end."))

        await doomed.kill()
        happened.cancelled = await other.post(f"/v1/runs/{runs['stopped']['id']}/cancel", status=200)
        for name in ("slow", "once", "counted", "message", "stopped", "edited"):
            happened.played[name] = await ended(other, runs[name])
        runs["pay"] = await other.get(f"/v1/runs/{runs['pay']['id']}")
        await other.post(
            f"/v1/runs/{runs['pay']['id']}/approvals", {"decisions": [{"call_id": "*", "decision": "approve"}]}, 200
        )
        happened.played["pay"] = await ended(other, runs["pay"])
        async with asyncio.timeout(60):
            await asyncio.gather(happened.elsewhere.task, happened.returned.task, edited.task)
        yield happened


class TestKilledInTheMiddleOfAToolCall:
    def test_another_replica_carries_the_run_on_to_its_end(self, crash: Crash) -> None:
        played = crash.played["slow"]
        assert (*played.ending, played.run["output"]) == ("completed", "stop", "Slow done.")
        assert [event["reason"] for event in played.of("run.resumed")] == ["recovered"]
        check(played)

    def test_the_call_is_sent_again_with_the_same_key_and_bytes(self, crash: Crash) -> None:
        first, second = crash.hooks["slow"].requests
        assert first.body == second.body
        for name in ("idempotency-key", "webhook-id", "rondo-run"):
            assert first.headers[name] == second.headers[name]
        assert first.headers["idempotency-key"] == crash.played["slow"].calls[1]["call_id"]

    def test_a_sibling_whose_result_is_stored_is_not_called_again(self, crash: Crash) -> None:
        assert len(crash.hooks["quick"].requests) == 1
        assert crash.played["slow"].results == [{"items": ["quick"]}, {"items": ["slow"]}]

    def test_an_edited_call_is_sent_again_as_it_was_edited(self, crash: Crash) -> None:
        first, second = crash.hooks["edited"].requests
        assert (first.body, first.json["data"]["arguments"]) == (second.body, {"n": 2})
        played = crash.played["edited"]
        assert [event["reason"] for event in played.of("run.resumed")] == ["answered", "recovered"]
        assert played.types.count("run.waiting") == 1, "nobody is asked twice"
        check(played)

    def test_a_tool_that_may_be_called_once_is_not_called_again(self, crash: Crash) -> None:
        played = crash.played["once"]
        assert len(crash.hooks["once"].requests) == 1
        assert played.results[0]["error"].startswith("outcome unknown")
        assert (*played.ending, played.run["output"]) == ("completed", "stop", "Once done.")
        check(played)

    def test_a_model_call_that_is_stored_is_not_made_again(self, crash: Crash) -> None:
        assert crash.asked("counted") == 2, "the turn with the call, and the one with its result"
        played = crash.played["counted"]
        assert [len(iteration["model_calls"]) for iteration in played.trace] == [1, 1]
        assert played.run["output"] == "The end."
        check(played)

    def test_a_script_goes_on_with_the_turn_after_those_that_were_played(self, crash: Crash) -> None:
        assert [len(iteration["model_calls"]) for iteration in crash.played["slow"].trace] == [1, 1]
        assert crash.played["slow"].run["iterations"] == 2


class TestKilledInTheMiddleOfAMessage:
    def test_the_message_is_written_anew_and_clients_are_told_to_forget_what_they_have(self, crash: Crash) -> None:
        played = crash.played["message"]
        assert played.types == [
            "run.queued", "run.started", "iteration.started", "message.delta", "message.delta", "run.resumed",
            "message.discarded", "message.delta", "message.completed", "iteration.completed", "run.completed",
        ]  # fmt: skip
        assert [delta["text"] for delta in played.of("message.delta")] == ["Good ", "mor", "The end."]
        assert len({event["message_id"] for event in played.of("message.delta", "message.discarded")}) == 1
        assert played.of("run.resumed")[0]["reason"] == "recovered"
        check(played)

    def test_the_answer_is_the_new_one(self, crash: Crash) -> None:
        played = crash.played["message"]
        assert (*played.ending, played.run["output"]) == ("completed", "stop", "The end.")
        assert [message["content"] for message in played.messages] == ["message", "The end."]

    def test_the_model_is_asked_once_more(self, crash: Crash) -> None:
        assert crash.asked("message") == 2

    def test_a_follower_on_another_replica_sees_every_id_once(self, crash: Crash) -> None:
        assert crash.elsewhere is not None
        assert crash.elsewhere.broken == 0
        assert [event.raw for event in crash.elsewhere.seen] == [event.raw for event in crash.played["message"].events]

    def test_a_follower_that_comes_back_elsewhere_sees_every_id_once(self, crash: Crash) -> None:
        assert crash.returned is not None
        assert crash.returned.broken == 1
        assert [event.raw for event in crash.returned.seen] == [event.raw for event in crash.played["message"].events]


class TestKilledWhileARunWaits:
    def test_the_run_waits_on_and_nobody_takes_it(self, crash: Crash) -> None:
        assert crash.runs["pay"]["status"] == "waiting"
        assert [item["tool"] for item in crash.runs["pay"]["pending"]] == ["pay"]

    def test_a_decision_at_another_replica_lets_it_go_on(self, crash: Crash) -> None:
        played = crash.played["pay"]
        assert (*played.ending, played.run["output"]) == ("completed", "stop", "Paid.")
        assert [event["reason"] for event in played.of("run.resumed")] == ["answered"]
        assert len(crash.hooks["pay"].requests) == 1
        check(played)


class TestCancelledAfterItsProcessDied:
    def test_the_run_ends_as_cancelled_and_its_open_calls_are_answered(self, crash: Crash) -> None:
        played = crash.played["stopped"]
        assert (crash.cancelled["status"], crash.cancelled["finish_reason"]) == ("cancelled", "cancelled")
        assert (played.ending, played.outcomes) == (("cancelled", "cancelled"), ["cancelled"])
        check(played)

    def test_the_call_is_not_sent_again(self, crash: Crash) -> None:
        assert len(crash.hooks["stopped"].requests) == 1


@dataclass
class Restart:
    """A run that waited over the death of all processes, and one that was handed over when its process was told to stop."""

    before: dict[str, Any]
    active_runs: tuple[float, float]
    """While a sibling was still being called, and while the run waited."""
    after: dict[str, Any]
    waited: Played
    pay: Hook
    exit_code: int
    handed_over: Played
    follower: Follower
    slow: Hook


async def active_runs(api: Api) -> float:
    text = (await api.http.get("/metrics")).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("rondo_active_runs "))


@pytest.fixture(scope="module")
async def restart(settings: Settings, template: str, test_tools: TestTools) -> AsyncIterator[Restart]:
    async with fleet_on(settings, "recovery_restart", template) as fleet:
        only = await fleet.start()
        api = await only.admin.new_workspace()
        pay = await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        held = Held(body={"items": [1]})
        search = await test_tools.host(api, "search", held)
        turn = calls(wanted("pay", {"sum": 5}), wanted("search"))
        session = await api.new_session()
        run = await api.run(session, turn, "Paid.", background=True, status=202)
        await search.received()
        busy = await active_runs(api)
        held.gate.set()
        follower = Follower(run["id"], api)
        await follower.saw("run.waiting")
        async with asyncio.timeout(30):
            while (idle := await active_runs(api)) > 0:
                await asyncio.sleep(0.01)
        before = await api.get(f"/v1/runs/{run['id']}")
        await only.kill()
        await follower.task

        first, second = await asyncio.gather(fleet.start(), fleet.start())
        api, other = first.api(api), second.api(api)
        after = await api.get(f"/v1/runs/{run['id']}")
        await api.post(f"/v1/runs/{run['id']}/approvals", {"decisions": [{"call_id": "*", "decision": "approve"}]}, 200)
        waited = await ended(api, run)

        slow = await test_tools.host(api, "slow", Reply(ending="hang"), {"items": [2]})
        long = await api.run(session, call("slow"), "Long done.", background=True, status=202)
        follower = Follower(long["id"], api, other)
        await follower.saw("tool.invoking")
        await slow.received()
        first.process.send_signal(signal.SIGTERM)
        handed_over = await ended(other, long)
        async with asyncio.timeout(60):
            exit_code = await first.process.wait()
            await follower.task
        yield Restart(before, (busy, idle), after, waited, pay, exit_code, handed_over, follower, slow)


class TestRestartWhileARunWaits:
    def test_a_waiting_run_holds_nothing(self, restart: Restart) -> None:
        assert restart.active_runs == (1.0, 0.0)

    def test_it_is_the_same_after_all_processes_were_killed(self, restart: Restart) -> None:
        assert restart.before["status"] == "waiting"
        assert restart.after == restart.before

    def test_a_decision_lets_it_go_on_to_its_end(self, restart: Restart) -> None:
        played = restart.waited
        assert (*played.ending, played.run["output"]) == ("completed", "stop", "Paid.")
        assert [event["reason"] for event in played.of("run.resumed")] == ["answered"]
        assert restart.pay.arguments == [{"sum": 5}]
        check(played)


class TestToldToStop:
    """SIGTERM with a run under way that takes longer than the process may go on."""

    def test_another_replica_carries_the_run_on(self, restart: Restart) -> None:
        played = restart.handed_over
        assert (*played.ending, played.run["output"]) == ("completed", "stop", "Long done.")
        assert [event["reason"] for event in played.of("run.resumed")] == ["recovered"]
        check(played)

    def test_the_open_call_is_sent_again_with_the_same_key_and_bytes(self, restart: Restart) -> None:
        first, second = restart.slow.requests
        assert (first.headers["idempotency-key"], first.body) == (second.headers["idempotency-key"], second.body)

    def test_the_process_ends_in_its_time(self, restart: Restart) -> None:
        assert restart.exit_code in (0, -signal.SIGTERM), "ended by itself, and told so or told by which signal"

    def test_its_followers_come_back_elsewhere_and_see_every_id_once(self, restart: Restart) -> None:
        assert restart.follower.broken == 1
        assert restart.follower.ids == list(range(1, len(restart.handed_over.events) + 1))
        assert [event.raw for event in restart.follower.seen] == [event.raw for event in restart.handed_over.events]


class TestOpenStreams:
    async def test_are_told_when_to_come_back_when_their_process_stops(self, settings: Settings, template: str) -> None:
        async with fleet_on(settings, "recovery_told", template) as fleet:
            replica = await fleet.start()
            api = await replica.admin.new_workspace()
            slow = {"text": "One two three four.", "chunk_chars": 2, "delay_ms": 500}
            run = await api.run(await api.new_session(), slow, background=True, status=202)
            path, raw = f"/v1/runs/{run['id']}/events", b""
            async with api.http.stream("GET", path, headers=api.headers()) as response:
                async for part in response.aiter_raw():
                    raw += part
                    if raw.count(b"message.delta") == 2:
                        replica.process.send_signal(signal.SIGTERM)
            assert re.search(rb"\n\nretry: [1-9]\d{2,3}\n\n$", raw)


async def left_by_a_dead_process(database: Database, run: dict[str, Any]) -> None:
    """Make of a waiting run one whose process died after it had carried it on."""
    await database.pool.execute(
        "UPDATE runs SET status = 'running', claim = 'dead', lease_expires_at = now() - interval '1 second',"
        " pending = NULL, wake_at = NULL WHERE id = $1",
        run["id"],
    )


class TestCrashesAtOnePoint:
    """States that only a crash at one certain point leaves, made in the rows."""

    APPROVED = "UPDATE tool_calls SET resolution = $2 WHERE id = $1"
    DENIED = """UPDATE tool_calls SET resolution = $2, result = $3, content = '{}', outcome = 'denied', seconds = 0,
        attempts = 0, answered_at = now() WHERE id = $1"""

    async def ended(self, api: Api, run: dict[str, Any]) -> Played:
        await api.events(run["id"])
        return await api.played(await api.get(f"/v1/runs/{run['id']}"))

    async def test_between_a_refusal_and_the_end_of_the_run_it_still_ends_as_rejected(
        self, api: Api, migrated: Database, test_tools: TestTools
    ) -> None:
        pay = await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        turn = calls(wanted("pay", {"n": 1}), wanted("pay", {"n": 2}))
        run = await api.run(await api.new_session(), turn, "never", persist=False)
        refused, approved = (item["call_id"] for item in run["pending"])
        await migrated.pool.execute(self.DENIED, refused, {"kind": "reject", "reason": None}, {"error": "no"})
        await migrated.pool.execute(self.APPROVED, approved, {"kind": "approve", "arguments": None})
        await left_by_a_dead_process(migrated, run)
        played = await self.ended(api, run)
        assert played.ending == ("incomplete", "rejected")
        assert sorted(played.outcomes) == ["cancelled", "denied"]
        assert pay.requests == []

    async def test_between_a_cancel_and_the_end_of_the_run_nothing_is_called_any_more(
        self, api: Api, migrated: Database, test_tools: TestTools
    ) -> None:
        pay = await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        run = await api.run(await api.new_session(), call("pay"), "never")
        (approved,) = (item["call_id"] for item in run["pending"])
        await migrated.pool.execute(self.APPROVED, approved, {"kind": "approve", "arguments": None})
        await migrated.pool.execute("UPDATE runs SET cancel_requested_at = now() WHERE id = $1", run["id"])
        await left_by_a_dead_process(migrated, run)
        played = await self.ended(api, run)
        assert (played.ending, played.outcomes) == (("cancelled", "cancelled"), ["cancelled"])
        assert pay.requests == []

    @pytest.mark.parametrize("asked_to_end", [False, True], ids=["carried on", "cancelled"])
    async def test_a_run_whose_rows_make_no_sense_is_ended_and_not_tried_again_for_ever(
        self, api: Api, migrated: Database, test_tools: TestTools, asked_to_end: bool
    ) -> None:
        await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        session = await api.new_session()
        run = await api.run(session, call("pay"), "never")
        await migrated.pool.execute("UPDATE iterations SET reply = '{}' WHERE run_id = $1", run["id"])
        if asked_to_end:
            await migrated.pool.execute("UPDATE runs SET cancel_requested_at = now() WHERE id = $1", run["id"])
        await left_by_a_dead_process(migrated, run)
        events = await api.events(run["id"])
        ended = await api.get(f"/v1/runs/{run['id']}")
        reason, code = ("cancelled", None) if asked_to_end else ("error", "internal")
        assert (ended["finish_reason"], (ended["error"] or {}).get("code")) == (reason, code)
        assert events[-1].data["run"] == ended
        assert [message["role"] for message in await api.messages(session)] == ["user", "assistant", "tool"]
        assert (await api.run(session, "Again."))["output"] == "Again."
