"""Where a run has its tools, its model and what stands around its conversation from: a function each, over the domains."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, get_args

import orjson

from app.custom_providers import repository as custom_providers
from app.infra import clock
from app.infra.crypto import Crypto
from app.infra.database import Pool
from app.infra.errors import Conflict
from app.infra.settings import Settings, SettingsError
from app.loop.ports import Emit
from app.memories.own_tools import with_own_tools
from app.memories.recall import Recalled, recall
from app.outbound.sender import Sender
from app.providers.catalog import BUILT_IN, Catalog
from app.providers.tokens import count_tokens
from app.redaction.answers import restored
from app.redaction.config import entries_of
from app.redaction.restorer import restore
from app.redaction.shapes import Kind as RedactedKind
from app.redaction.shapes import RedactionConfig
from app.rules.block import rules_block
from app.rules.repository import applying as applying_rules
from app.run_options import BUILTINS
from app.runs.distiller import DistilOptions, OptionsFor
from app.runs.joined import RunTools
from app.runs.prompt import PromptSources
from app.runs.redacting import Always, Redactions
from app.runs.resolve import Resolver, scope_of
from app.runs.runner import ToolboxFor
from app.runs.shapes import run_json, waiting_json
from app.runs.side_calls import ModelFor, ModelPort
from app.scope import Scope
from app.sessions.models import Session
from app.subscriptions.delivery import BodyOf
from app.subscriptions.models import Topic
from app.tools.toolbox import open_toolbox
from app.tools.webhook import RunIdentity
from app.usage.prices import ModelPrice, prices_of

_USAGE = ("session_id", "agent_id", "parent_run_id", "tenant", "subject", "member", "model", "usage")


def always(settings: Settings) -> Always:
    """What the settings say of redaction. Raises SettingsError."""
    text, kinds = settings.redaction_dictionary, settings.redaction_entities
    try:
        RedactionConfig.model_validate({"entities": None if kinds is None else list(kinds)})
    except ValueError:
        raise SettingsError(f"RONDO_REDACTION_ENTITIES: some of {', '.join(get_args(RedactedKind))} are expected") from None
    try:
        entries = () if text is None else entries_of(text)
    except ValueError:
        raise SettingsError('RONDO_REDACTION_DICTIONARY: a JSON list of {"type", "value"} is expected') from None
    return Always(settings.redaction_enabled, kinds, entries)


def tools_source(pool: Pool, crypto: Crypto, sender: Sender, redactions: Redactions) -> ToolboxFor:
    """The webhooks and client tools that a run names, and those of our own."""

    async def toolbox_for(run: Mapping[str, Any]) -> RunTools:
        identity = RunIdentity(
            run_id=run["id"], session_id=run["session_id"], agent_id=run["agent_id"], context=run["request"]["context"],
            **scope_of(run),
        )  # fmt: skip
        named = run["request"]["tools"]
        tools = await open_toolbox(pool, crypto, sender, run["workspace_id"], named, identity, tells=run["vault"] is None)
        if BUILTINS.keys().isdisjoint(named):
            return tools
        vault = await redactions.reading(run)
        return with_own_tools(pool, tools, run, lambda text: restore(text, vault))

    return toolbox_for


def models_source(pool: Pool, crypto: Crypto, catalog: Catalog) -> ModelFor:
    """The models that a run names, with the accounts of its workspace."""

    async def model_for(run: Mapping[str, Any], emit: Emit, attempts_made: int) -> ModelPort:
        request = run["request"]
        named = {model.partition("/")[0] for model in request["models"]}.difference(BUILT_IN)
        accounts = await custom_providers.accounts(pool, crypto, run["workspace_id"], named) if named else {}
        return ModelPort(catalog.provider(request, accounts, emit, attempts_made), catalog.window(request, accounts))

    return model_for


def distil_options_source(resolver: Resolver, complete: Callable[[Session], Awaitable[Session]]) -> OptionsFor:
    """How notes are drawn from a session, with what its agent says."""

    async def options_for(session: Session, last_models: Sequence[str]) -> DistilOptions:
        with contextlib.suppress(Conflict):  # its agent is gone: what the session says itself holds
            session = await complete(session)
        return resolver.distil_options(session, last_models)

    return options_for


def known_prices(settings: Settings) -> dict[str, ModelPrice]:
    """Raises SettingsError."""
    try:
        return prices_of(settings.prices or "{}")
    except ValueError:
        wanted = '{"PROVIDER/MODEL": {"input": 1.25, "output": 10}} of a million tokens is expected'
        raise SettingsError(f"RONDO_PRICES: {wanted}") from None


def delivery_bodies(pool: Pool, redactions: Redactions) -> BodyOf:
    """What subscriptions are told of a run: as it is when it has ended, and as it was when it waited."""

    async def body_of(delivery: Mapping[str, Any]) -> bytes | None:
        row = await pool.fetchrow("SELECT * FROM runs WHERE id = $1", delivery["run_id"])
        if row is None:
            return None
        run = run_json(row) if delivery["changed"] is None else waiting_json(row, delivery["changed"])
        data = {"run": run}
        if delivery["event"] == Topic.USAGE_RECORDED:
            data = {name: run[name] for name in _USAGE} | {"run_id": run["id"]}
        told = {"type": delivery["event"], "timestamp": clock.rfc3339(delivery["created_at"]), "data": data}
        return orjson.dumps(await restored(redactions.vaults, told, row["vault"]))

    return body_of


def prompt_sources(pool: Pool) -> PromptSources:
    """What stands above and below a system prompt: rules and memories."""

    async def rules(workspace_id: str, scope: Scope) -> str | None:
        return rules_block(await applying_rules(pool, workspace_id, scope))

    async def memories(workspace_id: str, scope: Scope, query: str, max_tokens: int) -> Recalled:
        return await recall(pool, workspace_id, scope, query, max_tokens, count_tokens)

    return PromptSources(rules, memories)
