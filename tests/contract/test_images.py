"""Pictures in what a user says (contract, section 4): to each provider in its shape, stored as given, replayed later."""

import json
from typing import Any

import pytest

from tests.api import TENANT, TestTools, call
from tests.contract.wires import Wire

TEXT = {"type": "text", "text": "What is it?"}
LINK = {"type": "image", "url": "https://pictures.example/cat.png"}
DATA = {"type": "image", "data": "aGk=", "media_type": "image/webp"}
PARTS: Any = [TEXT, LINK, DATA]

ON_THE_WIRE = {
    "openai": [
        TEXT,
        {"type": "image_url", "image_url": {"url": LINK["url"]}},
        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,aGk="}},
    ],
    "anthropic": [
        TEXT,
        {"type": "image", "source": {"type": "url", "url": LINK["url"]}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "aGk="}},
    ],
}


def first_message(wire: Wire, asked: int = -1) -> Any:
    """The parts of the first user message, without the marks of the prompt's cache."""
    parts = wire.bodies[asked]["messages"][0]["content"]
    return [{key: value for key, value in part.items() if key != "cache_control"} for part in parts]


class TestPictures:
    async def test_they_go_to_the_provider_in_its_shape_in_every_call_of_the_run(
        self, wire: Wire, test_tools: TestTools
    ) -> None:
        await test_tools.host(wire.api, "search", {"items": [1]})
        played = await wire.play(call("search"), "A cat.", input=PARTS)
        assert played.ending == ("completed", "stop")
        assert first_message(wire, 0) == first_message(wire, 1) == ON_THE_WIRE[wire.format.name]

    async def test_they_are_stored_and_shown_as_they_were_given(self, wire: Wire) -> None:
        played = await wire.play("A cat.", input=PARTS)
        assert played.messages[0]["content"] == PARTS
        assert played.messages[0]["role"] == "user"

    async def test_a_later_turn_of_the_session_replays_them(self, wire: Wire) -> None:
        session = await wire.api.new_session()
        await wire.play("A cat.", session=session, input=PARTS)
        await wire.play("Black.", session=session, input="Which colour?")
        assert first_message(wire) == ON_THE_WIRE[wire.format.name]
        assert wire.prose()[-2:] == [("assistant", "A cat."), ("user", "Which colour?")]

    async def test_a_picture_alone_is_an_input(self, wire: Wire) -> None:
        session = await wire.api.new_session()
        await wire.play("A cat.", session=session, input=[LINK])  # type: ignore[arg-type]
        await wire.play("Black.", session=session, input="Which colour?")
        assert first_message(wire) == [ON_THE_WIRE[wire.format.name][1]]

    async def test_a_blank_text_beside_one_is_not_sent(self, wire: Wire) -> None:
        await wire.play("A cat.", input=[{"type": "text", "text": " "}, LINK])  # type: ignore[arg-type]
        assert first_message(wire) == [ON_THE_WIRE[wire.format.name][1]]

    async def test_the_prompt_that_would_be_sent_tells_of_them(self, wire: Wire) -> None:
        session = await wire.api.new_session()
        await wire.play("A cat.", session=session, input=PARTS)
        shown = await wire.api.get(f"/v1/sessions/{session}/prompt?input=Which")
        assert "What is it?" in json.dumps(shown["parts"])


class TestWithoutASession:
    async def start(self, wire: Wire, status: int = 200, **fields: Any) -> Any:
        return await wire.api.post("/v1/runs", {"tenant": TENANT, "model": wire.format.model, **fields}, status)

    async def test_an_input_of_parts(self, wire: Wire) -> None:
        wire.script("A cat.")
        await self.start(wire, input=PARTS)
        assert first_message(wire) == ON_THE_WIRE[wire.format.name]

    async def test_a_result_of_the_callers_own_conversation_may_hold_one(self, wire: Wire) -> None:
        wire.script("A cat.")
        asked = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "photograph", "arguments": {}}]}
        answered = {"role": "tool", "content": [{"type": "text", "text": "Taken."}, LINK], "tool_call_id": "c1"}
        await self.start(wire, messages=[{"role": "user", "content": "Take one"}, asked, answered])
        sent = json.dumps(wire.bodies[0]["messages"])
        assert LINK["url"] in sent and "Taken." in sent

    @pytest.mark.parametrize("role", ["system", "assistant"])
    async def test_what_no_provider_takes_is_refused(self, wire: Wire, role: str) -> None:
        messages = [{"role": role, "content": PARTS}, {"role": "user", "content": "hi"}]
        problem = await self.start(wire, 422, messages=messages)
        assert problem["errors"][0]["loc"][:3] == ["body", "messages", 0]
        assert wire.bodies == []


class TestBadOnes:
    @pytest.mark.parametrize(
        "picture",
        [
            {"type": "image"},
            {"type": "image", "url": "https://x/y.png", "data": "aGk=", "media_type": "image/png"},
            {"type": "image", "url": "file:///etc/passwd"},
            {"type": "image", "url": "data:image/png;base64,aGk="},
            {"type": "image", "url": "https://x/ y.png"},
            {"type": "image", "data": "aGk="},
            {"type": "image", "data": "", "media_type": "image/png"},
            {"type": "image", "data": "not base64!", "media_type": "image/png"},
            {"type": "image", "data": "aGk", "media_type": "image/png"},
            {"type": "image", "data": "====", "media_type": "image/png"},
            {"type": "image", "data": "aGk=", "media_type": "text/html"},
            {"type": "image", "url": "https://x/y.png", "detail": "low"},
            {"type": "picture", "url": "https://x/y.png"},
        ],
    )
    async def test_one_is_422_and_leaves_nothing(self, wire: Wire, picture: dict[str, Any]) -> None:
        session = await wire.api.new_session()
        problem = await wire.run(session, input=[TEXT, picture], status=422)
        assert problem["errors"][0]["loc"][:3] == ["body", "input", 1]
        assert await wire.api.messages(session) == []
        assert wire.bodies == []
