"""What a model would be sent for the next turn of a session, in the order of sending, without sending it."""

from typing import Any

import orjson

from app.infra.database import Pool
from app.loop.messages import Content, Message
from app.providers.tokens import Vocabulary, count_tokens_of, vocabulary_of
from app.runs.prompt import NextTurn, Prompt, PromptBuilder
from app.sessions.history import IMAGE_TOKENS
from app.shapes import JsonObject
from app.tools import repository as tools


async def preview(pool: Pool, prompts: PromptBuilder, turn: NextTurn, tool_names: list[str] | None) -> JsonObject:
    """`parts` with their tokens, the `tokens` of all, and the `memories` that were considered.

    The system's parts stand in the request one below the other, a blank line between them.
    """
    prompt = await prompts.build(turn)
    contents = _contents(prompt)
    offered = await _tools(pool, turn.workspace_id, tool_names)
    if offered:
        contents.append(("tools", offered))
    parts = [await _part(kind, content, vocabulary_of(turn.model)) for kind, content in contents]
    images = sum(not isinstance(part, str) for message in prompt.messages for part in message.content)
    return {
        "parts": parts,
        "tokens": sum(part["tokens"] for part in parts) + images * IMAGE_TOKENS,
        "memories": [
            {"id": one.id, "chosen": one.chosen, "weight": one.weight, "reason": one.reason}
            for one in prompt.recalled.considered
        ],
    }


def _contents(prompt: Prompt) -> list[tuple[str, Any]]:
    """Each kind of part that there is, in the order of sending."""
    above = (
        ("rules", prompt.rules),
        ("system_prompt", prompt.system_prompt),
        ("memories", prompt.memories),
        ("summary", prompt.summary),
        ("history", [_shown(message) for message in prompt.history.messages]),
        ("input", None if prompt.input is None else _as_text(prompt.input)),
    )
    return [(kind, content) for kind, content in above if content]


async def _part(kind: str, content: str | list[JsonObject], vocabulary: Vocabulary) -> JsonObject:
    text = content if isinstance(content, str) else orjson.dumps(content).decode()
    return {"kind": kind, "content": content, "tokens": await count_tokens_of(text, vocabulary)}


def _shown(message: Message) -> JsonObject:
    return {"role": message.role, "content": _as_text(message.content)}


def _as_text(content: Content) -> str:
    """An image stands for itself by a mark."""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else "[image]" for part in content)


async def _tools(pool: Pool, workspace_id: str, names: list[str] | None) -> list[JsonObject]:
    rows = await tools.read_active(
        pool, workspace_id, await tools.active_names(pool, workspace_id) if names is None else names
    )
    return [{"name": row["name"], "description": row["description"], "parameters": row["parameters"]} for row in rows]
