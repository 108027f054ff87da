"""Secrets of every kind are planted, the service is driven through what can go wrong, and then everything that it left is
searched: its log at level debug, its answers, traces and metrics, the whole database and the whole of Redis.
"""

import asyncio
import base64
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
from redis.asyncio import Redis

from app.infra.settings import Settings, SettingsError, read_settings
from tests.api import TENANT, Api, TestTools, call, schema
from tests.databases import own_database
from tests.providers.model_server import Answer, ModelServer, json_answer
from tests.tools.webhook_server import Received, Reply

REPOSITORY = Path(__file__).parent.parent.parent
BYTECODE = str(Path(tempfile.gettempdir()) / "rondo-tests-bytecode")
ENCRYPTION_KEY = base64.b64encode(b"planted-encryption-key-32-bytes!").decode()
PLANTED = {
    "admin key": "planted-admin-key-9f8e7d6c5b4a",
    "service key": "planted-service-key-1a2b3c4d5e6f",
    "encryption key": ENCRYPTION_KEY,
    "database password": "planted-database-password-77",
    "openai key": "sk-planted-openai-0123456789",
    "anthropic key": "planted.anthropic.key.0123456789",
    "provider key": "planted+provider+key+0123456789",
    "provider header": "planted~provider~header~0123456789",
    "tool header": "planted!tool!header!0123456789",
    "wrong key": "planted-wrong-key-0123456789",
    "wrong token": "planted-wrong-token-0123456789",
}


def environment(**named: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("RONDO_", "OPENAI_", "ANTHROPIC_"))}
    return {**plain, "PYTHONPYCACHEPREFIX": BYTECODE, **named}


class Traces:
    """What the service left, by where it was found."""

    def __init__(self) -> None:
        self.found: list[tuple[str, bytes]] = []

    def add(self, where: str, what: bytes | str) -> None:
        self.found.append((where, what.encode() if isinstance(what, str) else what))

    def of(self, secret: str) -> list[str]:
        forms = {secret.encode(), base64.b64encode(secret.encode()), secret.encode().hex().encode()}
        return sorted({where for where, what in self.found if any(form in what for form in forms)})


class Subject:
    """The service in a process of its own, and all that is known of it. `secrets` grows by those that it made itself."""

    def __init__(self, url: str, settings: Settings, models: ModelServer, log: Path) -> None:
        self.url, self.settings, self.models, self.log = url, settings, models, log
        self.secrets = dict(PLANTED)
        self.traces = Traces()
        self._shown: dict[str, str] = {}

    async def ask(
        self, http: httpx.AsyncClient, method: str, path: str, body: object = None, *, key: str, **headers: str
    ) -> httpx.Response:
        """An answer, kept unless it is one that shows a secret once."""
        given = {"Authorization": f"Bearer {key}", **{name.replace("_", "-"): text for name, text in headers.items()}}
        response = await http.request(method, path, json=body, headers=given)
        shown = response.json().get("key") or response.json().get("token") or response.json().get("secret") if (
            response.headers.get("content-type") == "application/json" and isinstance(response.json(), dict)
        ) else None  # fmt: skip
        if shown is None:
            self.traces.add(f"{method} {path.partition('?')[0]} {response.status_code}", response.content)
        else:
            self.secrets[f"shown by {path}"] = shown
        return response


def echo(request: Received) -> Reply:
    """A tool that tells everybody all that it was sent, with the statuses in turn."""
    status = {"refused": 422, "broken": 500, "locked": 401}[request.json["data"]["arguments"]["how"]]
    return Reply(status, body={"error": request.head.decode("latin-1") + request.body.decode()})


def echoing(status: int, *secrets: str) -> Answer:
    message = f"Incorrect API key provided: {' '.join(secrets)}. Headers: Authorization: Bearer {secrets[0]}"
    return json_answer({"error": {"message": message, "code": "invalid_api_key"}}, status)


