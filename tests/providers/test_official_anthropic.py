"""Anthropic's own package judges what its API is sent, and reads what the model server of these tests plays.

Three things are read leniently. A tool's `input_schema` may be any object, since their type of it is. The sampling options
went from their types with the newest models, which refuse them, while older ones still take them: a request is judged
without them. So is one with a key, in a block that the model wrote itself, which their types do not know yet, since the API
wants its own back.
"""

from typing import Any

import anthropic
import pytest
from anthropic.types import Message as TheirMessage
from anthropic.types import RawMessageStreamEvent
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from app.loop.guards import CAP_NOTE
from app.loop.messages import Image, Message
from tests.providers.messages_api import (
    PING,
    START,
    STOP,
    begun,
    call,
    delta,
    ended,
    events,
    finished,
    text,
    thinking,
)
from tests.providers.messages_request import (
    ME,
    OTHER,
    OTHER_TOOL,
    SEARCH,
    SERVER_CALL,
    SERVER_RESULT,
    THOUGHT,
    USER,
    body,
    made_call,
    result,
    said,
    turn,
    use,
)
from tests.providers.model_server import Answer, ModelServer, json_answer
from tests.providers.official import anthropic_client, strict_judge
from tests.providers.test_anthropic_history import histories
from tests.providers.test_anthropic_options import SCHEMA

accepts = strict_judge(MessageCreateParamsStreaming)
emits = strict_judge(RawMessageStreamEvent)

SYSTEM = Message("system", "Be kind.")
PICTURE = Message("user", ("look", Image(url="https://x/y.png"), Image(data="QUJD", media_type="image/webp")))
TOOLS = (SEARCH, OTHER_TOOL)
CALL = made_call(arguments={"q": "é"})
SECRET = {"type": "redacted_thinking", "data": "enc=="}
CITED = {
    "type": "text",
    "text": "It rains.",
    "citations": [
        {
            "type": "web_search_result_location",
            "url": "https://x",
            "title": "X",
            "encrypted_index": "e",
            "cited_text": "rain",
        }
    ],
}
OWN = (USER, turn(CALL, blocks=[THOUGHT, SECRET, said("Let me look."), use("toolu_1", q="é")]), result(CALL))
NEWER = {"model": "claude-opus-4-8"}
SEARCHED = (USER, turn(text="It rains.", blocks=[SERVER_CALL, SERVER_RESULT, CITED]), USER)
PARALLEL = (
    USER,
    turn(made_call(1), made_call(2), by=OTHER),
    result(made_call(2), '{"error":"no"}'),
    result(made_call(1), ""),
)

REQUESTS: dict[str, Any] = {
    "a word": body(USER, tools=()),
    "a system prompt": body(SYSTEM, Message("system", "And brief."), USER),
    "a picture by its address and as data": body(PICTURE),
    "a turn of before": body(USER, turn(text="hello", by=OTHER), USER),
    **{
        f"tools, choice {choice}": body(USER, tools=TOOLS, choice=choice)
        for choice in ("auto", "none", "required", "search")
    },
    "one call at a time": body(USER, choice="required", options={"parallel_tool_calls": False}),
    "its own turn with its thoughts": body(*OWN, capabilities=("reasoning",)),
    "its own search and its citations": body(*SEARCHED, capabilities=("web_search",)),
    "a pause in a search": body(USER, turn(blocks=[THOUGHT, SERVER_CALL])),
    "calls of another model, a failed and an empty result": body(*PARALLEL, tools=TOOLS),
    "the last permitted call": body(*OWN, Message("user", CAP_NOTE), choice="none"),
    "calls without any tool": body(*OWN, tools=()),
    "broken arguments and a made-up name": body(USER, turn(made_call(name="a.b ç"), by=OTHER), result(made_call())),
    "a result that holds a picture": body(USER, turn(CALL, by=OTHER), result(CALL, PICTURE.content)),
    "a call without a result": body(USER, turn(CALL, by=OTHER), USER),
    "a result without a call": body(USER, result(CALL)),
    "two assistant turns in a row": body(turn(text="a"), turn(CALL, text="b"), result(CALL), USER),
    "nothing at all": body(),
    "thinking with a budget": body(USER, options={"reasoning_effort": "high", "temperature": 1}),
    "thinking as much as it wants": body(USER, options={"reasoning_effort": "xhigh"}, **NEWER),
    "thinking as much as the one before wants": body(USER, options={"reasoning_effort": "low"}, model="claude-opus-4-6"),
    "the caller's own thinking": body(USER, options={"thinking": {"type": "enabled", "budget_tokens": 3000}}),
    "an answer of a shape": body(USER, response_schema=SCHEMA),
    "an answer of a shape, told in words": body(USER, response_schema={"type": "object"}),
    "an answer of a shape and an effort": body(USER, response_schema=SCHEMA, options={"reasoning_effort": "low"}, **NEWER),
    "the searches' bounds": body(
        USER,
        capabilities=("web_search", "reasoning"),
        options={"web_search_options": {"max_uses": 3, "allowed_domains": ["x"]}},
    ),
    "options under their names": body(
        USER,
        options={"max_output_tokens": 9, "stop": ["x"], "service_tier": "auto"} | {"metadata": {"user_id": "u"}},
    ),
    "options of other clients": body(USER, options={"think_tags": True, "reasoning_content": "always", "stop": "END"}),
    "the caller's own cache mark": body(USER, options={"cache_control": {"type": "ephemeral", "ttl": "1h"}}),
}


