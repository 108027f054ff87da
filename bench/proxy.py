"""The yardstick: a service that hands a model's stream on as it comes, written the usual way, and does nothing else."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from bench.model import PATH


def create_proxy(model_url: str) -> Starlette:
    client: httpx.AsyncClient

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        nonlocal client
        limits = httpx.Limits(max_connections=2000, max_keepalive_connections=2000)
        async with httpx.AsyncClient(base_url=model_url, limits=limits, timeout=60) as client:
            yield

    async def passed_on(body: bytes) -> AsyncIterator[bytes]:
        headers = {"content-type": "application/json"}
        async with client.stream("POST", PATH, content=body, headers=headers) as response:
            async for part in response.aiter_raw():
                yield part

    async def chat(request: Request) -> Response:
        return StreamingResponse(passed_on(await request.body()), media_type="text/event-stream")

    async def ready(request: Request) -> Response:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route(PATH, chat, methods=["POST"]), Route("/ready", ready)], lifespan=lifespan)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model-url", required=True)
    given = parser.parse_args()
    uvicorn.run(create_proxy(given.model_url), port=given.port, access_log=False, log_level="warning")
