"""The OpenAPI document: the committed one is the one that is served, and it tells all that a caller may meet."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.main import schema

COMMITTED = Path(__file__).parent.parent / "openapi" / "openapi.json"
DOCUMENT = schema()
OPERATIONS = [
    pytest.param(path, method, operation, id=f"{method.upper()} {path}")
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
every_operation = pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
PUBLIC = {"/healthz", "/readyz", "/metrics"}


def references(value: Any) -> list[str]:
    """Every `$ref` in a document."""
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for item in value.values() for found in references(item)]
    if isinstance(value, list):
        return [found for item in value for found in references(item)]
    return []


class TestCommittedDocument:
    def test_it_is_the_one_that_the_code_gives(self) -> None:
        assert json.loads(COMMITTED.read_text(encoding="utf-8")) == json.loads(json.dumps(DOCUMENT)), "run `make openapi`"

    def test_it_is_of_openapi_3_1_and_version_1(self) -> None:
        assert DOCUMENT["openapi"].startswith("3.1")
        assert DOCUMENT["info"]["version"] == "1"

    def test_every_reference_leads_somewhere(self) -> None:
        names = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
        assert set(references(DOCUMENT)) - names == set()

    def test_everything_but_the_public_paths_is_below_v1(self) -> None:
        assert {path for path in DOCUMENT["paths"] if not path.startswith("/v1/")} == PUBLIC


class TestOperations:
    @every_operation
    def test_it_says_which_keys_may(self, path: str, method: str, operation: dict[str, Any]) -> None:
        if path in PUBLIC:
            assert "security" not in operation
            return
        assert operation["security"] == [{"key": []}]
        assert set(operation["x-key-kinds"]) <= {"admin", "service", "client"}
        assert operation["x-key-kinds"]

    @every_operation
    def test_it_tells_every_refusal_a_caller_may_meet(self, path: str, method: str, operation: dict[str, Any]) -> None:
        wanted = set() if path in PUBLIC else {"401", "403", "422"}
        if "{" in path:
            wanted.add("404")
        if "requestBody" in operation:
            wanted |= {"400", "413", "415", "422"}
        assert wanted <= set(operation["responses"])

    @every_operation
    def test_its_problems_are_problem_documents(self, path: str, method: str, operation: dict[str, Any]) -> None:
        for status, response in operation["responses"].items():
            if status.startswith("4"):
                reference = response["content"]["application/problem+json"]["schema"]
                assert reference == {"$ref": "#/components/schemas/Problem"}, status

    @every_operation
    def test_it_has_exactly_the_usual_success_of_its_method(self, path: str, method: str, operation: dict[str, Any]) -> None:
        good = {status for status in operation["responses"] if status.startswith("2")}
        assert good
        if method == "delete":
            assert good <= {"204", "200"}
        if method == "put":
            assert good == {"200", "201"}

    @every_operation
    def test_its_path_parameters_are_all_described(self, path: str, method: str, operation: dict[str, Any]) -> None:
        named = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        described = {item["name"] for item in operation.get("parameters", []) if item["in"] == "path"}
        assert named == described

    @every_operation
    def test_what_is_read_from_a_body_is_described(self, path: str, method: str, operation: dict[str, Any]) -> None:
        if method in ("put", "patch"):
            assert "requestBody" in operation

    def test_the_stream_of_events_is_described_as_one(self) -> None:
        responses = DOCUMENT["paths"]["/v1/runs/{run_id}/events"]["get"]["responses"]
        assert set(responses["200"]["content"]) == {"text/event-stream"}
        assert "204" in responses

    def test_what_is_sent_to_others_is_described_with_its_headers(self) -> None:
        assert set(DOCUMENT["webhooks"]) == {"tool.call", "delivery"}
        for sent in DOCUMENT["webhooks"].values():
            named = {parameter["name"] for parameter in sent["post"]["parameters"]}
            assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= named

    def test_operation_ids_are_unique(self) -> None:
        ids = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
        assert len(ids) == len(set(ids))

    def test_unknown_fields_are_refused_by_every_body(self) -> None:
        schemas = DOCUMENT["components"]["schemas"]
        bodies = {
            operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            for methods in DOCUMENT["paths"].values()
            for operation in methods.values()
            if "requestBody" in operation
        }
        assert {name for name in bodies if schemas[name].get("additionalProperties") is not False} == set()


class TestDocumentOverHttp:
    async def test_what_is_served_is_what_is_committed(self, http: httpx.AsyncClient) -> None:
        served = await http.get("/openapi.json")
        assert served.status_code == 200
        assert served.headers["content-type"] == "application/json"
        assert served.json() == json.loads(COMMITTED.read_text(encoding="utf-8"))
