"""What a model would be sent for the next turn of a session, in the order of sending, without sending it."""

from collections.abc import Sequence
from typing import Any

import orjson

from app.loop.messages import Content, Message
from app.loop.ports import OfferedTool
from app.providers.tokens import Vocabulary, count_tokens_of, vocabulary_of
from app.runs.prompt import NextTurn, Prompt, PromptBuilder
from app.sessions.history import IMAGE_TOKENS
from app.shapes import JsonObject


async def preview(prompts: PromptBuilder, turn: NextTurn, tools: Sequence[OfferedTool]) -> JsonObject:
    """`parts` with their tokens, the `tokens` of all, and the `memories` that were considered.

    The system's parts stand in the request one below the other, a blank line between them.
    """
    prompt = await prompts.build(turn)
    contents = _contents(prompt)
    if tools:
        contents.append(("tools", list(map(_offered, tools))))
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


def _offered(tool: OfferedTool) -> JsonObject:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
