"""Any field of a run, as a run's body, a session's or an agent's `config` takes it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from app.shapes import JsonObject, Shape

ModelName = Annotated[str, StringConstraints(min_length=3, max_length=200, pattern=r"^[^/\s]+/\S+$")]
ModelChoice = ModelName | Annotated[list[ModelName], Field(min_length=1, max_length=10)]
ToolNames = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=110)]], Field(max_length=200)]
ResultKeys = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=100)]], Field(max_length=50)]


class HistoryConfig(Shape):
    """How much of a session's history goes verbatim, and who summarises the rest."""

    token_budget: Annotated[int, Field(ge=100, le=2_000_000)] | None = None
    keep_recent_turns: Annotated[int, Field(ge=1, le=1000)] | None = None
    summary_model: ModelName | None = None


class MemoryConfig(Shape):
    """Whether memories are read and written, how many tokens of them are sent, and who distils them."""

    read: bool | None = None
    write: bool | None = None
    max_tokens: Annotated[int, Field(ge=0, le=100_000)] | None = None
    model: ModelName | None = None


class RunOptions(Shape):
    """What is not named, here or nearer to the run, is the setting's. Null counts as not named, but for `NULLABLE`."""

    model: ModelChoice | None = None
    model_options: JsonObject | None = None
    tools: ToolNames | None = None
    tool_choice: Annotated[str, StringConstraints(min_length=1, max_length=70)] | None = None
    context: JsonObject | None = None
    history: HistoryConfig | None = None
    memory: MemoryConfig | None = None
    persist: bool | None = None
    max_iterations: Annotated[int, Field(ge=1, le=50)] | None = None
    on_cap: Literal["answer", "stop"] | None = None
    empty_streak_after: Annotated[int, Field(ge=0, le=50)] | None = None
    empty_streak_hint: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = None
    result_keys: ResultKeys | None = None
    max_tool_result_chars: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    parallel_tools: Annotated[int, Field(ge=1, le=32)] | None = None
    empty_nudge: bool | None = None
    empty_reply: Annotated[str, StringConstraints(min_length=1, max_length=10_000)] | None = None
    capabilities: Annotated[list[str], Field(max_length=20)] | None = None
    response_schema: JsonObject | None = None
    deadline_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    max_tokens_total: Annotated[int, Field(ge=1)] | None = None
    on_conflict: Literal["reject", "queue", "interrupt"] | None = None
    stream: bool | None = None
    background: bool | None = None
    script: Annotated[list[str | JsonObject], Field(max_length=1000)] | None = None
    metadata: JsonObject | None = None


NULLABLE = frozenset({"tools", "empty_reply", "max_tokens_total", "response_schema"})
"""Where null is a value of its own: all tools, no reply text, no budget, no schema."""


AGENT_PREFIX = "agent:"
"""`agent:NAME` among a run's tools offers another agent."""


REMEMBER, RECALL = "builtin:remember", "builtin:recall"
BUILTINS = {REMEMBER: "remember", RECALL: "recall"}
"""Tools of our own, and the names under which a model is offered them. They are only had by naming them."""


def offered_name(tool: str) -> str:
    """The name under which a model is offered a tool; an agent's is `agent_NAME`, as far as providers allow its letters."""
    if tool in BUILTINS:
        return BUILTINS[tool]
    if not tool.startswith(AGENT_PREFIX):
        return tool
    return re.sub(r"[^A-Za-z0-9_-]", "_", "agent_" + tool.removeprefix(AGENT_PREFIX))[:64]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What an agent says about its runs: its prompt, and any field of a run (`tools` always among them)."""

    id: str
    workspace_id: str
    system_prompt: str
    fields: Mapping[str, Any]
    redaction: Mapping[str, Any] | None = None


def resolve_each(name: str, sources: Sequence[dict[str, Any]], defaults: dict[str, Any]) -> dict[str, Any]:
    """The values of an option that is an object (`history`, `memory`): each key from the first source that names it."""
    objects = [source[name] for source in sources if source.get(name)]
    return {key: resolve(key, objects, default) for key, default in defaults.items()}


def resolve(name: str, sources: Sequence[dict[str, Any]], default: Any) -> Any:
    """The value of one field from the first source that names it, nearest first."""
    for source in sources:
        if name in source and (source[name] is not None or name in NULLABLE):
            return source[name]
    return default
