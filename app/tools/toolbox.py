"""The tools of one run: what is offered to its model, and the loop's Tools port that calls them as webhooks."""

from collections.abc import Mapping
from typing import Any

import orjson

from app.infra.crypto import Crypto
from app.infra.database import Pool
from app.infra.telemetry import TOOL_CALLS, log
from app.loop.messages import PendingCall, PendingReason, ToolCall, ToolOutcome, ToolResult
from app.loop.ports import OfferedTool
from app.outbound.sender import Sender
from app.tools import repository
from app.tools.answers import ACCEPTED
from app.tools.schema import compiled
from app.tools.webhook import RunIdentity, WebhookTarget, call_webhook

EMPTY: Mapping[str, Mapping[str, Any]] = {}


class Toolbox:
    """`targets` are the webhooks; an offered tool without one is the caller's own to execute. `redactions` is what tools say
    of redaction; unless it `tells`, failures are logged by whoever has redacted them."""

    def __init__(
        self,
        sender: Sender,
        identity: RunIdentity,
        offered: tuple[OfferedTool, ...],
        targets: dict[str, WebhookTarget],
        redactions: Mapping[str, Mapping[str, Any]] = EMPTY,
        *,
        tells: bool = True,
    ) -> None:
        self.offered, self.redactions, self._tells = offered, redactions, tells
        self.at_most_once = frozenset(name for name, target in targets.items() if target.at_most_once)
        self._sender, self._identity, self._targets = sender, identity, targets

    async def call(self, call: ToolCall) -> ToolResult | PendingCall:
        target = self._targets.get(call.name)
        if target is None:
            return PendingCall(call, PendingReason.CLIENT)
        result = await call_webhook(self._sender, target, self._identity, call)
        if result.status == ACCEPTED:
            return PendingCall(call, PendingReason.ASYNC)
        TOOL_CALLS.labels(result.outcome).inc()
        if result.outcome is ToolOutcome.FAILED and self._tells:
            log.warning("tool_failed", tool=call.name, call_id=call.id, status=result.status, cause=result.cause)
        return result

    async def received(self, call: ToolCall, result: ToolResult) -> ToolResult:
        return result


async def open_toolbox(
    pool: Pool,
    crypto: Crypto,
    sender: Sender,
    workspace_id: str,
    names: list[str],
    identity: RunIdentity,
    *,
    tells: bool = True,
) -> Toolbox:
    """Read the tools that are still active, with their secrets opened for as long as the run lasts."""
    rows = await repository.read_active(pool, workspace_id, names) if names else []
    return Toolbox(
        sender,
        identity,
        tuple(_offered(row) for row in rows),
        {row["name"]: target_of(crypto, row) for row in rows if row["kind"] == "webhook"},
        {row["name"]: row["redaction"] for row in rows if row["redaction"]},
        tells=tells,
    )


def _offered(row: Any) -> OfferedTool:
    schema = compiled(orjson.dumps(row["parameters"]).decode())
    keys = row["result_keys"]
    return OfferedTool(
        row["name"],
        row["description"],
        schema.schema,
        schema.check,
        None if keys is None else tuple(keys),
        row["requires_approval"],
    )


def target_of(crypto: Crypto, row: Any) -> WebhookTarget:
    return WebhookTarget(
        name=row["name"],
        url=row["url"],
        timeout_seconds=row["timeout_seconds"],
        at_most_once=row["at_most_once"],
        headers=repository.open_headers(crypto, row),
        secrets=repository.open_secrets(crypto, row),
    )
