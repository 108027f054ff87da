"""What a session, an agent, a run and the settings say of redaction, as it is kept and as it applies.

Kept, it is `{"enabled", "entities", "dictionaries": [sealed text]}`: a dictionary holds personal values, so it stands
encrypted wherever it is copied to.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.infra.crypto import Crypto, DecryptionError
from app.redaction.dictionary import Entry
from app.redaction.opened import RedactionFailed, Wanted
from app.redaction.shapes import DictionaryEntry, RedactionConfig
from app.shapes import JsonObject


def kept(crypto: Crypto, workspace_id: str, config: RedactionConfig | None) -> JsonObject | None:
    """A configuration as a row holds it."""
    if config is None:
        return None
    given = config.model_dump(mode="json")
    entries = given.pop("dictionary")
    return {**given, "dictionaries": [_sealed(crypto, workspace_id, entries)] if entries else []}


def shown(crypto: Crypto, workspace_id: str, stored: Mapping[str, Any] | None) -> JsonObject | None:
    """The configuration again, for whoever may see it. Raises `DecryptionError` without the key."""
    if stored is None:
        return None
    entries = _opened(crypto, workspace_id, stored["dictionaries"])
    return {"enabled": stored["enabled"], "entities": stored["entities"], "dictionary": entries}


def merged(far: Mapping[str, Any] | None, near: Mapping[str, Any] | None) -> JsonObject | None:
    """Two kept ones: what the near one names counts, and the dictionaries of both."""
    if far is None or near is None:
        return None if far is near is None else dict(far or near or {})
    made = {name: far[name] if near[name] is None else near[name] for name in ("enabled", "entities")}
    return {**made, "dictionaries": [*far["dictionaries"], *near["dictionaries"]]}


def wanted(crypto: Crypto, workspace_id: str, stored: Mapping[str, Any], beside: Sequence[Entry]) -> Wanted:
    """What is looked for, `beside` always. Raises `RedactionFailed` without the key of a dictionary."""
    try:
        entries = _opened(crypto, workspace_id, stored["dictionaries"])
    except DecryptionError as error:
        raise RedactionFailed(str(error)) from None
    named = [Entry(one["type"], one["value"], tuple(one["aliases"])) for one in entries]
    kinds = stored["entities"]
    return Wanted(None if kinds is None else frozenset(kinds), (*beside, *named))


def entries_of(text: str) -> tuple[Entry, ...]:
    """A dictionary as a setting has it, a JSON list. Raises ValueError."""
    config = RedactionConfig.model_validate({"dictionary": orjson.loads(text)})
    return tuple(map(DictionaryEntry.as_entry, config.dictionary or ()))


def _sealed(crypto: Crypto, workspace_id: str, entries: Sequence[JsonObject]) -> str:
    packed = zlib.compress(orjson.dumps(entries))
    return base64.b64encode(crypto.seal(packed, bound_to=_place(workspace_id))).decode()


def _opened(crypto: Crypto, workspace_id: str, sealed: Sequence[str]) -> list[JsonObject]:
    entries: list[JsonObject] = []
    for one in sealed:
        packed = crypto.open(base64.b64decode(one), bound_to=_place(workspace_id))
        entries += orjson.loads(zlib.decompress(packed))
    return entries


def _place(workspace_id: str) -> str:
    return f"dictionary:{workspace_id}"
