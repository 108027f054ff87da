"""The whole service against a model API that speaks real Messages bytes."""

from collections.abc import AsyncIterator

import httpx
import pytest

from app.infra.database import Database
from app.infra.settings import Settings
from app.sessions import summaries
from app.sessions.compression import HistoryOptions
from tests.api import Api, TestTools
from tests.conftest import serving
from tests.providers.messages_api import PING, START, STOP, begun, delta, ended, events, finished
from tests.providers.model_server import Answer, ModelServer


def says(*pieces: str) -> Answer:
    block = [begun(0, type="text", text=""), *(delta(0, "text_delta", text=piece) for piece in pieces), ended(0)]
    return events(START, *block, finished("end_turn"), STOP)


def asks(name: str, *fragments: str, call_id: str = "toolu_1") -> Answer:
    """Thinks aloud, then calls a tool with arguments in fragments."""
    thinking = [
        begun(0, type="thinking", thinking=""),
        delta(0, "thinking_delta", thinking="I should look."),
        delta(0, "signature_delta", signature="sig-1"),
        ended(0),
    ]
    calling = [
        begun(1, type="tool_use", id=call_id, name=name, input={}),
        *(delta(1, "input_json_delta", partial_json=fragment) for fragment in fragments),
        ended(1),
    ]
    return events(START, *thinking, PING, *calling, finished("tool_use"), STOP)


@pytest.fixture
async def wire(settings: Settings, api: Api) -> AsyncIterator[tuple[ModelServer, Api]]:
    async with ModelServer() as server:
        changed = settings.model_copy(
            update={"anthropic_base_url": server.address, "anthropic_api_key": "sk-ant-test", "model_attempts": 2}
        )
        async with serving(changed) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            yield server, Api(client, api.key, api.workspace_id)


class TestAnswers:
    async def test_a_call_from_fragments_is_executed_and_its_thinking_replayed_byte_for_byte(
        self, wire: tuple[ModelServer, Api], test_tools: TestTools
    ) -> None:
        server, api = wire
        hook = await test_tools.host(api, "search", {"items": [1]})
        server.play(asks("search", "", '{"q": "fl', 'at"}'), says("Found ", "one."))
        played = await api.play(model="anthropic/claude-sonnet-4-5", session=await api.new_session())
        assert played.run["output"] == "Found one."
        assert hook.requests[0].json["data"]["arguments"] == {"q": "flat"}
        second = server.requests[1].json["messages"]
        assert second[1]["content"][0] == {"type": "thinking", "thinking": "I should look.", "signature": "sig-1"}
        assert second[1]["content"][1]["id"] == second[2]["content"][0]["tool_use_id"] == "toolu_1"
        assert "reasoning.delta" in played.types

    async def test_the_request_carries_key_version_and_cache_marks(self, wire: tuple[ModelServer, Api]) -> None:
        server, api = wire
        server.play(says("Hi."))
        await api.run(await api.new_session(model="anthropic/claude-sonnet-4-5", system_prompt="Be brief."))
        asked = server.requests[0]
        assert asked.path.endswith("/v1/messages")
        assert (asked.headers["x-api-key"], asked.headers["anthropic-version"]) == ("sk-ant-test", "2023-06-01")
        assert asked.json["system"][-1]["cache_control"] == {"type": "ephemeral"}


class TestAPromptOfSeveralParts:
    async def test_the_preview_is_what_the_api_then_receives_with_a_mark_on_what_stays(
        self, wire: tuple[ModelServer, Api], migrated: Database, test_tools: TestTools
    ) -> None:
        server, api = wire
        await test_tools.host(api, "search", {})
        session = await api.new_session(model="anthropic/claude-sonnet-4-5", system_prompt="Be brief.")
        said = [("user", "One?"), ("assistant", "One."), ("user", "Two?"), ("assistant", "Two.")]
        body = {"messages": [{"role": role, "content": content} for role, content in said]}
        await api.post(f"/v1/sessions/{session}/messages", body)
        await summaries.mark(migrated.pool, session, HistoryOptions(100, 1, ("lab/sum",)))
        claimed = await summaries.claim(migrated.pool, session, "t", 15)
        assert claimed is not None
        assert await summaries.commit(migrated.pool, claimed, "They counted.", 3, "lab/sum", 2, has_more=False)
        shown = await api.get(f"/v1/sessions/{session}/prompt?input=Three%3F")
        parts = {part["kind"]: part["content"] for part in shown["parts"]}
        server.play(says("Three."))
        await api.run(session, input="Three?")
        asked = server.requests[0].json
        texts = [block["text"] for block in asked["system"]]
        assert texts == [parts["system_prompt"], parts["summary"]]
        assert ["cache_control" in block for block in asked["system"]] == [True, False]
        turns = [{"role": turn["role"], "content": turn["content"][0]["text"]} for turn in asked["messages"]]
        assert turns == [*parts["history"], {"role": "user", "content": parts["input"]}]
        assert [(tool["name"], tool["input_schema"]) for tool in asked["tools"]] == [
            (tool["name"], tool["parameters"]) for tool in parts["tools"]
        ]


class TestTrouble:
    async def test_overloaded_in_the_stream_is_tried_again(self, wire: tuple[ModelServer, Api]) -> None:
        server, api = wire
        overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        server.play(events(overloaded), says("Hi."))
        run = await api.run(await api.new_session(model="anthropic/claude-sonnet-4-5"))
        assert run["output"] == "Hi."
        attempts = (await api.trace(run["id"]))[0]["model_calls"]
        assert [attempt["error"] is None for attempt in attempts] == [False, True]

    async def test_a_refused_key_ends_the_run(self, wire: tuple[ModelServer, Api]) -> None:
        server, api = wire
        body = b'{"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}'
        server.play(Answer([body], status=401, headers={"Content-Type": "application/json"}))
        run = await api.run(await api.new_session(model="anthropic/claude-sonnet-4-5"))
        assert (run["status"], run["error"]["code"]) == ("failed", "provider_auth")
        assert len(server.requests) == 1
