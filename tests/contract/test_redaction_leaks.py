"""After a storm of redacted runs with 500 different values: none of them stands in the database, in Redis, in the logs, or
in anything that a model was sent; and callers and tools read them."""

import asyncio
import itertools
import json
import random
import re
import sys
from collections.abc import AsyncIterator, Iterator
from io import StringIO
from typing import Any

import asyncpg
import httpx
import pytest
import structlog
from redis.asyncio import Redis

from app.infra.settings import Settings
from app.infra.telemetry import configure_logging
from app.process import open_process
from tests.api import TENANT, Api, TestTools
from tests.conftest import SERVICE_KEY, serving
from tests.contract.summing import Model
from tests.databases import own_database
from tests.providers.model_server import DONE, Answer, chunk, sse
from tests.tools_app import Received, Reply

ANY = {"type": "object", "properties": {}, "additionalProperties": True}
TOKEN = re.compile(r"«(?!LIT)[A-Z]+_\d+[a-z]?»")
HELD_BACK = ("«CARD", "«KEY")
_SYLLABLES = [first + second for first in "bdfglmnprstvz" for second in "aeiou"]


def luhn(digits: str) -> str:
    """With a check digit; counted from the right, every other digit is doubled, the one before the check digit first."""
    doubled = [int(digit) * (2 - at % 2) for at, digit in enumerate(reversed(digits))]
    return digits + str(-sum(sum(divmod(number, 10)) for number in doubled) % 10)


def iban(account: str) -> str:
    check = 98 - int(account + "142800") % 97
    text = f"ES{check:02}{account}"
    return " ".join(text[at : at + 4] for at in range(0, len(text), 4))


def spaced(digits: str, size: int) -> str:
    return " ".join(digits[at : at + size] for at in range(0, len(digits), size))


class Values:
    """500 of them, each different, of the kinds that have check digits too, and 100 names."""

    def __init__(self) -> None:
        chance = random.Random(7)

        def digits(count: int) -> str:
            return "".join(chance.choices("0123456789", k=count))

        def name() -> str:
            return "".join(chance.choices(_SYLLABLES, k=4)).capitalize()

        self.names = [f"{name()} {name()}" for _ in range(100)]
        numbers = [digits(8) for _ in range(100)]
        self.all = [
            *self.names,
            *(f"{name().lower()}{at}@correo{at}.example" for at in range(100)),
            *(f"{number}{'TRWAGMYFPDXBNJZSQVHLCKE'[int(number) % 23]}" for number in numbers),
            *(f"6{digits(2)} {digits(3)} {digits(3)}" for _ in range(100)),
            *(iban(digits(20)) for _ in range(50)),
            *(spaced(luhn("4539" + digits(11)), 4) for _ in range(50)),
        ]
        chance.shuffle(self.all)
        self._next: Iterator[str] = itertools.cycle(self.all)

    def take(self, count: int = 3) -> str:
        """A sentence with the next ones, each as it is written."""
        return "Toma nota: " + "; ".join(itertools.islice(self._next, count)) + "."

    def forms(self) -> dict[str, str]:
        """Every text by which a value would be recognised, and which value it is."""
        forms = {value: value for value in self.all}
        return forms | {value.replace(" ", ""): value for value in self.all if value[:2] == "ES" or value[0].isdigit()}

    def found_in(self, text: str) -> set[str]:
        return {value for form, value in self.forms().items() if form in text}


def echo(body: Any) -> Answer:
    """Calls the first tool with all tokens that a tool may have, once; then says all of them."""
    said = json.dumps(body, ensure_ascii=False)
    tokens = list(dict.fromkeys(TOKEN.findall(said)))
    if body.get("response_format"):
        return _says(json.dumps({"seen": tokens}, ensure_ascii=False))
    if body.get("tools") and body["messages"][-1]["role"] == "user":
        function = {"name": body["tools"][0]["function"]["name"]}
        given = [token for token in tokens if not token.startswith(HELD_BACK)]
        arguments = {"task": " ".join(given)} if function["name"].startswith("agent_") else {"about": given}
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
        made = {"index": 0, "id": "c1", "type": "function", "function": function}
        return sse(chunk(None, role="assistant", tool_calls=[made]), chunk(finish="tool_calls"), DONE)
    return _says("Visto: " + ", ".join(tokens))


