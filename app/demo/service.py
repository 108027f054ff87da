"""The service for the demo: its database made ready, a key of its own, and `rondo serve` as a child."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from app import migrations
from app.auth.tokens import ensure_keys
from app.infra import ids
from app.infra.crypto import fingerprint, kept_encryption_key, new_key
from app.infra.database import Pool, connect
from app.infra.embedded import Servers
from app.infra.settings import Settings, SettingsError

WORKSPACE = "wsp_00000000000070008000000000000002"
"""The demo's own, so that its tools and sessions are in nobody's way."""

_LOOPBACK = "127.0.0.0/8"
_START_SECONDS = 60.0
_POLL_SECONDS = 0.05
_TAIL_LINES = 15
_PR_SET_PDEATHSIG = 1
# Loaded once: a child between fork and exec must not load libraries.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class ServiceEnded(Exception):
    """The child did not start, or ended by itself. The text has the end of its log."""


async def prepare(settings: Settings, database_url: str) -> tuple[str, dict[str, str]]:
    """Bring the database up to date. Returns a fresh key of the demo, and the keys that a first start makes, by kind."""
    database = await connect(database_url)
    try:
        await migrations.upgrade(database.engine)
        made = await ensure_keys(database.pool, settings)
        return await _own_key(database.pool), made
    finally:
        await database.close()


async def _own_key(pool: Pool) -> str:
    """Only the hash of a key is kept, so each demo makes one, and ends that of the demo before."""
    key = new_key("service")
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO workspaces (id, name, created_at) VALUES ($1, 'demo', now()) ON CONFLICT DO NOTHING", WORKSPACE
        )
        await connection.execute("DELETE FROM api_keys WHERE workspace_id = $1", WORKSPACE)
        await connection.execute(
            "INSERT INTO api_keys (id, workspace_id, kind, name, hash, bootstrap, created_at)"
            " VALUES ($1, $2, 'service', 'demo', $3, false, now())",
            ids.new(ids.KEY), WORKSPACE, fingerprint(key),
        )  # fmt: skip
    return key


class Service:
    """`rondo serve` under way. `url` is where this machine reaches it."""

    def __init__(self, child: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.url = url
        self._child = child
        self._log = log

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        with httpx.Client(trust_env=False, timeout=2) as client:
            while time.monotonic() < deadline and self._child.poll() is None:
                try:
                    if client.get(f"{self.url}/readyz").status_code == 200:
                        return
                except httpx.TransportError:
                    pass  # it does not listen yet
                time.sleep(_POLL_SECONDS)
        raise ServiceEnded(f"The service did not start. The end of its log, {self._log}:\n{self._tail()}")

    def wait_until_ended(self) -> None:
        """Wait for good; the service is not meant to end before the demo does."""
        status = self._child.wait()
        raise ServiceEnded(f"The service ended ({status}). The end of its log, {self._log}:\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


@contextmanager
def serving(settings: Settings, servers: Servers, port: int) -> Iterator[Service]:
    """The service, ready, on these servers. It takes as long to end as its runs do, at most `drain_seconds` and a bit."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    log = settings.data_dir / "demo.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "app.cli", "serve"],
            env=_environment(settings, servers, port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C comes to us, and we end it
            preexec_fn=_end_with_parent,
        )
    try:
        service = Service(child, f"http://{_reachable(settings.host)}:{port}", log)
        service.wait_until_ready()
        yield service
    finally:
        child.terminate()
        try:
            child.wait(settings.drain_seconds + 10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _end_with_parent() -> None:
    """On Linux the child is ended when this process is killed, too."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _environment(settings: Settings, servers: Servers, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": servers.database_url,
        "REDIS_URL": servers.redis_url,
        "RONDO_ENCRYPTION_KEYS": settings.encryption_keys or kept_encryption_key(settings.data_dir),
        "RONDO_ALLOW_PRIVATE_WEBHOOKS": _allowed(settings),
        "PORT": str(port),
    }


def _allowed(settings: Settings) -> str:
    """The agency is on this machine, which a service does not call unless it is told to."""
    given = settings.allow_private_webhooks
    if isinstance(given, bool):
        return "true" if given else _LOOPBACK
    return ",".join([*map(str, given), _LOOPBACK])


def free_port(host: str, wanted: int) -> int:
    """`wanted` if it can be had, else any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = ""
    for port in (wanted, 0):
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                return int(probe.getsockname()[1])
        except OSError as error:
            reason = error.strerror or str(error)
    raise SettingsError(f"HOST: {host} cannot be listened on ({reason})")


def _reachable(host: str) -> str:
    """The address to call; a wildcard is none."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{address}]" if ":" in address else address
