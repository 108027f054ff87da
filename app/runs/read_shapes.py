"""What is read of a run beside the run itself, as the OpenAPI document tells it."""

from typing import Any, Literal

from pydantic import BaseModel

from app.shapes import JsonObject


class ModelCallRead(BaseModel):
    """One attempt at a model call; `error` tells why there is none of the rest."""

    model: str
    attempt: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    seconds: float
    first_token_seconds: float | None = None
    finish_reason: str | None = None
    error: Any = None


class ToolCallRead(BaseModel):
    """`arguments` as the model gave them, a text where they are no object; `content` is the result as the model saw it."""

    call_id: str
    tool: str
    arguments: Any
    result: Any
    content: str | None
    outcome: str | None
    status: int | None
    cause: str | None
    seconds: float | None
    attempts: int | None
    answered_at: str | None


class IterationRead(BaseModel):
    iteration: int
    model_calls: list[ModelCallRead]
    tool_calls: list[ToolCallRead]


class TraceRead(BaseModel):
    iterations: list[IterationRead]


class ScriptRead(BaseModel):
    """Each turn is a text or an object, as a run's `script` takes it."""

    script: list[str | JsonObject]


class PromptPart(BaseModel):
    kind: Literal["rules", "system_prompt", "memories", "summary", "history", "input", "tools"]
    content: str | list[JsonObject]
    tokens: int


class PromptRead(BaseModel):
    parts: list[PromptPart]
    tokens: int
    memories: list[JsonObject]
