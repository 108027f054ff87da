"""The whole service against a model API that speaks real chat-completions bytes."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from tests.api import Api, TestTools, schema
from tests.conftest import serving
from tests.providers.model_server import DONE, Answer, ModelServer, ReceivedRequest, chat_usage, chunk, json_answer, sse
from tests.tools_app import Reply

USAGE = chat_usage(12, 5)


class Wire:
    """A service whose `openai/` models are a `ModelServer`, and the API of one workspace on it."""

    def __init__(self, server: ModelServer, api: Api) -> None:
        self.server, self.api = server, api
        self._before = len(server.requests)

    @property
    def requests(self) -> list[ReceivedRequest]:
        return self.server.requests[self._before :]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.json for request in self.requests]

    async def play(self, *answers: Answer, session: str | None = None, **fields: Any) -> Any:
        self.server.play(*answers)
        played = await self.api.play(session=session or await self.api.new_session(), model="openai/gpt-test", **fields)
        assert not self.server._answers, "the service asked less often than the test has answers"
        return played


@pytest.fixture(scope="module")
async def model_api(settings: Settings, base_url: str) -> AsyncIterator[tuple[ModelServer, httpx.AsyncClient]]:
    async with ModelServer() as server:
        changed = settings.model_copy(update={"openai_base_url": server.base_url})
        async with serving(changed) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            yield server, client


@pytest.fixture
def wire(model_api: tuple[ModelServer, httpx.AsyncClient], api: Api) -> Wire:
    server, client = model_api
    server._answers.clear()
    return Wire(server, Api(client, api.key, api.workspace_id))


def says(*pieces: str, finish: str = "stop") -> Answer:
    return sse(chunk("", role="assistant"), *[chunk(piece) for piece in pieces], chunk(finish=finish), USAGE, DONE)


def fragment(index: int = 0, **parts: Any) -> dict[str, Any]:
    """A piece of a call: `id`, `name`, `arguments`."""
    function = {key: parts.pop(key) for key in ("name", "arguments") if key in parts}
    return {"index": index, **parts, "function": function}


def calls_tool(name: str = "search", arguments: str = "{}", call_id: str = "c_1") -> Answer:
    entry = fragment(id=call_id, type="function", name=name, arguments=arguments)
    return sse(chunk(tool_calls=[entry]), chunk(finish="tool_calls"), USAGE, DONE)


def said(body: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in body["messages"]]


class TestAnAnswer:
    async def test_it_is_streamed_stored_and_counted(self, wire: Wire) -> None:
        played = await wire.play(says("Hel", "lo ", "María"))
        assert played.ending == ("completed", "stop")
        assert played.run["output"] == "Hello María"
        assert played.run["model"] == "openai/gpt-test"
        assert "".join(event["text"] for event in played.of("message.delta")) == "Hello María"
        assert played.run["usage"] == {"input_tokens": 12, "output_tokens": 5, "cached_tokens": 0, "reasoning_tokens": 0}
        assert played.model_calls[0]["first_token_seconds"] is not None

    async def test_the_request_is_a_chat_completion_without_anything_of_ours(self, wire: Wire) -> None:
        session = await wire.api.new_session(system_prompt="Be kind.", context={"secret": "hush"}, title="A title")
        options = {"temperature": 0.3, "max_output_tokens": 50, "seed": 7}
        await wire.play(says("Hi"), session=session, input="¿Qué tal?", model_options=options, context={"more": "hush"})
        request = wire.requests[0]
        assert (request.method, request.path) == ("POST", "/v1/chat/completions")
        assert request.headers["authorization"] == "Bearer sk-test"
        assert request.json == {
            "model": "gpt-test",
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "¿Qué tal?"}],
            "stream": True, "stream_options": {"include_usage": True},
            "temperature": 0.3, "max_tokens": 50, "seed": 7,
        }  # fmt: skip
        assert b"hush" not in request.body

    async def test_without_tools_nothing_of_tools_is_sent(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search")
        await wire.play(says("Hi"), tools=[], tool_choice="auto")
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(wire.bodies[0])

    async def test_images_are_sent_as_parts(self, wire: Wire) -> None:
        parts = [{"type": "text", "text": "What is it?"}, {"type": "image", "data": "aGk=", "media_type": "image/png"}]
        session = await wire.api.new_session()
        wire.server.play(says("A cat."))
        run = await wire.api.run(session, model="openai/gpt-test", input=parts)  # type: ignore[arg-type]
        assert run["output"] == "A cat."
        assert wire.bodies[0]["messages"][-1]["content"] == [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        ]


class TestCalls:
    async def test_a_call_in_fragments_is_put_together_executed_and_sent_back(
        self, wire: Wire, test_tools: TestTools
    ) -> None:
        search = await test_tools.host(wire.api, "search", {"items": ["ñu"]}, parameters=schema(("q",), q="string"))
        pieces = ['{"q"', ': "Cá', 'diz"}']
        streamed = sse(
            chunk("Let me look. ", role="assistant"),
            chunk(tool_calls=[fragment(id="c_77", type="function", name="search", arguments="")]),
            *[chunk(tool_calls=[fragment(arguments=piece)]) for piece in pieces],
            chunk(finish="tool_calls"), USAGE, DONE,
        )  # fmt: skip
        played = await wire.play(streamed, says("One."))
        assert search.arguments == [{"q": "Cádiz"}]
        assert played.run["output"] == "One."
        first, second = wire.bodies
        tool = {"name": "search", "description": "The tool search.", "parameters": schema(("q",), q="string")}
        assert first["tools"] == [{"type": "function", "function": tool}]
        assert second["tools"] == first["tools"]
        assistant, result = second["messages"][-2:]
        assert (assistant["role"], assistant["content"]) == ("assistant", "Let me look. ")
        sent = assistant["tool_calls"][0]
        assert (sent["id"], sent["type"], sent["function"]["name"]) == ("c_77", "function", "search")
        assert json.loads(sent["function"]["arguments"]) == {"q": "Cádiz"}
        assert result == {"role": "tool", "tool_call_id": "c_77", "content": '{"items":["ñu"]}'}
        assert played.run["usage"]["input_tokens"] == 24

    async def test_the_providers_id_stays_inside(self, wire: Wire, test_tools: TestTools) -> None:
        hook = await test_tools.host(wire.api, "search")
        played = await wire.play(calls_tool(call_id="c_provider_own"), says("Done."))
        assert "c_provider_own" not in played.shown() + json.dumps(played.trace)
        assert b"c_provider_own" not in hook.requests[0].body

    async def test_interleaved_calls_are_answered_in_their_order(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", lambda request: Reply(body=request.json["data"]["arguments"]))
        streamed = sse(
            chunk(tool_calls=[fragment(0, id="a", name="search", arguments="")]),
            chunk(tool_calls=[fragment(1, id="b", name="search", arguments="")]),
            chunk(tool_calls=[fragment(0, arguments='{"n"')]), chunk(tool_calls=[fragment(1, arguments='{"n":')]),
            chunk(tool_calls=[fragment(0, arguments=":1}")]), chunk(tool_calls=[fragment(1, arguments="2}")]),
            chunk(finish="stop"), DONE,
        )  # fmt: skip
        await wire.play(streamed, says("Done."))
        assert [(message["tool_call_id"], message["content"]) for message in wire.bodies[1]["messages"][-2:]] == [
            ("a", '{"n":1}'), ("b", '{"n":2}'),
        ]  # fmt: skip

    @pytest.mark.parametrize("arguments", ['{"q": "cut', "[]", "null", "42"])
    async def test_broken_arguments_are_sent_back_as_valid_json(
        self, wire: Wire, test_tools: TestTools, arguments: str
    ) -> None:
        hook = await test_tools.host(wire.api, "search")
        played = await wire.play(calls_tool(arguments=arguments), says("Sorry."))
        assert hook.requests == []
        assert played.run["output"] == "Sorry."
        assistant, result = wire.bodies[1]["messages"][-2:]
        assert isinstance(json.loads(assistant["tool_calls"][0]["function"]["arguments"]), dict)
        assert "error" in json.loads(result["content"])

    async def test_a_made_up_name_is_sent_back_as_a_valid_one(self, wire: Wire) -> None:
        await wire.play(calls_tool(name="a.b c"), says("Sorry."))
        assistant = wire.bodies[1]["messages"][-2]
        name = assistant["tool_calls"][0]["function"]["name"]
        assert name
        assert all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in name)

    async def test_the_guards_hint_is_what_the_model_reads(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", {"items": []})
        await wire.play(calls_tool(), calls_tool(), says("None."), empty_streak_hint="<:count>")
        contents = [message["content"] for message in wire.bodies[2]["messages"] if message["role"] == "tool"]
        assert contents[0] == '{"items":[]}'
        assert contents[1].startswith('{"items":[]}')
        assert contents[1].endswith("<2>")


class TestWhatNoDatabaseCanHold:
    async def test_in_a_text_it_is_mended(self, wire: Wire) -> None:
        played = await wire.play(says("a\x00b", " \ud83d", "\ude00", " \udc00!"))
        assert played.run["output"] == "ab 😀 \ufffd!"
        assert played.messages[-1]["content"] == played.run["output"]
        assert "".join(event["text"] for event in played.of("message.delta")) == played.run["output"]

    async def test_in_a_name_it_is_mended(self, wire: Wire) -> None:
        played = await wire.play(calls_tool(name="se\x00arch\ud83d"), says("Sorry."))
        assert played.outcomes == ["unknown"]
        assert played.run["output"] == "Sorry."


class TestToolChoice:
    async def choices(self, wire: Wire, test_tools: TestTools, choice: str) -> list[Any]:
        await test_tools.host(wire.api, "search", {"items": [1]})
        await wire.play(calls_tool(), says("Done."), tool_choice=choice)
        return [body["tool_choice"] for body in wire.bodies]

    async def test_auto_holds_for_every_call(self, wire: Wire, test_tools: TestTools) -> None:
        assert await self.choices(wire, test_tools, "auto") == ["auto", "auto"]

    async def test_none_holds_for_every_call(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search")
        await wire.play(says(""), says("Hi"), tool_choice="none")
        assert [body["tool_choice"] for body in wire.bodies] == ["none", "none"]
        assert wire.bodies[0]["tools"]

    async def test_required_holds_for_the_first_call_only(self, wire: Wire, test_tools: TestTools) -> None:
        assert await self.choices(wire, test_tools, "required") == ["required", "auto"]

    async def test_a_name_holds_for_the_first_call_only(self, wire: Wire, test_tools: TestTools) -> None:
        named = {"type": "function", "function": {"name": "search"}}
        assert await self.choices(wire, test_tools, "search") == [named, "auto"]

    async def test_a_retry_of_the_first_call_is_still_the_first_call(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", {"items": [1]})
        await wire.play(json_answer({}, 500), calls_tool(), says("Done."), tool_choice="required")
        assert [body["tool_choice"] for body in wire.bodies] == ["required", "required", "auto"]


class TestTheLastPermittedCall:
    async def test_on_cap_answer_it_keeps_the_tools_forbids_calls_and_asks_for_honesty(
        self, wire: Wire, test_tools: TestTools
    ) -> None:
        await test_tools.host(wire.api, "search", {"items": [1]})
        played = await wire.play(calls_tool(), says("That is all."), max_iterations=2)
        assert played.ending == ("incomplete", "max_iterations")
        first, last = wire.bodies
        assert last["tools"] == first["tools"]
        assert (first["tool_choice"], last["tool_choice"]) == ("auto", "none")
        note = last["messages"][-1]
        assert note["role"] in ("user", "system")
        assert last["messages"][-2]["role"] == "tool"
        assert "not" in note["content"]
        assert [message["content"] for message in played.messages][-1] == "That is all."
        assert note["content"] not in [message["content"] for message in played.messages]

    async def test_on_cap_stop_it_is_like_the_others(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", {"items": [1]})
        played = await wire.play(calls_tool(), says("Done."), max_iterations=2, on_cap="stop")
        assert played.ending == ("completed", "stop")
        assert wire.bodies[1]["tool_choice"] == "auto"
        assert wire.bodies[1]["messages"][-1]["role"] == "tool"

    async def test_without_an_earlier_turn_with_calls_there_is_no_note(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search")
        played = await wire.play(says("Hi"), max_iterations=1)
        assert played.ending == ("completed", "stop")
        assert wire.bodies[0]["tool_choice"] == "auto"
        assert said(wire.bodies[0]) == [("user", "Hello")]

    async def test_the_nudge_asks_for_a_blank_answer_once_more(self, wire: Wire) -> None:
        played = await wire.play(says(""), says("Here."))
        assert played.run["output"] == "Here."
        assert said(wire.bodies[1])[0] == ("user", "Hello")
        assert wire.bodies[1]["messages"][-1]["role"] == "user"
        assert [message["role"] for message in wire.bodies[1]["messages"]] == ["user", "user"]
        assert [message["content"] for message in played.messages] == ["Hello", "", "Here."]


class TestTrouble:
    async def test_a_429_is_tried_again_after_what_it_asked_for(self, wire: Wire) -> None:
        refused = json_answer({"error": {"message": "slow down"}}, 429, Retry_After="0.3")
        played = await wire.play(refused, says("Hi"))
        assert played.run["output"] == "Hi"
        assert len(wire.requests) == 2
        assert wire.requests[0].body == wire.requests[1].body
        first, second = played.model_calls
        assert "429" in first["error"]
        assert (first["attempt"], second["attempt"], second["error"]) == (1, 2, None)
        started, ended = played.of("iteration.started")[0]["at"], played.of("message.completed")[0]["at"]
        assert (_seconds(ended) - _seconds(started)) >= 0.3

    async def test_a_longer_wait_than_30_seconds_is_not_waited_for(self, wire: Wire) -> None:
        played = await wire.play(json_answer({"error": {"message": "slow down"}}, 429, Retry_After="3600"))
        assert played.run["error"]["code"] == "provider_unavailable"
        assert len(wire.requests) == 1

    async def test_it_goes_to_the_next_model_of_the_list_instead(self, wire: Wire) -> None:
        wire.server.play(json_answer({"error": {"message": "slow down"}}, 429, Retry_After="3600"), says("Hi"))
        session = await wire.api.new_session()
        played = await wire.api.play(session=session, model=["openai/one", "openai/two"])
        assert played.run["output"] == "Hi"
        assert [body["model"] for body in wire.bodies] == ["one", "two"]

    @pytest.mark.parametrize("end", ["cut", "reset"])
    async def test_a_stream_that_is_dropped_is_made_anew_and_the_client_told(self, wire: Wire, end: Any) -> None:
        dropped = sse(chunk("Half an ans"), 0.05, end=end)
        played = await wire.play(dropped, says("Whole answer"))
        assert played.run["output"] == "Whole answer"
        shown = [event for event in played.types if event.startswith("message.")]
        assert shown == ["message.delta", "message.discarded", "message.delta", "message.completed"]
        assert [message["content"] for message in played.messages] == ["Hello", "Whole answer"]

    async def test_a_call_that_was_dropped_half_way_is_never_executed(self, wire: Wire, test_tools: TestTools) -> None:
        hook = await test_tools.host(wire.api, "search")
        dropped = sse(chunk(tool_calls=[fragment(id="a", name="search", arguments='{"q": ')]), 0.05, end="reset")
        played = await wire.play(dropped, says("Hi"))
        assert played.run["output"] == "Hi"
        assert hook.requests == []

    async def test_a_connection_that_is_dropped_before_any_answer_is_tried_again(self, wire: Wire) -> None:
        played = await wire.play(Answer(status=None), says("Hi"))
        assert played.run["output"] == "Hi"
        assert "message.discarded" not in played.types

    async def test_an_error_inside_the_stream_is_trouble_too(self, wire: Wire) -> None:
        played = await wire.play(sse({"error": {"message": "overloaded", "code": 503}}, DONE), says("Hi"))
        assert played.run["output"] == "Hi"

    @pytest.mark.parametrize(
        ("status", "code"), [(400, "provider_rejected"), (404, "provider_rejected"), (401, "provider_auth")]
    )
    async def test_a_refusal_is_final_and_shows_no_secret(self, wire: Wire, status: int, code: str) -> None:
        refused = json_answer({"error": {"message": "Incorrect API key provided: sk-test-1234567"}}, status)
        played = await wire.play(refused)
        assert played.run["error"]["code"] == code
        assert "sk-test" not in json.dumps(played.run) + json.dumps(played.trace)

    async def test_reasoning_alone_is_no_answer(self, wire: Wire) -> None:
        thinking = sse(chunk(reasoning_content="hm"), chunk(finish="stop"), DONE)
        played = await wire.play(thinking, thinking)
        assert played.ending == ("incomplete", "empty")
        assert [event["text"] for event in played.of("reasoning.delta")] == ["hm", "hm"]


def _seconds(at: str) -> float:
    hours, minutes, seconds = at.split("T")[1].rstrip("Z").split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


class TestHistory:
    async def test_earlier_turns_are_sent_as_prose_only(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", {"items": ["secret find"]})
        session = await wire.api.new_session(system_prompt="Be kind.")
        look = sse(
            chunk("Let me look."), chunk(tool_calls=[fragment(id="a", name="search", arguments="{}")]),
            chunk(finish="tool_calls"), DONE,
        )  # fmt: skip
        await wire.play(look, calls_tool(), says("Found one."), session=session, input="First")
        await wire.play(says("Fine."), session=session, input="Second")
        last = wire.bodies[-1]
        roles = [role for role, _ in said(last)]
        assert roles in (["system", "user", "assistant", "user"], ["system", "user", "assistant", "assistant", "user"])
        prose = "|".join(content for _, content in said(last)).replace("\n\n", "|")
        assert prose == "Be kind.|First|Let me look.|Found one.|Second"
        assert all(set(message) == {"role", "content"} for message in last["messages"])

    async def test_a_run_that_was_ended_in_its_calls_leaves_a_valid_history(self, wire: Wire, test_tools: TestTools) -> None:
        await test_tools.host(wire.api, "search", Reply(ending="hang"))
        session = await wire.api.new_session()
        played = await wire.play(calls_tool(), session=session, input="First", deadline_seconds=0.7)
        assert played.ending == ("incomplete", "deadline")
        await wire.play(says("Fine."), session=session, input="Second")
        assert said(wire.bodies[-1]) == [("user", "First"), ("user", "Second")]

    async def test_the_empty_reply_is_part_of_the_history(self, wire: Wire) -> None:
        session = await wire.api.new_session()
        await wire.play(says(""), session=session, input="First", empty_nudge=False, empty_reply="I have none.")
        await wire.play(says("Fine."), session=session, input="Second")
        assert said(wire.bodies[-1]) == [("user", "First"), ("assistant", "I have none."), ("user", "Second")]

    async def test_imported_messages_come_first(self, wire: Wire) -> None:
        session = await wire.api.new_session()
        imported = [{"role": "user", "content": "Once"}, {"role": "assistant", "content": "upon"}]
        await wire.api.post(f"/v1/sessions/{session}/messages", {"messages": imported})
        await wire.play(says("a time"), session=session, input="Go on")
        assert said(wire.bodies[0]) == [("user", "Once"), ("assistant", "upon"), ("user", "Go on")]

    async def test_a_run_that_persists_nothing_sees_the_history_and_leaves_none(
        self, wire: Wire, test_tools: TestTools
    ) -> None:
        await test_tools.host(wire.api, "search", {"items": [1]})
        session = await wire.api.new_session()
        await wire.play(says("Yes."), session=session, input="First")
        before = await wire.api.messages(session)
        played = await wire.play(calls_tool(), says("Aside."), session=session, input="Second", persist=False)
        assert said(wire.bodies[1]) == [("user", "First"), ("assistant", "Yes."), ("user", "Second")]
        assert played.messages == []
        assert [event["message"]["content"] for event in played.of("message.completed")] == ["", "Aside."]
        assert await wire.api.messages(session) == before
        await wire.play(says("Fine."), session=session, input="Third")
        assert said(wire.bodies[-1]) == [("user", "First"), ("assistant", "Yes."), ("user", "Third")]

    async def test_positions_count_on_over_the_runs_in_the_order_of_what_was_said(
        self, wire: Wire, test_tools: TestTools
    ) -> None:
        await test_tools.host(wire.api, "search", {"items": [1]})
        session = await wire.api.new_session()
        for text in ("First", "Second"):
            await wire.play(calls_tool(), says("Found."), session=session, input=text)
        messages = await wire.api.messages(session)
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"] * 2
        positions = [message["position"] for message in messages]
        assert positions == list(range(positions[0], positions[0] + 8))
        assert [message["content"] for message in messages if message["role"] == "user"] == ["First", "Second"]
        for asked, answered in ((messages[1], messages[2]), (messages[5], messages[6])):
            assert answered["tool_call_id"] == asked["tool_calls"][0]["id"]
            assert asked["tool_calls"][0]["name"] == "search"

    async def test_given_messages_of_a_run_without_a_session_are_sent_as_they_are(self, wire: Wire) -> None:
        wire.server.play(says("Fine."))
        messages = [
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": "B"},
            {"role": "user", "content": "C"},
        ]
        body = {"tenant": {"type": "org", "id": "1"}, "messages": messages, "model": "openai/gpt-test"}
        run = await wire.api.post("/v1/runs", body, 200)
        assert (run["output"], run["session_id"]) == ("Fine.", None)
        assert wire.bodies[0]["messages"] == messages
