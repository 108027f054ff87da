"""The part of the OpenAPI document that tells what Rondo itself sends: calls of tools, and deliveries of subscriptions."""

from typing import Any

from pydantic import BaseModel

from app.runs.event_shapes import RunTold, UsageTold
from app.tools.call_shapes import ToolCallSent

SENT: tuple[type[BaseModel], ...] = (ToolCallSent, RunTold, UsageTold)


def webhooks() -> dict[str, Any]:
    """By name, as OpenAPI 3.1 has them. All are signed as Standard Webhooks says."""
    return {
        "tool.call": {"post": _operation(
            "A tool is called, at the `url` of its registration",
            [ToolCallSent],
            [
                _header("Idempotency-Key", "`webhook-id` once more: one call, however often it is sent"),
                _header("Rondo-Attempt", "1, or more where it is sent again"),
                _header("Rondo-Run", "to be given as `cause_run_id` with what the call causes"),
            ],
            {
                "200": "The result: JSON, else a text becomes `{\"content\": …}` and nothing becomes `{\"ok\": true}`",
                "202": "The result comes later, to `/v1/runs/{run_id}/tool-results`; the run waits",
                "400": "The model can mend it: it reads `error`, `message`, `detail` or `errors`; also 404, 409, 422",
                "default": "Only a person can mend it; the model reads that the tool is temporarily unavailable",
            },
        )},
        "delivery": {"post": _operation(
            "A subscription is told what happened: at least once, of one run in order",
            [RunTold, UsageTold],
            [],
            {"200": "Any 2xx: it has come", "410": "It is paused at once", "default": "It is sent again, for a day"},
        )},
    }  # fmt: skip


def _operation(
    summary: str, models: list[type[BaseModel]], headers: list[dict[str, Any]], answers: dict[str, str]
) -> dict[str, Any]:
    known = [
        _header("webhook-id", "the same at every attempt"),
        _header("webhook-timestamp", "seconds since 1970, of this attempt"),
        _header(
            "webhook-signature", "`v1,` and the HMAC-SHA256 of id, timestamp and the exact body, one for each valid secret"
        ),
    ]
    schemas = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    return {
        "summary": summary,
        "parameters": [*known, *headers],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}},
        },
        "responses": {status: {"description": text} for status, text in answers.items()},
    }


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": True, "description": description, "schema": {"type": "string"}}
