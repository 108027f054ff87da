"""Whether the process lives, whether it can work, and its metrics. None of this asks for a key."""

import asyncio
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from app import migrations
from app.infra.gauges import read_pools, read_redis
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import DATABASE_UP, QUEUE_WAIT, QUEUED_RUNS, registry
from app.runs.admission import queue_state
from app.web import database, json_response, pool, public


class Alive(BaseModel):
    status: Literal["ok"]


class Ready(BaseModel):
    status: Literal["ok", "unavailable"]
    checks: dict[str, str]


router = APIRouter(tags=["health"])
_DATABASE_SECONDS = 3.0


@router.get("/healthz", response_model=Alive)
@public
async def alive() -> Response:
    return json_response({"status": "ok"})


@router.get(
    "/readyz",
    response_model=Ready,
    responses={503: {"model": Ready, "description": "something is missing; `checks` tells what"}},
)
@public
async def ready(request: Request) -> Response:
    """Database, Redis and migrations, each `ok` or what is wrong."""
    checks = {"database": "ok", "redis": "ok", "migrations": "ok"}
    try:
        async with asyncio.timeout(_DATABASE_SECONDS):
            revision = await migrations.current(database(request).engine)
        if revision != migrations.newest():
            checks["migrations"] = "not up to date"
    except Exception as error:
        if not is_out_of_reach(error) and not isinstance(error, SQLAlchemyError):
            raise
        checks["database"] = "unreachable"
        checks["migrations"] = "not known"
    if not await request.app.state.process.event_log.line.look():
        checks["redis"] = "unreachable"
    is_ready = all(value == "ok" for value in checks.values())
    return json_response({"status": "ok" if is_ready else "unavailable", "checks": checks}, 200 if is_ready else 503)


@router.get("/openapi.json", include_in_schema=False)
@public
async def openapi_document(request: Request) -> Response:
    return json_response(request.app.openapi())


async def _read_queue(request: Request) -> None:
    try:
        async with asyncio.timeout(_DATABASE_SECONDS):
            waiting, oldest_seconds = await queue_state(pool(request))
    except Exception as error:
        if not is_out_of_reach(error):
            raise
        DATABASE_UP.set(0)
        return
    DATABASE_UP.set(1)
    QUEUED_RUNS.set(waiting)
    QUEUE_WAIT.set(oldest_seconds)


@router.get("/metrics", response_class=PlainTextResponse)
@public
async def metrics(request: Request) -> Response:
    """With a store out of reach the rest is told all the same."""
    await asyncio.gather(_read_queue(request), read_redis(request.app.state.process.event_log.line))
    read_pools(database(request))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
