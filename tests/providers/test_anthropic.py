"""The Messages API client on the very bytes that servers send: answers, calls, thinking, server tools."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.loop.messages import FinishReason, Message, ToolCall, Usage
from app.providers.anthropic_stream import ReplyStream
from app.providers.client import ProviderError
from app.providers.transport import http_client
from tests.providers.messages_api import (
    PING,
    START,
    STOP,
    ask,
    begun,
    call,
    delta,
    ended,
    event,
    events,
    finished,
    text,
    thinking,
)
from tests.providers.model_server import Answer, ModelServer, json_answer

pytestmark = pytest.mark.asyncio

SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://h/", "encrypted_content": "enc=="}],
}


@pytest.fixture
async def server():
    async with ModelServer() as running:
        yield running


class TestAnAnswer:
    async def test_text_is_shown_as_it_comes_and_given_whole(self, server):
        asked = await ask(server, events(START, PING, *text(0, "Hel", "lo"), finished("end_turn"), STOP))
        assert asked.shown == [("text", "Hel"), ("text", "lo")]
        assert (asked.reply.text, asked.reply.finish_reason, asked.reply.calls) == ("Hello", FinishReason.STOP, ())
        assert asked.reply.native == {"blocks": [{"type": "text", "text": "Hello"}]}
        assert asked.reply.attempts == ()

    async def test_the_request_is_a_streamed_message(self, server):
        headers = {"anthropic-beta": "some-2025-01-01"}
        await ask(server, events(START, *text(0, "x"), finished("end_turn"), STOP), headers=headers)
        sent = server.requests[0]
        assert (sent.method, sent.path) == ("POST", "/v1/messages")
        assert (sent.headers["x-api-key"], sent.headers["anthropic-version"]) == ("s3cret", "2023-06-01")
        assert sent.headers["anthropic-beta"] == "some-2025-01-01"
        assert "authorization" not in sent.headers
        assert sent.json["stream"] is True

    async def test_the_callers_headers_win_and_a_base_url_may_name_the_version(self, server):
        headers = {"Anthropic-Version": "2024-01-01", "Authorization": "Bearer t0ken!"}
        answer = events(START, *text(0, "x"), finished("end_turn"), STOP)
        await ask(server, answer, headers=headers, api_key="", base_url=f"{server.address}/v1/")
        sent = server.requests[0]
        assert (sent.path, sent.headers["anthropic-version"]) == ("/v1/messages", "2024-01-01")
        assert sent.headers["authorization"] == "Bearer t0ken!"
        assert "x-api-key" not in sent.headers

    async def test_one_connection_serves_many_calls(self, server):
        async with http_client() as http:
            for _ in range(3):
                await ask(server, events(START, *text(0, "x"), finished("end_turn"), STOP), http=http)
        assert server.connections == 1

    @pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
    async def test_every_byte_may_come_alone(self, server, line_end):
        stream = b"".join(event(data) for data in (START, *text(0, "漢字 é 😀"), finished("end_turn"), STOP))
        asked = await ask(server, Answer([bytes([byte]) for byte in stream.replace(b"\n", line_end)]))
        assert asked.reply.text == "漢字 é 😀"

    async def test_a_surrogate_pair_cut_between_two_deltas_is_one_character(self, server):
        raw = [b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%b"}}' % half
               for half in (b"a\\ud83d", b"\\ude00b\\u0000")]  # fmt: skip
        asked = await ask(server, events(START, *[b"data: " + data + b"\n\n" for data in raw], finished("end_turn"), STOP))
        assert asked.reply.text == asked.text("text") == "a😀b"
        assert asked.reply.native["blocks"] == [{"type": "text", "text": "a😀b"}]

    async def test_a_whole_answer_to_a_streamed_request_is_taken(self, server):
        content = [{"type": "text", "text": "Hi"}, {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}]
        usage = {"input_tokens": 3, "output_tokens": 2}
        body = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}
        asked = await ask(server, json_answer(body))
        assert asked.shown == [("text", "Hi")]
        assert [(c.provider_id, c.name, c.arguments) for c in asked.reply.calls] == [("toolu_1", "f", '{"x":1}')]
        assert (asked.reply.usage, asked.reply.finish_reason) == (Usage(3, 2), FinishReason.TOOL_CALLS)
        assert asked.reply.native == {"blocks": content}


class TestUsage:
    async def test_the_last_of_each_total_stands_and_nothing_is_counted_twice(self, server):
        """B20."""
        asked = await ask(server, events(START, *text(0, "x"), finished("end_turn", output_tokens=15), STOP))
        assert asked.reply.usage == Usage(25, 15)
        again = finished("end_turn", output_tokens=15, input_tokens=25, cache_read_input_tokens=None)
        assert (await ask(server, events(START, *text(0, "x"), again, STOP))).reply.usage == Usage(25, 15)

    async def test_running_totals_are_not_summed(self, server):
        """B20: 1 to 100 is 100."""
        totals = [finished(None, output_tokens=n) for n in range(1, 101)]
        asked = await ask(server, events(START, *text(0, "x"), *totals, finished("end_turn", output_tokens=0), STOP))
        assert asked.reply.usage == Usage(25, 100)

    async def test_the_input_is_the_whole_prompt_with_what_the_cache_held(self, server):
        counts = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20, "output_tokens": 1}
        start = {"type": "message_start", "message": {"usage": counts}}
        end = finished("end_turn", output_tokens=9, output_tokens_details={"thinking_tokens": 4})
        assert (await ask(server, events(start, *text(0, "x"), end, STOP))).reply.usage == Usage(125, 9, 100, 4)


class TestCalls:
    async def test_fragments_of_an_input_are_put_together_before_they_are_read(self, server):
        """B02: the first is empty, and the input of the start is only a placeholder."""
        fragments = ["", '{"file_', 'path":"a"}']
        start, *rest = call(0, "toolu_1", "f", *fragments)
        asked = await ask(server, events(START, start, PING, *rest, finished("tool_use"), STOP))
        assert [(c.provider_id, c.name, c.arguments) for c in asked.reply.calls] == [("toolu_1", "f", '{"file_path":"a"}')]
        assert asked.reply.finish_reason is FinishReason.TOOL_CALLS
        assert asked.reply.native["blocks"][0]["input"] == {"file_path": "a"}

    async def test_a_call_without_fragments_has_the_input_it_began_with(self, server):
        """B02."""
        whole = begun(0, type="tool_use", id="toolu_1", name="f", input={"x": "é"})
        stream = events(START, whole, ended(0), *call(1, "toolu_2", "f", ""), finished("tool_use"), STOP)
        asked = await ask(server, stream)
        assert [c.arguments for c in asked.reply.calls] == ['{"x":"é"}', ""]
        assert [block["input"] for block in asked.reply.native["blocks"]] == [{"x": "é"}, {}]

    async def test_several_calls_may_come_interleaved(self, server):
        first, second = call(0, "a", "f", '{"n"', ":1}"), call(1, "b", "f", '{"n"', ":2}")
        mixed = [data for pair in zip(first, second, strict=True) for data in pair]
        asked = await ask(server, events(START, *mixed, finished("tool_use"), STOP))
        assert [(c.provider_id, c.arguments) for c in asked.reply.calls] == [("a", '{"n":1}'), ("b", '{"n":2}')]

    async def test_an_input_that_is_no_json_reaches_the_caller_as_it_is_and_the_model_as_an_object(self, server):
        asked = await ask(server, events(START, *call(0, "a", "f", '{"x": "cut'), finished("max_tokens"), STOP))
        assert (asked.reply.calls[0].arguments, asked.reply.finish_reason) == ('{"x": "cut', FinishReason.LENGTH)
        assert asked.reply.native["blocks"][0]["input"] == {}

    async def test_calls_are_made_whatever_the_stop_reason_says(self, server):
        for reason in ("end_turn", "pause_turn", "something_new"):
            asked = await ask(server, events(START, *call(0, "a", "f", "{}"), finished(reason), STOP))
            assert asked.reply.finish_reason is FinishReason.TOOL_CALLS

    async def test_a_stop_for_calls_without_any_is_an_empty_reply(self, server):
        """B16."""
        asked = await ask(server, events(START, finished("tool_use"), STOP))
        assert (asked.reply.text, asked.reply.calls, asked.reply.native) == ("", (), {})
        assert asked.reply.finish_reason is FinishReason.STOP

    async def test_an_empty_end_is_a_reply_and_no_failure(self, server):
        """B17."""
        asked = await ask(server, events(START, finished("end_turn"), STOP))
        assert (asked.error, asked.reply.text, asked.reply.finish_reason) == (None, "", FinishReason.STOP)


class TestStopReasons:
    @pytest.mark.parametrize(
        ("reason", "finish"),
        [
            ("end_turn", FinishReason.STOP),
            ("stop_sequence", FinishReason.STOP),
            ("max_tokens", FinishReason.LENGTH),
            ("model_context_window_exceeded", FinishReason.LENGTH),
            ("refusal", FinishReason.CONTENT_FILTER),
            ("pause_turn", FinishReason.PAUSE),
            ("tool_use", FinishReason.STOP),
            ("something_new", FinishReason.STOP),
            (None, FinishReason.STOP),
        ],
    )
    async def test_each_has_its_meaning(self, server, reason, finish):
        """A41, B14, B16."""
        asked = await ask(server, events(START, *text(0, "x"), finished(reason), STOP))
        assert (asked.reply.text, asked.reply.finish_reason) == ("x", finish)

    async def test_a_pause_keeps_what_was_said_so_far(self, server):
        """B14."""
        blocks = [begun(1, **{**SEARCH, "input": {}}), delta(1, "input_json_delta", partial_json='{"query":"x"}'), ended(1)]
        asked = await ask(server, events(START, *text(0, "Looking."), *blocks, finished("pause_turn"), STOP))
        assert asked.reply.finish_reason is FinishReason.PAUSE
        assert asked.reply.native == {"blocks": [{"type": "text", "text": "Looking."}, SEARCH]}


class TestBlocks:
    async def test_thinking_is_shown_apart_and_kept_with_its_signature(self, server):
        redacted = begun(1, type="redacted_thinking", data="enc==")
        stream = [
            START,
            *thinking(0, "hm", signature="sig=="),
            redacted,
            ended(1),
            *text(2, "A"),
            finished("end_turn"),
            STOP,
        ]
        asked = await ask(server, events(*stream))
        assert asked.shown == [("reasoning", "hm"), ("text", "A")]
        assert (asked.reply.text, asked.reply.reasoning) == ("A", "hm")
        assert asked.reply.native["blocks"] == [
            {"type": "thinking", "thinking": "hm", "signature": "sig=="},
            {"type": "redacted_thinking", "data": "enc=="},
            {"type": "text", "text": "A"},
        ]

    async def test_thinking_that_is_not_told_is_kept_for_its_signature(self, server):
        stream = [begun(0, type="thinking", thinking="", signature=""), delta(0, "signature_delta", signature="s"), ended(0)]
        asked = await ask(server, events(START, *stream, *text(1, "A"), finished("end_turn"), STOP))
        assert asked.reply.native["blocks"][0] == {"type": "thinking", "thinking": "", "signature": "s"}
        assert asked.reply.reasoning == ""

    async def test_citations_stay_with_their_text(self, server):
        """B23."""
        cited = [begun(0, type="text", text="", citations=[]), delta(0, "text_delta", text="A")]
        cited += [delta(0, "citations_delta", citation={"url": n}) for n in "ab"]
        asked = await ask(server, events(START, *cited, ended(0), finished("end_turn"), STOP))
        assert asked.reply.native["blocks"] == [{"type": "text", "text": "A", "citations": [{"url": "a"}, {"url": "b"}]}]

    async def test_a_servers_tools_are_no_calls_and_their_blocks_are_kept_in_order(self, server):
        stream = [*text(0, "Looking. "), *call(1, "srvtoolu_1", "web_search", '{"query":"x"}', kind="server_tool_use")]
        stream += [begun(2, **FOUND), ended(2), *text(3, "Found.")]
        asked = await ask(server, events(START, *stream, finished("end_turn"), STOP))
        assert (asked.reply.text, asked.reply.calls) == ("Looking. Found.", ())
        assert [block["type"] for block in asked.reply.native["blocks"]] == [
            "text",
            "server_tool_use",
            "web_search_tool_result",
            "text",
        ]
        assert asked.reply.native["blocks"][1:3] == [SEARCH, FOUND]

    @pytest.mark.parametrize(
        "odd",
        [
            b"event: banana\ndata: {}\n\n",
            b'event: banana\ndata: {"type": "banana", "index": 0}\n\n',
            b": comment\n\n",
            b"data: [DONE]\n\n",
            b"data: [1]\n\n",
            b"data: null\n\n",
            PING,
            delta(0, "banana_delta", banana=1),
            delta(0, "text_delta", text=None),
            delta(9, "input_json_delta", partial_json="{"),
            {"type": "content_block_delta", "index": 0, "delta": None},
            {"type": "content_block_delta", "index": None, "delta": {"type": ["x"]}},
            {"type": "content_block_start", "index": 0, "content_block": None},
            {"type": "content_block_stop", "index": 7},
            {"type": "message_delta", "delta": {}, "usage": None},
        ],
    )
    async def test_what_is_not_known_does_not_matter(self, server, odd):
        """B23."""
        start, first, second, stop = text(0, "a", "b")
        stream = [START, odd, start, first, odd, second, stop, odd, finished("end_turn"), odd, STOP]
        asked = await ask(server, events(*stream))
        assert (asked.reply.text, asked.reply.finish_reason) == ("ab", FinishReason.STOP)
        assert asked.reply.native["blocks"] == [{"type": "text", "text": "ab"}]

    async def test_a_text_whose_start_was_left_out_is_a_text(self, server):
        asked = await ask(server, events(START, delta(0, "text_delta", text="a"), finished("end_turn"), STOP))
        assert (asked.reply.text, asked.reply.native["blocks"]) == ("a", [{"type": "text", "text": "a"}])


class TestGoingOn:
    async def test_what_came_goes_back_byte_for_byte_in_the_next_call(self, server):
        """B04, B10, I14: thinking, a text, a call, and a server's tool behind it."""
        stream = [
            *thinking(0, "«PER_1» wants é", signature="sig+/=="),
            *text(1, "Let me look."),
            *call(2, "toolu_1", "f", '{"b":1,"a":2}'),
        ]
        stream += [
            *call(3, "srvtoolu_1", "web_search", '{"query":"x"}', kind="server_tool_use"),
            begun(4, **FOUND),
            ended(4),
        ]
        asked = await ask(server, events(START, *stream, finished("tool_use"), STOP))
        made = ToolCall("call_1", "f", {"b": 1, "a": 2}, '{"b":1,"a":2}', "toolu_1")
        turn = Message(
            "assistant", asked.reply.text, (made,), native=asked.reply.native, native_model="anthropic/claude-opus-4-5"
        )
        history = (Message("user", "hi"), turn, Message("tool", "ok", tool_call_id="call_1"))
        await ask(server, events(START, *text(0, "x"), finished("end_turn"), STOP), messages=history)
        sent = server.requests[1].json["messages"]
        assert sent[1]["content"] == [
            {"type": "thinking", "thinking": "«PER_1» wants é", "signature": "sig+/=="},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": 2}},
            SEARCH,
            FOUND,
        ]
        assert [block["type"] for block in sent[2]["content"]] == ["tool_result"]
        assert sent[2]["content"][0]["tool_use_id"] == "toolu_1"


