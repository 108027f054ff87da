"""What the model is sent for a turn, in the order of sending: system prompt, history, input. Tools go beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.infra import ids
from app.infra.database import Pool
from app.loop.messages import Message, ToolCall
from app.sessions.history import content_of, read_history


async def build_messages(pool: Pool, run: Mapping[str, Any]) -> tuple[Message, ...]:
    """The messages of a run, from what was resolved when it was accepted and the session's turns before its input."""
    request = run["request"]
    if request["messages"] is not None:
        return (*_system(request["system_prompt"]), *map(_given, request["messages"]))
    if run["session_id"] is None:
        return (*_system(request["system_prompt"]), Message("user", input_content(request["input"])))
    return await next_messages(
        pool, run["session_id"], request["system_prompt"], request["input"], input_message_id(run["id"])
    )


async def next_messages(
    pool: Pool,
    session_id: str,
    system_prompt: str | None,
    given: str | Sequence[dict[str, Any]] | None,
    before_message_id: str = "",
) -> tuple[Message, ...]:
    """The messages of a session's turn: all before a message of it (or all there are), and the input."""
    history = await read_history(pool, session_id, before_message_id)
    asked = () if given is None else (Message("user", input_content(given)),)
    return (*_system(system_prompt), *history, *asked)


def _system(prompt: str | None) -> tuple[Message, ...]:
    return (Message("system", prompt),) if prompt else ()


def input_content(given: str | Sequence[dict[str, Any]]) -> Any:
    return given if isinstance(given, str) else content_of("", given)


def input_message_id(run_id: str) -> str:
    return ids.derived(ids.MESSAGE, run_id, "input")


def input_message(run_id: str, given: str | Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The user's input as a row of the session: its text, and its parts where it has images."""
    if isinstance(given, str):
        return {"id": input_message_id(run_id), "content": given, "parts": None}
    text = "".join(part["text"] for part in given if part["type"] == "text")
    return {"id": input_message_id(run_id), "content": text, "parts": list(given)}


def _given(message: Mapping[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["id"], call["name"], call["arguments"], "", call["id"]) for call in message.get("tool_calls") or ()
    )
    return Message(message["role"], input_content(message["content"]), calls, tool_call_id=message.get("tool_call_id"))
