"""The Tools port wrapped: tools get real values, the loop gets tokens."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from app.infra.telemetry import log
from app.loop.cleaning import TooDeep, clean_json
from app.loop.messages import PendingCall, ToolCall, ToolOutcome, ToolResult
from app.loop.ports import CheckedArguments, OfferedTool, Tools
from app.loop.tool_calls import unavailable
from app.redaction.opened import OpenedVault
from app.redaction.policy import Mode, Refused, ToolPolicy, opened_arguments
from app.redaction.rewriting import restored_call

Check = Callable[[dict[str, Any]], CheckedArguments]
NO_POLICY = ToolPolicy()


class Offering(Protocol):
    """What is offered to a run's model. `redactions`: what tools say of redaction, by their names, as they store it."""

    @property
    def offered(self) -> tuple[OfferedTool, ...]: ...
    @property
    def redactions(self) -> Mapping[str, Mapping[str, Any]]: ...


def policy_of(stored: Mapping[str, Any] | None) -> ToolPolicy:
    if not stored:
        return NO_POLICY
    return ToolPolicy(Mode(stored.get("arguments") or Mode.RESTORE), frozenset(stored.get("allow") or ()))


def labels_of(stored: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Which paths of a tool's results hold values of which kind."""
    return (stored or {}).get("result") or {}


class RedactedTools:
    """`inner` calls; what it `offers` is checked against its schemas with real values in the place of tokens."""

    def __init__(self, inner: Tools, offers: Offering, opened: OpenedVault) -> None:
        self._inner, self._opened, self._redactions = inner, opened, offers.redactions
        self._checks = {tool.name: tool.check for tool in offers.offered}
        self.offered = tuple(replace(tool, check=self._check_of(tool)) for tool in offers.offered)

    async def call(self, call: ToolCall) -> ToolResult | PendingCall:
        arguments = self._opened_arguments(call.name, call.arguments or {})
        if isinstance(arguments, Refused):
            return ToolResult({"error": arguments.reason}, ToolOutcome.INVALID)
        checked = self._checks[call.name](arguments)
        result = await self._inner.call(replace(restored_call(call, self._opened), arguments=checked.arguments))
        if isinstance(result, PendingCall):
            return replace(result, call=call)
        return await self._redacted(call, result)

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """A result that came from outside was redacted when it came; hooks see it with its values."""
        restored = replace(result, result=self._opened.restore_json(result.result).value)
        going_on = await self._inner.received(restored_call(call, self._opened), restored)
        return result if going_on is restored else await self._redacted(call, going_on)

    async def _redacted(self, call: ToolCall, result: ToolResult) -> ToolResult:
        try:
            value, cause = clean_json(result.result), result.cause
        except TooDeep as error:
            result = replace(result, outcome=ToolOutcome.FAILED)
            value, cause = unavailable(call.name), str(error)
        made = await self._opened.redact_json(value, labels=labels_of(self._redactions.get(call.name)))
        if cause is not None:
            cause = await self._opened.redact(cause)
        if result.outcome is ToolOutcome.FAILED:
            log.warning("tool_failed", tool=call.name, call_id=call.id, status=result.status, cause=cause)
        return replace(result, result=made, cause=cause)

    def _opened_arguments(self, name: str, arguments: dict[str, Any]) -> dict[str, Any] | Refused:
        return opened_arguments(arguments, self._opened.vault, policy_of(self._redactions.get(name)))

    def _check_of(self, tool: OfferedTool) -> Check:
        def check(arguments: dict[str, Any]) -> CheckedArguments:
            given = self._opened_arguments(tool.name, arguments)
            if isinstance(given, Refused):
                return CheckedArguments(arguments, (given.reason,))
            problems = tool.check(given).problems
            return CheckedArguments(arguments, tuple(self._opened.redact_known(list(problems))) if problems else ())

        return check
