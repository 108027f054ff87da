"""What the loop speaks of, from values to tokens and back: messages, replies, calls."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from app.loop.messages import DraftCall, Message, Reply, ToolCall
from app.loop.ports import ParsedAnswer
from app.redaction.opened import OpenedVault
from app.redaction.restorer import restore
from app.redaction.showing import restored_bytes
from app.redaction.tokens import NOTE, Token
from app.redaction.vault import Vault

_JSON = re.compile(r"\s*(```(json)?\s*)?[{\[]", re.IGNORECASE)


class CanonicalVault:
    """A vault in which every known token stands for itself, so that what a model wrote of one becomes exactly it."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self.token_for, self.retire = vault.token_for, vault.retire

    @property
    def labels(self) -> frozenset[str]:
        return self._vault.labels

    def value_of(self, token: Token) -> str | None:
        return None if self._vault.value_of(token) is None else str(token)


def with_note(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same, with the first of the system's messages saying what tokens are."""
    if messages and messages[0].role == "system":
        return (replace(messages[0], content=f"{messages[0].text}\n\n{NOTE}"), *messages[1:])
    return (Message("system", NOTE), *messages)


async def redacted_messages(messages: Sequence[Message], opened: OpenedVault, *, trusted: bool) -> tuple[Message, ...]:
    """Every text of them, and every argument. What a provider wants back byte for byte (`native`) it wrote itself."""
    texts = [text for message in messages for text in _texts(message)]
    made = iter(await opened.redact_all(texts, trusted=trusted))
    redacted = []
    for message in messages:
        content = next(made) if isinstance(message.content, str) else tuple(
            next(made) if isinstance(part, str) else part for part in message.content
        )  # fmt: skip
        calls = tuple([await _redacted_call(call, opened, trusted=trusted) for call in message.tool_calls])
        redacted.append(replace(message, content=content, tool_calls=calls))
    return tuple(redacted)


def _texts(message: Message) -> list[str]:
    return [message.content] if isinstance(message.content, str) else [p for p in message.content if isinstance(p, str)]


async def _redacted_call(call: ToolCall, opened: OpenedVault, *, trusted: bool) -> ToolCall:
    raw = await redacted_arguments(call.raw_arguments, opened, trusted=trusted) if call.raw_arguments else ""
    arguments = None if call.arguments is None else await opened.redact_json(call.arguments, trusted=trusted)
    return replace(call, arguments=arguments, raw_arguments=raw)


async def redacted_reply(reply: Reply, opened: OpenedVault, *, trusted: bool) -> Reply:
    """`trusted`: a model wrote it, that was shown tokens; whatever it made of one is put right."""
    text, reasoning = reply.text, reply.reasoning
    if trusted:
        text, reasoning = canonical(text, opened.vault), canonical(reasoning, opened.vault)
    text, reasoning = await opened.redact_all([text, reasoning], trusted=trusted)
    calls = [
        replace(call, arguments=await redacted_arguments(call.arguments, opened, trusted=trusted)) for call in reply.calls
    ]
    return replace(reply, text=text, reasoning=reasoning, calls=tuple(calls))


def canonical(text: str, vault: Vault) -> str:
    """Every known token in it written exactly."""
    return restore(text, CanonicalVault(vault))


async def redacted_arguments(text: str, opened: OpenedVault, *, trusted: bool) -> str:
    """Arguments as a model wrote them: JSON stays JSON, and as it was where there is nothing to change."""
    value = _object(text)
    if value is None:
        plain = canonical(text, opened.vault) if trusted else text
        return await opened.redact(plain, trusted=trusted)
    made = await opened.redact_json(_canonical_json(value, opened.vault) if trusted else value, trusted=trusted)
    return text if made == value else json.dumps(made, ensure_ascii=False, separators=(",", ":"))


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _canonical_json(value: Any, vault: Vault) -> Any:
    if isinstance(value, str):
        return canonical(value, vault)
    if isinstance(value, list):
        return [_canonical_json(item, vault) for item in value]
    if isinstance(value, dict):
        return {canonical(key, vault): _canonical_json(item, vault) for key, item in value.items()}
    return value


def restored_message(message: Message, opened: OpenedVault) -> Message:
    content = opened.restore(message.content) if isinstance(message.content, str) else tuple(
        opened.restore(part) if isinstance(part, str) else part for part in message.content
    )  # fmt: skip
    return replace(message, content=content, tool_calls=tuple(restored_call(call, opened) for call in message.tool_calls))


def restored_call(call: ToolCall, opened: OpenedVault) -> ToolCall:
    arguments = None if call.arguments is None else opened.restore_json(call.arguments).value
    return replace(call, arguments=arguments, raw_arguments=_restored_arguments(call.raw_arguments, opened))


def _restored_arguments(text: str, opened: OpenedVault) -> str:
    value = _object(text)
    if value is None:
        return opened.restore(text)
    made = opened.restore_json(value).value
    return text if made == value else json.dumps(made, ensure_ascii=False, separators=(",", ":"))


def restored_reply(reply: Reply, opened: OpenedVault) -> Reply:
    def restored(call: DraftCall) -> DraftCall:
        return replace(call, arguments=_restored_arguments(call.arguments, opened))

    return replace(
        reply, text=_restored_answer(reply.text, opened), reasoning=opened.restore(reply.reasoning),
        calls=tuple(map(restored, reply.calls)),
    )  # fmt: skip


def _restored_answer(text: str, opened: OpenedVault) -> str:
    """An answer that is JSON stays JSON, whatever is in the values."""
    if _JSON.match(text):
        return restored_bytes(canonical(text, opened.vault).encode(), opened.vault).decode()
    return opened.restore(text)


def redacted_parse(
    checked: Callable[[str], ParsedAnswer], plain: Callable[[str], ParsedAnswer], opened: OpenedVault
) -> Callable[[str], ParsedAnswer]:
    """Reads a final answer in tokens. `checked` judges it with its real values by the real schema, `plain` only reads it."""

    def parse(text: str) -> ParsedAnswer:
        judged = checked(restored_bytes(text.encode(), opened.vault).decode())
        if judged.problem is not None:
            return ParsedAnswer(None, opened.redact_known(judged.problem))
        return plain(text)

    return parse
