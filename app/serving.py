"""Serving the API in this process, for the command line and for the demo."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence

import uvicorn

from app.infra.crypto import kept_encryption_key
from app.infra.embedded.keeper import Child, keep_alive
from app.infra.embedded.launcher import Servers
from app.infra.embedded.processes import EmbeddedServersError
from app.infra.settings import Settings
from app.main import create_app

_KEEP_ALIVE_SECONDS = 75
"""Longer than the minute after which most proxies end an idle connection, so that it is they who do."""


def with_servers(settings: Settings, servers: Servers) -> Settings:
    """The settings with what the embedded default made: the servers' URLs and, if none is set, an encryption key."""
    keys = settings.encryption_keys or kept_encryption_key(settings.data_dir)
    return settings.model_copy(
        update={"database_url": servers.database_url, "redis_url": servers.redis_url, "encryption_keys": keys}
    )


class Server(uvicorn.Server):
    """Ends the open streams before it waits for connections to end: their clients come back to another process."""

    def __init__(self, settings: Settings, children: Sequence[Child] = ()) -> None:
        """`children` are started again when they die; when one dies too often, the serving ends with `failure`."""
        self.failure: EmbeddedServersError | None = None
        self._children = children
        self._keeping: asyncio.Task[None] | None = None
        self._application = create_app(settings)
        config = uvicorn.Config(
            self._application,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.drain_seconds) + 5,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal ends the serving, and then the command as it should: uvicorn would raise it once more."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and self._children:
            self._keeping = asyncio.create_task(self._keep_alive(), name="children")

    async def _keep_alive(self) -> None:
        try:
            await keep_alive(self._children)
        except EmbeddedServersError as error:
            self.failure = error
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        process = getattr(self._application.state, "process", None)
        if self._keeping is not None:
            self._keeping.cancel()
        if process is not None:
            process.leave()
        await super().shutdown(sockets=sockets)
