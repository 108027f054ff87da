"""What a model would be sent for the next turn of a session, in the order of sending, without sending it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from app.loop.messages import Content, Message
from app.loop.ports import OfferedTool
from app.providers.tokens import Vocabulary, count_tokens_of, vocabulary_of
from app.redaction.opened import OpenedVault
from app.runs.prompt import NextTurn, Prompt, PromptBuilder
from app.runs.redacted_prompt import redacted_content, redacted_history, redacted_prompt
from app.sessions.history import IMAGE_TOKENS
from app.shapes import JsonObject


async def preview(
    prompts: PromptBuilder, turn: NextTurn, tools: Sequence[OfferedTool], trial: OpenedVault | None = None
) -> JsonObject:
    """`parts` with their tokens, the `tokens` of all, and the `memories` that were considered.

    The system's parts stand in the request one below the other, a blank line between them. With a `trial` of the session's
    vault it is what a provider would be sent, in redaction's tokens.
    """
    prompt = await prompts.build(turn) if trial is None else await _in_tokens(prompts, turn, trial)
    contents = _contents(prompt)
    offered = list(map(_offered, tools))
    if trial is not None:
        offered = await trial.redact_json(offered)
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


async def _in_tokens(prompts: PromptBuilder, turn: NextTurn, trial: OpenedVault) -> Prompt:
    """In the order in which a run redacts, so that what is new gets the same tokens."""
    asked = await redacted_content(turn.input, trial)
    said = None if turn.system_prompt is None else await trial.redact(turn.system_prompt)
    prompt = await redacted_prompt(
        await prompts.build(replace(turn, input=asked, system_prompt=said, query=turn.asked)), trial
    )
    return prompt.with_history(await redacted_history(prompt.history, trial))


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
