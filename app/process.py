"""What a process stands on, API or worker: opened in order, handed down as values, closed in reverse."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from app.agents.service import AgentService
from app.auth.tokens import authenticate
from app.events.hub import Hub
from app.events.log import EventLog, Room
from app.infra import redis as redis_client
from app.infra import tracing
from app.infra.crypto import Crypto
from app.infra.database import Database, Pool, connect
from app.infra.queue import JobQueue
from app.infra.settings import Settings, SettingsError, parse_encryption_keys
from app.infra.token_bucket import TokenBuckets
from app.limits import StreamPlaces
from app.outbound.address_guard import AddressGuard
from app.outbound.connector import guarded_connector
from app.outbound.sender import Sender
from app.providers.catalog import Catalog
from app.providers.tokens import install_vocabulary, load
from app.providers.transport import http_client
from app.redaction import recogniser
from app.redaction.opened import Vaults
from app.runs.admission import Admission
from app.runs.compressor import Compressor
from app.runs.distiller import Distiller
from app.runs.hooks import load_hooks
from app.runs.joined import RunTools
from app.runs.prompt import PromptBuilder
from app.runs.redacted_models import RedactedModels
from app.runs.redacting import Redactions
from app.runs.resolve import Resolver
from app.runs.runner import Runner, ToolboxFor
from app.runs.service import RunService
from app.runs.supervisor import OnEnd, Supervisor
from app.sources import always, delivery_bodies, distil_options_source, models_source, prompt_sources, tools_source
from app.subscriptions.delivery import Deliverer
from app.subscriptions.repository import Pause
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
    queue: JobQueue
    supervisor: Supervisor
    runs: RunService
    prompts: PromptBuilder
    toolbox_for: ToolboxFor
    compressor: Compressor
    distiller: Distiller
    deliverer: Deliverer
    redactions: Redactions
    resolver: Resolver
    agents: AgentService
    authenticate: Authenticate
    buckets: TokenBuckets | None
    stream_places: StreamPlaces

    def leave(self) -> None:
        """End the streams and the waiting: their clients come back to another process."""
        self.event_log.hub.close_streams()
        self.supervisor.leave()

    async def drain(self) -> None:
        """Stop gracefully: nobody waits here any more, runs end or are let go."""
        self.leave()
        await self.supervisor.drain(self.settings.drain_seconds)
        await self.deliverer.stop()


def check(settings: Settings) -> None:
    """Raises SettingsError for what would stop a process only when its server has begun to start."""
    always(settings)
    if settings.redaction_names:
        recogniser.check()
    if settings.hooks is not None:
        load_hooks(settings.hooks)


@asynccontextmanager
async def open_process(settings: Settings) -> AsyncIterator[Process]:
    """Connect and join everything. Raises SettingsError where a setting is missing."""
    if settings.database_url is None or settings.redis_url is None or settings.encryption_keys is None:
        raise SettingsError("DATABASE_URL, REDIS_URL and RONDO_ENCRYPTION_KEYS are needed here (`rondo up` makes its own)")
    await asyncio.to_thread(install_vocabulary, settings.data_dir / "vocabulary")
    async with AsyncExitStack() as stack:
        if settings.redaction_names:
            await asyncio.to_thread(recogniser.start)
        if (end_tracing := tracing.start()) is not None:
            stack.callback(end_tracing)
        reading = asyncio.create_task(asyncio.to_thread(load))  # nobody waits for it before there is something to count
        stack.push_async_callback(_done, reading)
        patience = settings.database_timeout_seconds
        database = await connect(settings.database_url, statement_seconds=patience, wait_seconds=patience)
        stack.push_async_callback(database.close)
        redis = redis_client.connect(settings.redis_url, settings.redis_timeout_seconds)
        stack.push_async_callback(redis.aclose)
        line = redis_client.Line(redis)
        line.start()
        stack.push_async_callback(line.stop)
        hub = Hub(line)
        stack.push_async_callback(hub.stop)
        room = Room(settings.event_buffer_bytes, settings.event_buffer_total_bytes)
        event_log = EventLog(line, hub, settings.event_ttl_seconds, room)
        event_log.start()
        stack.push_async_callback(event_log.stop)
        guard = AddressGuard(settings.allow_private_webhooks)
        http = http_client()
        stack.push_async_callback(http.aclose)
        guarded = http_client(connector=lambda tls: guarded_connector(guard, tls, refuse_as_failure=True))
        stack.push_async_callback(guarded.aclose)
        sender = await stack.enter_async_context(Sender(guard))
        queue = JobQueue(settings.redis_url)
        stack.push_async_callback(queue.close)
        crypto, catalog = Crypto(parse_encryption_keys(settings.encryption_keys)), Catalog(http, guarded, settings)
        process = _join(settings, database, redis, crypto, event_log, queue, catalog, guard, sender)
        hub.start(process.supervisor.hear)
        yield process


async def _done(task: asyncio.Task[Any]) -> None:
    await task


def _join(
    settings: Settings,
    database: Database,
    redis: Any,
    crypto: Crypto,
    event_log: EventLog,
    queue: JobQueue,
    catalog: Catalog,
    guard: AddressGuard,
    sender: Sender,
) -> Process:
    pool = database.pool
    hooks = None if settings.hooks is None else load_hooks(settings.hooks)
    redactions = Redactions(pool, crypto, Vaults(pool, crypto), always(settings))
    model_for = RedactedModels(models_source(pool, crypto, catalog), redactions, hooked=hooks is not None)
    named_tools = tools_source(pool, crypto, sender, redactions)

    async def toolbox_for(run: Any) -> RunTools:
        return await agents.children.with_agents(await named_tools(run), run)

    deliverer = _deliverer(settings, pool, crypto, sender, redactions)
    prompts = PromptBuilder(pool, prompt_sources(pool))
    compressor = Compressor(pool, model_for, queue, settings.lease_seconds)
    # agents start runs and lend themselves to runs: what a run's end asks of them is only called once they are there
    runner = Runner(
        pool, event_log, model_for, toolbox_for, prompts, compressor, settings.pending_seconds,
        redactions, hooks, lambda run: agents.children.end_all(run),
    )  # fmt: skip
    supervisor = _supervisor(settings, pool, runner, event_log, lambda run: _run_ended(run, agents, deliverer))
    admission = Admission(settings.max_queued_runs, settings.max_session_queued_runs, settings.max_workspace_runs)
    runs = RunService(pool, runner, supervisor, event_log, admission, settings.lease_seconds, redactions)
    resolver = Resolver(settings, catalog, redactions.always)
    agents = AgentService(pool, runs, resolver, settings.agent_failures)
    options_for = distil_options_source(resolver, agents.complete)
    for duty in (agents.scheduler.start_due, agents.children.mend, deliverer.sweep):
        supervisor.also_every(settings.sweep_seconds, duty)
    return Process(
        settings=settings,
        database=database,
        redis=redis,
        crypto=crypto,
        address_guard=guard,
        sender=sender,
        event_log=event_log,
        queue=queue,
        supervisor=supervisor,
        runs=runs,
        prompts=prompts,
        toolbox_for=toolbox_for,
        compressor=compressor,
        deliverer=deliverer,
        distiller=Distiller(pool, model_for, queue, settings.lease_seconds, options_for, redactions.vaults),
        redactions=redactions,
        resolver=resolver,
        agents=agents,
        authenticate=lambda key: authenticate(pool, key),
        buckets=_buckets(settings, event_log.line),
        stream_places=StreamPlaces(settings.max_streams, settings.max_workspace_streams),
    )


def _supervisor(settings: Settings, pool: Pool, runner: Runner, event_log: EventLog, on_end: OnEnd) -> Supervisor:
    return Supervisor(
        pool,
        runner,
        lease_seconds=settings.lease_seconds,
        heartbeat_seconds=settings.heartbeat_seconds,
        sweep_seconds=settings.sweep_seconds,
        max_concurrent_runs=settings.max_concurrent_runs,
        tell=event_log.tell,
        on_end=on_end,
    )


async def _run_ended(run: Any, agents: AgentService, deliverer: Deliverer) -> None:
    if run.get("told"):
        await deliverer.deliver()
    if run["agent_id"] is not None or run["parent_run_id"] is not None:
        await agents.run_ended(run)


def _deliverer(settings: Settings, pool: Pool, crypto: Crypto, sender: Sender, redactions: Redactions) -> Deliverer:
    pause = Pause(settings.subscription_failures, settings.subscription_failing_seconds)
    return Deliverer(pool, crypto, sender, delivery_bodies(pool, redactions), pause)


def _buckets(settings: Settings, line: redis_client.Line) -> TokenBuckets | None:
    per_second = settings.requests_per_second
    return None if per_second is None else TokenBuckets(line, per_second, settings.request_burst)
