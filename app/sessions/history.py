"""What a model sees of the turns before: user and assistant prose only. Tool calls and results belong to the run that
made them, and blank turns to nobody."""

from collections.abc import Sequence
from typing import Any

from app.infra.database import Pool
from app.loop.messages import Content, Image, Message

_PROSE = """
SELECT role, content, parts FROM messages
 WHERE session_id = $1 AND role IN ('user', 'assistant')
   AND position < coalesce((SELECT position FROM messages WHERE id = $2), 2147483647)
   AND (parts IS NOT NULL OR content ~ '\\S')
 ORDER BY position
"""


async def read_history(pool: Pool, session_id: str, before_message_id: str) -> tuple[Message, ...]:
    """The prose of a session before a message, or all of it when there is no such message; oldest first."""
    rows = await pool.fetch(_PROSE, session_id, before_message_id)
    return tuple(Message(row["role"], content_of(row["content"], row["parts"])) for row in rows)


def content_of(text: str, parts: Sequence[dict[str, Any]] | None) -> Content:
    """Stored text, or stored parts, as the loop has them."""
    if parts is None:
        return text
    return tuple(
        part["text"] if part["type"] == "text" else Image(part.get("url"), part.get("data"), part.get("media_type"))
        for part in parts
    )
