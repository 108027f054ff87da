"""The command line: `rondo up | serve | worker | migrate | openapi | demo`."""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from app import migrations, worker
from app.auth.tokens import ensure_keys
from app.demo import play
from app.infra.database import connect
from app.infra.embedded.keeper import Child
from app.infra.embedded.launcher import EmbeddedServers
from app.infra.embedded.processes import ending_with_us
from app.infra.settings import Settings, SettingsError, read_settings
from app.infra.telemetry import configure_logging, log
from app.main import schema
from app.serving import Server, with_servers

_STOP_SECONDS = 10.0
_COMMANDS = {
    "up": "everything: embedded servers where no URL is set, migrations, API and worker, until Ctrl-C",
    "serve": "the API alone (DATABASE_URL, REDIS_URL and RONDO_ENCRYPTION_KEYS are set)",
    "worker": "the worker alone",
    "migrate": "bring the database up to date",
    "openapi": "write the OpenAPI document (to the file named, else to stdout)",
    "demo": "start everything, play a conversation, and go on serving",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the exit code: 2 where a setting or the command line is wrong."""
    parser = argparse.ArgumentParser(prog="rondo", description="Runs LLM tool-calling agents for any backend.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == "openapi":
            command.add_argument("file", nargs="?", type=Path)
        if name == "demo":
            command.add_argument("--once", action="store_true", help="end when the conversation is over")
    given = parser.parse_args(argv)
    try:
        settings = read_settings()
        configure_logging(settings.log_level, settings.log_format)
        for unknown in settings.unknown_names:
            log.warning("unknown_setting", name=unknown)
        match given.command:
            case "up":
                return up(settings)
            case "serve":
                check_port(settings)
                return serve(_prepared(settings, migrate=False))
            case "worker":
                return worker.run(settings)
            case "migrate":
                return migrate(settings)
            case "openapi":
                return write_openapi(given.file)
            case _:
                return play.main(settings, once=given.once)
    except SettingsError as error:
        print(f"rondo: {error}", file=sys.stderr)
        return 2


def up(settings: Settings) -> int:
    """The API in this process, the worker in a child, the servers as children of this one. A child that dies is started
    again; where that happens over and over, all of it ends, with exit code 1."""
    check_port(settings)
    embedded = EmbeddedServers(settings)
    with embedded as servers:
        settings = with_servers(settings, servers)
        settings = _prepared(settings, migrate=True)
        worker_process = WorkerProcess(settings)
        try:
            return serve(settings, [*embedded.children, worker_process])
        finally:
            worker_process.stop()


def check_port(settings: Settings) -> None:
    """Before anything is started or a key is shown once: raises SettingsError when the port is taken."""
    try:
        socket.create_server((settings.host, settings.port), family=_family(settings.host)).close()
    except OSError as error:
        raise SettingsError(f"PORT: {settings.host}:{settings.port} cannot be listened on ({error.strerror})") from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class WorkerProcess:
    """`rondo worker` as a child, on the same servers."""

    name = "The worker"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._child = self._start()

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    async def start_again(self) -> None:
        self._child = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "app.cli", "worker"],
            env=worker.environment(self._settings),
            start_new_session=True,
            preexec_fn=ending_with_us(),
        )

    def stop(self) -> None:
        """It takes the time that its runs are given, and is then killed."""
        self._child.terminate()
        try:
            self._child.wait(self._settings.drain_seconds + _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def _prepared(settings: Settings, *, migrate: bool) -> Settings:
    """Make sure that schema and keys are there; keys that were made now are printed, this once."""
    for kind, key in asyncio.run(prepare(settings, migrate=migrate)).items():
        print(f"{kind} key (shown once): {key}", flush=True)
    return settings


async def prepare(settings: Settings, *, migrate: bool) -> dict[str, str]:
    if settings.database_url is None:
        raise SettingsError("DATABASE_URL is needed here")
    database = await connect(settings.database_url, wait_seconds=settings.database_timeout_seconds)
    try:
        if migrate:
            await migrations.upgrade(database.engine)
        elif await migrations.current(database.engine) is None:
            raise SettingsError("the database is empty: run `rondo migrate` first")
        return await ensure_keys(database.pool, settings)
    finally:
        await database.close()


def serve(settings: Settings, children: Sequence[Child] = ()) -> int:
    server = AnnouncedServer(settings, children)
    server.run()
    if server.failure is not None:
        print(f"rondo: {server.failure}", file=sys.stderr)
        return 1
    return 0 if server.started else 1


class AnnouncedServer(Server):
    """Says where it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            print(f"Rondo listens on http://{self.config.host}:{port}", flush=True)


def migrate(settings: Settings) -> int:
    if settings.database_url is None:
        raise SettingsError("DATABASE_URL is needed here (`rondo up` migrates its own)")
    asyncio.run(prepare_schema(settings.database_url, settings.database_timeout_seconds))
    return 0


async def prepare_schema(database_url: str, wait_seconds: float) -> None:
    database = await connect(database_url, wait_seconds=wait_seconds)
    try:
        await migrations.upgrade(database.engine)
    finally:
        await database.close()


def write_openapi(file: Path | None) -> int:
    text = json.dumps(schema(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    if file is None:
        sys.stdout.write(text)
    else:
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
