"""The chat-completions client on the very bytes that servers send: answers, calls, reasoning."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from app.loop.messages import FinishReason, Usage
from app.providers.client import ProviderError, ProviderErrorKind
from app.providers.openai_stream import ReplyStream
from app.providers.transport import http_client
from tests.providers.asking import ask
from tests.providers.model_server import DONE, Answer, ModelServer, chunk, json_answer, sse

pytestmark = pytest.mark.asyncio

UNAVAILABLE = ProviderErrorKind.UNAVAILABLE


def call(index: int | None, id: str | None, name: str | None, arguments: str | None, **extra: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, "id": id, **extra}
    return entry if index is None else {"index": index, **entry}


@pytest.fixture
async def server():
    async with ModelServer() as running:
        yield running


class TestAnAnswer:
    async def test_text_is_shown_as_it_comes_and_given_whole(self, server):
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
        usage["completion_tokens_details"] = {"reasoning_tokens": 1}
        last = {"choices": [], "usage": usage}
        asked = await ask(server, sse(chunk("Hel", role="assistant"), chunk("lo"), chunk(finish="stop"), last, DONE))
        assert asked.shown == [("text", "Hel"), ("text", "lo")]
        assert (asked.reply.text, asked.reply.finish_reason) == ("Hello", FinishReason.STOP)
        assert asked.reply.usage == Usage(5, 2, 4, 1)
        assert asked.reply.attempts == ()

    async def test_the_request_is_a_streamed_chat_completion(self, server):
        await ask(server, sse(chunk("x", "stop"), DONE))
        sent = server.requests[0]
        assert (sent.method, sent.path) == ("POST", "/v1/chat/completions")
        assert sent.headers["authorization"] == "Bearer s3cret"
        assert sent.headers["accept-encoding"] == "identity"
        assert sent.json["stream"] is True
        assert sent.json["stream_options"] == {"include_usage": True}

    async def test_one_connection_serves_many_calls(self, server):
        async with http_client() as http:
            for _ in range(3):
                await ask(server, sse(chunk("x", "stop"), DONE), http=http)
        assert server.connections == 1

    @pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
    async def test_a_character_and_a_line_end_may_be_cut_anywhere(self, server, line_end):
        """A32, A35: every byte comes alone."""
        stream = b"".join(
            b"data: " + json.dumps(data, ensure_ascii=False).encode() + line_end * 2
            for data in (chunk("漢字 é 😀"), chunk(finish="stop"))
        )
        pieces = [bytes([byte]) for byte in stream + b"data: [DONE]" + line_end * 2]
        assert (await ask(server, Answer(pieces))).reply.text == "漢字 é 😀"

    async def test_line_ends_of_unicode_stay_in_the_text(self, server):
        """A34."""
        text = "a\u2028b\u2029c\u0085d\u000be\u000cf"
        raw = json.dumps(chunk(text, "stop"), ensure_ascii=False).replace("\\u000b", "\u000b").replace("\\f", "\u000c")
        assert (await ask(server, sse(raw, DONE))).reply.text == text

    async def test_a_whole_answer_to_a_streamed_request_is_taken(self, server):
        calls = [call(None, "a", "f", "{}"), call(None, "b", "f", '{"x":1}')]
        message = {"role": "assistant", "content": "Hi", "tool_calls": calls}
        body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 3}}
        asked = await ask(server, json_answer(body))
        assert asked.shown == [("text", "Hi")]
        assert [c.provider_id for c in asked.reply.calls] == ["a", "b"]
        assert asked.reply.usage.input_tokens == 3

    async def test_content_may_be_a_list_of_parts(self, server):
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
        parts = [thinking, {"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
        asked = await ask(server, sse({"choices": [{"delta": {"content": parts}, "finish_reason": "stop"}]}, DONE))
        assert (asked.reply.text, asked.reply.reasoning) == ("AB", "hm")


class TestOddChunks:
    async def test_chunks_without_choices_are_read_for_their_usage(self, server):
        """A22."""
        first = {"choices": [], "prompt_filter_results": [{}]}
        last = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}
        asked = await ask(server, sse(first, chunk("x", "stop"), last, DONE))
        assert (asked.reply.text, asked.reply.usage) == ("x", Usage(7, 1))

    @pytest.mark.parametrize(
        "odd",
        [
            {"choices": None},
            {},
            {"choices": [None]},
            {"choices": [{}]},
            {"choices": [{"delta": None}]},
            {"choices": [{"delta": {"content": None, "tool_calls": None, "role": None}, "finish_reason": None}]},
            {"choices": [{"delta": {"content": "", "tool_calls": [], "function_call": None}, "finish_reason": ""}]},
            {"choices": [{"delta": {"tool_calls": [None, {"function": None}]}}], "usage": None, "error": None},
            {"choices": [{"index": 1, "delta": {"content": "of another choice"}}]},
            {"choices": "x", "usage": "y"},
            [],
            None,
            3,
            b"data:\n\n",
            b": comment\n\n",
            b"event: ping\nid: 1\n\n",
        ],
    )
    async def test_nothing_that_may_be_null_or_missing_matters(self, server, odd):
        """A23: the text around it is whole."""
        asked = await ask(server, sse(odd, chunk("a"), odd, chunk("b"), chunk(finish="stop"), odd, DONE))
        assert (asked.reply.text, asked.reply.finish_reason) == ("ab", FinishReason.STOP)

    async def test_a_finish_chunk_may_lack_its_delta(self, server):
        """A23."""
        asked = await ask(server, sse(chunk("a"), {"choices": [{"delta": None, "finish_reason": "length"}]}, DONE))
        assert (asked.reply.text, asked.reply.finish_reason) == ("a", FinishReason.LENGTH)

    async def test_usage_is_a_running_total(self, server):
        """A25: the last one stands; one that is empty changes nothing."""
        totals = [{"choices": [], "usage": {"prompt_tokens": n, "completion_tokens": n}} for n in (10, 50, 100)]
        asked = await ask(server, sse(chunk("x"), *totals, chunk(finish="stop"), {"usage": {"prompt_tokens": 0}}, DONE))
        assert asked.reply.usage == Usage(100, 100)

    async def test_a_surrogate_pair_cut_between_two_deltas_is_one_character(self, server):
        halves = ['{"choices":[{"delta":{"content":"' + half + '"}}]}' for half in ("a\\ud83d", "\\ude00b", "\\ud83d")]
        asked = await ask(server, sse(*halves, chunk(finish="stop"), DONE))
        assert asked.reply.text == asked.text("text") == "a😀b\ufffd"

    async def test_a_nul_is_dropped(self, server):
        asked = await ask(server, sse(chunk("a\x00b"), chunk("\x00", "stop"), DONE))
        assert asked.shown == [("text", "ab")]

    @pytest.mark.parametrize("broken", ["{oops", "[" * 5000, '{"choices":'])
    async def test_a_chunk_that_is_no_json_fails_the_attempt(self, server, broken):
        asked = await ask(server, sse(chunk("a"), broken, DONE))
        assert asked.error is not None
        assert asked.error.kind is UNAVAILABLE


class TestCalls:
    async def test_a_call_without_index_is_given_once(self, server):
        """A01."""
        deltas = [chunk(tool_calls=[call(None, "call_a", "f", "{}")]), chunk(finish="tool_calls")]
        asked = await ask(server, sse(*deltas, DONE))
        assert [(c.provider_id, c.name, c.arguments) for c in asked.reply.calls] == [("call_a", "f", "{}")]

    @pytest.mark.parametrize("reason", ["stop", "tool_calls", "end_turn", "function_call", None])
    async def test_calls_decide_whatever_the_finish_reason_says(self, server, reason):
        """A19."""
        asked = await ask(server, sse(chunk(tool_calls=[call(0, "a", "f", "{}")]), chunk(finish=reason), DONE))
        assert asked.reply.finish_reason is FinishReason.TOOL_CALLS

    @pytest.mark.parametrize("reason", ["tool_calls", "function_call", "something_new"])
    async def test_a_finish_reason_without_calls_is_a_plain_end(self, server, reason):
        """A19."""
        assert (await ask(server, sse(chunk("t", reason), DONE))).reply.finish_reason is FinishReason.STOP

    async def test_a_cut_call_is_told_by_length(self, server):
        """A20."""
        asked = await ask(server, sse(chunk(tool_calls=[call(0, "a", "f", '{"x": "lor')]), chunk(finish="length"), DONE))
        assert asked.reply.finish_reason is FinishReason.LENGTH

    async def test_a_cut_call_is_told_by_a_used_up_limit_whatever_the_server_says(self, server):
        """A20: the finish reason hides it, the count does not."""
        end = {**chunk(finish="tool_calls"), "usage": {"completion_tokens": 64}}
        stream = sse(chunk(tool_calls=[call(0, "a", "f", '{"x": "lor')]), end, DONE)
        asked = await ask(server, stream, options={"max_output_tokens": 64})
        assert asked.reply.finish_reason is FinishReason.LENGTH

    async def test_the_older_form_of_a_call_is_understood(self, server):
        deltas = [chunk(function_call={"name": "f", "arguments": "{"}), chunk(function_call={"arguments": "}"})]
        asked = await ask(server, sse(*deltas, chunk(finish="function_call"), DONE))
        assert [(c.name, c.arguments) for c in asked.reply.calls] == [("f", "{}")]

    async def test_unknown_keys_stay_with_their_call(self, server):
        """A38."""
        extra = {"google": {"thought_signature": "sig"}}
        asked = await ask(
            server, sse(chunk(tool_calls=[call(0, "a", "f", "{}", extra_content=extra)]), chunk(finish="stop"), DONE)
        )
        assert asked.reply.calls[0].native == {"extra_content": extra}

    async def test_a_call_written_as_text_is_warned_of_and_not_made(self, server):
        """A44."""
        with capture_logs() as logs:
            asked = await ask(server, sse(chunk('<tool_call>{"name":"f","arguments":{', "stop"), DONE))
        assert asked.reply.calls == ()
        assert asked.reply.finish_reason is FinishReason.STOP
        assert [entry["event"] for entry in logs] == ["model_wrote_call_as_text"]


class TestReasoning:
    @pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
    async def test_it_is_shown_apart_and_kept_for_the_model(self, server, key):
        """A37."""
        asked = await ask(server, sse(chunk(**{key: "hm"}), chunk("a", **{key: "!"}), chunk(finish="stop"), DONE))
        assert asked.shown == [("reasoning", "hm"), ("text", "a"), ("reasoning", "!")]
        assert (asked.reply.text, asked.reply.reasoning, asked.reply.native) == ("a", "hm!", {key: "hm!"})

    async def test_details_and_signatures_are_kept_as_they_came(self, server):
        deltas = [chunk(reasoning_details=[{"n": n}], thought_signature=sig) for n, sig in ((1, "a"), (2, "b"))]
        asked = await ask(server, sse(*deltas, chunk(finish="stop", obfuscation="zzz"), DONE))
        assert asked.reply.native == {"reasoning_details": [{"n": 1}, {"n": 2}], "thought_signature": "ab"}

    async def test_reasoning_alone_is_no_answer(self, server):
        """A29: with a finish reason the text is empty, without one the stream broke off."""
        asked = await ask(server, sse(chunk(reasoning_content="hm"), chunk(finish="stop"), DONE))
        assert (asked.reply.text, asked.reply.reasoning) == ("", "hm")
        assert (await ask(server, sse(chunk(reasoning_content="hm")))).error.kind is UNAVAILABLE

    @pytest.mark.parametrize(
        ("option", "deltas", "reasoning", "text"),
        [
            (True, ["<th", "ink>plan</thi", "nk>Answer"], "plan", "Answer"),
            (True, ["<", "thinking", ">", "plan", "</thinking>", "\n\n", "Answer"], "plan", "Answer"),
            (True, ["\n<think>never closed </th"], "never closed </th", ""),
            (True, ["A literal <think> tag</think>"], "", "A literal <think> tag</think>"),
            (True, ["<", "b>"], "", "<b>"),
            (True, ["<th"], "", "<th"),
            ("prefilled", ["pl", "an</think>Answer"], "plan", "Answer"),
            ("prefilled", ["<think>", "plan</think>Answer </think>"], "plan", "Answer </think>"),
            ("prefilled", ["only thoughts"], "only thoughts", ""),
            (None, ["<think>plan</think>", "Answer"], "", "<think>plan</think>Answer"),
        ],
    )
    async def test_tags_at_the_start_are_told_apart_when_asked_for(self, server, option, deltas, reasoning, text):
        """A46."""
        stream = sse(*[chunk(delta) for delta in deltas], chunk(finish="stop"), DONE)
        asked = await ask(server, stream, options={} if option is None else {"think_tags": option})
        assert (asked.reply.reasoning, asked.reply.text) == (reasoning, text)
        assert (asked.text("reasoning"), asked.text("text")) == (reasoning, text)
        assert "think_tags" not in server.requests[0].json


class TestRefusals:
    async def test_a_refusal_is_shown_and_told_by_the_finish_reason(self, server):
        """A41."""
        asked = await ask(server, sse(chunk("", refusal="I can"), chunk(refusal="not."), chunk(finish="stop"), DONE))
        assert (asked.reply.text, asked.reply.finish_reason) == ("I cannot.", FinishReason.CONTENT_FILTER)

    async def test_a_filter_without_text_is_told_by_the_finish_reason(self, server):
        """A41."""
        asked = await ask(server, sse(chunk(finish="content_filter", content=None), DONE))
        assert (asked.reply.text, asked.reply.finish_reason) == ("", FinishReason.CONTENT_FILTER)


KEYS = ["choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "id", "index", "usage"]
KEYS += ["error", "code", "reasoning", "reasoning_content", "refusal", "finish_reason", "prompt_tokens", "text", "thinking"]
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["stop", "f"])
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
choices = st.fixed_dictionaries({"choices": st.lists(st.dictionaries(st.sampled_from(KEYS), anything, max_size=4))})


class TestAnythingAtAll:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(anything | choices, max_size=4), st.sampled_from([None, True, "prefilled"]))
    async def test_no_chunk_raises_anything_but_a_provider_error(self, chunks, think_tags):
        shown: list[str] = []
        stream = ReplyStream("m", ["f"], lambda _, text: shown.append(text), lambda: None, think_tags=think_tags)
        try:
            for value in chunks:
                stream.accept(json.dumps(value).encode())
        except ProviderError:
            return
        reply = stream.reply()
        (reply.text + reply.reasoning + "".join(shown)).encode()
        assert "\x00" not in reply.text
        assert sorted(reply.text + reply.reasoning) == sorted("".join(shown))
