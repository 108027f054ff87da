"""The service as a caller sees it: a thin client for tests. `TestTools` is the application that hosts their tools."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.tools_app import TestTools

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

    async def play(self, *script: Any, session: str | None = None, input: str = "Hello", **fields: Any) -> "Played":
        """A run to its end, in a new session unless one is given, with all that it left."""
        session_id = session or await self.new_session()
        run = await self.run(session_id, *script, input=input, **fields)
        return await self.played(run)

    async def played(self, run: dict[str, Any]) -> "Played":
        """All that a finished run left."""
        messages = await self.messages(run["session_id"]) if run["session_id"] else []
        own = [message for message in messages if message["run_id"] == run["id"]]
        return Played(run, own, await self.trace(run["id"]), await self.events(run["id"]))

    async def tool(self, name: str, url: str, **fields: Any) -> Any:
        parameters = {"type": "object", "properties": {}}
        body = {"description": f"The tool {name}.", "parameters": parameters, "url": url, **fields}
        response = await self.call("PUT", f"/v1/tools/{name}", body)
        assert response.status_code in (200, 201), response.text
        return response.json()

    async def new_agent(self, *script: Any, **fields: Any) -> dict[str, Any]:
        """An agent of a scripted model, for every tenant and without a quiet time unless it is given."""
        config = {"script": list(script or ("Done.",)), **fields.pop("config", {})}
        body = {"name": "helper", "system_prompt": "Help.", "model": "scripted/test", "debounce_seconds": 0, **fields}
        made: dict[str, Any] = await self.post("/v1/agents", {**body, "config": config})
        return made

    async def trigger(self, event: str = "saved", status: int = 202, **fields: Any) -> Any:
        return await self.post("/v1/triggers", {"event": event, "tenant": TENANT, **fields}, status)

    async def firings(self, agent: dict[str, Any]) -> list[dict[str, Any]]:
        """Newest first."""
        found: list[dict[str, Any]] = (await self.get(f"/v1/agents/{agent['id']}/firings?limit=200"))["data"]
        return found

    async def ended(self, run_id: str) -> "Played":
        """All that a run left, once it has ended."""
        await self.events(run_id)
        return await self.played(await self.get(f"/v1/runs/{run_id}"))

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


class Played:
    """What one run left: its JSON, its messages, trace and events."""

    def __init__(
        self,
        run: dict[str, Any],
        messages: list[dict[str, Any]],
        trace: list[dict[str, Any]],
        events: list[Event],
    ) -> None:
        self.run, self.messages, self.trace, self.events = run, messages, trace, events

    @property
    def ending(self) -> tuple[str, str | None]:
        return self.run["status"], self.run["finish_reason"]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The tool calls as the trace has them, in the order of the calls."""
        return [call for iteration in self.trace for call in iteration["tool_calls"]]

    @property
    def model_calls(self) -> list[dict[str, Any]]:
        """All attempts at model calls, as the trace has them."""
        return [call for iteration in self.trace for call in iteration["model_calls"]]

    @property
    def results(self) -> list[Any]:
        return [call["result"] for call in self.calls]

    @property
    def outcomes(self) -> list[str]:
        return [call["outcome"] for call in self.calls]

    @property
    def contents(self) -> list[str]:
        """The results as the model saw them."""
        return [call["content"] for call in self.calls]

    def of(self, *types: str) -> list[dict[str, Any]]:
        """The data of the events of these types."""
        return [event.data for event in self.events if event.type in types]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def shown(self) -> str:
        """All that a model or a client ever sees of the run: its messages and events, as one text."""
        return json.dumps([self.messages, [event.data for event in self.events]], ensure_ascii=False)


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
    return {"tool_calls": [wanted(name, arguments)], **more}


def calls(*wanted_calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A turn of a script with several calls, each made by `wanted`."""
    return {"tool_calls": list(wanted_calls), **more}


def wanted(name: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "arguments": {} if arguments is None else arguments, **more}


def failing(status: int, message: str = "", **more: Any) -> dict[str, Any]:
    """A turn of a script in which the provider answers an error."""
    return {"error": {"status": status, "message": message}, **more}


def schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """The JSON Schema of an object; a property may be given as the name of its type."""
    shapes = {name: {"type": shape} if isinstance(shape, str) else shape for name, shape in properties.items()}
    return {"type": "object", "properties": shapes, "required": list(required)}


__all__ = [
    "TENANT", "Api", "Event", "Played", "TestTools", "call", "calls", "failing", "read_events", "schema", "wanted",
]  # fmt: skip