@pytest.fixture(scope="module")
async def subject(settings: Settings) -> AsyncIterator[Subject]:
    assert settings.redis_url is not None
    async with own_database(settings, "secrets") as own, ModelServer() as models:
        assert own.database_url is not None
        await _execute(own.database_url, f"CREATE ROLE planted SUPERUSER LOGIN PASSWORD '{PLANTED['database password']}'")
        place = urlsplit(own.database_url)
        host = f"{place.hostname}:{place.port}"
        dsn = place._replace(netloc=f"planted:{PLANTED['database password']}@{host}").geturl()
        redis_url = settings.redis_url.rpartition("/")[0] + "/5"
        try:
            async with _serving(own, dsn, redis_url, models) as made:
                made.secrets["redis password"] = urlsplit(redis_url).password or ""
                yield made
        finally:
            await _execute(own.database_url, "DROP OWNED BY planted", "DROP ROLE planted")


@asynccontextmanager
async def _serving(own: Settings, dsn: str, redis_url: str, models: ModelServer) -> AsyncIterator[Subject]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "app.cli", "serve", cwd=REPOSITORY, stdin=asyncio.subprocess.DEVNULL, stdout=output,
                stderr=output,
                env=environment(
                    DATABASE_URL=dsn, REDIS_URL=redis_url, HOST="127.0.0.1", PORT="0", RONDO_DATA_DIR=folder,
                    RONDO_ADMIN_KEY=PLANTED["admin key"], RONDO_SERVICE_KEY=PLANTED["service key"],
                    RONDO_ENCRYPTION_KEYS=f"planted:{ENCRYPTION_KEY}", RONDO_ALLOW_PRIVATE_WEBHOOKS="127.0.0.0/8",
                    RONDO_LOG_LEVEL="debug", RONDO_LOG_FORMAT="json", RONDO_MODEL_RETRY_SECONDS="0.01",
                    RONDO_REQUESTS_PER_SECOND="10000", OPENAI_API_KEY=PLANTED["openai key"], OPENAI_BASE_URL=models.base_url,
                    ANTHROPIC_API_KEY=PLANTED["anthropic key"], ANTHROPIC_BASE_URL=models.address,
                ),
            )  # fmt: skip
        try:
            yield Subject(await asyncio.wait_for(_address(log, process), 60), own, models, log)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _address(log: Path, process: asyncio.subprocess.Process) -> str:
    while process.returncode is None:
        for line in log.read_text().splitlines():
            if line.startswith("Rondo listens on "):
                return line.split()[-1]
        await asyncio.sleep(0.05)
    raise AssertionError(log.read_text())


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def drive(subject: Subject, http: httpx.AsyncClient, tools: TestTools) -> None:
    admin, service = PLANTED["admin key"], PLANTED["service key"]

    async def ask(method: str, path: str, body: object = None, key: str = service, **headers: str) -> httpx.Response:
        return await subject.ask(http, method, path, body, key=key, **headers)

    workspace = (await ask("GET", "/v1/workspaces", key=admin)).json()["data"][0]["id"]
    new_key = {"workspace_id": workspace, "kind": "service", "name": "x"}
    for _ in range(2):
        await ask("POST", "/v1/keys", new_key, key=admin, Idempotency_Key="shown-once")
    await ask("GET", "/v1/sessions", key=PLANTED["wrong key"])
    # what is configured, right and wrong
    lab = {
        "kind": "openai", "base_url": subject.models.base_url, "api_key": PLANTED["provider key"],
        "headers": {"X-Lab": PLANTED["provider header"]},
    }  # fmt: skip
    await ask("PUT", "/v1/providers/lab", lab)
    await ask("PUT", "/v1/providers/lab", {**lab, "api_key": PLANTED["provider key"] + " \u00e9"})
    await ask("PUT", "/v1/providers/lab", {**lab, "headers": {"X-Lab": PLANTED["provider header"] + "\n"}})
    hook = await tools.host(Api(http, service), "echo", echo, parameters=schema(how="string"),
                            headers={"Authorization": f"Bearer {PLANTED['tool header']}"})  # fmt: skip
    subject.secrets["tool secret"] = hook.secret
    tool = {"description": "x", "parameters": schema(), "url": hook.url, "headers": {"X-\u00e9": PLANTED["tool header"]}}
    await ask("PUT", "/v1/tools/wrong", tool)
    await ask("PUT", "/v1/tools/wrong", {**tool, "headers": {"X-Y": PLANTED["tool header"] + "\r\nz"}})
    for path in ("/v1/tools", "/v1/tools/echo", "/v1/providers"):
        await ask("GET", path)
    await ask("POST", "/v1/tools/echo/rotate-secret")
    for how in ("refused", "broken", "locked"):
        await ask("POST", "/v1/tools/echo/test", {"arguments": {"how": how}})
    # runs, with tools and models that tell what they were sent
    session = (await ask("POST", "/v1/sessions", {"tenant": TENANT})).json()["id"]
    turns = [call("echo", {"how": how}) for how in ("refused", "broken", "locked")]
    asked = {"input": "Hello", "model": "scripted/x", "script": [*turns, "Done."]}
    runs = [(await ask("POST", f"/v1/sessions/{session}/runs", asked)).json()["id"]]
    for model, secrets in (
        ("openai/gpt", ("openai key",)), ("anthropic/claude", ("anthropic key",)),
        ("lab/tiny", ("provider key", "provider header")),
    ):  # fmt: skip
        for status in (401, 400, 500):
            subject.models.play(*[echoing(status, *(PLANTED[name] for name in secrets))] * (4 if status == 500 else 1))
            answer = await ask("POST", f"/v1/sessions/{session}/runs", {"input": "Hello", "model": model, "tools": []})
            runs.append(answer.json()["id"])
    for run in runs:
        for path in ("", "/trace", "/script", "/events"):
            await ask("GET", f"/v1/runs/{run}{path}")
    await ask("GET", f"/v1/sessions/{session}/messages")
    # tokens in the query, right, wrong, and where none may stand
    token = (await ask("POST", f"/v1/sessions/{session}/tokens", {})).json()["token"]
    for given in (token, PLANTED["wrong token"]):
        for path in (f"/v1/runs/{runs[0]}/events", f"/v1/runs/{runs[0]}", "/v1/sessions"):
            response = await http.get(path, params={"access_token": given})
            subject.traces.add(f"GET {path} by token", response.content)
    await break_down(subject, http)
    response = await http.get("/metrics")
    subject.traces.add("metrics", response.content)


