"""The providers' own Python packages as judges: their typed requests as strict validators, and clients at a model server."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
from pydantic import TypeAdapter
from pydantic_core import SchemaValidator

from tests.providers.model_server import ModelServer


def strict_judge(kind: Any) -> Callable[[Any], None]:
    """Raises pydantic's `ValidationError` for a body that is not exactly of this type, one of the packages' own.

    pydantic reads such a TypedDict leniently: unknown keys are dropped, `"5"` is a 5, an `Iterable` is not looked into until
    somebody iterates, and the models of answers, which may stand in requests too, take any key. So the schema is changed
    before it is used: the named keys are all there are, iterables are lists that are judged at once, and types are strict.
    """
    adapter = TypeAdapter(kind)
    adapter.rebuild(force=True)
    validator = SchemaValidator(_closed(adapter.core_schema))
    return lambda body: validator.validate_json(json.dumps(body), strict=True)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(_closed(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    match closed.get("type"):
        case "typed-dict" | "model-fields":
            closed["extra_behavior"] = "forbid"
        case "model":
            closed.pop("config", None)
        case "generator":
            return {"type": "list", "items_schema": closed["items_schema"]}
    return closed


@asynccontextmanager
async def openai_client(server: ModelServer) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0, http_client=http) as client:
        yield client


@asynccontextmanager
async def anthropic_client(server: ModelServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    async with anthropic.AsyncAnthropic(base_url=server.address, api_key="k", max_retries=0, http_client=http) as client:
        yield client
