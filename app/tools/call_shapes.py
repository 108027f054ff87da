"""What a webhook is sent, as the OpenAPI document tells it; it is made in `webhook.py`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from app.scope import Reference
from app.shapes import JsonObject


class ToolCallData(BaseModel):
    """`arguments` is what a language model wrote: never identity or scope. The rest is what your own backend said."""

    model_config = ConfigDict(extra="forbid")

    tool: str
    call_id: str
    arguments: JsonObject
    context: JsonObject
    tenant: Reference | None
    subject: Reference | None
    member: Reference | None
    session_id: str | None
    run_id: str
    agent_id: str | None


class ToolCallSent(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["tool.call"]
    timestamp: str
    data: ToolCallData
