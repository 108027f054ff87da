"""One call to its result: find the tool, check the arguments, call it, shorten what came back. Never raises for a call."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.loop.cleaning import TooDeep, clean_json, clean_text
from app.loop.guards import judge
from app.loop.messages import (
    Approved,
    DraftCall,
    PendingCall,
    PendingReason,
    Rejected,
    Resolution,
    ToolCall,
    ToolOutcome,
    ToolResult,
)
from app.loop.ports import OfferedTool, Tools

_SEPARATORS = re.compile(r"[-_]")
_OPEN_TOKEN = re.compile(r"«[^«»]{0,46}$")
_REST_OF_TOKEN = re.compile(r"[^«»]{0,46}»")


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The object that a model wrote as arguments; blank is `{}`; None where it is no JSON or no object."""
    if not text.strip():
        return {}
    try:
        value = clean_json(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def resolve_name(name: str, tools: Sequence[OfferedTool]) -> OfferedTool | None:
    """The tool of that name, or the only one whose name differs in nothing but case, `-`, `_` or camelCase."""
    for tool in tools:
        if tool.name == name:
            return tool
    alike = [tool for tool in tools if folded(tool.name) == folded(name)]
    return alike[0] if len(alike) == 1 else None


def folded(name: str) -> str:
    """A tool's name without what models get wrong about it: case, `-`, `_` and camelCase."""
    return _SEPARATORS.sub("", name).casefold()


def identified(draft: DraftCall, call_id: str, tools: Sequence[OfferedTool]) -> ToolCall:
    """The call with Rondo's id, under the name of the tool it means."""
    tool = resolve_name(draft.name, tools)
    name = tool.name if tool else clean_text(draft.name)
    arguments = parse_arguments(draft.arguments)
    return ToolCall(call_id, name, arguments, clean_text(draft.arguments), draft.provider_id, draft.native)


async def execute(
    call: ToolCall,
    tools: Sequence[OfferedTool],
    port: Tools,
    result_keys: Sequence[str],
    *,
    cut_off: bool,
    resolution: Resolution | None = None,
) -> ToolResult | PendingCall:
    """What comes of one call. `cut_off`: the output limit fell into it, so it is not executed.

    `resolution` is what came for it while it waited: a result counts, and a refusal holds, also when the tool was changed
    or taken away since. A tool that needs an approval is not called without one.
    """
    tool = next((tool for tool in tools if tool.name == call.name), None)
    keys = (tool.result_keys if tool else None) or result_keys
    if isinstance(resolution, ToolResult):
        return judged(call.name, await port.received(call, resolution), keys)
    if isinstance(resolution, Rejected):
        return denied(resolution)
    if tool is None:
        offered = ", ".join(sorted(tool.name for tool in tools)) or "none"
        text = f"Tool '{call.name}' does not exist. Available tools: {offered}."
        return _not_executed(ToolOutcome.UNKNOWN, text)
    if cut_off:
        text = "The call was cut off by the output limit and was not executed. Send it again with less in it."
        return _not_executed(ToolOutcome.INVALID, text)
    if isinstance(resolution, Approved) and resolution.arguments is not None:
        call = replace(call, arguments=resolution.arguments)
    if call.arguments is None:
        return _not_executed(ToolOutcome.INVALID, f"The arguments of {call.name} are not a JSON object.")
    checked = tool.check(call.arguments)
    if checked.problems:
        problems = "; ".join(checked.problems)
        return _not_executed(ToolOutcome.INVALID, f"The arguments of {call.name} are not valid: {problems}")
    if tool.requires_approval and resolution is None:
        return PendingCall(call, PendingReason.APPROVAL)
    result = await port.call(replace(call, arguments=checked.arguments))
    return result if isinstance(result, PendingCall) else judged(call.name, result, keys)


def skipped(reason: str) -> ToolResult:
    """The failed result of a call that a limit of the run kept from being executed."""
    return _not_executed(ToolOutcome.SKIPPED, reason)


def denied(rejection: Rejected) -> ToolResult:
    """The failed result of a call that somebody refused."""
    text = "The call was not approved."
    return _not_executed(ToolOutcome.DENIED, f"{text} {rejection.reason}" if rejection.reason else text)


def cancelled() -> ToolResult:
    """The failed result of a call that was open when its run was ended from outside."""
    return _not_executed(ToolOutcome.CANCELLED, "The call was cancelled before it had a result.")


def _not_executed(outcome: ToolOutcome, text: str) -> ToolResult:
    return ToolResult({"error": text}, outcome)


def unavailable(name: str) -> dict[str, str]:
    """What the model reads where only a person can mend a tool; the cause goes to log and trace."""
    return {"error": f"The tool {name} is temporarily unavailable."}


def judged(name: str, result: ToolResult, keys: Sequence[str]) -> ToolResult:
    """The result cleaned, and `ok` refined by what the empty-streak guard makes of it."""
    try:
        value = clean_json(result.result)
    except TooDeep as error:
        return replace(result, result=unavailable(name), outcome=ToolOutcome.FAILED, cause=str(error))
    outcome = judge(value, keys) if result.outcome is ToolOutcome.OK else result.outcome
    return replace(result, result=value, outcome=outcome)


def shown_to_model(result: Any, limit: int) -> tuple[str, bool]:
    """The result as the model sees it, and whether it was cut: text as it is, anything else as compact JSON.

    Cut to `limit` Unicode characters and `…`, never inside a redaction token.
    """
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    if len(text) <= limit:
        return text, False
    kept = text[:limit]
    opened = _OPEN_TOKEN.search(kept)
    if opened and _REST_OF_TOKEN.match(text, limit):
        kept = kept[: opened.start()]
    return kept + "…", True
