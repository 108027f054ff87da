"""The service as a caller sees it: a thin client for tests, and an application that hosts their tools."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import httpx

from tests.tools.webhook_server import WebhookServer

TENANT = {"type": "organization", "id": "42"}


class Api:
    """The API with one key."""

    def __init__(self, http: httpx.AsyncClient, key: str, workspace_id: str | None = None) -> None:
        self.http, self.key, self.workspace_id = http, key, workspace_id

    def headers(self, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", **more}

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is None:
            return await self.http.request(method, path, headers=self.headers(**named))
        return await self.http.request(method, path, json=body, headers=self.headers(**named))

    async def get(self, path: str) -> Any:
        response = await self.call("GET", path)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None, status: int = 201, **headers: str) -> Any:
        response = await self.call("POST", path, body, **headers)
        assert response.status_code == status, response.text
        return response.json()

    def with_key(self, key: str) -> "Api":
        return Api(self.http, key, self.workspace_id)

    async def new_workspace(self) -> "Api":
        workspace = await self.post("/v1/workspaces", {"name": "test"})
        key = await self.post("/v1/keys", {"workspace_id": workspace["id"], "kind": "service", "name": "test"})
        return Api(self.http, key["key"], workspace["id"])

    async def new_session(self, **fields: Any) -> str:
        made = await self.post("/v1/sessions", {"tenant": TENANT, "model": "scripted/test", **fields})
        session_id: str = made["id"]
        return session_id

    async def run(self, session_id: str, *script: Any, input: str = "Hello", status: int = 200, **fields: Any) -> Any:
        """A run of a scripted model, to its end."""
        body = {"input": input, "script": list(script), **fields}
        return await self.post(f"/v1/sessions/{session_id}/runs", body, status)

    async def tool(self, name: str, url: str, **fields: Any) -> Any:
        parameters = {"type": "object", "properties": {}}
        body = {"description": f"The tool {name}.", "parameters": parameters, "url": url, **fields}
        response = await self.call("PUT", f"/v1/tools/{name}", body)
        assert response.status_code in (200, 201), response.text
        return response.json()

    async def messages(self, session_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get(f"/v1/sessions/{session_id}/messages?limit=200"))["data"]
        return found

    async def trace(self, run_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get(f"/v1/runs/{run_id}/trace"))["iterations"]
        return found

    async def events(self, run_id: str, after: int | None = None) -> list["Event"]:
        """Everything from a seq to the end."""
        headers = {} if after is None else {"Last-Event-ID": str(after)}
        return [event async for event in self.follow(f"/v1/runs/{run_id}/events", headers)]

    async def follow(self, path: str, headers: dict[str, str] | None = None) -> AsyncIterator["Event"]:
        async with self.http.stream("GET", path, headers=self.headers(**(headers or {}))) as response:
            assert response.status_code == 200, await response.aread()
            async for event in read_events(response):
                yield event

    async def stream_run(self, session_id: str, *script: Any, input: str = "Hello", **fields: Any) -> list["Event"]:
        """A run followed by the POST that started it."""
        body = {"input": input, "script": list(script), "stream": True, **fields}
        path = f"/v1/sessions/{session_id}/runs"
        async with self.http.stream("POST", path, json=body, headers=self.headers()) as response:
            assert response.status_code == 200, await response.aread()
            return [event async for event in read_events(response)]


class Event:
    """One frame: its bytes, id, type and JSON."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        lines = dict(line.split(b": ", 1) for line in raw.strip(b"\n").split(b"\n"))
        self.id = int(lines[b"id"]) if b"id" in lines else None
        self.type = lines[b"event"].decode()
        self.data: dict[str, Any] = json.loads(lines[b"data"])

    def __repr__(self) -> str:
        return f"{self.id}:{self.type}"


async def read_events(response: httpx.Response) -> AsyncIterator[Event]:
    rest = b""
    async for chunk in response.aiter_raw():
        *frames, rest = (rest + chunk).split(b"\n\n")
        for frame in frames:
            if frame and not frame.startswith((b":", b"retry:")):
                yield Event(frame + b"\n\n")
    assert not rest, f"the stream ended inside a frame: {rest!r}"


def call(name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """A turn of a script that calls one tool."""
    return {"tool_calls": [{"name": name, "arguments": {} if arguments is None else arguments}], **more}


__all__ = ["TENANT", "Api", "Event", "TestTools", "call", "read_events"]
