"""A prompt in tokens: what stands around the conversation was written by people and comes in clear."""

from dataclasses import dataclass, replace

from app.loop.messages import Content
from app.redaction.opened import OpenedVault
from app.redaction.rewriting import redacted_messages
from app.redaction.tokens import NOTE
from app.runs.prompt import Considered, NextTurn, Prompt
from app.sessions.history import History


@dataclass(frozen=True, slots=True)
class _Recalled:
    block: str | None
    considered: "tuple[Considered, ...]"


def asking_for(turn: NextTurn, opened: OpenedVault) -> NextTurn:
    """The turn with the text by which memories are found, which are kept in clear."""
    return replace(turn, query=opened.restore(turn.asked))


async def redacted_prompt(prompt: Prompt, opened: OpenedVault) -> Prompt:
    """Rules and memories redacted; the rest stands in tokens already, and is looked at where it goes out. The model is told
    what tokens are."""
    rules, memories = await _each(opened, prompt.rules, prompt.memories)
    said = [text for text in (prompt.system_prompt, NOTE) if text]
    recalled = _Recalled(memories, tuple(prompt.recalled.considered))
    return replace(prompt, rules=rules, system_prompt="\n\n".join(said), recalled=recalled)


async def _each(opened: OpenedVault, *texts: str | None) -> list[str | None]:
    made = iter(await opened.redact_all([text for text in texts if text]))
    return [next(made) if text else text for text in texts]


async def redacted_history(history: History, opened: OpenedVault) -> History:
    """A history as it would be sent; the summary is as trusted as what it was made of."""
    turns = [replace(turn, messages=await redacted_messages(turn.messages, opened, trusted=True)) for turn in history.turns]
    summary = None if history.summary is None else await opened.redact(history.summary, trusted=True)
    return replace(history, turns=tuple(turns), summary=summary)


async def redacted_content(content: Content | None, opened: OpenedVault) -> Content | None:
    """What a user says, as a provider would be sent it."""
    if content is None or isinstance(content, str):
        return None if content is None else await opened.redact(content)
    return tuple([await opened.redact(part) if isinstance(part, str) else part for part in content])
