"""Every model that is asked, by a run or beside one, with the redaction around it. There is no other way to a provider."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.loop.messages import ErrorCode, ModelFailure
from app.loop.ports import Emit, ModelRequest, Provider
from app.redaction.opened import OpenedVault, RedactionFailed
from app.redaction.ports import RedactedProvider, RestoredProvider, TokenEmit
from app.runs.redacting import Redactions
from app.runs.side_calls import KEEPS_TOKENS, ModelFor, ModelPort

REDACTION_FAILED = "The conversation could not be redacted, so the model was not asked."


class RedactedModels:
    """A `ModelFor` around another one. `hooked`: the messages of runs come from hooks, with real values in them."""

    def __init__(self, models: ModelFor, redactions: Redactions, *, hooked: bool) -> None:
        self._models, self._redactions, self._hooked = models, redactions, hooked

    async def __call__(self, run: Mapping[str, Any], emit: Emit, attempts_made: int) -> ModelPort:
        purpose = run.get("purpose")
        try:
            opened = await (self._redactions.open_session(run["session_id"]) if purpose else self._redactions.open(run))
        except RedactionFailed as error:
            port = await self._models(run, emit, attempts_made)
            return replace(port, provider=_Failing(str(error)))
        if opened is None:
            return await self._models(run, emit, attempts_made)
        held = TokenEmit(emit, opened.vault)
        port = await self._models(run, held, attempts_made)
        restores = purpose is not None and purpose != KEEPS_TOKENS
        trusted = not restores and not (purpose is None and self._hooked)
        redacted = RedactedProvider(port.provider, opened, held, trusted=trusted, noted=purpose is None)
        return replace(port, provider=_Closed(redacted, opened, restores=restores))


class _Closed:
    """Fails closed: what cannot be redacted is a failure, and the model is not asked."""

    def __init__(self, inner: RedactedProvider, opened: OpenedVault, *, restores: bool) -> None:
        self._inner: Provider = RestoredProvider(inner, opened) if restores else inner

    async def ask(self, request: ModelRequest) -> Any:
        try:
            return await self._inner.ask(request)
        except RedactionFailed as error:
            return _failure(error)


class _Failing:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def ask(self, request: ModelRequest) -> ModelFailure:
        return _failure(RedactionFailed(self._reason))


def _failure(error: RedactionFailed) -> ModelFailure:
    return ModelFailure(ErrorCode.REDACTION_FAILED, REDACTION_FAILED)