async def break_down(subject: Subject, http: httpx.AsyncClient) -> None:
    """A database that misses tables and columns: errors that nobody foresaw, with secrets among the values."""
    url = subject.settings.database_url
    assert url is not None
    service, admin = PLANTED["service key"], PLANTED["admin key"]
    renames = [("tools", "description"), ("providers", "kind"), ("api_keys", "name"), ("client_tokens", "can")]
    await _execute(url, *(f"ALTER TABLE {table} RENAME {column} TO away" for table, column in renames))
    tool = {
        "description": "x",
        "parameters": schema(),
        "url": "http://127.0.0.1:1/",
        "headers": {"X-Y": PLANTED["tool header"]},
    }
    lab = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "api_key": PLANTED["provider key"]}
    statuses = [
        (await subject.ask(http, "PUT", "/v1/tools/another", tool, key=service)).status_code,
        (await subject.ask(http, "PUT", "/v1/providers/another", lab, key=service)).status_code,
        (await subject.ask(http, "POST", "/v1/keys", {"kind": "admin", "name": "x"}, key=admin)).status_code,
        (await subject.ask(http, "GET", "/v1/keys", key=admin)).status_code,
    ]
    await _execute(url, *(f"ALTER TABLE {table} RENAME away TO {column}" for table, column in renames))
    assert set(statuses) <= {500, 401}, "nothing broke, so this proves nothing"


