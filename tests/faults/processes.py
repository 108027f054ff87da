"""The processes of a storm: PostgreSQL and Valkey, two API processes and a worker, each behind proxies of its own."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from app.infra.embedded.binaries import valkey_server
from app.infra.embedded.postgres import Postgres
from app.infra.embedded.processes import ending_with_us
from app.infra.embedded.server import Server
from app.infra.embedded.valkey import Valkey
from tests.faults.proxy import Proxy

REPOSITORY = Path(__file__).parents[2]
LEASE_SECONDS = 2.0
SERVICE_KEY = "service-key-of-the-storm-0123456789"
STALE_METRIC = "rondo_stale_writes_refused_total"
_START_SECONDS = 120
_STARTS = 5
_END_SECONDS = 30


class Store:
    """PostgreSQL or Valkey: killed, stopped and started again with the same data on another port."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.proxies: list[Proxy] = []

    def start(self) -> None:
        """In the main thread: the server ends with the thread that started it."""
        self._server.prepare()
        self._server.launch()

    async def ready(self) -> None:
        await asyncio.to_thread(self._server.wait_until_ready)
        for proxy in self.proxies:
            proxy.target = self._server.port

    async def restart(self, how: signal.Signals) -> None:
        child = self._server._child
        assert child is not None
        child.send_signal(how)
        await asyncio.to_thread(child.wait)
        for proxy in self.proxies:
            proxy.cut()
        self.start()
        await self.ready()

    def stop(self) -> None:
        self._server.ask_to_stop()
        self._server.wait_until_stopped()

    async def url_through(self, stack: AsyncExitStack) -> tuple[str, Proxy]:
        """Its address through a proxy of its own."""
        proxy = await Proxy.open(self._server.port)
        stack.push_async_callback(proxy.close)
        self.proxies.append(proxy)
        parts = urlsplit(self._server.url)
        return parts._replace(netloc=parts.netloc.rpartition(":")[0] + f":{proxy.port}").geturl(), proxy

    @property
    def url(self) -> str:
        return self._server.url


