"""Model calls that belong to no run: summaries and memories. They go through the same catalog, retries, metering and
redaction as a run's."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.infra.database import Pool
from app.loop.events import Event
from app.loop.messages import Message, ModelFailure, Reply
from app.loop.ports import Emit, ModelRequest, Provider
from app.providers.windows import Window
from app.runs.metering import MeteredProvider
from app.usage.recording import record_for_session


@dataclass(frozen=True, slots=True)
class ModelPort:
    """A model to be asked, and how much it takes at once."""

    provider: Provider
    window: Window


ModelFor = Callable[[Mapping[str, Any], Emit, int], Awaitable[ModelPort]]
"""The model of a run: from its row, for showing deltas, with the number of attempts that were made before."""


KEEPS_TOKENS = "compression"
"""The purpose of side calls whose answer is kept beside messages, so that redacted values stay tokens in it. The answers of
all others come back with their values."""


@dataclass(frozen=True, slots=True)
class SideCall:
    """For which session and to what end (`compression`, `distillation`) which models are asked, in the order of failover.

    A `scripted/` model plays `script` from its first turn; the session's `config` is where it comes from. `response_schema`
    is that of the answer, where it shall be JSON.
    """

    workspace_id: str
    session_id: str
    purpose: str
    models: Sequence[str]
    script: Sequence[Any] = ()
    response_schema: Mapping[str, Any] | None = None


async def open_side_call(model_for: ModelFor, call: SideCall) -> ModelPort:
    """The model that answers a side call; nothing of it is shown to anybody."""
    request: dict[str, Any] = {
        "models": list(call.models),
        "model_options": {},
        "capabilities": [],
        "response_schema": call.response_schema,
        "script": list(call.script),
    }
    run = {
        "id": None, "workspace_id": call.workspace_id, "session_id": call.session_id, "request": request,
        "purpose": call.purpose,
    }  # fmt: skip
    port = await model_for(run, _unseen, 0)
    return ModelPort(MeteredProvider(port.provider), port.window)


async def ask_once(pool: Pool, call: SideCall, port: ModelPort, messages: Sequence[Message]) -> Reply | ModelFailure:
    """One answer of a side call's model, without tools. What it has cost is written down, whatever it is good for."""
    answer = await port.provider.ask(ModelRequest(1, "", tuple(messages)))
    if isinstance(answer, Reply):
        await record_for_session(pool, call.session_id, call.purpose, answer.model, answer.usage)
    return answer


def _unseen(event: Event) -> None:
    pass