async def collect(subject: Subject) -> None:
    """The log, every row of every table, and every key of Redis."""
    subject.traces.add("log", subject.log.read_bytes())
    assert subject.settings.database_url is not None
    connection = await asyncpg.connect(subject.settings.database_url)
    for (table,) in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        for row in await connection.fetch(f'SELECT * FROM "{table}"'):
            for column, value in row.items():
                subject.traces.add(f"table {table}.{column}", value if isinstance(value, bytes) else str(value))
    await connection.close()
    assert subject.settings.redis_url is not None
    redis: Redis = Redis.from_url(subject.settings.redis_url.rpartition("/")[0] + "/5")
    async for name in redis.scan_iter():
        subject.traces.add("redis key", name)
        subject.traces.add(f"redis {name.decode().partition('{')[0]}", await redis.execute_command("DUMP", name) or b"")
        if await redis.type(name) == b"stream":
            subject.traces.add("redis stream", repr(await redis.xrange(name)))
    await redis.flushdb()
    await redis.aclose()


@pytest.fixture(scope="module")
async def driven(subject: Subject, test_tools: TestTools) -> Subject:
    async with httpx.AsyncClient(base_url=subject.url, timeout=30, trust_env=False) as http:
        await drive(subject, http, test_tools)
    await collect(subject)
    return subject


class TestPlantedSecrets:
    async def test_none_is_found_anywhere(self, driven: Subject) -> None:
        assert {name: where for name, secret in driven.secrets.items() if (where := driven.traces.of(secret))} == {}

    async def test_each_was_really_there_to_be_found(self, driven: Subject) -> None:
        """A search that looks at nothing finds nothing."""
        places = [where for where, _ in driven.traces.found]
        for wanted in (
            "log",
            "table tools.headers",
            "table providers.api_key",
            "table idempotency_keys.answer",
            "redis key",
        ):
            assert wanted in places
        assert len(driven.secrets) == len(PLANTED) + 5
        assert all(len(secret) >= 12 for secret in driven.secrets.values())
        log = driven.log.read_text()
        for told in ("request_failed", "tool_failed", "/events", "GET"):
            assert told in log
        assert not driven.traces.of("no such text anywhere")

    async def test_a_secret_that_is_there_would_be_found(self, driven: Subject) -> None:
        assert driven.traces.of("Hello")
        assert driven.traces.of("rondo:events:")


class TestAtTheStart:
    @pytest.fixture
    def wrong(self) -> dict[str, str]:
        dsn = f"postgresql://planted:{PLANTED['database password']}@127.0.0.1:1/rondo"
        redis_url = f"redis://:{PLANTED['database password']}@127.0.0.1:1/0"
        keys = f"k:{ENCRYPTION_KEY}"
        return environment(
            DATABASE_URL=dsn, REDIS_URL=redis_url, RONDO_ENCRYPTION_KEYS=keys, PORT="0", RONDO_DATABASE_TIMEOUT_SECONDS="0.5"
        )

    def test_a_database_out_of_reach_is_told_without_its_password(self, wrong: dict[str, str]) -> None:
        command = [sys.executable, "-m", "app.cli", "serve"]
        done = subprocess.run(command, cwd=REPOSITORY, env=wrong, capture_output=True, check=False)
        assert done.returncode != 0
        told = done.stdout + done.stderr
        assert told
        assert PLANTED["database password"].encode() not in told
        assert ENCRYPTION_KEY.encode() not in told

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("RONDO_ADMIN_KEY", "planted short"), ("RONDO_ENCRYPTION_KEYS", "k:planted"), ("PORT", "planted"),
            ("RONDO_REQUESTS_PER_SECOND", "planted"), ("RONDO_ALLOW_PRIVATE_WEBHOOKS", "planted"),
            ("OPENAI_BASE_URL", "planted"),
        ],
    )  # fmt: skip
    def test_a_wrong_setting_is_named_without_its_value(self, name: str, value: str) -> None:
        with pytest.raises(SettingsError) as caught:
            read_settings({name: value})
        assert name in str(caught.value)
        assert value not in str(caught.value)