KEYS = ["type", "message", "content_block", "delta", "index", "usage", "error", "text", "thinking", "partial_json", "input"]
KEYS += ["stop_reason", "input_tokens", "output_tokens_details", "signature", "citation", "citations", "id", "name"]
TYPES = ["message_start", "content_block_start", "content_block_delta", "message_delta", "text", "tool_use", "thinking"]
TYPES += ["text_delta", "thinking_delta", "input_json_delta", "citations_delta", "signature_delta", "server_tool_use"]
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(TYPES)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
blocks = st.fixed_dictionaries({"type": st.sampled_from(TYPES)}, optional=dict.fromkeys(KEYS[5:], anything))
shaped = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES), "index": st.integers(0, 2)},
    optional={"content_block": blocks, "delta": blocks, "message": blocks, "usage": anything},
)


class TestAnythingAtAll:
    @settings(max_examples=80, deadline=None)
    @given(st.lists(anything | shaped, max_size=5))
    async def test_no_event_raises_anything_but_a_provider_error(self, data: list[Any]):
        shown: list[str] = []
        stream = ReplyStream("m", lambda _, text: shown.append(text), lambda: None)
        with suppress(ProviderError):
            for value in data:
                stream.accept(json.dumps(value).encode())
            stream.whole(json.dumps({"content": data}).encode())
        reply = stream.reply()
        assert reply.text + reply.reasoning == "" or shown
        json.dumps(reply.native, allow_nan=False)
