"""The scripted model plays what is written, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.loop.messages import DraftCall, FinishReason, Reply, Usage
from app.loop.ports import ModelRequest
from app.providers.client import ModelSettings, ProviderError, ProviderErrorKind
from app.providers.scripted import ScriptedClient, script_of, scripted_turns

pytestmark = pytest.mark.asyncio


class Playing:
    def __init__(self, turns: list[Any], next_turn: int = 0) -> None:
        self.shown: list[tuple[str, str]] = []
        self.waits: list[float] = []
        self.client = ScriptedClient(turns, next_turn, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def reply(self) -> Reply:
        request = ModelRequest(1, "m", ())
        return await self.client.reply(request, ModelSettings("x", {}), lambda kind, text: self.shown.append((kind, text)))


class TestTurns:
    async def test_a_text_is_a_whole_turn(self):
        playing = Playing(["Hello"])
        assert await playing.reply() == Reply("Hello")
        assert playing.shown == [("text", "Hello")]

    async def test_calls_texts_and_usage_are_given_as_written(self):
        usage = {"input_tokens": 3, "reasoning_tokens": 1}
        calls = [{"name": "f", "arguments": {"q": "é"}}, {"id": "c2", "name": "g", "arguments": "{broken"}]
        playing = Playing([{"text": "T", "reasoning": "R", "tool_calls": calls, "usage": usage}])
        assert await playing.reply() == Reply(
            "T",
            (DraftCall(None, "f", '{"q":"é"}'), DraftCall("c2", "g", "{broken")),
            "R",
            FinishReason.TOOL_CALLS,
            Usage(3, reasoning_tokens=1),
        )
        assert playing.shown == [("reasoning", "R"), ("text", "T")]

    async def test_it_carries_on_from_a_given_turn(self):
        playing = Playing(["a", "b"], next_turn=1)
        assert (await playing.reply()).text == "b"
        assert playing.client.next_turn == 2

    @pytest.mark.parametrize(
        ("reason", "finish"), [("length", FinishReason.LENGTH), ("stop", FinishReason.STOP), ("new", FinishReason.STOP)]
    )
    async def test_a_finish_reason_is_played(self, reason, finish):
        assert (await Playing([{"text": "x", "finish_reason": reason}]).reply()).finish_reason is finish

    @pytest.mark.parametrize("count", [0, 1, 2])
    async def test_a_used_up_script_says_how_many_turns_it_had(self, count):
        playing = Playing(["x"] * count, next_turn=count)
        with pytest.raises(ProviderError, match=f"{count} turn") as raised:
            await playing.reply()
        assert raised.value.kind is ProviderErrorKind.SCRIPT_EXHAUSTED


class TestPace:
    async def test_texts_are_cut_into_chunks_with_a_wait_before_each(self):
        playing = Playing([{"reasoning": "ab", "text": "cdéfg", "chunk_chars": 2, "delay_ms": 20}])
        await playing.reply()
        assert [text for _, text in playing.shown] == ["ab", "cd", "éf", "g"]
        assert playing.waits == [0.02] * 4

    async def test_without_a_chunk_it_waits_once(self):
        playing = Playing([{"tool_calls": [{"name": "f"}], "delay_ms": 20}, {"delay_ms": 5, "text": ""}])
        assert (await playing.reply()).calls[0].arguments == "{}"
        await playing.reply()
        assert playing.waits == [0.02, 0.005]


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "message", "kind"),
        [
            (429, "slow down", ProviderErrorKind.UNAVAILABLE),
            (500, "", ProviderErrorKind.UNAVAILABLE),
            (400, "bad", ProviderErrorKind.REJECTED),
            (401, "key", ProviderErrorKind.AUTH),
            (400, "prompt is too long", ProviderErrorKind.OVERFLOW),
        ],
    )
    async def test_an_error_is_classified_as_over_http(self, status, message, kind):
        with pytest.raises(ProviderError) as raised:
            await Playing([{"error": {"status": status, "message": message}}]).reply()
        assert (raised.value.kind, raised.value.status) == (kind, status)

    async def test_what_the_turn_says_is_shown_before_its_error(self):
        playing = Playing([{"text": "Hel", "error": {"status": 503, "message": "gone"}}, "Hello"])
        with pytest.raises(ProviderError, match="gone"):
            await playing.reply()
        assert playing.shown == [("text", "Hel")]
        assert (await playing.reply()).text == "Hello"


class TestValidation:
    @pytest.mark.parametrize(
        "turn",
        [
            {"txt": "x"},
            {"tool_calls": [{"arguments": {}}]},
            {"tool_calls": [{"name": "f", "arguments": 3}]},
            {"usage": {"input_tokens": -1}},
            {"chunk_chars": 0},
            {"delay_ms": -1},
            {"error": {"status": 200}},
            {"error": {"message": "x"}},
            5,
            None,
        ],
    )
    async def test_what_is_no_turn_is_refused_with_its_place(self, turn):
        with pytest.raises(ValidationError) as raised:
            scripted_turns(["fine", turn])
        assert raised.value.errors()[0]["loc"][0] == 1

    async def test_null_is_absent(self):
        assert scripted_turns([{"text": None, "tool_calls": None, "error": None}])[0].text is None


replies = st.builds(
    Reply,
    text=st.text(max_size=8),
    calls=st.lists(
        st.builds(
            DraftCall,
            st.none() | st.text(max_size=4),
            st.text(max_size=4),
            st.sampled_from(["", "{}", '{"a":1}', '{"a": 1}', '{"b":"é"}', "[]", '{"a":1,"a":2}', "{cut", "null"]),
        ),
        max_size=3,
    ).map(tuple),
    reasoning=st.text(max_size=8),
    usage=st.builds(Usage, *[st.integers(0, 99)] * 4),
    finish_reason=st.sampled_from([reason for reason in FinishReason if reason is not FinishReason.TOOL_CALLS]),
)
CUT = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


class TestScripts:
    @given(st.lists(replies, max_size=3))
    async def test_a_script_of_replies_plays_these_replies(self, given_replies):
        expected = [
            replace(r, finish_reason=FinishReason.TOOL_CALLS) if r.calls and r.finish_reason not in CUT else r
            for r in given_replies
        ]
        playing = Playing(script_of(expected))
        assert [await playing.reply() for _ in expected] == expected

    async def test_arguments_are_objects_where_that_is_exact(self):
        calls = (DraftCall("a", "f", '{"q":1}'), DraftCall(None, "f", '{"q": 1}'))
        (turn,) = script_of([Reply("", calls, finish_reason=FinishReason.LENGTH)])
        assert [call["arguments"] for call in turn["tool_calls"]] == [{"q": 1}, '{"q": 1}']
        assert (turn["finish_reason"], "text" in turn) == ("length", False)
