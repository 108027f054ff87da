"""The Provider and Emit ports wrapped, so that inside a run everything is tokens and outside of it nothing is.

    loop -> RedactedProvider -> model            what goes out and what comes back is tokens
    model -> TokenEmit -> log                    deltas, cut so that none holds a part of a token

The Tools port: `tool_port.py`. Hooks see real values: `ReopenedProvider` and `RestoredProvider` stand around theirs.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.loop.events import Event, MessageDelta, MessageDiscarded, ReasoningDelta
from app.loop.messages import ModelFailure, Reply
from app.loop.ports import Emit, ModelRequest, OfferedTool, Provider
from app.redaction.opened import OpenedVault
from app.redaction.restorer import StreamRestorer
from app.redaction.rewriting import (
    CanonicalVault,
    redacted_messages,
    redacted_reply,
    restored_message,
    restored_reply,
    with_note,
)
from app.redaction.vault import Vault


class TokenEmit:
    """The Emit port of a model. A delta is held back as long as what it ends with may become a token."""

    def __init__(self, emit: Emit, vault: Vault) -> None:
        self._emit, self._vault = emit, CanonicalVault(vault)
        self._held: tuple[type[Event], Event, StreamRestorer] | None = None

    def __call__(self, event: Event) -> None:
        if not isinstance(event, MessageDelta | ReasoningDelta):
            if isinstance(event, MessageDiscarded):
                self._held = None
            self._emit(event)
            return
        if self._held is None or self._held[0] is not type(event):
            self.flush()
            self._held = (type(event), event, StreamRestorer(self._vault))
        if text := self._held[2].feed(event.text):
            self._emit(replace(event, text=text))

    def flush(self) -> None:
        """The rest, at the end of a text."""
        if self._held is None:
            return
        _, event, restorer = self._held
        self._held = None
        if isinstance(event, MessageDelta | ReasoningDelta) and (text := restorer.flush()):
            self._emit(replace(event, text=text))

    def forget(self) -> None:
        """What is held belongs to a reply that did not come."""
        self._held = None


class RedactedProvider:
    """Nothing but tokens goes to the model, and nothing but tokens comes back. `trusted`: the messages are the loop's, whose
    tokens are known. `noted`: what the messages say of tokens already."""

    def __init__(
        self, inner: Provider, opened: OpenedVault, emit: TokenEmit, *, trusted: bool = True, noted: bool = True
    ) -> None:
        self._inner, self._opened, self._emit = inner, opened, emit
        self._trusted, self._noted = trusted, noted
        self._tools: tuple[Sequence[OfferedTool], tuple[OfferedTool, ...]] | None = None

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        messages = await redacted_messages(request.messages, self._opened, trusted=self._trusted)
        if not self._noted:
            messages = with_note(messages)
        reply = await self._inner.ask(replace(request, messages=messages, tools=await self._redacted_tools(request.tools)))
        if isinstance(reply, ModelFailure):
            self._emit.forget()
            return reply
        self._emit.flush()
        return await redacted_reply(reply, self._opened, trusted=True)

    async def _redacted_tools(self, tools: Sequence[OfferedTool]) -> tuple[OfferedTool, ...]:
        """Descriptions and schemas, which people wrote; a run's tools stay the same."""
        if self._tools is None or self._tools[0] is not tools:
            shown = [{"description": tool.description, "parameters": tool.parameters} for tool in tools]
            made = await self._opened.redact_json(shown) if shown else []
            self._tools = tools, tuple(replace(tool, **one) for tool, one in zip(tools, made, strict=True))
        return self._tools[1]


class RestoredProvider:
    """Stands inside the hooks: what `after_model` gets has real values in it."""

    def __init__(self, inner: Provider, opened: OpenedVault) -> None:
        self._inner, self._opened = inner, opened

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        reply = await self._inner.ask(request)
        return reply if isinstance(reply, ModelFailure) else restored_reply(reply, self._opened)


class ReopenedProvider:
    """Stands outside the hooks: they get real values, and what they make of a reply is redacted again, also where they show
    it (`shown` holds what they showed)."""

    def __init__(self, inner: Provider, opened: OpenedVault, shown: list[Event], emit: Emit) -> None:
        self._inner, self._opened, self._shown, self._emit = inner, opened, shown, emit

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        messages = tuple(restored_message(message, self._opened) for message in request.messages)
        reply = await self._inner.ask(replace(request, messages=messages))
        if isinstance(reply, ModelFailure):
            return reply
        made = await redacted_reply(reply, self._opened, trusted=False)
        for event in self._shown:
            match event:
                case MessageDelta():
                    self._emit(replace(event, text=made.text))
                case ReasoningDelta():
                    self._emit(replace(event, text=made.reasoning))
                case _:
                    self._emit(event)
        self._shown.clear()
        return made