class TestRequests:
    @pytest.mark.parametrize("situation", REQUESTS)
    def test_it_takes(self, situation: str) -> None:
        accepts(REQUESTS[situation])

    @settings(max_examples=100, deadline=None)
    @given(histories, st.sampled_from([(), ("reasoning", "web_search")]), st.sampled_from(["auto", "none", "required"]))
    def test_it_takes_any_history(self, history: list[Message], capabilities: tuple[str, ...], choice: str) -> None:
        accepts(body(*history, tools=TOOLS, capabilities=capabilities, choice=choice))

    def test_it_takes_all_but_the_sampling_of_older_models(self) -> None:
        sampling = {"temperature": 0.2, "top_p": 0.9, "top_k": 5}
        sent = body(USER, options=sampling)
        with pytest.raises(ValidationError):
            accepts(sent)
        assert {key: sent.pop(key) for key in sampling} == sampling
        accepts(sent)
        accepts(body(USER, options=sampling, **NEWER))

    def test_what_it_does_not_know_yet_goes_back_all_the_same(self) -> None:
        sent = body(USER, turn(CALL, blocks=[{**THOUGHT, "new": 1}, use("toolu_1")]), result(CALL))
        with pytest.raises(ValidationError):
            accepts(sent)
        assert sent["messages"][1]["content"][0].pop("new") == 1
        accepts(sent)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"max_output_tokens": 9},
            {"stop": ["x"]},
            {"tool_choice": "auto"},
            {"tools": [{"name": "x", "parameters": {}}]},
            {"thinking": {"type": "enabled", "budget": 3}},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}]},
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "data": "x"}}]}]},
            {"output_config": {"schema": {}}},
            {"max_tokens": "9"},
        ],
    )
    def test_the_judge_refuses_what_is_misspelt_or_misplaced(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            accepts({**REQUESTS["a word"], **wrong})


FRAMES = [
    START, PING,
    *thinking(0, "I should ", "look.", signature="sig=="),
    begun(1, type="redacted_thinking", data="enc=="), ended(1),
    *text(2, "Hel", "lo"),
    *call(3, "toolu_1", "search", "", '{"q"', ': "é"}'),
    finished("tool_use", output_tokens=15, cache_read_input_tokens=3),
    STOP,
]  # fmt: skip


class TestTheModelServer:
    async def read(self, *answers: Answer) -> TheirMessage:
        async with ModelServer() as server, anthropic_client(server) as client:
            server.play(*answers)
            request = body(SYSTEM, USER, model="claude-of-these-tests")  # it warns of models that are going to be gone
            async with client.messages.stream(**{key: request[key] for key in request if key != "stream"}) as stream:
                read = await stream.get_final_message()
            assert server.requests[0].json == request
            return read

    @pytest.mark.parametrize("frame", [frame for frame in FRAMES if frame is not PING], ids=lambda frame: frame["type"])
    def test_each_frame_is_one_of_its_types(self, frame: dict[str, Any]) -> None:
        """But for the ping, which its client passes over before it looks at a type."""
        emits(frame)

    async def test_its_client_reads_thoughts_text_calls_and_usage(self) -> None:
        read = await self.read(events(*FRAMES))
        assert [block.to_dict(exclude_none=True) for block in read.content] == [
            {"type": "thinking", "thinking": "I should look.", "signature": "sig=="},
            {"type": "redacted_thinking", "data": "enc=="},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "é"}},
        ]
        assert (read.stop_reason, read.model, read.role) == ("tool_use", "claude-opus-4-5", "assistant")
        assert (read.usage.input_tokens, read.usage.output_tokens, read.usage.cache_read_input_tokens) == (25, 15, 3)

    async def test_what_its_client_read_is_what_ours_sends_back(self) -> None:
        read = await self.read(events(*FRAMES))
        blocks = [block.to_dict(exclude_none=True) for block in read.content]
        mine = made_call(1, "toolu_1", {"q": "é"})
        asked = body(USER, Message("assistant", "Hello", (mine,), native={"blocks": blocks}, native_model=ME), result(mine))
        assert asked["messages"][1]["content"] == blocks
        accepts(asked)

    async def test_its_client_reads_a_block_that_is_not_known(self) -> None:
        odd = [begun(0, type="hologram", shape="cube"), delta(0, "hologram_delta", more=1), ended(0), *text(1, "Hi")]
        read = await self.read(events(START, *odd, finished("end_turn"), STOP))
        assert read.content[0].to_dict()["shape"] == "cube"
        assert read.content[1].text == "Hi"

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, anthropic.BadRequestError),
            (401, anthropic.AuthenticationError),
            (404, anthropic.NotFoundError),
            (429, anthropic.RateLimitError),
            (529, anthropic.InternalServerError),
        ],
    )
    async def test_its_client_reads_an_error(self, status: int, kind: type[anthropic.APIStatusError]) -> None:
        told = {"type": "error", "error": {"type": "some_error", "message": "no"}}
        with pytest.raises(kind) as error:
            await self.read(json_answer(told, status, Retry_After="7"))
        assert (error.value.status_code, error.value.body) == (status, told)
        assert error.value.response.headers["retry-after"] == "7"

    async def test_its_client_reads_an_error_inside_the_stream(self) -> None:
        told = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            await self.read(events(START, *text(0, "Hel"), told))
