"""Every operation of the OpenAPI document, whichever there are: nobody without a key, with the wrong kind of key, or of
another workspace gets anywhere.

A new operation is covered by being there. One with a path parameter that is not known here fails: say in `owned` what
stands for it.
"""

import asyncio
import re
from typing import Any

import httpx
import pytest

from app.main import schema as document
from tests.api import TENANT, Api, schema
from tests.conftest import ADMIN_KEY
from tests.contract.test_doors import problem

DOCUMENT = document()
OPERATIONS = [
    (path, method, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]
GUARDED = [item for item in OPERATIONS if "security" in item[2]]
PUBLIC = {"/healthz", "/readyz", "/metrics", "/console"}


def cases(wanted: Any = lambda path, method, operation: True) -> Any:
    found = [item for item in GUARDED if wanted(*item)]
    ids = [f"{method.upper()} {path}" for path, method, _ in found]
    return pytest.mark.parametrize(("path", "method", "operation"), found, ids=ids)


def is_for_workspaces(path: str, method: str, operation: dict[str, Any]) -> bool:
    return "service" in operation["x-key-kinds"]


def names_a_thing(path: str, method: str, operation: dict[str, Any]) -> bool:
    return is_for_workspaces(path, method, operation) and "{" in path and method != "put"


def acts_on_the_workspace(path: str, method: str, operation: dict[str, Any]) -> bool:
    return is_for_workspaces(path, method, operation) and ("{" not in path or method == "put")


# ---- examples, made of the document


def example(shape: dict[str, Any], name: str = "") -> Any:
    """A value that fits a JSON Schema; where its name says more than its shape, by that."""
    by_name = {
        "url": "https://203.0.113.7/hook", "base_url": "https://203.0.113.7/v1", "parameters": schema(),
        "model": "scripted/x", "tenant": TENANT, "role": "user", "input": "Hello", "script": ["Hi."],
    }  # fmt: skip
    if name in by_name:
        return by_name[name]
    if "$ref" in shape:
        return example(DOCUMENT["components"]["schemas"][shape["$ref"].rpartition("/")[2]], name)
    if "const" in shape or "enum" in shape:
        return shape.get("const", shape.get("enum", [None])[0])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in shape:
            return example(next(one for one in shape[several] if one.get("type") != "null"), name)
    match shape.get("type", "object"):
        case "object":
            properties = shape.get("properties", {})
            wanted = {*shape.get("required", []), *({"input", "model", "script"} & set(properties))}
            return {key: example(properties[key], key) for key in sorted(wanted)}
        case "array":
            return [example(shape["items"], name)] * max(1, shape.get("minItems", 0))
        case "string":
            return "x" * max(1, shape.get("minLength", 0))
        case "integer" | "number":
            return max(1, shape.get("minimum", 1))
        case "boolean":
            return True
        case other:
            raise AssertionError(f"no example for a {other}: {shape}")


def body_of(operation: dict[str, Any]) -> Any:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return None if content is None else example(content["schema"])


def ids_in(operation: dict[str, Any]) -> set[str]:
    """The fields of a body that name something else by its id."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return set()
    shape = DOCUMENT["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
    return {name for name in shape.get("properties", {}) if name.endswith("_id")}


class Owned:
    """What exists in one workspace, by the names that path parameters, body fields and filters have for it."""

    def __init__(self, api: Api, ids: dict[str, str], client: Api) -> None:
        self.api, self.ids, self.client = api, ids, client
        self.before: list[Any] = []

    def path(self, path: str) -> str:
        unknown = [name for name in re.findall(r"{(\w+)}", path) if self.of(name, path) is None]
        assert not unknown, f"say in `owned` what stands for {unknown} of {path}"
        return re.sub(r"{(\w+)}", lambda found: str(self.of(found[1], path)), path)

    def of(self, name: str, path: str) -> str | None:
        if name == "name":
            return self.ids.get(f"name of {path.split('/')[2]}")
        return self.ids.get(name)

    async def state(self) -> list[Any]:
        """All that the workspace's own key can list or read of it."""
        seen = []
        for path, method, operation in GUARDED:
            if method == "get" and "service" in operation["x-key-kinds"]:
                response = await self.api.call("GET", self.path(path))
                seen.append((path, response.status_code, response.content))
        return seen


async def first_delivery(api: Api, subscription_id: str) -> dict[str, Any]:
    """One that nobody tries any more, so that it stays as it is."""
    async with asyncio.timeout(30):
        while True:
            (found,) = (await api.get(f"/v1/subscriptions/{subscription_id}/deliveries"))["data"]
            if found["last_error"] is not None:
                return dict(found)
            await asyncio.sleep(0.02)


@pytest.fixture(scope="session")
async def owned(http: httpx.AsyncClient) -> Owned:
    """A workspace with one of everything."""
    admin = Api(http, ADMIN_KEY)
    api = await admin.new_workspace()
    key = await admin.post("/v1/keys", {"workspace_id": api.workspace_id, "kind": "service", "name": "x"})
    await api.tool("lookup", "http://127.0.0.1:9/lookup")
    provider = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "k"}
    assert (await api.call("PUT", "/v1/providers/local", provider)).status_code == 201
    session_id = await api.new_session()
    wanted = {"url": "http://127.0.0.1:9/told", "events": ["run.completed"]}
    subscription = await api.post("/v1/subscriptions", wanted)
    run = await api.run(session_id, "Hi.", tools=[])
    assert (await api.call("PATCH", f"/v1/subscriptions/{subscription['id']}", {"active": False})).status_code == 200
    delivery = await first_delivery(api, subscription["id"])
    rule = await api.post("/v1/rules", {"tenant": TENANT, "content": "Be brief."})
    memory = await api.post("/v1/memories", {"tenant": TENANT, "content": "Prefers PDF."})
    agent = await api.new_agent()
    token = (await api.post(f"/v1/sessions/{session_id}/tokens", {}))["token"]
    assert api.workspace_id is not None
    ids = {
        "session_id": session_id, "run_id": run["id"], "key_id": key["id"], "workspace_id": api.workspace_id,
        "agent_id": agent["id"], "subscription_id": subscription["id"], "delivery_id": delivery["id"],
        "name of tools": "lookup", "name of providers": "local", "rule_id": rule["id"], "memory_id": memory["id"],
    }  # fmt: skip
    made = Owned(api, ids, api.with_key(token))
    made.before = await made.state()
    return made


