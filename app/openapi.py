"""The OpenAPI document: FastAPI's own, with the bodies that our dependency reads, each route's keys, and problems."""

from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from app.openapi_webhooks import SENT, webhooks
from app.runs.event_shapes import RunEvent

_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "Stable; what a program should look at."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "loc": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
                    "msg": {"type": "string"},
                },
            },
        },
    },
}
_STATUSES = {
    "400": "no JSON", "401": "no valid key", "403": "this kind of key may not", "404": "not here",
    "409": "a conflict; `code` tells which", "413": "larger than 4 MiB", "415": "not application/json",
    "422": "not valid", "429": "more than this key, session or workspace may; come back after Retry-After",
    "503": "at capacity, or a store is out of reach; come back after Retry-After",
}  # fmt: skip

_STREAM = {
    "text/event-stream": {
        "itemSchema": {
            "type": "object",
            "required": ["data"],
            "properties": {
                "id": {"type": "string", "description": "where to come back to, by Last-Event-ID"},
                "event": {"type": "string", "description": "its type"},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {"$ref": "#/components/schemas/RunEvent"},
                },
            },
        }
    }
}
_RETRY_AFTER = {"description": "seconds", "required": True, "schema": {"type": "integer", "minimum": 1}}


def marks(dependant: Dependant, name: str) -> list[Any]:
    """The values of an attribute on the functions that a route depends on, at any depth."""
    found = [getattr(dependant.call, name)] if dependant.call is not None and hasattr(dependant.call, name) else []
    for inner in dependant.dependencies:
        found += marks(inner, name)
    return found


def document(app: FastAPI, routes: list[APIRoute]) -> dict[str, Any]:
    """Made once and kept on the app; `routes` are all that it has."""
    if app.openapi_schema:
        return app.openapi_schema
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    models = {model for route in routes for model in marks(route.dependant, "body_model")}
    models |= {RunEvent, *SENT}
    _, definitions = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template="#/components/schemas/{model}",
    )
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas |= definitions.get("$defs", {})
    schemas["Problem"] = _PROBLEM
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    made["webhooks"] = webhooks()
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for route in routes:
        if route.include_in_schema:
            for method in route.methods or ():
                _describe(made["paths"][route.path_format][method.lower()], route, method)
    app.openapi_schema = made
    return made


def _describe(operation: dict[str, Any], route: APIRoute, method: str) -> None:
    kinds = marks(route.dependant, "allowed_kinds")
    bodies = marks(route.dependant, "body_model")
    wanted = {"422"}
    if kinds:
        operation["security"] = [{"key": []}]
        operation["x-key-kinds"] = list(kinds[0])
        wanted |= {"401", "403", "429", "503"}
    if "{" in route.path_format or method == "POST":
        wanted |= {"404"}
    if any(item["in"] == "query" and item["name"].endswith("_id") for item in operation.get("parameters", ())):
        wanted |= {"404"}  # a filter that names nothing of the workspace's
    if method in ("POST", "PUT", "PATCH"):
        wanted |= {"400", "409", "413", "415"}
    if bodies:
        schema = {"$ref": f"#/components/schemas/{bodies[0].__name__}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if marks(route.dependant, "takes_key"):
        operation.setdefault("parameters", []).append(
            {
                "name": "Idempotency-Key", "in": "header", "required": False,
                "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
            }
        )  # fmt: skip
    if route.path_format.endswith("/events"):
        operation["responses"]["200"]["content"] = {**_STREAM}
        operation["responses"]["204"] = {"description": "The run has ended, and its last event is known."}
    if bodies and "stream" in bodies[0].model_fields:
        operation["responses"]["200"]["content"] |= _STREAM
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status in sorted(wanted):
        operation["responses"][status] = {"description": _STATUSES[status], "content": problem}
        if status in ("429", "503"):
            operation["responses"][status]["headers"] = {"Retry-After": _RETRY_AFTER}
