"""From a model's name (`PROVIDER/NAME`) to its client. What cannot be asked is refused before a run starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.infra.errors import Invalid
from app.infra.settings import Settings
from app.loop.messages import Reply
from app.loop.ports import Emit, ModelRequest, Provider
from app.providers import anthropic_request, openai_request, scripted
from app.providers.anthropic import AnthropicClient
from app.providers.client import ModelClient, ModelSettings, ProviderError, ProviderErrorKind, Show
from app.providers.openai import OpenAIClient
from app.providers.retry import Candidate, RetryingProvider, RetryPolicy
from app.providers.scripted import ScriptedClient
from app.providers.transport import Clocks
from app.providers.windows import Window, window_of

_SCRIPTED = "scripted"
BUILT_IN = ("openai", "anthropic", _SCRIPTED)
"""Providers that are there from the start; each of these names is also the kind of API that it speaks."""


_NEEDS_KEY = frozenset(Settings.model_fields[name].default for name in ("openai_base_url", "anthropic_base_url"))
"""The providers' own servers; one of somebody else's may well do without a key."""


@dataclass(frozen=True, slots=True)
class _Api:
    """What is known of a kind of API before it is asked."""

    client: type[OpenAIClient] | type[AnthropicClient]
    reserved: frozenset[str]
    capabilities: frozenset[str]


_APIS = {
    "openai": _Api(OpenAIClient, openai_request.RESERVED_OPTIONS, frozenset(openai_request.CAPABILITIES)),
    "anthropic": _Api(AnthropicClient, anthropic_request.RESERVED_OPTIONS, frozenset(anthropic_request.CAPABILITIES)),
}


@dataclass(frozen=True, slots=True)
class Account:
    """A server or account of a known API, under the name that models are called by."""

    name: str
    kind: str
    base_url: str
    api_key: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


class Catalog:
    """The providers of this process, and those that a workspace brings (`guarded`: to addresses that callers gave)."""

    def __init__(self, http: httpx.AsyncClient, guarded: httpx.AsyncClient, settings: Settings) -> None:
        self._guarded = guarded
        self._default_window = settings.default_context_window
        self._clocks = Clocks(
            first_content_seconds=settings.model_first_token_seconds, idle_seconds=settings.model_idle_seconds
        )
        accounts = (
            Account("openai", "openai", settings.openai_base_url, settings.openai_api_key),
            Account("anthropic", "anthropic", settings.anthropic_base_url, settings.anthropic_api_key),
        )
        self._clients: dict[str, ModelClient] = {
            account.name: _Refusing(ProviderErrorKind.AUTH, f"{account.name.upper()}_API_KEY is not set.")
            if account.api_key is None and account.base_url in _NEEDS_KEY
            else self._client(http, account)
            for account in accounts
        }
        self._policy = RetryPolicy(
            attempts=settings.model_attempts,
            base_seconds=settings.model_retry_seconds,
            retry_after_limit_seconds=settings.model_retry_after_seconds,
        )

    def _client(self, http: httpx.AsyncClient, account: Account) -> ModelClient:
        return _APIS[account.kind].client(
            http,
            provider=account.name,
            base_url=account.base_url,
            api_key=account.api_key,
            headers=account.headers,
            clocks=self._clocks,
        )

    def check(
        self,
        models: Sequence[str],
        options: Mapping[str, Any],
        capabilities: Sequence[str],
        kinds: Mapping[str, str],
    ) -> None:
        """Raises Invalid for a model, option or capability that cannot be asked; `kinds` are the workspace's providers."""
        for model in models:
            name = model.partition("/")[0]
            kind = name if name in BUILT_IN else kinds.get(name)
            if kind is None:
                raise _invalid("model", f"there is no provider '{name}'", "unknown_provider")
            known = scripted.CAPABILITIES if kind == _SCRIPTED else _APIS[kind].capabilities
            for capability in capabilities:
                if capability not in known:
                    raise _invalid("capabilities", f"'{capability}' is not known to {model}", "unknown_capability")
            if (option := reserved_option(kind, options)) is not None:
                raise _invalid("model_options", f"'{option}' is the loop's own", "reserved_option")

    def provider(
        self, request: Mapping[str, Any], accounts: Mapping[str, Account], emit: Emit, attempts_made: int
    ) -> Provider:
        """The loop's Provider for a run's resolved request; a script goes on after the attempts that were made."""
        played = ScriptedClient(request["script"] or [], attempts_made)
        candidates = []
        for model in request["models"]:
            name, _, model_name = model.partition("/")
            account = accounts.get(name)
            client = played if name == _SCRIPTED else self._client_of(name, account)
            bound = ModelSettings(
                model_name,
                {**(account.options if account else {}), **request["model_options"]},
                tuple(request["capabilities"]),
                request["response_schema"],
            )
            candidates.append(Candidate(model, client, bound))
        return RetryingProvider(candidates, emit, self._policy)

    def window(self, request: Mapping[str, Any], accounts: Mapping[str, Account]) -> Window:
        """The context window of the model that a run's request asks first."""
        model = request["models"][0]
        account = accounts.get(model.partition("/")[0])
        options = {**(account.options if account else {}), **request["model_options"]}
        return window_of(model, options, self._default_window)

    def _client_of(self, name: str, account: Account | None) -> ModelClient:
        if name in self._clients:
            return self._clients[name]
        if account is None:  # deleted after the run was accepted
            return _Refusing(ProviderErrorKind.REJECTED, f"The provider '{name}' is no longer there.")
        return self._client(self._guarded, account)


class _Refusing:
    """Stands for a provider that cannot be asked."""

    def __init__(self, kind: ProviderErrorKind, message: str) -> None:
        self._kind, self._message = kind, message

    async def reply(self, request: ModelRequest, settings: ModelSettings, show: Show) -> Reply:
        raise ProviderError(self._kind, self._message)


def reserved_option(kind: str, options: Mapping[str, Any]) -> str | None:
    """The first option that would break the loop."""
    reserved = _APIS[kind].reserved if kind in _APIS else openai_request.RESERVED_OPTIONS
    return next((option for option in options if option in reserved), None)


def _invalid(field_name: str, reason: str, code: str) -> Invalid:
    return Invalid(f"{field_name}: {reason}.", code=code, errors=[(("body", field_name), reason)])
