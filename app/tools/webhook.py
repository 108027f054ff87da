"""One call of a tool as a signed POST to the caller's application, as Standard Webhooks has it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter, time
from typing import Any

import orjson

from app.infra import clock, ids, tracing
from app.infra.pause import pause
from app.loop.cleaning import clean_json
from app.loop.messages import ToolCall, ToolResult
from app.outbound.sender import USER_AGENT, Answer, Sender, SendFailure
from app.outbound.signing import sign
from app.tools.answers import failed, result_of

RETRIED_STATUSES = frozenset({502, 503, 504})
MAX_ATTEMPTS = 2
PAUSE_SECONDS = 0.2
_SHORTEST_SECRET = 6


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where a tool is, and how it is called. `secrets`: one, or two while the old one stays valid."""

    name: str
    url: str
    secrets: tuple[str, ...] = field(repr=False)
    timeout_seconds: float = 30.0
    at_most_once: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Whose run it is: what the caller's own backend said, never what a model wrote."""

    run_id: str
    session_id: str | None
    agent_id: str | None
    tenant: Mapping[str, Any] | None
    subject: Mapping[str, Any] | None
    member: Mapping[str, Any] | None
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The last attempt of a call as it went over the wire, and what came of the call."""

    request_headers: Mapping[str, str] = field(repr=False)
    request_body: bytes
    answer: Answer | None
    result: ToolResult


async def call_webhook(
    sender: Sender, target: WebhookTarget, identity: RunIdentity, call: ToolCall, *, called_at: str | None = None
) -> ToolResult:
    """Call a tool and say what came back: outcome `ok`, `error` or `failed`. Never raises for what the tool did."""
    return (await exchange(sender, target, identity, call, called_at=called_at)).result


async def exchange(
    sender: Sender, target: WebhookTarget, identity: RunIdentity, call: ToolCall, *, called_at: str | None = None
) -> Exchange:
    """`call_webhook`, with what was sent and received.

    A connection that failed, 502, 503 and 504 are tried once more, with the same bytes and key, within the time-out as a
    whole; a tool that is `at_most_once` never is.
    """
    started = perf_counter()
    deadline = started + target.timeout_seconds
    body = request_body(target.name, identity, call, called_at)
    last = 1 if target.at_most_once else MAX_ATTEMPTS
    for attempt in range(1, last + 1):
        headers = _request_headers(target, identity, call, body, attempt)
        # Where a lost request may not be sent again, or was lost once, no kept connection is trusted.
        fresh = attempt == last
        got = await _attempt(sender, target, body, headers, deadline - perf_counter(), fresh=fresh)
        if attempt == last or not _may_be_mended_by_time(got) or perf_counter() + PAUSE_SECONDS >= deadline:
            break
        await pause(PAUSE_SECONDS)
    result = _result(target, got)
    result = replace(result, seconds=round(perf_counter() - started, 6), attempts=attempt)
    return Exchange(headers, body, got if isinstance(got, Answer) else None, result)


async def _attempt(
    sender: Sender, target: WebhookTarget, body: bytes, headers: Mapping[str, str], seconds: float, *, fresh: bool
) -> Answer | SendFailure:
    try:
        return await sender.post(target.url, body, headers, seconds, fresh=fresh)
    except SendFailure as failure:
        return failure


def _may_be_mended_by_time(got: Answer | SendFailure) -> bool:
    return got.status in RETRIED_STATUSES if isinstance(got, Answer) else got.retryable


def _result(target: WebhookTarget, got: Answer | SendFailure) -> ToolResult:
    if isinstance(got, SendFailure):
        return failed(target.name, str(got), status=got.status)
    return result_of(target.name, got, hidden=sent_secrets(target))


def sent_secrets(target: WebhookTarget) -> Iterator[str]:
    """All that was sent and is nobody's business, the longest form of each first (`Bearer x`, then `x`)."""
    for value in (*target.secrets, *target.headers.values()):
        for part in (value, *value.split()):
            if len(part) >= _SHORTEST_SECRET and part.lower() not in ("bearer", "apikey"):
                yield part


def request_body(tool: str, identity: RunIdentity, call: ToolCall, called_at: str | None = None) -> bytes:
    """The bytes of a call: the same on every attempt, also when another process carries the run on after a crash.

    So keys are sorted wherever they may have been through the database, which does not keep their order, and the
    timestamp, unless given, is the one inside the call's id (the start of its run).
    """
    data = {
        "tool": tool,
        "call_id": call.id,
        "arguments": _stable(call.arguments or {}),
        "context": _stable(identity.context),
        "tenant": _stable(identity.tenant),
        "subject": _stable(identity.subject),
        "member": _stable(identity.member),
        "session_id": identity.session_id,
        "run_id": identity.run_id,
        "agent_id": identity.agent_id,
    }
    return orjson.dumps({"type": "tool.call", "timestamp": called_at or _time_of(call.id), "data": data})


def _stable(value: Any) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(clean_json(value), option=orjson.OPT_SORT_KEYS))


def _time_of(call_id: str) -> str:
    if not ids.is_id(call_id, ids.CALL):
        return clock.rfc3339(clock.now())
    milliseconds = int(call_id.removeprefix(ids.CALL)[:12], 16)
    return clock.rfc3339(datetime.fromtimestamp(milliseconds / 1000, UTC))


def _request_headers(
    target: WebhookTarget, identity: RunIdentity, call: ToolCall, body: bytes, attempt: int
) -> dict[str, str]:
    """The caller's own headers, then ours, which win. The timestamp is fresh, so that an honest retry is never stale."""
    timestamp = int(time())
    return {
        **{name.lower(): value for name, value in target.headers.items()},
        "content-type": "application/json",
        "accept": "application/json",
        "webhook-id": call.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(target.secrets, call.id, timestamp, body),
        "idempotency-key": call.id,
        "rondo-attempt": str(attempt),
        "rondo-run": identity.run_id,
        "user-agent": USER_AGENT,
        **tracing.headers(),
    }
