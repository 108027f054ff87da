"""OpenAI's own package judges what its API is sent, and reads what the model server of these tests plays.

Its types are those of OpenAI's own API. What only other servers of this format know (`reasoning_content` and signatures on
replayed turns, thoughts in a stream, options that a caller hands on) is not in them; such requests are judged without these
fields, which `foreign` names, and everything else about them as strictly as the rest.
"""

from typing import Any

import openai
import pytest
from hypothesis import given, settings
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import ValidationError

from app.loop.guards import CAP_NOTE
from app.loop.messages import Image, Message
from app.loop.ports import CheckedArguments, OfferedTool
from app.providers.conversation import INTERRUPTED
from tests.providers.chat_request import OTHER, SEARCH, body, made_call, result, turn
from tests.providers.model_server import DONE, Answer, ModelServer, chat_usage, chunk, json_answer, sse
from tests.providers.official import openai_client, strict_judge
from tests.providers.test_conversation import histories

accepts = strict_judge(CompletionCreateParamsStreaming)
emits = strict_judge(ChatCompletionChunk)

SYSTEM, USER = Message("system", "Be kind."), Message("user", "hi")
PICTURE = Message("user", ("look", Image(url="https://x/y.png"), Image(data="QUJD", media_type="image/webp")))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NESTED = {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/p"}}}, "$defs": {"p": {}}}
TOOLS = (SEARCH, OfferedTool("other", "", NESTED, CheckedArguments))
CALL = made_call(arguments={"q": "é"})
DIALOGUE = (SYSTEM, USER, turn(CALL, text="Let me look."), result(CALL))

REQUESTS: dict[str, Any] = {
    "a word": body(USER),
    "a system prompt": body(SYSTEM, USER),
    "a picture by its address and as data": body(PICTURE),
    "a turn of before": body(USER, turn(text="hello"), USER),
    **{
        f"tools, choice {choice}": body(USER, tools=TOOLS, choice=choice)
        for choice in ("auto", "none", "required", "search")
    },
    "one call at a time": body(USER, tools=TOOLS, options={"parallel_tool_calls": False}),
    "a call and its result": body(*DIALOGUE, tools=TOOLS),
    "a call of another model": body(USER, turn(CALL, by=OTHER), result(CALL), tools=TOOLS),
    "the last permitted call": body(*DIALOGUE, Message("user", CAP_NOTE), tools=TOOLS, choice="none"),
    "broken arguments and a made-up name": body(USER, turn(made_call(name="a.b ç")), result(made_call())),
    "a result that holds a picture": body(USER, turn(CALL), result(CALL, ("seen", *PICTURE.content[1:])), tools=TOOLS),
    "a result that is a picture": body(USER, turn(CALL), result(CALL, PICTURE.content[1:]), tools=TOOLS),
    "a call without a result": body(USER, turn(CALL), USER),
    "a result without a call": body(USER, result(CALL)),
    "two assistant turns in a row": body(USER, turn(text="a"), turn(CALL, text="b"), result(CALL)),
    "an empty turn": body(USER, turn(), USER),
    "an answer of a shape": body(USER, response_schema=SCHEMA),
    "the answers of the capabilities": body(USER, capabilities=("web_search", "reasoning")),
    "options under their names": body(
        USER,
        tools=TOOLS,
        options={
            "temperature": 0.2,
            "top_p": 1,
            "max_output_tokens": 9,
            "reasoning_effort": "low",
            "stop": ["x"],
            "seed": 7,
        },
    ),
    "OpenAI's name of the limit": body(USER, options={"max_output_tokens": 9}, base_url="https://api.openai.com/v1"),
    "options of this client": body(USER, options={"think_tags": True, "stop": "END", "user": "u", "top_logprobs": 2}),
}

FOREIGN: dict[str, tuple[Any, set[str]]] = {
    "thoughts and signatures": (
        body(USER, turn(made_call(extra_content={"s": 1}), reasoning_content="hm"), result(made_call())),
        {"reasoning_content", "extra_content"},
    ),
    "thoughts on every turn": (
        body(USER, turn(CALL), result(CALL), options={"reasoning_content": "always"}),
        {"reasoning_content"},
    ),
    "an option of another server": (body(USER, options={"top_k": 5}), {"top_k"}),
}


def without(value: Any, keys: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: without(inner, keys) for key, inner in value.items() if key not in keys}
    return [without(inner, keys) for inner in value] if isinstance(value, list) else value


class TestRequests:
    @pytest.mark.parametrize("situation", REQUESTS)
    def test_it_takes(self, situation: str) -> None:
        accepts(REQUESTS[situation])

    @pytest.mark.parametrize("situation", FOREIGN)
    def test_it_takes_all_but_what_other_servers_know(self, situation: str) -> None:
        request, foreign = FOREIGN[situation]
        with pytest.raises(ValidationError):
            accepts(request)
        accepts(without(request, foreign))

    @settings(max_examples=100, deadline=None)
    @given(histories)
    def test_it_takes_any_history(self, history: list[Message]) -> None:
        accepts(body(*history, tools=TOOLS))

    def test_an_interrupted_call_is_told_in_its_words(self) -> None:
        assert REQUESTS["a call without a result"]["messages"][2]["content"] == INTERRUPTED

    @pytest.mark.parametrize(
        "wrong",
        [
            {"max_output_tokens": 9},
            {"tool_choice": {"type": "tool", "name": "x"}},
            {"tools": [{"type": "function", "function": {"name": "x", "input_schema": {}}}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}]},
            {"messages": [{"role": "tool", "content": "x"}]},
            {"temperature": "0.2"},
        ],
    )
    def test_the_judge_refuses_what_is_misspelt_or_misplaced(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            accepts({**REQUESTS["a word"], **wrong})


def piece(index: int, **function: Any) -> dict[str, Any]:
    call_id = {"id": function.pop("id"), "type": "function"} if "id" in function else {}
    return chunk(tool_calls=[{"index": index, **call_id, "function": function}])


FRAMES = [
    chunk("", role="assistant"), chunk("Hel"), chunk("lo"),
    piece(0, id="c_1", name="search", arguments=""), piece(1, id="c_2", name="other", arguments="{}"),
    piece(0, arguments='{"q"'), piece(0, arguments=': "é"}'),
    chunk(finish="tool_calls"),
    chat_usage(12, 5, prompt_tokens_details={"cached_tokens": 3}, completion_tokens_details={"reasoning_tokens": 2}),
]  # fmt: skip


class TestTheModelServer:
    async def read(self, *answers: Answer) -> list[ChatCompletionChunk]:
        async with ModelServer() as server, openai_client(server) as client:
            server.play(*answers)
            stream = await client.chat.completions.create(**REQUESTS["a call and its result"])
            read = [part async for part in stream]
            assert server.requests[0].json == REQUESTS["a call and its result"]
            return read

    @pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
    def test_each_frame_is_one_of_its_types(self, frame: dict[str, Any]) -> None:
        emits(frame)

    async def test_its_client_reads_text_calls_and_usage(self) -> None:
        read = await self.read(sse(*FRAMES, DONE))
        deltas = [part.choices[0].delta for part in read if part.choices]
        assert "".join(delta.content or "" for delta in deltas) == "Hello"
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        assert [call.id for call in calls] == ["c_1", "c_2", None, None]
        assert "".join(call.function.arguments for call in calls if call.index == 0) == '{"q": "é"}'
        assert [part.choices[0].finish_reason for part in read if part.choices][-1] == "tool_calls"
        usage = read[-1].usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (12, 5, 17)
        assert (usage.prompt_tokens_details.cached_tokens, usage.completion_tokens_details.reasoning_tokens) == (3, 2)

    async def test_its_client_keeps_the_thoughts_of_other_servers(self) -> None:
        read = await self.read(sse(chunk(reasoning_content="hm"), chunk("Hi", finish="stop"), DONE))
        assert read[0].choices[0].delta.model_extra == {"reasoning_content": "hm"}

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, openai.BadRequestError),
            (401, openai.AuthenticationError),
            (404, openai.NotFoundError),
            (429, openai.RateLimitError),
            (503, openai.InternalServerError),
        ],
    )
    async def test_its_client_reads_an_error(self, status: int, kind: type[openai.APIStatusError]) -> None:
        with pytest.raises(kind) as error:
            await self.read(json_answer({"error": {"message": "no", "type": "t", "code": "c"}}, status, Retry_After="7"))
        assert (error.value.body["message"], error.value.code, error.value.type) == ("no", "c", "t")
        assert error.value.response.headers["retry-after"] == "7"

    async def test_its_client_reads_an_error_inside_the_stream(self) -> None:
        with pytest.raises(openai.APIError, match="overloaded"):
            await self.read(sse(chunk("Hel"), {"error": {"message": "overloaded", "type": "server_error"}}))
