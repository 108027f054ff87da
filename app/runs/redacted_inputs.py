"""What comes to a session or to a run that waits, in tokens before it is stored. Raises Invalid (`redaction_failed`) for
what cannot be redacted: nothing of it is kept."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from app.infra.database import Pool
from app.infra.errors import Conflict, Invalid
from app.redaction.answers import restored
from app.redaction.opened import RedactionFailed
from app.redaction.tool_port import labels_of
from app.runs.redacting import Redactions
from app.runs.waiting import Approvals, Decision, GivenResult, ToolResults
from app.sessions.models import ImportedMessage, Session
from app.shapes import JsonObject
from app.tools import repository as tools

_TOOLS_OF = "SELECT id, tool FROM tool_calls WHERE run_id = $1 AND id = ANY($2)"


async def redacted_decisions(redactions: Redactions, run: Mapping[str, Any], given: Approvals) -> Approvals:
    """Edited arguments and reasons, which a model reads."""
    async with _closed():
        opened = await redactions.open(run)
        if opened is None:
            return given
        made: list[Decision] = []
        for one in given.decisions:
            changed: JsonObject = {}
            if one.arguments is not None:
                changed["arguments"] = await opened.redact_json(one.arguments)
            if one.reason is not None:
                changed["reason"] = await opened.redact(one.reason)
            made.append(one.model_copy(update=changed))
        return given.model_copy(update={"decisions": made})


async def redacted_results(redactions: Redactions, pool: Pool, run: Mapping[str, Any], given: ToolResults) -> ToolResults:
    """Results from outside, each by what its tool says of its results."""
    async with _closed():
        opened = await redactions.open(run)
        if opened is None:
            return given
        rows = await pool.fetch(_TOOLS_OF, run["id"], [one.call_id for one in given.results])
        named = {row["id"]: row["tool"] for row in rows}
        found = await tools.read_active(pool, run["workspace_id"], sorted(set(named.values())))
        labels = {row["name"]: labels_of(row["redaction"]) for row in found}
        made: list[GivenResult] = []
        for one in given.results:
            if one.error is not None:
                made.append(one.model_copy(update={"error": await opened.redact(one.error)}))
            else:
                result = await opened.redact_json(one.result, labels=labels.get(named.get(one.call_id, "")))
                made.append(one.model_copy(update={"result": result}))
        return given.model_copy(update={"results": made})


async def redacted_import(
    redactions: Redactions, session: Session, applies: Mapping[str, Any] | None, messages: Sequence[ImportedMessage]
) -> Sequence[ImportedMessage]:
    """A conversation that is brought in: all of it was written elsewhere, so that no token in it is one. `applies` None: as
    it is."""
    if applies is None:
        return messages
    async with _closed():
        opened = await redactions.open_for(session.id, session.workspace_id, applies, session.model_dump())
        texts = await opened.redact_all([message.content for message in messages])
        return [message.model_copy(update={"content": text}) for message, text in zip(messages, texts, strict=True)]


@asynccontextmanager
async def mismatch_shown(redactions: Redactions, run: Mapping[str, Any]) -> AsyncIterator[None]:
    """What a refusal tells of the calls that wait comes with its values."""
    try:
        yield
    except Conflict as error:
        if "pending" in error.extra:
            error.extra["pending"] = await restored(redactions.vaults, error.extra["pending"], run["vault"])
        raise


@asynccontextmanager
async def _closed() -> AsyncIterator[None]:
    try:
        yield
    except RedactionFailed as error:
        raise Invalid(f"This cannot be redacted: {error}.", code="redaction_failed") from None
