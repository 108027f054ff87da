"""What hooks make of a reply or result, in both providers' wire formats: one truth for storage, clients and the model."""

import json
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.infra.settings import Settings
from tests.api import TestTools, call, schema
from tests.conftest import serving
from tests.contract.wires import Wire


@pytest.fixture
def hooked(wire: Wire, settings: Settings, tmp_path: Path):  # type: ignore[no-untyped-def]
    @asynccontextmanager
    async def with_hooks(text: str) -> AsyncIterator[Wire]:
        file = tmp_path / "hooks.py"
        file.write_text("from dataclasses import replace\n" + textwrap.dedent(text))
        changed = wire.format.settings(settings, wire.server).model_copy(update={"hooks": str(file)})
        async with serving(changed) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            yield Wire(wire.format, wire.server, http, wire.api)

    return with_hooks


HIDES = """
def after_model(reply, run):
    return replace(reply, text=reply.text.replace("4711", "[hidden]"))
"""
LOOKS = call("search", {"b": 1, "a": 2}, text="Your code 4711 is fine.", chunk_chars=6, reasoning="The code is 4711.")


class TestAChangedText:
    async def test_it_is_what_is_stored_shown_and_sent_back(self, hooked, test_tools: TestTools) -> None:  # type: ignore[no-untyped-def]
        async with hooked(HIDES) as wire:
            await test_tools.host(wire.api, "search", {"items": [1]})
            played = await wire.play(LOOKS, "Say 4711.", session=await wire.api.new_session())
            assert [message["content"] for message in played.messages if message["role"] == "assistant"] == [
                "Your code [hidden] is fine.", "Say [hidden].",
            ]  # fmt: skip
            assert played.run["output"] == "Say [hidden]."
            assert wire.prose(1)[-1] == ("assistant", "Your code [hidden] is fine.")
            assert wire.results(1) == ['{"items":[1]}']
            await wire.play("Bye.", session=played.run["session_id"], input="Bye")
            assert b"4711" not in wire.server.requests[-1].body

    async def test_its_thoughts_go_back_untouched(self, hooked, test_tools: TestTools) -> None:  # type: ignore[no-untyped-def]
        async with hooked(HIDES) as wire:
            await test_tools.host(wire.api, "search", {"items": [1]})
            await wire.play(LOOKS, "Done.")
            turn = wire.bodies[1]["messages"][1]
            if wire.format.name == "anthropic":
                assert turn["content"][0] == {"type": "thinking", "thinking": "The code is 4711.", "signature": "sig=="}
                assert [block["type"] for block in turn["content"]] == ["thinking", "text", "tool_use"]
            else:
                assert turn["reasoning_content"] == "The code is 4711."

    async def test_clients_are_told_to_forget_what_they_were_shown(self, hooked) -> None:  # type: ignore[no-untyped-def]
        async with hooked(HIDES) as wire:
            played = await wire.play({"text": "Say 4711.", "chunk_chars": 6, "reasoning": "Hm."})
            shown = [event for event in played.events if event.type.startswith(("message.", "reasoning."))]
            assert [event.type for event in shown] == [
                "reasoning.delta", "message.delta", "message.delta",
                "message.discarded", "reasoning.delta", "message.delta", "message.completed",
            ]  # fmt: skip
            assert [event.data["text"] for event in shown[4:6]] == ["Hm.", "Say [hidden]."]
            assert shown[-1].data["message"]["content"] == "Say [hidden]."
            assert shown[3].data["message_id"] == shown[5].data["message_id"] == shown[-1].data["message"]["id"]

    async def test_a_text_where_there_was_none_is_shown_without_that(self, hooked) -> None:  # type: ignore[no-untyped-def]
        hook = (
            "def after_model(reply, run):\n    return replace(reply, text=reply.text or 'Nothing.', usage=None, model='')\n"
        )
        async with hooked(hook) as wire:
            played = await wire.play({"text": "", "usage": {"input_tokens": 3, "output_tokens": 2}})
            assert [kind for kind in played.types if kind.startswith("message.")] == ["message.delta", "message.completed"]
            assert (played.run["output"], played.run["usage"]["input_tokens"]) == ("Nothing.", 3)
            assert played.model_calls[0]["model"] == wire.format.model


class TestAnUnchangedReply:
    async def test_it_goes_back_as_it_came_and_nothing_is_discarded(self, hooked, test_tools: TestTools) -> None:  # type: ignore[no-untyped-def]
        async with hooked("def after_model(reply, run):\n    return replace(reply)\n") as wire:
            await test_tools.host(wire.api, "search", {"items": [1]})
            played = await wire.play(LOOKS, "Done.")
            sent = json.dumps(wire.bodies[1]["messages"][1])
            assert "message.discarded" not in played.types
            assert "Your code 4711 is fine." in sent and "The code is 4711." in sent
            assert '"b": 1, "a": 2' in sent or '\\"b\\":1,\\"a\\":2' in sent


class TestChangedCallsAndResults:
    async def test_changed_arguments_are_executed_and_sent_back(self, hooked, test_tools: TestTools) -> None:  # type: ignore[no-untyped-def]
        hook = """
        def after_model(reply, run):
            return replace(reply, calls=tuple(replace(call, arguments='{"q":"new"}') for call in reply.calls))
        """
        async with hooked(hook) as wire:
            search = await test_tools.host(wire.api, "search", {"items": [1]}, parameters=schema((), q="string"))
            played = await wire.play(call("search", {"q": "old"}), "Done.")
            assert search.arguments == [{"q": "new"}]
            assert played.messages[1]["tool_calls"][0]["arguments"] == {"q": "new"}
            sent = json.dumps(wire.bodies[1]["messages"])
            assert "new" in sent and "old" not in sent

    async def test_a_result_from_outside_passes_the_hook_too(self, hooked) -> None:  # type: ignore[no-untyped-def]
        hook = "def after_tool(call, result, run):\n    return replace(result, result={'seen': call.name})\n"
        async with hooked(hook) as wire:
            body = {"description": "Asks.", "parameters": schema(), "kind": "client"}
            await wire.api.call("PUT", "/v1/tools/ask", body)
            run = await wire.run(await wire.api.new_session(), call("ask"), "Done.")
            given = {"call_id": run["pending"][0]["call_id"], "result": "raw"}
            await wire.api.post(f"/v1/runs/{run['id']}/tool-results", {"results": [given]}, 200)
            await wire.api.events(run["id"])
            played = await wire.api.played(await wire.api.get(f"/v1/runs/{run['id']}"))
            assert played.results == [{"seen": "ask"}]
            assert wire.results() == ['{"seen":"ask"}']