def _says(text: str) -> Answer:
    pieces = [chunk(text[at : at + 7]) for at in range(0, len(text), 7)]
    thought = chunk(reasoning_content=text[: len(text) // 2])
    return sse(chunk("", role="assistant"), thought, *pieces, chunk(finish="stop"), DONE)


class Storm:
    """What callers do, all at once. `shown` is all that they read, `called` what tools were sent."""

    def __init__(self, api: Api, tools: TestTools, values: Values) -> None:
        self.api, self.tools, self.values = api, tools, values
        self.shown: list[str] = []
        names = [{"type": "PER", "value": name} for name in values.names]
        self.redaction = {"enabled": True, "dictionary": names}
        self.called: list[str] = []

    async def prepare(self) -> None:
        def found(request: Received) -> Any:
            self.called.append(json.dumps(request.json, ensure_ascii=False))
            return {"items": [{"text": self.values.take()}], self.values.take(1): 1}

        def refuses(request: Received) -> Any:
            return Reply(404, {"message": self.values.take()})

        def breaks(request: Received) -> Any:
            return Reply(500, {"trace": self.values.take()})

        for name, answer in (("find", found), ("refuse", refuses), ("crash", breaks)):
            await self.tools.host(self.api, name, answer, parameters=ANY)
        await self.tools.host(self.api, "send", found, parameters=ANY, requires_approval=True)
        self.hook = self.tools.hook("told-of-leaks")
        subscription = {"url": self.tools.url("told-of-leaks"), "events": ["run.completed", "run.waiting"]}
        await self.api.post("/v1/subscriptions", subscription)
        await self.api.call("PUT", "/v1/tools/ask", {"description": "Asks.", "parameters": ANY, "kind": "client"})
        agent = {"system_prompt": "Ayuda.", "model": "openai/chat", "redaction": self.redaction, "debounce_seconds": 0}
        await self.api.post("/v1/agents", {"name": "helper", **agent})
        await self.api.post(
            "/v1/agents", {"name": "watcher", "event_triggers": ["saved"], "allowed_tools": ["find"], **agent}
        )

    async def session(self, **fields: Any) -> str:
        return await self.api.new_session(model="openai/chat", redaction=self.redaction, memory={"write": False}, **fields)

    async def say(self, session: str, *tools: str, **fields: Any) -> Any:
        body = {"input": self.values.take(), "tools": list(tools), **fields}
        key = {"Idempotency_Key": f"key-{random.random()}"} if random.random() < 0.5 else {}
        run = await self.api.post(f"/v1/sessions/{session}/runs", body, 200, **key)
        return run

    async def read(self, run_id: str) -> None:
        played = await self.api.ended(run_id)
        assert played.run["status"] == "completed", played.run
        script = await self.api.get(f"/v1/runs/{run_id}/script")
        self.shown.append(json.dumps([played.run, played.trace, script, played.shown()], ensure_ascii=False))

    async def chat(self) -> None:
        session = await self.session()
        for tool in ("find", "refuse", "crash", "agent:helper"):
            await self.read((await self.say(session, tool))["id"])
        schema = {"type": "object", "properties": {"seen": {"type": "array", "items": {"type": "string"}}}}
        await self.read((await self.say(session, response_schema=schema))["id"])

    async def waiting(self) -> None:
        session = await self.session()
        run = await self.say(session, "ask")
        given = {"call_id": run["pending"][0]["call_id"], "result": {"text": self.values.take(), "n": [self.values.take(1)]}}
        await self.api.post(f"/v1/runs/{run['id']}/tool-results", {"results": [given]}, 200)
        await self.read(run["id"])
        run = await self.say(session, "send")
        edit = {"call_id": run["pending"][0]["call_id"], "decision": "edit", "arguments": {"to": self.values.names[0]}}
        await self.api.post(f"/v1/runs/{run['id']}/approvals", {"decisions": [edit]}, 200)
        await self.read(run["id"])

    async def alone(self) -> None:
        body: dict[str, Any] = {"tenant": TENANT, "model": "openai/chat", "tools": ["find"], "redaction": self.redaction}
        said = [{"role": role, "content": self.values.take()} for role in ("system", "user", "assistant", "user")]
        runs = [await self.api.post("/v1/runs", {**body, "messages": said, "system_prompt": self.values.take()}, 200)]
        runs.append(await self.api.post("/v1/runs", {**body, "input": [{"type": "text", "text": self.values.take()}]}, 200))
        fired = await self.api.trigger(payload={"about": self.values.take(), self.values.take(1): [1]})
        runs += [{"id": one["run_id"]} for one in fired["fired"]]
        for run in runs:
            await self.read(run["id"])

    async def long(self, compress: Any) -> None:
        """A conversation that is brought in, goes on, and is summarised."""
        session = await self.session(history={"keep_recent_turns": 1, "token_budget": 100})
        said = [{"role": role, "content": self.values.take()} for role in ("user", "assistant") * 4]
        await self.api.post(f"/v1/sessions/{session}/messages", {"messages": said}, Idempotency_Key=f"import-{session}")
        await self.read((await self.say(session))["id"])
        assert await compress(session)
        await self.read((await self.say(session))["id"])


async def texts_of(database_url: str) -> dict[str, str]:
    """All that stands in the database, by table."""
    connection = await asyncpg.connect(database_url)
    found: dict[str, str] = {}
    for (table,) in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        rows = await connection.fetch(f'SELECT * FROM "{table}"')
        cells = [value for row in rows for value in row.values()]
        found[table] = "\n".join(cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell) for cell in cells)
    await connection.close()
    return found


async def kept_by_redis(url: str) -> str:
    redis: Redis = Redis.from_url(url)
    found: list[Any] = []
    async for key in redis.scan_iter(count=1000):
        match await redis.type(key):
            case b"stream":
                found.append(b"".join(value for _, fields in await redis.xrange(key) for value in fields.values()))
            case b"string":
                found.append(await redis.get(key))
            case b"zset":
                found.append(b"".join(await redis.zrange(key, 0, -1)))
            case kind:
                assert kind in (b"hash", b"set", b"list", b"none"), kind
        found.append(key)
    await redis.aclose()
    return b"\n".join(part or b"" for part in found).decode("utf-8", "replace")


@pytest.fixture
async def stormy(settings: Settings) -> AsyncIterator[tuple[Settings, Model]]:
    async with Model(echo) as model, own_database(settings, "leaks") as own:
        yield own.model_copy(update={"openai_base_url": model.base_url, "history_summary_model": "openai/sum"}), model


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    """All that is logged meanwhile, at every level."""
    before, written = structlog.get_config(), StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    configure_logging("debug", "json")
    yield written
    structlog.configure(**before)


class TestALeak:
    async def test_of_500_values_none_stands_where_it_may_not_and_callers_read_them(
        self, stormy: tuple[Settings, Model], test_tools: TestTools, logs: StringIO
    ) -> None:
        settings, model = stormy
        values = Values()
        async with (
            serving(settings) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
            open_process(settings) as process,
        ):  # fmt: skip
            workspace = await Api(http, SERVICE_KEY).get("/v1/sessions")
            assert workspace["data"] == []
            storm = Storm(Api(http, SERVICE_KEY, "default"), test_tools, values)
            await storm.prepare()
            works = [storm.chat() for _ in range(6)] + [storm.waiting() for _ in range(5)]
            works += [storm.alone() for _ in range(6)]
            works += [storm.long(process.compressor.compress) for _ in range(4)]
            await asyncio.gather(*works)
            await storm.hook.received(40)
        logged = logs.getvalue()
        kept = await texts_of(settings.database_url or "")
        sent = "\n".join(request.body.decode() for request in model.requests)
        sent_plainly = json.dumps([request.json for request in model.requests], ensure_ascii=False)
        places = {
            **kept,
            "redis": await kept_by_redis(settings.redis_url or ""),
            "logs": logged,
            "model": sent + sent_plainly,
        }
        assert {place: found for place, text in places.items() if (found := values.found_in(text))} == {}
        read, called = values.found_in("".join(storm.shown)), values.found_in("".join(storm.called))
        told = values.found_in("".join(json.dumps(one.json, ensure_ascii=False) for one in storm.hook.requests))
        assert len(told) > 100
        assert len(read) > 480 and len(called) > 100
        assert "tool_failed" in logged and "run_id" in logged and len(TOKEN.findall(sent_plainly)) > 1000
        assert TOKEN.search(kept["messages"]) and TOKEN.search(places["redis"]) and kept["compressions"]
