"""Redaction joined to runs: what is accepted becomes tokens before it is stored, and whose vault a run uses.

A run's `request` has `redaction` while it is redacted: what applies, with sealed dictionaries. Its row names the `vault`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from app.infra.crypto import Crypto
from app.infra.database import Connection, Pool
from app.infra.telemetry import log
from app.redaction import config
from app.redaction.dictionary import Entry
from app.redaction.opened import OpenedVault, RedactionFailed, Vaults
from app.redaction.shapes import RedactionConfig
from app.redaction.vault import SessionVault
from app.scope import AXIS_COLUMNS
from app.sessions.models import Session
from app.shapes import JsonObject

_WITHHELD = "(This could not be redacted and is not kept.)"
_SESSION = """
SELECT s.*, a.redaction AS of_agent FROM sessions AS s LEFT JOIN agents AS a ON a.id = s.agent_id WHERE s.id = $1
"""


@dataclass(frozen=True, slots=True)
class Always:
    """What the settings say: whether it is on where nobody says otherwise, and what is always looked for."""

    enabled: bool = False
    entities: tuple[str, ...] | None = None
    entries: tuple[Entry, ...] = ()


def applying(
    stored: Mapping[str, Any] | None, given: JsonObject | None, always: Always, has_vault: bool
) -> JsonObject | None:
    """What applies to a run: `stored` of its session or agent, `given` with the run itself, nearest first; None where it is
    off. It is never off in a session that has tokens already. `given` is sealed when the run is accepted."""
    near, far = given or {}, stored or {}
    named = [one["enabled"] for one in (near, far) if one.get("enabled") is not None]
    if not (has_vault or (named[0] if named else always.enabled)):
        return None
    kinds = [one["entities"] for one in (near, far) if one.get("entities") is not None]
    default = None if always.entities is None else list(always.entities)
    return {
        "entities": kinds[0] if kinds else default,
        "dictionaries": list(far.get("dictionaries") or ()),
        "given": near.get("dictionary") or [],
    }


def inherited(own: JsonObject | None, parent: Mapping[str, Any] | None) -> JsonObject | None:
    """What applies to a child: what its agent says, and always what applies to its parent, whose vault it shares."""
    if parent is None or own is None:
        return own if parent is None else {**parent, "given": []}
    kinds = None
    if own["entities"] is not None and parent["entities"] is not None:
        kinds = sorted({*own["entities"], *parent["entities"]})
    return {**own, "entities": kinds, "dictionaries": [*own["dictionaries"], *parent["dictionaries"]]}


class Redactions:
    """One per process."""

    def __init__(self, pool: Pool, crypto: Crypto, vaults: Vaults, always: Always) -> None:
        self._pool, self._crypto, self.vaults, self.always = pool, crypto, vaults, always
        self._opened: WeakValueDictionary[str, OpenedVault] = WeakValueDictionary()

    async def accept(self, row: dict[str, Any], db: Connection | None = None) -> None:
        """Make tokens of what a run that is to be stored was given. What cannot be redacted is not kept: the run fails.

        Whoever has a transaction open gives it, and must start a run without a session and a parent: another connection
        beside it might never come, and a vault that nobody else knows has nobody to clash with.
        """
        redaction = row["request"].get("redaction")
        if redaction is None:
            return
        given = RedactionConfig.model_validate({"dictionary": redaction.pop("given")})
        sealed = config.kept(self._crypto, row["workspace_id"], given) if given.dictionary else None
        redaction["dictionaries"] += sealed["dictionaries"] if sealed else []
        row["vault"] = row["vault"] or row["session_id"] or row["id"]
        try:
            opened = await self._open(row, row, db)
            row["request"] = await _redacted_request(row["request"], opened)
        except RedactionFailed as error:
            log.warning("redaction_failed", run_id=row["id"], reason=str(error))
            row["request"] = _withheld(row["request"])

    async def open(self, run: Mapping[str, Any]) -> OpenedVault | None:
        """The vault of a run, for as long as it is worked on; None where nothing is redacted. Raises `RedactionFailed`."""
        redaction = run["request"].get("redaction")
        if redaction is None:
            return None
        if redaction.get("failed"):
            raise RedactionFailed("what the run was given could not be redacted")
        opened = self._opened.get(run["id"])
        if opened is None:
            opened = self._opened[run["id"]] = await self._open(run, run)
        return opened

    async def _open(self, run: Mapping[str, Any], whose: Mapping[str, Any], db: Connection | None = None) -> OpenedVault:
        wanted = config.wanted(self._crypto, run["workspace_id"], run["request"]["redaction"], self.always.entries)
        return await self.vaults.open(run["vault"], wanted, whose, db)

    async def open_session(self, session_id: str) -> OpenedVault | None:
        """The vault of a session, for what is no run; None where nothing is redacted. Raises `RedactionFailed`."""
        row = await self._pool.fetchrow(_SESSION, session_id)
        if row is None:
            raise RedactionFailed("the session was erased")
        stored = config.merged(row["of_agent"], row["redaction"])
        applies = applying(stored, None, self.always, row["has_vault"])
        return None if applies is None else await self.open_for(session_id, row["workspace_id"], applies, row)

    async def open_for(
        self, session_id: str, workspace_id: str, applies: Mapping[str, Any], row: Mapping[str, Any]
    ) -> OpenedVault:
        """A session's vault with what `applying` says; `row` has the session's axes."""
        wanted = config.wanted(self._crypto, workspace_id, applies, self.always.entries)
        axes = {name: row[name] for name in AXIS_COLUMNS}
        return await self.vaults.open(session_id, wanted, {"workspace_id": workspace_id, "session_id": session_id, **axes})

    async def trial(self, session: Session, applies: Mapping[str, Any]) -> OpenedVault:
        """A session's vault for what is only tried. Raises `RedactionFailed`."""
        wanted = config.wanted(self._crypto, session.workspace_id, applies, self.always.entries)
        return await self.vaults.trial(session.id, wanted)

    async def reading(self, run: Mapping[str, Any]) -> SessionVault:
        """What the tokens of a run stand for; empty where there are none."""
        if run["vault"] is None:
            return SessionVault()
        return (await self.vaults.read([run["vault"]])).get(run["vault"]) or SessionVault()


