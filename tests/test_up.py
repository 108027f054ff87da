"""`rondo up` as a person starts it: servers, API and worker; who is killed comes back, and nobody stays behind."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.api import Api
from tests.contract.test_recovery import REPOSITORY

SERVICE_KEY = "service-key-of-rondo-up-0123456789"


def descendants(pid: int) -> dict[int, str]:
    """The processes that it has started, and those that they have: pid and command."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    found: dict[int, str] = {}
    parents = {pid}
    while parents:
        children = {int(row[0]): row[2] for row in rows if int(row[1]) in parents}
        found |= children
        parents = set(children)
    return found


def workers(pid: int) -> set[int]:
    return {child for child, command in descendants(pid).items() if command.endswith("app.cli worker")}


@asynccontextmanager
async def rondo_up(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RONDO_", "DATABASE_", "REDIS_"))}
    environment = {
        **kept, "HOST": "127.0.0.1", "PORT": "0", "RONDO_DATA_DIR": str(folder), "RONDO_SERVICE_KEY": SERVICE_KEY,
        "RONDO_LOG_LEVEL": "error", "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "rondo-tests-bytecode"),
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.cli", "up", cwd=REPOSITORY, env=environment,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process, await asyncio.wait_for(_address(process), 90)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 60)


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b"Rondo listens on "):
            return line.decode().split()[-1]
    raise AssertionError("it has ended before it listened")


async def changed(old: set[int], pid: int) -> set[int]:
    async with asyncio.timeout(60):
        while not (new := await asyncio.to_thread(workers, pid)) or new == old:
            await asyncio.sleep(0.1)
    return new


class TestUp:
    async def test_a_killed_worker_is_started_again_and_nothing_stays_behind_at_the_end(self) -> None:
        shm = Path("/dev/shm")
        folder = Path(tempfile.mkdtemp(prefix="rondo-up-", dir=shm if os.access(shm, os.W_OK) else None))
        try:
            async with rondo_up(folder) as (process, url), httpx.AsyncClient(base_url=url, trust_env=False) as http:
                api = Api(http, SERVICE_KEY)
                assert (await api.run(await api.new_session(), "Hello."))["output"] == "Hello."
                first = await changed(set(), process.pid)
                os.kill(next(iter(first)), signal.SIGKILL)
                await changed(first, process.pid)
                children = await asyncio.to_thread(descendants, process.pid)
                process.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(process.wait(), 60) in (0, -signal.SIGTERM)
                left = await asyncio.to_thread(descendants, 1)
                assert not {pid: left[pid] for pid in children if left.get(pid) == children[pid]}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
