"""Hooks of the operator: a Python module named in `RONDO_HOOKS` that may change what goes into and comes out of the ports.

`before_model(messages, run)`, `after_model(reply, run)`, `before_tool(call, run)`, `after_tool(call, result, run)`, each
plain or async, each optional. A hook returns what goes on in the place of what it was given, or None to leave it as it is;
`before_tool` may return a `ToolResult`, and the tool is then not called; `after_tool` also sees a result that came from
outside for a call that waited. The values are those of `app.loop.messages`; `run` is the run as the API shows it. A hook
that raises, or returns something of another kind, ends the run (`hook_failed`).

What `after_model` makes of a reply is what is stored, shown and sent back to the model within the run. Deltas cannot be
taken back, so where the text differs from what was shown, clients are told to discard it and get the changed text.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from app.infra.settings import SettingsError
from app.loop.events import MessageDelta, MessageDiscarded, ReasoningDelta
from app.loop.messages import Message, ModelFailure, PendingCall, Reply, ToolCall, ToolResult
from app.loop.ports import Emit, ModelRequest, Provider, Tools
from app.shapes import JsonObject

NAMES = ("before_model", "after_model", "before_tool", "after_tool")


class HookFailed(Exception):
    """A hook raised (the cause is chained), or returned what cannot go on in the place of what it was given."""


class Hooks:
    """What the operator's module defines."""

    def __init__(self, module: Any) -> None:
        self._hooks: dict[str, Callable[..., Any]] = {
            name: getattr(module, name) for name in NAMES if callable(getattr(module, name, None))
        }

    def has(self, *names: str) -> bool:
        return any(name in self._hooks for name in names)

    async def call(self, name: str, kinds: type | tuple[type, ...], given: Any, *arguments: Any) -> Any:
        """What goes on in the place of `given`: the hook's answer, of one of the kinds, or `given` itself."""
        hook = self._hooks.get(name)
        if hook is None:
            return given
        try:
            answer = hook(*arguments)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:
            raise HookFailed(name) from error
        if answer is None:
            return given
        if not isinstance(answer, kinds):
            raise HookFailed(f"{name} returned {type(answer).__name__}")
        return answer


@cache
def load_hooks(name: str) -> Hooks:
    """Import the module, once in a process: a dotted name, or the path of a file. Raises SettingsError when that fails."""
    try:
        module = _from_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except Exception as error:
        raise SettingsError(f"RONDO_HOOKS: {name} cannot be imported ({type(error).__name__}: {error})") from error
    hooks = Hooks(module)
    if not hooks.has(*NAMES):
        raise SettingsError(f"RONDO_HOOKS: {name} defines none of {', '.join(NAMES)}")
    return hooks


def _from_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("rondo_hooks", file)
    if spec is None or spec.loader is None:
        raise ImportError("no such file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class HookedProvider:
    """The Provider port with what stands before and after the model."""

    def __init__(self, hooks: Hooks, inner: Provider, run: JsonObject, emit: Emit) -> None:
        self._hooks, self._inner, self._run, self._emit = hooks, inner, run, emit

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        given = list(request.messages)
        messages = await self._hooks.call("before_model", (list, tuple), given, given, self._run)
        if not all(isinstance(message, Message) for message in messages):
            raise HookFailed("before_model returned something else than messages")
        reply = await self._inner.ask(replace(request, messages=tuple(messages)))
        if isinstance(reply, ModelFailure):
            return reply
        changed: Reply = await self._hooks.call("after_model", Reply, reply, reply, self._run)
        self._show_again(request, reply, changed)
        # what was spent, and by whom, is no hook's to change
        return replace(changed, usage=reply.usage, attempts=reply.attempts, model=reply.model)

    def _show_again(self, request: ModelRequest, reply: Reply, changed: Reply) -> None:
        """The changed message from its beginning, where it is not the one that was shown."""
        if (changed.text, changed.reasoning) == (reply.text, reply.reasoning):
            return
        if reply.text or reply.reasoning:
            self._emit(MessageDiscarded(request.iteration, request.message_id))
        if changed.reasoning:
            self._emit(ReasoningDelta(request.iteration, changed.reasoning))
        if changed.text:
            self._emit(MessageDelta(request.iteration, request.message_id, changed.text))


class HookedTools:
    """The Tools port with what stands before and after a tool."""

    def __init__(self, hooks: Hooks, inner: Tools, run: JsonObject) -> None:
        self._hooks, self._inner, self._run = hooks, inner, run

    async def call(self, call: ToolCall) -> ToolResult | PendingCall:
        going_on = await self._hooks.call("before_tool", (ToolCall, ToolResult), call, call, self._run)
        if isinstance(going_on, ToolResult):
            return await self._after(call, going_on)
        result = await self._inner.call(replace(going_on, id=call.id))
        return result if isinstance(result, PendingCall) else await self._after(call, result)

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        return await self._after(call, await self._inner.received(call, result))

    async def _after(self, call: ToolCall, result: ToolResult) -> ToolResult:
        changed: ToolResult = await self._hooks.call("after_tool", ToolResult, result, call, result, self._run)
        return changed
