"""What starts a run, and a run as the API and its events show it."""

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Discriminator, Field, StringConstraints, Tag, model_validator

from app.infra import clock
from app.loop.messages import RunStatus
from app.redaction.shapes import RedactionConfig
from app.run_options import RunOptions
from app.scope import Reference, Scope, axis
from app.shapes import JsonObject, Shape

Text = Annotated[str, StringConstraints(max_length=2_000_000)]


def _base64(data: str) -> str:
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        raise ValueError("data must be base64") from None
    return data


class TextPart(Shape):
    type: Literal["text"]
    text: Text


class ImagePart(Shape):
    """Either `url`, or base64 `data` with its `media_type`."""

    type: Literal["image"]
    url: Annotated[str, StringConstraints(pattern=r"^https?://\S+$", max_length=4000)] | None = None
    data: Annotated[str, StringConstraints(min_length=1), AfterValidator(_base64)] | None = None
    media_type: Annotated[str, StringConstraints(pattern=r"^image/[a-z0-9.+-]+$")] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "ImagePart":
        if (self.url is None) == (self.data is None):
            raise ValueError("either url or data is needed")
        if self.data is not None and self.media_type is None:
            raise ValueError("data needs its media_type")
        return self


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
_Parts = Annotated[list[Part], Field(min_length=1, max_length=100)]
Input = Annotated[
    Annotated[Text, Tag("text")] | Annotated[_Parts, Tag("parts")],
    Discriminator(lambda given: "parts" if isinstance(given, list) else "text"),
]


def is_blank(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return all(part.type == "text" and not part.text.strip() for part in value)


class SessionRunCreate(RunOptions):
    """`POST /v1/sessions/{id}/runs`."""

    input: Input
    redaction: RedactionConfig | None = None

    @model_validator(mode="after")
    def _not_blank(self) -> "SessionRunCreate":
        if is_blank(self.input):
            raise ValueError("input must not be blank")
        return self


CLIENT_FIELDS = frozenset({"input", "stream", "background", "on_conflict", "metadata"})
"""What a client token may say when it starts a run."""


class GivenCall(Shape):
    id: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    arguments: JsonObject


class GivenMessage(Shape):
    """A message of a conversation that the caller keeps itself. Images stand in what a user says or a tool returns."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Input
    tool_calls: Annotated[list[GivenCall], Field(max_length=100)] = Field(default_factory=list)
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _images_where_they_may_stand(self) -> "GivenMessage":
        parts = () if isinstance(self.content, str) else self.content
        if self.role in ("system", "assistant") and any(part.type == "image" for part in parts):
            raise ValueError(f"a message of the {self.role} takes no image")
        return self


class RunCreate(RunOptions):
    """`POST /v1/runs`: a run of no session. Nothing of it is kept as a conversation."""

    tenant: Reference
    subject: Reference | None = None
    member: Reference | None = None
    input: Input | None = None
    messages: Annotated[list[GivenMessage], Field(min_length=1, max_length=2000)] | None = None
    system_prompt: Text | None = None
    redaction: RedactionConfig | None = None

    @model_validator(mode="after")
    def _one_input(self) -> "RunCreate":
        if (self.input is None) == (self.messages is None):
            raise ValueError("either input or messages is needed")
        if self.input is not None and is_blank(self.input):
            raise ValueError("input must not be blank")
        if self.messages is not None and not any(message.role == "user" for message in self.messages):
            raise ValueError("messages needs a user's message")
        return self

    @property
    def scope(self) -> Scope:
        return Scope(tenant=self.tenant, subject=self.subject, member=self.member)


class Wanted(BaseModel):
    """The answer to `POST …/compress` and `…/distill`: a worker does it."""

    session_id: str
    status: Literal["queued"]


class RunUsage(BaseModel):
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int


class RunError(BaseModel):
    code: str
    message: str


class RunRead(BaseModel):
    id: str
    session_id: str | None
    agent_id: str | None
    parent_run_id: str | None
    tenant: Reference
    subject: Reference | None
    member: Reference | None
    status: RunStatus
    finish_reason: str | None
    output: str | None
    output_parsed: Any
    error: RunError | None
    model: str
    iterations: int
    tool_calls: int
    usage: RunUsage
    pending: list[JsonObject]
    created_at: str
    started_at: str | None
    finished_at: str | None
    metadata: JsonObject


def run_json(row: Mapping[str, Any], **changed: Any) -> dict[str, Any]:
    """A run from its row; `changed` replaces columns (to show it as it was before)."""
    values = {**row, **changed} if changed else row
    error = None
    if values["error_code"] is not None:
        error = {"code": values["error_code"], "message": values["error_message"]}
    return {
        "id": values["id"],
        "session_id": values["session_id"],
        "agent_id": values["agent_id"],
        "parent_run_id": values["parent_run_id"],
        "tenant": axis(values, "tenant"),
        "subject": axis(values, "subject"),
        "member": axis(values, "member"),
        "status": values["status"],
        "finish_reason": values["finish_reason"],
        "output": values["output"],
        "output_parsed": values["output_parsed"],
        "error": error,
        "model": values["model"],
        "iterations": values["iterations"],
        "tool_calls": values["tool_calls"],
        "usage": {
            "input_tokens": values["input_tokens"],
            "output_tokens": values["output_tokens"],
            "cached_tokens": values["cached_tokens"],
            "reasoning_tokens": values["reasoning_tokens"],
        },
        "pending": values["pending"] or [],
        "created_at": clock.rfc3339(values["created_at"]),
        "started_at": _time(values["started_at"]),
        "finished_at": _time(values["finished_at"]),
        "metadata": values["metadata"] or {},
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else clock.rfc3339(moment)


AS_QUEUED = {"status": "queued", "started_at": None, "iterations": 0, "tool_calls": 0}
AS_STARTED = {"status": "running", "iterations": 0, "tool_calls": 0}
_NOT_ENDED = {
    "finish_reason": None, "output": None, "output_parsed": None, "error_code": None, "error_message": None,
    "pending": None, "finished_at": None, "input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "reasoning_tokens": 0,
}  # fmt: skip


def queued_json(row: Mapping[str, Any]) -> dict[str, Any]:
    return run_json(row, **AS_QUEUED, **_NOT_ENDED)


def waiting_json(row: Mapping[str, Any], as_it_waited: Mapping[str, Any]) -> dict[str, Any]:
    """A run as it was when it began to wait; `as_it_waited` are the columns that have changed since, or may have."""
    return run_json(row, **{**_NOT_ENDED, **as_it_waited})


def started_json(row: Mapping[str, Any]) -> dict[str, Any]:
    return run_json(row, **AS_STARTED, **_NOT_ENDED)
