"""What a model would be sent for the next turn of a session, in the order of sending, without sending it."""

import orjson

from app.infra.database import Pool
from app.loop.messages import Content, Message
from app.providers.tokens import count_tokens_of
from app.runs.prompt import next_messages
from app.sessions.models import Session
from app.shapes import JsonObject
from app.tools import repository as tools


async def preview(pool: Pool, session: Session, given: str | None) -> JsonObject:
    """`parts`, the `tokens` of all, and the `memories` that were considered."""
    messages = await next_messages(pool, session.id, session.system_prompt, given)
    system = [message for message in messages if message.role == "system"]
    asked = messages[-1:] if given is not None else ()
    history = messages[len(system) : len(messages) - len(asked)]
    parts = [await _part("system_prompt", message.text) for message in system]
    if history:
        parts.append(await _part("history", [_shown(message) for message in history]))
    parts += [await _part("input", message.text) for message in asked]
    offered = await _tools(pool, session)
    if offered:
        parts.append(await _part("tools", offered))
    return {"parts": parts, "tokens": sum(part["tokens"] for part in parts), "memories": []}


async def _part(kind: str, content: str | list[JsonObject]) -> JsonObject:
    text = content if isinstance(content, str) else orjson.dumps(content).decode()
    return {"kind": kind, "content": content, "tokens": await count_tokens_of(text)}


def _shown(message: Message) -> JsonObject:
    return {"role": message.role, "content": _as_text(message.content)}


def _as_text(content: Content) -> str:
    """Images stand for themselves only by a mark; their cost is the provider's own matter."""
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else "[image]" for part in content)


async def _tools(pool: Pool, session: Session) -> list[JsonObject]:
    names = session.tools if session.tools is not None else await tools.active_names(pool, session.workspace_id)
    rows = await tools.read_active(pool, session.workspace_id, names)
    return [{"name": row["name"], "description": row["description"], "parameters": row["parameters"]} for row in rows]
