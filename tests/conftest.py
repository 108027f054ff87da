"""What tests stand on: the embedded servers, one for the whole session, and the real service on a free port.

Each test gets a workspace of its own, so that tests never see each other's things.
"""

import asyncio
import base64
import os
import shutil
import socket as socketlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from app import migrations
from app.auth.tokens import ensure_keys
from app.infra.database import Database, connect
from app.infra.embedded.launcher import EmbeddedServers, Servers
from app.infra.settings import Settings, read_settings
from app.infra.telemetry import configure_logging
from app.main import create_app
from app.providers.tokens import install_vocabulary
from tests.api import Api, TestTools

ADMIN_KEY = "admin-key-of-the-tests-0123456789"
SERVICE_KEY = "service-key-of-the-tests-0123456789"


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """PostgreSQL and Valkey, in memory where there is room for it."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="rondo-tests-", dir=shm if os.access(shm, os.W_OK) else None))
    try:
        with EmbeddedServers(Settings(data_dir=folder), fast=True) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For tests that count tokens without a service."""
    install_vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="session")
def settings(servers: Servers) -> Settings:
    """Quick leases and retries; webhooks may be on this machine."""
    return read_settings(
        {
            "DATABASE_URL": servers.database_url,
            "REDIS_URL": servers.redis_url,
            "RONDO_ADMIN_KEY": ADMIN_KEY,
            "RONDO_SERVICE_KEY": SERVICE_KEY,
            "RONDO_ENCRYPTION_KEYS": "test:" + base64.b64encode(b"k" * 32).decode(),
            "RONDO_ALLOW_PRIVATE_WEBHOOKS": "127.0.0.0/8",
            "RONDO_MODEL_RETRY_SECONDS": "0.01",
            "RONDO_HEARTBEAT_SECONDS": "0.2",
            "RONDO_SWEEP_SECONDS": "0.5",
            "RONDO_LEASE_SECONDS": "3",
            "RONDO_DRAIN_SECONDS": "2",
            "OPENAI_API_KEY": "sk-test",
        }
    )


@pytest.fixture(scope="session")
async def migrated(settings: Settings) -> AsyncIterator[Database]:
    configure_logging("warning", "json")
    assert settings.database_url is not None
    database = await connect(settings.database_url)
    await migrations.upgrade(database.engine)
    await ensure_keys(database.pool, settings)
    yield database
    await database.close()


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[str]:
    """The whole service on a free port of this machine; gives its address."""
    config = uvicorn.Config(create_app(settings), port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    # with its protocol named, so that asyncio turns Nagle's algorithm off as it does for sockets of its own
    socket = socketlib.socket(socketlib.AF_INET, socketlib.SOCK_STREAM, socketlib.IPPROTO_TCP)
    socket.bind(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve([socket]))
    try:
        while not server.started and not task.done():
            await asyncio.sleep(0.01)
        assert server.started, "the service did not start"
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        socket.close()


@pytest.fixture(scope="session")
async def base_url(migrated: Database, settings: Settings) -> AsyncIterator[str]:
    async with serving(settings) as url:
        yield url


@pytest.fixture(scope="session")
async def http(base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=base_url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def admin(http: httpx.AsyncClient) -> Api:
    return Api(http, ADMIN_KEY)


@pytest.fixture
async def api(admin: Api) -> Api:
    """The API with a service key of a new workspace."""
    return await admin.new_workspace()


@pytest.fixture(scope="session")
async def test_tools() -> AsyncIterator[TestTools]:
    async with TestTools() as tools:
        yield tools
