"""What a process stands on, API or worker: opened in order, handed down as values, closed in reverse."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from app.agents.service import AgentService
from app.auth.tokens import authenticate
from app.custom_providers import repository as custom_providers
from app.events.hub import Hub
from app.events.log import EventLog
from app.infra import redis as redis_client
from app.infra.crypto import Crypto
from app.infra.database import Database, connect
from app.infra.settings import Settings, SettingsError, parse_encryption_keys
from app.loop.ports import Emit, Provider
from app.outbound.address_guard import AddressGuard
from app.outbound.connector import guarded_connector
from app.outbound.sender import Sender
from app.providers.catalog import BUILT_IN, Catalog
from app.providers.tokens import install_vocabulary
from app.providers.transport import http_client
from app.runs.hooks import load_hooks
from app.runs.resolve import Resolver, scope_of
from app.runs.runner import Runner, RunTools
from app.runs.service import RunService
from app.runs.supervisor import Supervisor
from app.tools.toolbox import open_toolbox
from app.tools.webhook import RunIdentity
from app.web import Authenticate


@dataclass(frozen=True, slots=True)
class Process:
    settings: Settings
    database: Database
    redis: Any
    crypto: Crypto
    address_guard: AddressGuard
    sender: Sender
    event_log: EventLog
    supervisor: Supervisor
    runs: RunService
    resolver: Resolver
    agents: AgentService
    authenticate: Authenticate

    def leave(self) -> None:
        """End the streams and the waiting: their clients come back to another process."""
        self.event_log.hub.close_streams()
        self.supervisor.leave()

    async def drain(self) -> None:
        """Stop gracefully: nobody waits here any more, runs end or are let go."""
        self.leave()
        await self.supervisor.drain(self.settings.drain_seconds)


@asynccontextmanager
async def open_process(settings: Settings) -> AsyncIterator[Process]:
    """Connect and join everything. Raises SettingsError where a setting is missing."""
    if settings.database_url is None or settings.redis_url is None or settings.encryption_keys is None:
        raise SettingsError("DATABASE_URL, REDIS_URL and RONDO_ENCRYPTION_KEYS are needed here (`rondo up` makes its own)")
    await asyncio.to_thread(install_vocabulary, settings.data_dir / "vocabulary")
    async with AsyncExitStack() as stack:
        database = await connect(settings.database_url)
        stack.push_async_callback(database.close)
        redis = redis_client.connect(settings.redis_url)
        stack.push_async_callback(redis.aclose)
        hub = Hub(redis)
        stack.push_async_callback(hub.stop)
        event_log = EventLog(redis, hub, settings.event_ttl_seconds)
        event_log.start()
        stack.push_async_callback(event_log.stop)
        guard = AddressGuard(settings.allow_private_webhooks)
        http = http_client()
        stack.push_async_callback(http.aclose)
        guarded = http_client(connector=lambda tls: guarded_connector(guard, tls, refuse_as_failure=True))
        stack.push_async_callback(guarded.aclose)
        sender = await stack.enter_async_context(Sender(guard))
        yield _join(settings, database, redis, event_log, Catalog(http, guarded, settings), guard, sender)


def _join(
    settings: Settings,
    database: Database,
    redis: Any,
    event_log: EventLog,
    catalog: Catalog,
    guard: AddressGuard,
    sender: Sender,
) -> Process:
    assert settings.encryption_keys is not None
    pool, crypto = database.pool, Crypto(parse_encryption_keys(settings.encryption_keys))

    async def toolbox_for(run: Any) -> RunTools:
        identity = RunIdentity(
            run_id=run["id"], session_id=run["session_id"], agent_id=run["agent_id"], context=run["request"]["context"],
            **scope_of(run),
        )  # fmt: skip
        toolbox = await open_toolbox(pool, crypto, sender, run["workspace_id"], run["request"]["tools"], identity)
        return await agents.children.with_agents(toolbox, run)

    async def provider_for(run: Any, emit: Emit, attempts_made: int) -> Provider:
        request = run["request"]
        named = {model.partition("/")[0] for model in request["models"]}.difference(BUILT_IN)
        accounts = await custom_providers.accounts(pool, crypto, run["workspace_id"], named) if named else {}
        return catalog.provider(request, accounts, emit, attempts_made)

    hooks = None if settings.hooks is None else load_hooks(settings.hooks)
    # agents start runs and lend themselves to runs: what a run's end asks of them is only called once they are there
    runner = Runner(
        pool, event_log, provider_for, toolbox_for, settings.pending_seconds, hooks, lambda run: agents.children.end_all(run)
    )
    supervisor = Supervisor(
        pool,
        runner,
        lease_seconds=settings.lease_seconds,
        heartbeat_seconds=settings.heartbeat_seconds,
        sweep_seconds=settings.sweep_seconds,
        max_concurrent_runs=settings.max_concurrent_runs,
        on_end=lambda run: agents.run_ended(run),
    )
    runs = RunService(pool, runner, supervisor, event_log, settings.lease_seconds)
    resolver = Resolver(settings, catalog)
    agents = AgentService(pool, runs, resolver, settings.agent_failures)
    supervisor.also_every(settings.sweep_seconds, agents.scheduler.sweep)
    supervisor.also_every(settings.sweep_seconds, agents.children.mend)
    return Process(
        settings=settings,
        database=database,
        redis=redis,
        crypto=crypto,
        address_guard=guard,
        sender=sender,
        event_log=event_log,
        supervisor=supervisor,
        runs=runs,
        resolver=resolver,
        agents=agents,
        authenticate=lambda key: authenticate(pool, key),
    )
