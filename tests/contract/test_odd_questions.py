"""Every operation of the OpenAPI document gets odd questions from schemathesis: no 5xx, no status, content type or shape
that the document does not tell. A new operation is asked by being there.

In the suite they are few and always the same; `make questions QUESTIONS=500` asks more, and others each time.
"""

import os
import random
from asyncio import to_thread
from collections.abc import AsyncIterator

import httpx
import pytest

from app.infra.settings import Settings
from app.main import schema
from tests.api import TENANT, Api, call
from tests.conftest import ADMIN_KEY, serving
from tests.contract.odd_questions import ask, operations

ALL_IN_THE_SUITE = 240
OPERATIONS = operations(schema())
MORE = int(os.environ.get("QUESTIONS", "0"))
EXAMPLES = MORE or max(4, ALL_IN_THE_SUITE // len(OPERATIONS))
SEED = random.randrange(2**32) if MORE else 1


@pytest.fixture(scope="module")
async def odd_url(settings: Settings) -> AsyncIterator[str]:
    """A service whose models are out of reach, so that a question that starts a run is soon answered."""
    nowhere = {"openai_base_url": "http://127.0.0.1:1/v1", "anthropic_base_url": "http://127.0.0.1:1", "model_attempts": 1}
    async with serving(settings.model_copy(update=nowhere)) as url:
        yield url


@pytest.fixture
async def names(api: Api, admin: Api) -> dict[str, str]:
    """One of everything, by the names that path parameters have for it."""
    session_id = await api.new_session()
    await api.tool("lookup", "http://127.0.0.1:1/lookup")
    provider = {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "api_key": "sk-odd-key"}
    assert (await api.call("PUT", "/v1/providers/local", provider)).status_code == 201
    key = await admin.post("/v1/keys", {"workspace_id": api.workspace_id, "kind": "service", "name": "x"})
    run = await api.run(session_id, call("nothing"), "Hi.")
    rule = await api.post("/v1/rules", {"tenant": TENANT, "content": "Be polite."})
    memory = await api.post("/v1/memories", {"tenant": TENANT, "kind": "fact", "content": "It rains.", "importance": 3})
    return {
        "rule_id": rule["id"], "memory_id": memory["id"],
        "session_id": session_id, "run_id": run["id"], "key_id": key["id"], "name of tools": "lookup",
        "name of providers": "local",
    }  # fmt: skip


class TestEveryOperation:
    @pytest.mark.parametrize("name", OPERATIONS)
    async def test_it_answers_odd_questions_as_the_document_says(
        self, api: Api, odd_url: str, names: dict[str, str], name: str
    ) -> None:
        operation = OPERATIONS[name]
        is_for_admins = "admin" in operation.definition.raw.get("x-key-kinds", ())
        key = ADMIN_KEY if is_for_admins else api.key
        await to_thread(ask, operation, odd_url, key, names, EXAMPLES, SEED)
        async with httpx.AsyncClient(base_url=odd_url, trust_env=False) as http:
            assert (await http.get("/readyz")).status_code == 200
