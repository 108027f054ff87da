"""The service in front of a model API that speaks real bytes, in each provider's wire format."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from tests.api import Api
from tests.conftest import serving
from tests.contract.wires import FORMATS, Format, Wire
from tests.providers.model_server import ModelServer


@pytest.fixture(scope="session", params=FORMATS, ids=lambda format: format.name)
async def model_service(
    request: Any, settings: Settings, base_url: str
) -> AsyncIterator[tuple[Format, ModelServer, httpx.AsyncClient]]:
    format: Format = request.param
    async with (
        ModelServer() as server,
        serving(format.settings(settings, server)) as url,
        httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
    ):
        yield format, server, http


@pytest.fixture
def wire(model_service: tuple[Format, ModelServer, httpx.AsyncClient], api: Api) -> Wire:
    return Wire(*model_service, api)
