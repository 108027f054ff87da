"""From a model's name (`PROVIDER/NAME`) to its client. What cannot be asked is refused before a run starts."""

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from app.infra.errors import Invalid
from app.infra.settings import Settings
from app.loop.ports import Emit, Provider
from app.providers.client import ModelClient, ModelSettings
from app.providers.openai import OpenAIClient
from app.providers.openai_request import CAPABILITIES, RESERVED_OPTIONS
from app.providers.retry import Candidate, RetryingProvider, RetryPolicy
from app.providers.scripted import ScriptedClient
from app.providers.transport import Clocks

_SCRIPTED = "scripted"


class Catalog:
    """The providers of this process."""

    def __init__(self, http: httpx.AsyncClient, settings: Settings) -> None:
        clocks = Clocks(first_content_seconds=settings.model_first_token_seconds, idle_seconds=settings.model_idle_seconds)
        self._clients: dict[str, ModelClient] = {
            "openai": OpenAIClient(
                http,
                provider="openai",
                base_url=settings.openai_base_url,
                api_key=settings.openai_api_key,
                clocks=clocks,
            )
        }
        self._policy = RetryPolicy(
            attempts=settings.model_attempts,
            base_seconds=settings.model_retry_seconds,
            retry_after_limit_seconds=settings.model_retry_after_seconds,
        )

    def check(self, models: Sequence[str], options: Mapping[str, Any], capabilities: Sequence[str]) -> None:
        """Raises Invalid for a model, option or capability that no client of these would take."""
        for model in models:
            provider = model.partition("/")[0]
            if provider not in self._clients and provider != _SCRIPTED:
                raise _invalid("model", f"there is no provider '{provider}'", "unknown_provider")
            if provider == _SCRIPTED:
                continue
            for capability in capabilities:
                if capability not in CAPABILITIES:
                    raise _invalid("capabilities", f"'{capability}' is not known to {model}", "unknown_capability")
        for option in options:
            if option in RESERVED_OPTIONS:
                raise _invalid("model_options", f"'{option}' is the loop's own", "reserved_option")

    def provider_for(self, request: Mapping[str, Any], emit: Emit, attempts_made: int) -> Provider:
        """The loop's Provider for a run's resolved request; a script goes on after the attempts that were made."""
        scripted = ScriptedClient(request["script"] or [], attempts_made)
        candidates = []
        for model in request["models"]:
            provider, _, name = model.partition("/")
            client = scripted if provider == _SCRIPTED else self._clients[provider]
            bound = ModelSettings(name, request["model_options"], tuple(request["capabilities"]), request["response_schema"])
            candidates.append(Candidate(model, client, bound))
        return RetryingProvider(candidates, emit, self._policy)


def _invalid(field: str, reason: str, code: str) -> Invalid:
    return Invalid(f"{field}: {reason}.", code=code, errors=[(("body", field), reason)])