class Process:
    """`rondo serve` behind `door`, or `rondo worker`. `up` is set while it runs and is not paused."""

    def __init__(self, name: str, environment: dict[str, str], folder: Path, door: Proxy | None) -> None:
        self.name, self.door = name, door
        self.up = asyncio.Event()
        self.ends: Counter[str] = Counter()
        self.refused = 0.0
        """What the metric of refused stale writes said, over all its lives."""
        self.last_words: list[str] = []
        self.log = folder / f"{name}.log"
        self.longest: dict[str, float] = {"start": 0.0, "end": 0.0}
        """Seconds that it took to start, and to end when told to."""
        self._environment = environment
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Again, as whoever runs a service would, when it ends at once: its stores may be out of reach."""
        started = time.monotonic()
        for _ in range(_STARTS):
            self._child = await self._spawn()
            if self.door is None:
                break
            port = await asyncio.wait_for(_port_of(self._child), _START_SECONDS)
            if port is not None:
                self.door.target = port
                break
            self.ends["ended at its start"] += 1
        else:
            raise RuntimeError(f"{self.name} does not start: {self.log.read_text()[-3000:]}")
        self.longest["start"] = max(self.longest["start"], time.monotonic() - started)
        self.up.set()

    async def _spawn(self) -> asyncio.subprocess.Process:
        command = "serve" if self.door is not None else "worker"
        with self.log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "app.cli", command, cwd=REPOSITORY, env=self._environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, preexec_fn=ending_with_us(signal.SIGKILL),
            )  # fmt: skip

    @property
    def has_died(self) -> bool:
        return self._child is not None and self._child.returncode is not None

    async def restart(self, how: signal.Signals, seconds: float) -> None:
        """End it with a signal, and start it again after a while."""
        await self.scrape()
        self.up.clear()
        await self.end(how)
        await asyncio.sleep(seconds)
        await self.start()

    async def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._child is None or self._child.returncode is not None:
            return
        started = time.monotonic()
        self._child.send_signal(signal.SIGCONT)
        self._child.send_signal(how)
        try:
            await asyncio.wait_for(self._child.wait(), _END_SECONDS)
        except TimeoutError:
            self.ends["did not end when told to"] += 1
            self._child.kill()
            await self._child.wait()
        self.longest["end"] = max(self.longest["end"], time.monotonic() - started)

    async def revive(self) -> None:
        """Start it again when it has ended by itself."""
        assert self._child is not None
        self.ends[f"ended by itself with {self._child.returncode}"] += 1
        self.last_words.append(f"{self.name}: {self.log.read_text(errors='replace')[-1500:]}")
        self.up.clear()
        await self.start()

    async def pause(self, seconds: float) -> None:
        assert self._child is not None
        self.up.clear()
        self._child.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            if self._child.returncode is None:
                self._child.send_signal(signal.SIGCONT)
            self.up.set()

    async def scrape(self) -> None:
        """Add what the metric says before this life of the process ends."""
        if self.door is None or not self.up.is_set():
            return
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=2) as http:
                lines = (await http.get(f"http://127.0.0.1:{self.door.target}/metrics")).text.splitlines()
        except httpx.TransportError:
            return
        self.refused += sum(float(line.split()[-1]) for line in lines if line.startswith(STALE_METRIC))

    def told(self) -> Counter[str]:
        """What it logged, by event."""
        found: Counter[str] = Counter()
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                found[json.loads(line)["event"]] += 1
            except (ValueError, KeyError, TypeError):
                continue
        return found


async def _port_of(child: asyncio.subprocess.Process) -> int | None:
    """Where it listens; None when it has ended instead."""
    assert child.stdout is not None
    async for line in child.stdout:
        if line.startswith(b"Rondo listens on "):
            return int(line.rpartition(b":")[2])
    await child.wait()
    return None


class Fleet:
    """Everything that a storm hits. An async context manager; `folder` holds all data and logs."""

    def __init__(self, model_url: str) -> None:
        self._model_url = model_url
        self._stack = AsyncExitStack()
        self.processes: list[Process] = []
        self.lines: dict[str, Proxy] = {}
        """The proxies, by what they join."""

    async def __aenter__(self) -> "Fleet":
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        shm = Path("/dev/shm")
        place = shm if os.access(shm, os.W_OK) else None
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rondo-storm-", dir=place)))
        self.folder.chmod(0o755)
        self.redis = Store(Valkey(self.folder / "valkey", valkey_server()))
        self.postgres = Store(Postgres(self.folder / "postgres", None, fast=False))
        for store in (self.redis, self.postgres):
            self._stack.callback(store.stop)
            store.start()
        await asyncio.gather(self.redis.ready(), self.postgres.ready())
        for name in ("api-1", "api-2", "worker"):
            self.processes.append(await self._prepared(name))
        await self._migrate(self.processes[0]._environment)
        self._stack.push_async_callback(self._end_all)
        await asyncio.gather(*(process.start() for process in self.processes))

    async def _end_all(self) -> None:
        await asyncio.gather(*(process.end(signal.SIGKILL) for process in self.processes))

    async def _prepared(self, name: str) -> Process:
        database_url, database = await self.postgres.url_through(self._stack)
        redis_url, redis = await self.redis.url_through(self._stack)
        door = None
        if name != "worker":
            door = self.lines[f"clients and {name}"] = await Proxy.open()
            self._stack.push_async_callback(door.close)
        self.lines |= {f"{name} and postgres": database, f"{name} and redis": redis}
        return Process(name, _environment(database_url, redis_url, self._model_url, self.folder), self.folder, door)

    async def _migrate(self, environment: dict[str, str]) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "app.cli",
            "migrate",
            cwd=REPOSITORY,
            env={**environment, "DATABASE_URL": self.postgres.url},
        )
        if await child.wait() != 0:
            raise RuntimeError("the database could not be prepared")


def _environment(database_url: str, redis_url: str, model_url: str, folder: Path) -> dict[str, str]:
    foreign = ("RONDO_", "PYTHON", "OPENAI_", "ANTHROPIC_")
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(foreign)},
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "rondo-tests-bytecode"),
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "HOST": "127.0.0.1",
        "PORT": "0",
        "OPENAI_BASE_URL": model_url,
        "OPENAI_API_KEY": "sk-storm",
        "RONDO_DATA_DIR": str(folder / "service"),
        "RONDO_ADMIN_KEY": "admin-key-of-the-storm-0123456789",
        "RONDO_SERVICE_KEY": SERVICE_KEY,
        "RONDO_ENCRYPTION_KEYS": "storm:" + base64.b64encode(b"s" * 32).decode(),
        "RONDO_ALLOW_PRIVATE_WEBHOOKS": "127.0.0.0/8",
        "RONDO_LEASE_SECONDS": str(LEASE_SECONDS),
        "RONDO_SWEEP_SECONDS": "0.5",
        "RONDO_HEARTBEAT_SECONDS": "0.2",
        "RONDO_DRAIN_SECONDS": "0.5",
        "RONDO_MODEL_RETRY_SECONDS": "0.1",
        "RONDO_LOG_LEVEL": "warning",
        "RONDO_LOG_FORMAT": "json",
    }
