"""What holds of every conversation that is sent to a model, however damaged the history is. Pure; for all clients.

Nothing is mended in the stored history: it is done anew, in the same way, for each request.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from app.infra.telemetry import log
from app.loop.messages import Message

INTERRUPTED = '{"error":"The call was interrupted; its outcome is unknown."}'
"""Stands for the result that a call never got."""

_WIRE_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_UNFIT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


def paired(messages: Sequence[Message]) -> list[Message]:
    """The same messages with each call answered exactly once, right behind the turn that made it, in the calls' order.

    A result belongs to the last turn before it that made a call of its id, and the first result of a call stands. A call
    without a result gets `INTERRUPTED`; a result without a call is left out, and so is an assistant turn that says
    nothing at all. Everything else stays as it is and where it is.
    """
    results = _results(messages)
    kept: list[Message] = []
    answered = unanswered = 0
    for at, message in enumerate(messages):
        if message.role == "tool" or _says_nothing(message):
            continue
        calls = {call.id: call for call in message.tool_calls} if message.role == "assistant" else {}
        kept.append(message if len(calls) == len(message.tool_calls) else replace(message, tool_calls=tuple(calls.values())))
        for call_id in calls:
            result = results.get((at, call_id))
            kept.append(result or Message("tool", INTERRUPTED, tool_call_id=call_id))
            answered, unanswered = answered + (result is not None), unanswered + (result is None)
    orphans = sum(message.role == "tool" for message in messages) - answered
    if unanswered or orphans:
        log.warning("history_mended", calls_without_result=unanswered, results_without_call=orphans)
    return kept


def _results(messages: Sequence[Message]) -> dict[tuple[int, str], Message]:
    """Each result under the position of the turn it belongs to and the id of its call."""
    turns: dict[str, int] = {}
    results: dict[tuple[int, str], Message] = {}
    for at, message in enumerate(messages):
        if message.role == "assistant":
            turns.update((call.id, at) for call in message.tool_calls)
        elif message.role == "tool" and message.tool_call_id in turns:
            results.setdefault((turns[message.tool_call_id], message.tool_call_id), message)
    return results


def _says_nothing(message: Message) -> bool:
    return message.role == "assistant" and not (message.tool_calls or message.native or message.text.strip())


def wire_name(name: str) -> str:
    """A tool's name as every server accepts it; one that the model made up may hold anything."""
    return _UNFIT_IN_NAME.sub("_", name)[:64] or "unknown"


def mapped_id(call_id: str) -> str:
    """An id that every server accepts, always the same one for the same id."""
    if _WIRE_ID.fullmatch(call_id):
        return call_id
    return f"call_{hashlib.sha256(call_id.encode('utf-8', 'replace')).hexdigest()[:32]}"


def unused_id(wire_id: str, used: Collection[str]) -> str:
    """The id, made different where it is used already."""
    if wire_id not in used:
        return wire_id
    number = 2
    while f"{wire_id}_{number}" in used:
        number += 1
    return f"{wire_id}_{number}"
