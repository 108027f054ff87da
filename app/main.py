"""The application put together: `create_app` makes it, its lifespan opens and closes what it stands on."""

import gc
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from app import health, openapi
from app.agents import endpoints as agents
from app.auth import endpoints as auth
from app.console import endpoints as console
from app.custom_providers import endpoints as custom_providers
from app.erasure import endpoints as erasure
from app.infra.errors import RondoError
from app.infra.settings import Settings
from app.memories import endpoints as memories
from app.problems import on_http_exception, on_invalid_parameters, on_rondo_error
from app.process import Process, check, open_process
from app.redaction import endpoints as redaction
from app.request_log import Failures, RequestLog
from app.rules import endpoints as rules
from app.runs import endpoints as runs
from app.runs import session_endpoints
from app.sessions import endpoints as sessions
from app.sources import known_prices
from app.subscriptions import endpoints as subscriptions
from app.tools import endpoints as tools
from app.usage import endpoints as usage

DESCRIPTION = "Runs LLM tool-calling agents for any backend: REST, SSE, and tools as signed webhooks."
ROUTERS = (
    auth.router, sessions.router, session_endpoints.router, rules.router, memories.router, tools.router,
    custom_providers.router, runs.router, agents.router, subscriptions.router, usage.router, erasure.router,
    redaction.router, health.router, console.router,
)  # fmt: skip


def create_app(settings: Settings) -> FastAPI:
    """The API on these settings (`database_url` and `redis_url` given). Refuses to be made with an unguarded route; raises
    SettingsError for a wrong setting."""
    check(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_process(settings) as process:
            _hand_over(app, process)
            process.supervisor.start()
            settle_memory()
            try:
                yield
            finally:
                await process.drain()

    app = FastAPI(
        title="Rondo", version="1", description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.prices = known_prices(settings)
    routes = checked_routes(ROUTERS)
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = lambda: openapi.document(app, routes)  # type: ignore[method-assign]
    app.add_exception_handler(RondoError, on_rondo_error)
    app.add_exception_handler(RequestValidationError, on_invalid_parameters)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(Failures)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
            expose_headers=["Idempotent-Replayed", "Rondo-Run", "Retry-After", "X-Request-Id"],
        )  # fmt: skip
    app.add_middleware(RequestLog)
    return app


def settle_memory() -> None:
    """What is there after the start stays: the collector need not look at it again, nor look so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


def _hand_over(app: FastAPI, process: Process) -> None:
    for name in (
        "database", "redis", "crypto", "address_guard", "sender", "runs", "prompts", "toolbox_for", "compressor",
        "deliverer", "distiller", "redactions", "resolver", "agents", "authenticate", "buckets", "stream_places",
    ):  # fmt: skip
        setattr(app.state, name, getattr(process, name))
    app.state.process, app.state.vaults = process, process.redactions.vaults
    app.state.check_agent, app.state.complete_session = process.agents.check, process.agents.complete


def checked_routes(routers: Iterable[APIRouter]) -> list[APIRoute]:
    """All routes. Deny by default: each says which kinds of key may use it, or that it is public."""
    checked = []
    for route in (route for router in routers for route in router.routes):
        if not isinstance(route, APIRoute):
            raise RuntimeError(f"{route} is no API route, so that nobody knows who may use it")
        if not openapi.marks(route.dependant, "allowed_kinds") and not getattr(route.endpoint, "is_public", False):
            raise RuntimeError(f"{route.path} does not say which keys may use it")
        route.endpoint.may_be_repeated = bool(openapi.marks(route.dependant, "takes_key"))  # type: ignore[attr-defined]
        checked.append(route)
    return checked


def schema() -> dict[str, Any]:
    """The OpenAPI document, without a database."""
    return create_app(Settings()).openapi()