async def _redacted_request(request: JsonObject, opened: OpenedVault) -> JsonObject:
    """Everything in it that a person wrote and a model reads. A script stands for what a model writes, so that its tokens
    are tokens."""
    made = dict(request)
    for name in ("input", "messages"):
        if request.get(name) is not None:
            made[name] = await _redacted_content(request[name], opened)
    for name in ("system_prompt", "empty_reply", "empty_streak_hint"):
        if request.get(name) is not None:
            made[name] = await opened.redact(request[name])
    for name in ("response_schema", "model_options"):
        if request.get(name):
            made[name] = await opened.redact_json(request[name])
    if request.get("script"):
        made["script"] = await opened.redact_json(request["script"], trusted=True)
    return made


async def _redacted_content(given: Any, opened: OpenedVault) -> Any:
    """A text, or parts, or messages: what stands in images is not looked at."""
    if isinstance(given, str):
        return await opened.redact(given)
    made: list[JsonObject] = []
    for one in given:
        if one.get("type") == "text":
            made.append({**one, "text": await opened.redact(one["text"])})
        elif "role" in one:
            calls = [
                {**call, "arguments": await opened.redact_json(call["arguments"])} for call in one.get("tool_calls") or ()
            ]
            made.append({**one, "content": await _redacted_content(one["content"], opened), "tool_calls": calls})
        else:
            made.append(one)
    return made


def _withheld(request: JsonObject) -> JsonObject:
    """A run that fails at once, without what it was given."""
    empty: JsonObject = {
        "input": _WITHHELD, "messages": None, "system_prompt": None, "script": None, "response_schema": None,
        "model_options": {}, "empty_reply": None, "empty_streak_hint": None, "persist": False,
    }  # fmt: skip
    return {**request, **empty, "redaction": {**request["redaction"], "failed": True}}
