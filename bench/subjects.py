"""What is measured, and how each is spoken to: the model itself, the plain proxy, and the service.

A unit of the service is one session, one message with one tool turn, streamed and read to its end.
"""

import asyncio
import os
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from bench.load import Answer, Connection, LoadError, Unit
from bench.model import PATH, TOOL_ARGUMENTS, TOOL_PATH
from bench.processes import Child, free_port

QUESTION = "Find me a pair of red shoes, please."
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "search_items", "description": "Search the catalogue.", "parameters": PARAMETERS},
    }
]
PREPARED_SESSIONS = 160
COMPILED_MODULES = str(Path(tempfile.gettempdir()) / "rondo-bench-modules")
"""Kept between benches, so that only the first start ever compiles."""


def completion(model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"model": model, "stream": True, "messages": messages, "tools": TOOLS}


async def asked(connection: Connection, model: str) -> Answer:
    """One model call, straight or through the proxy."""
    answer = await connection.request("POST", PATH, completion(model, [{"role": "user", "content": QUESTION}]))
    if b"[DONE]" not in answer.body:
        raise LoadError("the model's stream has no end")
    return answer


async def looped(connection: Connection, model: str) -> Answer:
    """The loop by hand, without anything between: a model call, the tool, a model call."""
    started = time.perf_counter()
    await connection.request("POST", PATH, completion(model, [{"role": "user", "content": QUESTION}]))
    result = await connection.request("POST", TOOL_PATH, {"query": "red shoes"})
    call = {"id": "call_mock", "type": "function", "function": {"name": "search_items", "arguments": TOOL_ARGUMENTS}}
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_mock", "content": result.body.decode()},
    ]
    return await connection.request("POST", PATH, completion(model, messages), started=started)


DIRECT = "direct"
DIRECT_LOOP = "direct-loop"
PROXY = "proxy"
RONDO = "rondo"
RONDO_KEPT = "rondo-kept-session"
BASES = {PROXY: DIRECT, RONDO: DIRECT_LOOP, RONDO_KEPT: DIRECT_LOOP}
"""What a subject's first token is compared with."""
TOOL_TURNS = {DIRECT: 0, DIRECT_LOOP: 1, PROXY: 0, RONDO: 1, RONDO_KEPT: 1}


class Proxy:
    """The plain proxy."""

    names = (PROXY,)

    def __init__(self, model_port: int) -> None:
        self._model_url = f"http://127.0.0.1:{model_port}"

    def start(self, core: int, log: IO[bytes]) -> Child:
        port = free_port()
        arguments = ["bench.proxy", "--port", str(port), "--model-url", self._model_url]
        return Child(arguments, core=core, port=port, ready_path="/ready", environment=plain_environment(), log=log)

    async def units(self, port: int) -> dict[str, Unit]:
        return {PROXY: asked}


class Rondo:
    """The service, as `rondo serve` on servers that are there already."""

    names = (RONDO, RONDO_KEPT)

    def __init__(self, model_port: int, database_url: str, redis_url: str, data_dir: Path, encryption_keys: str) -> None:
        self._tool_url = f"http://127.0.0.1:{model_port}{TOOL_PATH}"
        self._key = secrets.token_hex(16)
        self.environment = plain_environment() | {
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "RONDO_DATA_DIR": str(data_dir),
            "RONDO_ENCRYPTION_KEYS": encryption_keys,
            "RONDO_ADMIN_KEY": secrets.token_hex(16),
            "RONDO_SERVICE_KEY": self._key,
            "RONDO_ALLOW_PRIVATE_WEBHOOKS": "true",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{model_port}/v1",
            "OPENAI_API_KEY": "mock",
        }
        self._headers = [("authorization", f"Bearer {self._key}")]
        self._sessions: deque[str] = deque()

    def start(self, core: int, log: IO[bytes], *, through: tuple[str, ...] = ("app.cli",)) -> Child:
        """`through`: the module that runs the command line, and its first arguments."""
        port = free_port()
        environment = self.environment | {"PORT": str(port)}
        return Child([*through, "serve"], core=core, port=port, ready_path="/readyz", environment=environment, log=log)

    async def units(self, port: int) -> dict[str, Unit]:
        """Registers the tool, and makes sessions for those units that find one there."""
        connection = await Connection.to(port)
        tool = {"description": "Search the catalogue.", "parameters": PARAMETERS, "url": self._tool_url}
        answer = await connection.request("PUT", "/v1/tools/search_items", tool, self._headers)
        if answer.status >= 300:
            raise LoadError(f"the tool was refused: {bytes(answer.body)!r}")
        self._sessions.clear()
        for _ in range(PREPARED_SESSIONS):
            self._sessions.append(await self._create_session(connection))
        connection.close()
        await asyncio.sleep(0.2)
        return {RONDO: self._in_new_session, RONDO_KEPT: self._in_kept_session}

    async def _create_session(self, connection: Connection) -> str:
        tenant = {"type": "shop", "id": "1"}
        answer = await connection.request("POST", "/v1/sessions", {"tenant": tenant}, self._headers)
        if answer.status != 201:
            raise LoadError(f"status {answer.status}: {bytes(answer.body[:200])!r}")
        session_id: str = answer.json()["id"]
        return session_id

    async def _in_new_session(self, connection: Connection, model: str) -> Answer:
        return await self._run(connection, model, await self._create_session(connection))

    async def _in_kept_session(self, connection: Connection, model: str) -> Answer:
        """A session that was there before; in a long measurement it is used again, with the history of its earlier use."""
        session_id = self._sessions.popleft()
        answer = await self._run(connection, model, session_id)
        self._sessions.append(session_id)
        return answer

    async def _run(self, connection: Connection, model: str, session_id: str) -> Answer:
        body = {"input": QUESTION, "model": f"openai/{model}", "stream": True}
        answer = await connection.request("POST", f"/v1/sessions/{session_id}/runs", body, self._headers)
        if b"\nevent: run.completed\n" not in answer.body or b'"outcome":"ok"' not in answer.body:
            raise LoadError(f"status {answer.status}: {bytes(answer.body[-300:])!r}")
        return answer


def plain_environment(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what would set up a service otherwise, or would keep it from using compiled modules."""
    foreign = ("RONDO_", "OPENAI_", "ANTHROPIC_")
    names = {"DATABASE_URL", "REDIS_URL", "HOST", "PORT", "WEB_CONCURRENCY", "PYTHONDONTWRITEBYTECODE"}
    kept = {name: value for name, value in source.items() if not name.startswith(foreign) and name not in names}
    return {**kept, "PYTHONPYCACHEPREFIX": COMPILED_MODULES}
