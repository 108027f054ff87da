"""What a model sees of the turns before: a summary of the older ones, and the rest as user and assistant prose.

Tool calls and results belong to the run that made them, and blank messages to nobody. A turn is one user message and
everything up to the next one; what stands before the first user message is a turn too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from app.infra.database import Connection, Pool
from app.loop.messages import Content, Image, Message
from app.providers.tokens import NEWEST, Vocabulary, count_tokens_of

IMAGE_TOKENS = 1000
"""What an image is taken for; providers reckon between 85 and 1,600."""

# $1 session_id, $2 a message before which the history ends, or one that is not there for all of it. A summary comes first.
_HISTORY = """
WITH summed AS (SELECT summary, summary_tokens, through_position FROM compressions
                 WHERE session_id = $1 AND summary IS NOT NULL)
SELECT NULL AS id, 'summary' AS role, summary AS content, NULL::jsonb AS parts, summary_tokens AS tokens,
       through_position AS position FROM summed
UNION ALL
SELECT id, role, content, parts, tokens, position FROM messages
 WHERE session_id = $1 AND role IN ('user', 'assistant')
   AND position > coalesce((SELECT through_position FROM summed), 0)
   AND position < coalesce((SELECT position FROM messages WHERE id = $2), 2147483647)
   AND (parts IS NOT NULL OR content ~ '\\S')
 ORDER BY position
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """`tokens` are those of its prose."""

    messages: tuple[Message, ...]
    tokens: int
    last_position: int


@dataclass(frozen=True, slots=True)
class History:
    """The summary stands for everything up to `through_position`; the turns are what came after it, oldest first."""

    turns: tuple[Turn, ...] = ()
    summary: str | None = None
    summary_tokens: int = 0
    through_position: int = 0

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(message for turn in self.turns for message in turn.messages)

    @property
    def tokens(self) -> int:
        return self.summary_tokens + sum(turn.tokens for turn in self.turns)

    def without_oldest(self) -> "History":
        return replace(self, turns=self.turns[1:])


async def read_history(
    pool: Connection | Pool, session_id: str, before_message_id: str = "", vocabulary: Vocabulary = NEWEST
) -> History:
    """The history of a session before a message, or all of it when there is no such message. One round trip."""
    rows = await pool.fetch(_HISTORY, session_id, before_message_id)
    history = History()
    if rows and rows[0]["role"] == "summary":
        first = rows.pop(0)
        history = History((), first["content"], first["tokens"], first["position"])
    return replace(history, turns=tuple([await _turn(turn, vocabulary) for turn in _turns(rows)]))


def _turns(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    turns: list[list[Mapping[str, Any]]] = []
    for row in rows:
        if row["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(row)
    return turns


async def _turn(rows: Sequence[Mapping[str, Any]], vocabulary: Vocabulary) -> Turn:
    messages = tuple(Message(row["role"], content_of(row["content"], row["parts"])) for row in rows)
    tokens = [await _tokens(row, message, vocabulary) for row, message in zip(rows, messages, strict=True)]
    return Turn(messages, sum(tokens), rows[-1]["position"])


async def _tokens(row: Mapping[str, Any], message: Message, vocabulary: Vocabulary) -> int:
    """As they were counted when the message was stored; by another vocabulary once in a process."""
    if vocabulary == NEWEST and row["tokens"] is not None:
        stored: int = row["tokens"]
        return stored
    known = _counted(row["id"], vocabulary)
    if not known:
        known.append(await content_tokens(message.content, vocabulary))
    return known[0]


@lru_cache(maxsize=50_000)
def _counted(message_id: str, vocabulary: Vocabulary) -> list[int]:
    return []


async def content_tokens(content: Content, vocabulary: Vocabulary = NEWEST) -> int:
    """Tokens of a text, or of the parts of a message."""
    if isinstance(content, str):
        return await count_tokens_of(content, vocabulary)
    images = sum(isinstance(part, Image) for part in content)
    text = "".join(part for part in content if isinstance(part, str))
    return await count_tokens_of(text, vocabulary) + images * IMAGE_TOKENS


def content_of(text: str, parts: Sequence[dict[str, Any]] | None) -> Content:
    """Stored text, or stored parts, as the loop has them."""
    if parts is None:
        return text
    return tuple(
        part["text"] if part["type"] == "text" else Image(part.get("url"), part.get("data"), part.get("media_type"))
        for part in parts
    )
