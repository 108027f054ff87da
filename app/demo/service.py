"""The service for the demo: its database made ready, a key of its own, and the API in a thread of this process."""

import ipaddress
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import structlog

from app import migrations
from app.auth.tokens import ensure_keys
from app.infra import ids
from app.infra.crypto import fingerprint, new_key
from app.infra.database import Pool, connect
from app.infra.embedded.launcher import Servers
from app.infra.settings import Settings, SettingsError
from app.infra.telemetry import configure_logging
from app.serving import Server, with_servers

WORKSPACE = "wsp_00000000000070008000000000000002"
"""The demo's own, so that its tools and sessions are in nobody's way."""

_LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
_POLL_SECONDS = 0.02
_TAIL_LINES = 15


class ServiceEnded(Exception):
    """The service did not start, or ended by itself."""


def demo_settings(settings: Settings, servers: Servers) -> Settings:
    """On these servers, and with webhooks on this machine, which are not called unless an operator allows them."""
    allowed = settings.allow_private_webhooks
    loopback_too = (allowed or (_LOOPBACK,)) if isinstance(allowed, bool) else (*allowed, _LOOPBACK)
    return with_servers(settings, servers).model_copy(update={"allow_private_webhooks": loopback_too})


async def prepare(settings: Settings) -> tuple[str, dict[str, str]]:
    """Bring the database up to date. Returns a fresh key of the demo, and the keys that a first start makes, by kind."""
    assert settings.database_url is not None
    database = await connect(settings.database_url)
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


@contextmanager
def logging_into(file: Path, level: str) -> Iterator[None]:
    """What the service logs goes into a file, anew for each demo: in between the story it would be noise."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", buffering=1, encoding="utf-8") as log:
        _log_into(log, level)
        yield


def _log_into(log: TextIO, level: str) -> None:
    configure_logging(level, "json")
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
    logging.basicConfig(level=logging.WARNING, stream=log, format="%(levelname)s %(name)s %(message)s", force=True)


def tail(file: Path) -> str:
    return "\n".join(file.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])


class Service:
    """The API while it is entered. `url` is where this machine reaches it."""

    def __init__(self, settings: Settings) -> None:
        self._socket = listening_socket(settings.host, settings.port)
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://{_reachable(settings.host)}:{self.port}"
        self._server = Server(settings)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="service", daemon=True)

    def __enter__(self) -> "Service":
        self._thread.start()
        try:
            while not self._server.started:
                if self._ended.wait(_POLL_SECONDS):
                    raise ServiceEnded("the service did not start")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        """Streams are ended and runs get their time, `drain_seconds` at most."""
        self._stop()

    def watch(self, seconds: float) -> None:
        """Wait a while; the service is not meant to end before the demo does."""
        # Not with `join`: a signal that interrupts it makes Python 3.11 take the thread for ended.
        if self._ended.wait(seconds):
            raise ServiceEnded("the service ended")

    def _stop(self) -> None:
        self._server.should_exit = True
        self._ended.wait()

    def _run(self) -> None:
        try:
            self._server.run([self._socket])
        finally:
            self._socket.close()
            self._ended.set()


def listening_socket(host: str, port: int) -> socket.socket:
    """At this port if it is free, else at any that is."""
    reason = ""
    for wanted in (port, 0):
        try:
            return socket.create_server((host, wanted), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            reason = error.strerror or str(error)
    raise SettingsError(f"HOST: {host} cannot be listened on ({reason})")


def _reachable(host: str) -> str:
    """The address to call; a wildcard is none."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{address}]" if ":" in address else address
