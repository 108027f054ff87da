"""The client applications under `examples/`: each is started against the service, plays its event, and its tools refuse
what is not signed. One whose runtime is not installed is reported as not run; nothing is installed for it."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.api import Api

EXAMPLES = Path(__file__).parent.parent / "examples"
APPS = {
    "python": (sys.executable, "app.py"),
    "node": ("node", "app.js"),
    "php": ("php", "app.php"),
}
PLAYED = [
    "run.queued", "run.started",
    "iteration.started", "message.completed",
    "tool.invoking order_lookup", "tool.invoked order_lookup", "iteration.completed",
    "iteration.started", "message.completed",
    "tool.invoking order_note", "tool.invoked order_note", "iteration.completed",
    "iteration.started", "message.delta", "message.completed", "iteration.completed", "run.completed",
    "answer: Order 7 has a note for the packers.",
]  # fmt: skip


@pytest.fixture(params=list(APPS))
def app(request: pytest.FixtureRequest) -> tuple[str, ...]:
    program, file = APPS[request.param]
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"not run: {program} is not installed here")
    return found, str(EXAMPLES / request.param / file)


@asynccontextmanager
async def started(api: Api, *command: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The application, with the address of its tools."""
    environment = {
        "PATH": os.environ["PATH"],
        "RONDO_URL": f"{api.http.base_url}/v1".replace("//v1", "/v1"),
        "RONDO_KEY": api.key,
    }
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
            assert line.startswith("tools on http://127.0.0.1:"), line
            yield process, line.split()[-1]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


class TestAnExample:
    async def test_it_fires_an_event_hosts_the_tools_and_follows_the_run(self, api: Api, app: tuple[str, ...]) -> None:
        for _ in range(2):  # the second time its tools and its agent are there already
            async with started(api, *app) as (process, _):
                shown = [line.strip() for line in (await process.communicate())[0].decode().splitlines()]
            assert shown == PLAYED
            assert process.returncode == 0
        (first, second) = (await api.get("/v1/runs"))["data"]
        for run in (first, second):
            assert [call["outcome"] for turn in await api.trace(run["id"]) for call in turn["tool_calls"]] == [
                "ok",
                "neutral",
            ]

    async def test_its_tools_refuse_what_is_not_signed(self, api: Api, app: tuple[str, ...]) -> None:
        async with started(api, *app, "serve") as (_, address), httpx.AsyncClient(trust_env=False) as http:
            signed = await api.post("/v1/tools/order_lookup/test", {"arguments": {"order_id": "7"}}, 200)
            assert (signed["response"]["status"], signed["outcome"]) == (200, "ok")
            headers, body = signed["request"]["headers"], signed["request"]["body"]
            for changed in ({}, {**headers, "webhook-signature": "v1,bm8="}, {**headers, "webhook-timestamp": "1700000000"}):
                response = await http.post(f"{address}/order_lookup", content=body, headers=changed)
                assert response.status_code == 401
            assert (await http.post(f"{address}/order_lookup", content="{}", headers=headers)).status_code == 401
