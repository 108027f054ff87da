"""A run's stream in the protocol of a chat client (`?protocol=`): which one is asked for, and what it needs of the rows."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

import orjson

from app.events import ag_ui, ai_sdk
from app.events.ag_ui import AgUi
from app.events.ai_sdk import AiSdk
from app.events.dialects import Dialect, spoken
from app.infra import ids
from app.infra.errors import Invalid
from app.redaction.answers import restored
from app.runs.prompt import input_message_id
from app.runs.service import RunService
from app.sessions.models import message_json

Protocol = Literal["ai-sdk", "ag-ui"]
_VERSIONS = {"ai-sdk": ai_sdk.VERSIONS, "ag-ui": ag_ui.VERSIONS}

# $1 session_id, $2 run_id: runs of a session follow each other, and so do their ids
_EARLIER = """
SELECT * FROM messages WHERE session_id = $1 AND (
    (run_id = $2 AND role = 'user') OR run_id < $2 OR (run_id IS NULL AND position < coalesce(
      (SELECT min(position) FROM messages WHERE session_id = $1 AND run_id >= $2), 2147483647)))
 ORDER BY position
"""


class Asked:
    """What a request says of its stream; `protocol` None is Rondo's own. Raises Invalid for a version that is not spoken."""

    def __init__(self, protocol: Protocol | None, version: int | None) -> None:
        versions = _VERSIONS.get(protocol or "", ())
        if version is not None and version not in versions:
            known = " or ".join(map(str, versions)) or "a protocol beside it"
            raise Invalid(errors=[(("query", "sdk"), f"{known} is expected")])
        self.protocol, self._version = protocol, version

    def dialect(self, runs: RunService, row: Any, *, attaches: bool) -> Dialect | None:
        """For one stream. `attaches`: to a run that another request started."""
        version = {} if self._version is None else {"version": self._version}
        match self.protocol:
            case "ai-sdk":
                return AiSdk(**version)
            case "ag-ui":
                return AgUi(lambda: earlier_messages(runs, row), **version, attaches=attaches)
            case None:
                return None


def in_dialect(runs: RunService, row: Any, after: int, dialect: Dialect) -> AsyncIterator[bytes]:
    """The run's events after a seq, as this dialect tells them."""

    async def still_waits(event: Mapping[str, Any]) -> bool:
        pending = await runs.pool.fetchval("SELECT pending FROM runs WHERE id = $1 AND status = 'waiting'", row["id"])
        return not {call["call_id"] for call in pending or ()}.isdisjoint(call["call_id"] for call in event["pending"])

    return spoken(runs.frames(row, 0), dialect, after, still_waits)


async def earlier_messages(runs: RunService, run: Any) -> list[dict[str, Any]]:
    """The conversation before a run's first reply, with what was asked, as the API shows messages."""
    stored = []
    if run["session_id"] is not None:
        stored = [message_json(row) for row in await runs.pool.fetch(_EARLIER, run["session_id"], run["id"])]
    if not any(message["run_id"] == run["id"] for message in stored):
        stored += _given(run)
    messages: list[dict[str, Any]] = orjson.loads(orjson.dumps(await restored(runs.redactions.vaults, stored, run["vault"])))
    return messages


def _given(run: Any) -> list[dict[str, Any]]:
    """What a run was given that is not persisted."""
    request = run["request"]
    if request["input"] is not None:
        return [{"id": input_message_id(run["id"]), "role": "user", "content": request["input"]}]
    return [
        {"tool_calls": None, "tool_call_id": None, **message, "id": ids.derived(ids.MESSAGE, run["id"], "given", index)}
        for index, message in enumerate(request["messages"])
        if message["role"] != "system"
    ]
