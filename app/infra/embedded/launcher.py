"""Starts PostgreSQL and Valkey where no URL names one, and stops them."""

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from app.infra.embedded.binaries import valkey_server
from app.infra.embedded.lock import DirectoryLock
from app.infra.embedded.postgres import Postgres
from app.infra.embedded.processes import EmbeddedServersError
from app.infra.embedded.server import Server
from app.infra.embedded.valkey import Valkey
from app.infra.settings import Settings


@dataclass(frozen=True)
class Servers:
    """`postgresql://user:password@host:port/database` and `redis://:password@host:port/0`, or the URLs as set."""

    database_url: str
    redis_url: str


class EmbeddedServers:
    """The servers that the settings leave to us, with their data, passwords and logs in the data directory.

    Data outlive a restart and the sudden end of this process or of a server. On Linux the servers end with this
    process, however it ends; elsewhere with its orderly end, else at the next start. Call it from the main thread,
    before there is an event loop. `fast` is for tests: a server's sudden end may lose the last commits, and a crash of
    the host the whole database.
    """

    def __init__(self, settings: Settings, *, fast: bool = False) -> None:
        self._settings = settings
        self._fast = fast
        self._lock: DirectoryLock | None = None
        self._running: list[Server] = []
        self._servers: Servers | None = None

    def start(self) -> Servers:
        """Ready servers. A second call gives the same. EmbeddedServersError tells what a person has to change."""
        if self._servers is None:
            try:
                self._servers = self._start(self._settings.database_url, self._settings.redis_url)
            except BaseException:
                self.stop()
                raise
        return self._servers

    @property
    def children(self) -> list[Server]:
        """The servers that were started."""
        return list(self._running)

    def stop(self) -> None:
        """End what was started, cleanly, and give the directory back. A second call does nothing."""
        atexit.unregister(self.stop)
        self._servers = None
        try:
            for server in self._running:
                server.ask_to_stop()
            for server in self._running:
                server.wait_until_stopped()
        finally:
            self._running.clear()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _start(self, database_url: str | None, redis_url: str | None) -> Servers:
        """Valkey starts while PostgreSQL makes its data; then both are waited for."""
        if database_url is not None and redis_url is not None:
            return Servers(database_url, redis_url)
        _check_that_children_can_live()
        atexit.register(self.stop)
        directory = self._open_directory()
        if redis_url is None:
            program = valkey_server()
            with _write_errors_explained(directory):
                valkey = Valkey(directory / "valkey", program)
            self._launch(valkey)
        if database_url is None:
            with _write_errors_explained(directory):
                postgres = Postgres(directory / "postgres", self._settings.pg_bin, fast=self._fast)
            self._launch(postgres)
        for server in self._running:
            server.wait_until_ready()
        return Servers(database_url or postgres.url, redis_url or valkey.url)

    def _open_directory(self) -> Path:
        directory = Path(os.path.abspath(self._settings.data_dir))
        with _write_errors_explained(directory):
            directory.mkdir(parents=True, exist_ok=True)
            directory = directory.resolve()
            self._lock = DirectoryLock(directory)
        return directory

    def _launch(self, server: Server) -> None:
        server.prepare()
        self._running.append(server)
        server.launch()

    def __enter__(self) -> Servers:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _check_that_children_can_live() -> None:
    if sys.platform == "win32":
        raise EmbeddedServersError("DATABASE_URL, REDIS_URL: both have to be set on Windows, where no servers are embedded.")
    if threading.current_thread() is not threading.main_thread():
        # On Linux a child is told to end when the thread that started it ends.
        raise RuntimeError("start the embedded servers from the main thread")


@contextmanager
def _write_errors_explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}"
        raise EmbeddedServersError(
            f"RONDO_DATA_DIR: {directory} cannot be used ({reason}). Set it to a directory that this user can write."
        ) from None