@pytest.fixture
async def stranger(api: Api) -> Api:
    """The key of another workspace."""
    return api


QUERIES = {"/v1/data": "?tenant=organization:none-of-theirs&confirm=tenant"}
"""What operations ask for in the query: here a tenant that has nothing, so that the others keep what they look at."""


async def ask(api: Api, owned: Owned, path: str, method: str, operation: dict[str, Any]) -> httpx.Response:
    """The operation on what is in the owned workspace, with a body that fits."""
    return await api.call(method.upper(), owned.path(path) + QUERIES.get(path, ""), body_of(operation))


class TestExamples:
    def test_there_is_something_to_look_at(self) -> None:
        assert len(GUARDED) >= 29
        assert {path for path, _, operation in OPERATIONS if "security" not in operation} <= PUBLIC

    @cases()
    async def test_the_owner_finds_what_the_path_names(
        self, owned: Owned, path: str, method: str, operation: dict[str, Any]
    ) -> None:
        """Otherwise a stranger's 404 would prove nothing."""
        if method != "get" or "service" not in operation["x-key-kinds"]:
            assert owned.path(path)
            return
        assert (await ask(owned.api, owned, path, method, operation)).status_code == 200


class TestWithoutAKey:
    @cases()
    async def test_it_is_a_401(
        self, http: httpx.AsyncClient, owned: Owned, path: str, method: str, operation: dict[str, Any]
    ) -> None:
        for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic YTpi"}):
            response = await http.request(method.upper(), owned.path(path), json=body_of(operation), headers=headers)
            problem(response, 401, "unauthenticated")


class TestWithTheWrongKind:
    @cases()
    async def test_it_is_a_403(self, admin: Api, owned: Owned, path: str, method: str, operation: dict[str, Any]) -> None:
        kinds = set(operation["x-key-kinds"])
        for kind, caller in (("admin", admin), ("service", owned.api), ("client", owned.client)):
            if kind not in kinds:
                problem(await ask(caller, owned, path, method, operation), 403, "forbidden")

    @cases(lambda path, method, operation: "service" in operation["x-key-kinds"])
    async def test_an_admin_never_does_a_workspace_s_work(self, path: str, method: str, operation: dict[str, Any]) -> None:
        assert "admin" not in operation["x-key-kinds"]


class TestOfAnotherWorkspace:
    @cases(names_a_thing)
    async def test_a_thing_in_the_path_is_a_404_and_stays_as_it_is(
        self, stranger: Api, owned: Owned, path: str, method: str, operation: dict[str, Any]
    ) -> None:
        document = problem(await ask(stranger, owned, path, method, operation), 404, "not_found")
        for value in owned.ids.values():
            assert value not in str(document)
        if method != "get":
            assert await owned.state() == owned.before

    @cases(acts_on_the_workspace)
    async def test_whatever_else_is_done_there_is_not_seen_here(
        self, stranger: Api, owned: Owned, path: str, method: str, operation: dict[str, Any]
    ) -> None:
        response = await ask(stranger, owned, path, method, operation)
        assert response.status_code < 500, response.text
        for name in ("session_id", "run_id", "key_id"):
            assert owned.ids[name] not in response.text
        if method == "get" and "data" in response.json():
            data = response.json()["data"]
            assert not any(data.values() if isinstance(data, dict) else data)
        if method != "get":
            assert await owned.state() == owned.before

    @cases(lambda path, method, operation: bool(ids_in(operation)) and is_for_workspaces(path, method, operation))
    async def test_an_id_in_a_body_is_a_404(
        self, stranger: Api, owned: Owned, path: str, method: str, operation: dict[str, Any]
    ) -> None:
        for name in ids_in(operation):
            body = {**body_of(operation), name: owned.ids.get(name, f"agt_{owned.ids['run_id'][4:]}")}
            problem(await stranger.call(method.upper(), path, body), 404, "not_found")

    @cases(
        lambda path, method, operation: method == "get" and is_for_workspaces(path, method, operation) and "{" not in path
    )
    async def test_an_id_in_a_filter_is_a_404_or_gives_nothing(
        self, stranger: Api, owned: Owned, path: str, method: str, operation: dict[str, Any]
    ) -> None:
        for parameter in operation.get("parameters", []):
            if parameter["name"] in owned.ids:
                response = await stranger.call("GET", f"{path}?{parameter['name']}={owned.ids[parameter['name']]}")
                assert response.status_code == 404 or response.json()["data"] == []
