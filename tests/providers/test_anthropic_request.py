"""What a Messages API server is sent."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.loop.messages import Image, Message, ToolCall
from app.loop.ports import CheckedArguments, ModelRequest, OfferedTool
from app.providers.answer_schema import translated
from app.providers.anthropic_messages import CONTINUE, START
from app.providers.anthropic_request import CAPABILITIES, OWN_OPTIONS, RESERVED_OPTIONS, request_body
from app.providers.client import ModelSettings
from app.providers.conversation import INTERRUPTED

MODEL = "claude-opus-4-5"
ME, OTHER = f"anthropic/{MODEL}", "openai/gpt"
SEARCH = OfferedTool("search", "Finds.", {"type": "object", "properties": {}}, CheckedArguments)
OTHER_TOOL = OfferedTool("other", "Does.", {"properties": {}, "anyOf": [{}]}, CheckedArguments)
USER = Message("user", "hi")
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig=="}
SERVER_CALL = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def body(*messages: Message, tools: Any = (SEARCH,), choice: str = "auto", model: str = MODEL, **settings: Any) -> Any:
    settings.setdefault("options", {})
    request = ModelRequest(1, "m", messages, tools, choice)
    made = request_body(request, ModelSettings(model, **settings), "anthropic")
    return json.loads(json.dumps(made))


def sent(*messages: Message, **more: Any) -> list[tuple[str, list[Any]]]:
    """The messages, without the cache's marks."""
    return [
        (message["role"], [{key: value for key, value in block.items() if key != "cache_control"} for block in blocks])
        for message in body(*messages, **more)["messages"]
        for blocks in [message["content"]]
    ]


def made_call(n: int = 1, provider_id: str | None = "toolu_1", arguments: Any = None, name: str = "search") -> ToolCall:
    return ToolCall(f"call_{n}", name, arguments, "raw", provider_id)


def turn(*calls: ToolCall, text: str = "", blocks: list[Any] | None = None, by: str | None = ME) -> Message:
    return Message("assistant", text, calls, native={"blocks": blocks} if blocks else {}, native_model=by)


def result(call: ToolCall, content: Any = "found") -> Message:
    return Message("tool", content, tool_call_id=call.id)


def use(id: str, name: str = "search", **input_: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input_}


def answered(id: str, content: str | None = "found", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **({} if content is None else {"content": content}), **more}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


class TestMessages:
    def test_each_role_has_its_form(self):
        picture = ("look", Image(url="http://x/y.png"), Image(data="QUJD", media_type="image/webp"))
        asked = body(Message("system", "S1"), Message("system", "S2"), Message("user", picture), turn(text="A"), USER)
        assert [block["text"] for block in asked["system"]] == ["S1", "S2"]
        assert asked["messages"][0] == {
            "role": "user",
            "content": [
                said("look"),
                {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/webp", "data": "QUJD"},
                    "cache_control": {"type": "ephemeral"},
                },
            ],
        }
        assert asked["messages"][1] == {"role": "assistant", "content": [said("A")]}
        assert (asked["model"], asked["stream"]) == (MODEL, True)

    def test_a_picture_in_its_url_is_sent_as_data(self):
        (_, blocks), *_ = sent(Message("user", (Image(url="data:image/gif;base64,QUJD"), Image(data="QUI="))))
        assert [block["source"]["media_type"] for block in blocks] == ["image/gif", "image/png"]
        assert [block["source"]["data"] for block in blocks] == ["QUJD", "QUI="]

    def test_a_later_system_message_becomes_the_users_words(self):
        assert sent(USER, Message("system", "note")) == [("user", [said("hi"), said("note")])]
        assert "system" not in body(USER)

    def test_messages_of_one_role_in_a_row_are_one(self):
        assert sent(USER, USER, turn(text="a"), turn(text="b"), USER) == [
            ("user", [said("hi"), said("hi")]),
            ("assistant", [said("a"), said("b")]),
            ("user", [said("hi")]),
        ]

    def test_no_text_is_blank(self):
        """B04, A40: neither a message nor a block of one."""
        blocks = [said(""), THOUGHT, said(" \n"), said("a")]
        history = (Message("system", " "), USER, Message("user", ""), turn(text=" "), turn(text="a", blocks=blocks), USER)
        assert sent(*history) == [("user", [said("hi")]), ("assistant", [THOUGHT, said("a")]), ("user", [said("hi")])]
        assert "system" not in body(*history)

    def test_it_begins_with_the_user(self):
        assert sent(turn(text="a"), USER)[0] == ("user", [said(START)])
        assert sent() == [("user", [said(CONTINUE)])]

    def test_it_never_ends_with_an_assistant_that_was_not_paused(self):
        """B13."""
        assert sent(USER, turn(text="a \n"))[-1] == ("user", [said(CONTINUE)])
        assert sent(USER, turn(text="a", blocks=[said("a")], by=OTHER))[-1] == ("user", [said(CONTINUE)])


class TestPausedTurns:
    def test_a_paused_turn_goes_back_unchanged_and_last(self):
        """B14."""
        blocks = [THOUGHT, said("Looking."), SERVER_CALL]
        assert sent(USER, turn(text="Looking.", blocks=blocks))[-1] == ("assistant", blocks)

    def test_white_space_at_its_very_end_is_cut(self):
        """B13."""
        assert sent(USER, turn(text="a ", blocks=[SERVER_CALL, SERVER_RESULT, said("a \n")]))[-1][1][-1] == said("a")

    def test_what_follows_a_pause_is_joined_to_it(self):
        """B14: two pauses, then calls."""
        call = made_call()
        first, second = turn(blocks=[SERVER_CALL]), turn(blocks=[SERVER_RESULT, {**SERVER_CALL, "id": "srvtoolu_2"}])
        third = turn(call, blocks=[{**SERVER_RESULT, "tool_use_id": "srvtoolu_2"}, use("toolu_1")])
        roles = [role for role, _ in sent(USER, first, second, third, result(call))]
        assert roles == ["user", "assistant", "user"]
        assert [block["type"] for block in sent(USER, first, second, third, result(call))[1][1]] == [
            "server_tool_use",
            "web_search_tool_result",
            "server_tool_use",
            "web_search_tool_result",
            "tool_use",
        ]

    def test_an_open_call_of_a_servers_tool_is_left_out_once_something_else_was_said(self):
        """B14: the note of the last permitted call, say."""
        assert sent(USER, turn(text="a", blocks=[said("a"), SERVER_CALL]), USER)[1] == ("assistant", [said("a")])
        assert sent(USER, turn(blocks=[SERVER_RESULT, said("a")]), USER)[1] == ("assistant", [said("a")])

    def test_an_open_call_stays_while_only_results_follow(self):
        """The API runs it when it is sent the results of the turn's other calls."""
        call = made_call()
        paused = turn(call, blocks=[SERVER_CALL, use("toolu_1")])
        assert sent(USER, paused, result(call))[1][1] == [SERVER_CALL, use("toolu_1")]
        assert sent(USER, paused, result(call), USER)[1][1] == [use("toolu_1")]


class TestCallsAndResults:
    def test_every_call_is_answered_in_the_next_message_all_together(self):
        """B08, B11: also where the turn has no text."""
        calls = [made_call(n, f"toolu_{n}", {"n": n}) for n in range(3)]
        turned = turn(*calls, by=OTHER)
        assert sent(USER, turned, *[result(call) for call in reversed(calls)], USER)[1:] == [
            ("assistant", [use(f"call_{n}", n=n) for n in range(3)]),
            ("user", [*[answered(f"call_{n}") for n in range(3)], said("hi")]),
        ]

    def test_a_call_without_a_result_gets_one_that_says_so(self):
        """B05, B07: on every request anew."""
        for _ in range(2):
            asked = sent(USER, turn(made_call(), by=OTHER), USER)
            assert asked[2] == ("user", [answered("call_1", INTERRUPTED, is_error=True), said("hi")])

    def test_a_result_without_a_call_is_left_out(self):
        """B05."""
        assert sent(result(made_call()), USER, result(made_call(2))) == [("user", [said("hi")])]

    @pytest.mark.parametrize(
        ("content", "is_error"),
        [
            ('{"error":"no such city"}', True),
            ('{"error":{"city":["unknown"]}}\n\nThis was the 2nd empty result.', True),
            ('{"error":null}', False),
            ('{"error":"partly","items":[1]}', False),
            ('{"error":"cut', False),
            ('{"items":[]}', False),
            ("error", False),
        ],
    )
    def test_a_failed_result_says_that_it_failed(self, content, is_error):
        call = made_call()
        block = sent(USER, turn(call, by=OTHER), result(call, content))[2][1][0]
        assert block == answered("call_1", content, **({"is_error": True} if is_error else {}))

    def test_a_blank_result_has_no_content(self):
        call = made_call()
        assert sent(USER, turn(call, by=OTHER), result(call, " "))[2][1] == [answered("call_1", None)]

    def test_a_result_may_hold_a_picture(self):
        call = made_call()
        picture = ("", "seen", Image(data="QUJD", media_type="image/png"))
        block = sent(USER, turn(call, by=OTHER), result(call, picture))[2][1][0]
        assert [part["type"] for part in block["content"]] == ["text", "image"]

    @pytest.mark.parametrize("provider_id", ["functions.x:1", "call_abc|é", None, ""])
    def test_ids_are_made_valid_and_equal_on_both_sides(self, provider_id):
        """B22: by this model or another, and the same each time."""
        call = made_call(1, provider_id, {})
        for turned in (turn(call, by=OTHER), turn(call, blocks=[use(provider_id)] if provider_id else None)):
            asked = sent(USER, turned, result(call))
            assert re.fullmatch("[a-zA-Z0-9_-]+", asked[1][1][0]["id"])
            assert asked[1][1][0]["id"] == asked[2][1][0]["tool_use_id"]
            assert asked == sent(USER, turned, result(call))

    def test_the_model_that_gave_an_id_gets_it_back(self):
        """B22."""
        call = made_call(1, "toolu_01AbC", {})
        assert sent(USER, turn(call, blocks=[use("toolu_01AbC")]), result(call))[1][1][0]["id"] == "toolu_01AbC"

    def test_an_id_that_is_used_again_is_made_another(self):
        """A43, A42: ids are unique in the whole request, and each result goes with its own call."""
        turns = []
        for n in range(3):
            call = made_call(n, "call_0")
            turns += [turn(call, blocks=[use("call_0")]), result(call, f"r{n}")]
        asked = sent(USER, *turns)
        assert [blocks[0]["id"] for _, blocks in asked[1::2]] == ["call_0", "call_0_2", "call_0_3"]
        assert [blocks[0] for _, blocks in asked[2::2]] == [
            answered("call_0", "r0"), answered("call_0_2", "r1"), answered("call_0_3", "r2"),
        ]  # fmt: skip

    def test_an_input_is_always_an_object_and_a_name_acceptable(self):
        call = made_call(name="a.b ç")
        assert sent(USER, turn(call, by=OTHER), result(call))[1][1] == [use("call_1", "a_b__")]
        broken = {**use("toolu_1", "x y"), "input": "no object"}
        assert sent(USER, turn(made_call(), blocks=[broken]), result(call))[1][1] == [use("toolu_1", "x_y")]


class TestNativeReplay:
    def test_the_model_that_wrote_them_gets_its_blocks_back_in_their_order(self):
        """B10, B04, I14: text behind a call, a server's tool behind a call, thoughts with their signature."""
        blocks = [
            {**THOUGHT, "extra": {"kept": None}},
            {"type": "redacted_thinking", "data": "enc=="},
            {"type": "text", "text": "Lo", "citations": [{"url": "u"}]},
            use("toolu_1", z=1, a=[1.5, "é"]),
            said("and then"),
            SERVER_CALL,
            SERVER_RESULT,
        ]
        call = made_call()
        assert sent(USER, turn(call, text="Loand then", blocks=blocks), result(call))[1][1] == blocks

    def test_another_model_gets_none_of_them(self):
        call = made_call(arguments={"a": 1})
        turned = turn(call, text="T", blocks=[THOUGHT, said("T"), use("toolu_1", a=1)], by="anthropic/claude-sonnet-4-5")
        assert sent(USER, turned, result(call))[1][1] == [said("T"), use("call_1", a=1)]

    def test_native_fields_of_another_kind_are_passed_over(self):
        turned = Message("assistant", "T", native={"reasoning_content": "hm", "blocks": "x"}, native_model=ME)
        assert sent(USER, turned, USER)[1][1] == [said("T")]

    def test_a_call_that_is_gone_goes_and_a_new_one_comes(self):
        """What a hook made of the reply is what the model is told."""
        turned = turn(made_call(2, "toolu_2"), made_call(3, None), blocks=[use("toolu_1"), use("toolu_2")])
        asked = sent(USER, turned)
        assert asked[1][1] == [use("toolu_2"), use("call_3")]
        assert [block["tool_use_id"] for block in asked[2][1]] == ["toolu_2", "call_3"]

    def test_thinking_does_not_end_a_message(self):
        assert sent(USER, turn(text="a", blocks=[said("a"), THOUGHT]), USER)[1][1] == [said("a")]
        assert [role for role, _ in sent(USER, turn(blocks=[THOUGHT]), USER)] == ["user"]


class TestPromptCache:
    def test_what_stays_is_marked_at_its_end(self):
        call = made_call()
        history = [Message("system", "S1"), Message("system", "S2"), USER, turn(call, by=OTHER), result(call)]
        asked = body(*history, tools=(SEARCH, OTHER_TOOL))
        assert ["cache_control" in tool for tool in asked["tools"]] == [False, True]
        assert ["cache_control" in block for block in asked["system"]] == [False, True]
        assert [["cache_control" in block for block in message["content"]] for message in asked["messages"]] == [
            [True], [False], [True],
        ]  # fmt: skip

    def test_there_are_four_marks_at_most_however_long_the_run_is(self):
        """B19."""
        history = [Message("system", "S"), USER]
        for n in range(10):
            call = made_call(n)
            history += [turn(call, by=OTHER), result(call)]
            asked = body(*history)
            assert json.dumps(asked).count('"cache_control"') == 4

    def test_no_mark_stands_on_thinking_or_on_what_is_blank(self):
        """B19."""
        asked = body(USER, turn(text="a", blocks=[said("a"), SERVER_CALL]))
        assert ["cache_control" in block for block in asked["messages"][1]["content"]] == [True, False]
        call = made_call()
        asked = body(USER, turn(call, by=OTHER), result(call, ""))
        assert "cache_control" not in json.dumps(asked["messages"][2])

    def test_the_beginning_of_a_longer_conversation_is_the_same(self):
        call = made_call(1, "call_0")
        history = [USER, turn(call, blocks=[use("call_0")]), result(call)]
        later = made_call(2, "call_0")
        longer = [*history, turn(later, blocks=[use("call_0")]), result(later)]
        assert sent(*longer)[:3] == sent(*history)

    def test_a_caller_who_marks_by_himself_is_left_to_it(self):
        asked = body(Message("system", "S"), USER, options={"cache_control": {"type": "ephemeral"}})
        assert json.dumps(asked).count('"cache_control"') == 3
        assert "cache_control" not in json.dumps(asked["messages"])


class TestTools:
    def test_without_tools_nothing_speaks_of_them(self):
        asked = body(USER, tools=(), choice="required", options={"parallel_tool_calls": False})
        assert not asked.keys() & {"tools", "tool_choice", "parallel_tool_calls"}

    def test_a_history_of_calls_brings_its_tools_along(self):
        """The API refuses calls without any tool."""
        call = made_call()
        asked = body(USER, turn(call, by=OTHER), result(call), tools=())
        assert [(tool["name"], tool["input_schema"]) for tool in asked["tools"]] == [("search", {"type": "object"})]
        assert asked["tool_choice"] == {"type": "none"}

    @pytest.mark.parametrize(
        ("choice", "wire"),
        [
            ("auto", {"type": "auto"}),
            ("none", {"type": "none"}),
            ("required", {"type": "any"}),
            ("search", {"type": "tool", "name": "search"}),
        ],
    )
    def test_a_choice_has_the_apis_name(self, choice, wire):
        assert body(USER, choice=choice)["tool_choice"] == wire

    def test_one_call_at_a_time_can_be_asked_for(self):
        options = {"parallel_tool_calls": False}
        assert body(USER, options=options)["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
        assert body(USER, choice="none", options=options)["tool_choice"] == {"type": "none"}

    def test_a_tools_schema_is_an_object_without_alternatives_at_the_top(self):
        assert body(USER, tools=(OTHER_TOOL,))["tools"][0]["input_schema"] == {"type": "object", "properties": {}}

    def test_the_apis_own_search_is_a_tool_beside_the_others(self):
        options = {"web_search_options": {"max_uses": 3, "search_context_size": "low"}}
        asked = body(USER, capabilities=("web_search",), options=options, choice="required")
        assert asked["tools"][1] == {**CAPABILITIES["web_search"], "max_uses": 3, "cache_control": {"type": "ephemeral"}}
        alone = body(USER, tools=(), capabilities=("web_search",), choice="required")
        assert (len(alone["tools"]), alone["tool_choice"]) == (1, {"type": "auto"})

    def test_a_tool_of_the_caller_keeps_its_name(self):
        mine = OfferedTool("web_search", "Mine.", {"type": "object"}, CheckedArguments)
        assert len(body(USER, tools=(mine,), capabilities=("web_search",))["tools"]) == 1


class TestOptions:
    def test_options_have_the_apis_names_and_others_are_passed_on(self):
        options = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["x", " "], "metadata": {"user_id": "u"}}
        asked = body(USER, options=options)
        assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.5, 0.9, 5)
        assert (asked["stop_sequences"], asked["metadata"]) == (["x"], {"user_id": "u"})
        assert body(USER, options={"stop": "END"})["stop_sequences"] == ["END"]
        assert "stop_sequences" not in body(USER, options={"stop": []})

    def test_what_would_break_the_loop_and_what_is_translated_is_not_sent_on(self):
        options = dict.fromkeys([*RESERVED_OPTIONS, *OWN_OPTIONS], "x")
        plain = body(USER)
        assert {key: value for key, value in body(USER, options=options).items() if key not in plain} == {
            "stop_sequences": ["x"],
            "thinking": {"type": "enabled", "budget_tokens": 6144},
        }

    @pytest.mark.parametrize(
        ("model", "tokens"),
        [
            ("claude-3-opus-20240229", 4096),
            ("claude-3-5-sonnet-20241022", 8192),
            ("claude-3-7-sonnet-20250219", 16_384),
            ("claude-sonnet-4-20250514", 16_384),
            ("anthropic.claude-opus-4-5-20251101-v1:0", 16_384),
            ("anthropic/claude-4.6-opus", 32_768),
            ("claude-opus-5", 32_768),
            ("claude-mythos-preview", 32_768),
            ("MiniMax-M2", 8192),
        ],
    )
    def test_there_is_always_an_output_limit(self, model, tokens):
        assert body(USER, model=model)["max_tokens"] == tokens
        assert body(USER, model=model, options={"max_output_tokens": 9})["max_tokens"] == 9
        assert body(USER, model=model, options={"max_tokens": 8})["max_tokens"] == 8

    def test_sampling_is_left_out_for_models_that_refuse_it(self):
        assert "temperature" not in body(USER, model="claude-opus-4-7", options={"temperature": 0.5})
        assert body(USER, model="claude-opus-4-6", options={"temperature": 0.5})["temperature"] == 0.5


class TestThinking:
    @pytest.mark.parametrize(
        ("more", "budget"),
        [
            ({"capabilities": ("reasoning",)}, 6144),
            ({"options": {"reasoning_effort": "low"}}, 2048),
            ({"options": {"reasoning_effort": "high"}, "capabilities": ("reasoning",)}, 12_288),
            ({"options": {"reasoning_effort": 5000}}, 5000),
        ],
    )
    def test_it_has_a_budget_and_room_for_the_answer(self, more, budget):
        asked = body(USER, **more)
        assert asked["thinking"] == {"type": "enabled", "budget_tokens": budget}
        assert asked["max_tokens"] == 16_384 + budget
        assert "reasoning_effort" not in asked

    @pytest.mark.parametrize(("limit", "budget"), [(2000, 1500), (1200, 1024), (50_000, 6144), (1024, None), (10, None)])
    def test_a_limit_of_the_caller_bounds_it(self, limit, budget):
        asked = body(USER, capabilities=("reasoning",), options={"max_output_tokens": limit})
        assert asked["max_tokens"] == limit
        assert asked.get("thinking", {}).get("budget_tokens") == budget

    def test_it_takes_no_temperature_and_cannot_be_forced_to_call(self):
        asked = body(USER, choice="required", capabilities=("reasoning",), options={"temperature": 1.0, "top_k": 3})
        assert not asked.keys() & {"temperature", "top_k"}
        assert asked["tool_choice"] == {"type": "auto"}

    def test_newer_models_take_an_effort(self):
        asked = body(USER, model="claude-opus-4-6", options={"reasoning_effort": "xhigh"}, capabilities=("reasoning",))
        assert (asked["thinking"], asked["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})
        asked = body(USER, model="claude-opus-4-8", options={"reasoning_effort": "xhigh"})
        assert asked["thinking"] == {"type": "adaptive", "display": "summarized"}
        assert asked["output_config"] == {"effort": "xhigh"}
        assert "output_config" not in body(USER, model="claude-opus-5", capabilities=("reasoning",))

    def test_none_asks_for_none(self):
        assert "thinking" not in body(USER, options={"reasoning_effort": "none"}, capabilities=("reasoning",))

    def test_the_callers_own_thinking_is_passed_on(self):
        own = {"type": "enabled", "budget_tokens": 3000}
        asked = body(USER, options={"thinking": own, "temperature": 1}, capabilities=("reasoning",), choice="required")
        assert (asked["thinking"], asked["max_tokens"]) == (own, 19_384)
        assert (asked["tool_choice"], "temperature" in asked) == ({"type": "auto"}, False)
        off = body(USER, options={"thinking": {"type": "disabled"}, "temperature": 1}, capabilities=("reasoning",))
        assert (off["thinking"], off["temperature"]) == ({"type": "disabled"}, 1)

    def test_within_a_turn_it_goes_on_only_if_the_turn_began_with_it(self):
        """After a failover to another model, say."""
        own, foreign = made_call(1), made_call(2)
        first = [USER, turn(own, blocks=[THOUGHT, use("toolu_1")]), result(own)]
        assert "thinking" in body(*first, capabilities=("reasoning",))
        mixed = [*first, turn(foreign, by=OTHER), result(foreign)]
        asked = body(*mixed, capabilities=("reasoning",))
        assert "thinking" not in asked
        assert THOUGHT not in asked["messages"][1]["content"]
        assert "thinking" in body(*mixed, USER, turn(text="a"), USER, capabilities=("reasoning",))
        assert "thinking" in body(*mixed, model="claude-opus-4-6", capabilities=("reasoning",))


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1, "description": "How many."},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 1, "maxItems": 3},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "one": {"oneOf": [{"$ref": "#/$defs/p"}, {"type": "null"}]},
    },
    "required": ["n"],
    "$defs": {"p": {"type": "object", "properties": {"x": {"const": 1}}, "additionalProperties": True}},
}


class TestAnswerSchema:
    def test_a_model_that_can_is_held_to_it(self):
        asked = body(USER, response_schema=SCHEMA, options={"output_config": {"effort": "low"}})
        assert asked["output_config"]["effort"] == "low"
        assert asked["output_config"]["format"] == {"type": "json_schema", "schema": translated(SCHEMA)}
        assert "system" not in asked

    def test_it_is_said_in_the_apis_terms(self):
        assert translated(SCHEMA) == {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "description": 'How many. {"minimum": 1}'},
                "tags": {
                    "type": "array",
                    "items": {"type": "string", "description": '{"maxLength": 9}'},
                    "minItems": 1,
                    "description": '{"maxItems": 3}',
                },
                "at": {"type": ["string", "null"], "format": "date-time"},
                "one": {"anyOf": [{"$ref": "#/$defs/p"}, {"type": "null"}]},
            },
            "required": ["n"],
            "$defs": {"p": {"type": "object", "properties": {"x": {"const": 1}}, "additionalProperties": False}},
            "additionalProperties": False,
        }

    @pytest.mark.parametrize(
        "schema",
        [
            {},
            {"type": "object"},
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "object", "properties": {"x": {}}},
            {"type": "array", "items": {"not": {"type": "string"}}},
            {"$ref": "http://h/schema"},
            {"enum": [{"a": 1}]},
            {"type": "string", "if": {}},
        ],
    )
    def test_what_cannot_be_said_so_is_told_in_words(self, schema):
        asked = body(USER, response_schema=schema)
        assert "output_config" not in asked
        assert json.dumps(schema) in asked["system"][-1]["text"]

    @pytest.mark.parametrize("model", ["claude-3-5-sonnet-20241022", "claude-sonnet-4-20250514", "kimi-k2"])
    def test_a_model_that_cannot_is_told_in_words(self, model):
        asked = body(Message("system", "S"), USER, response_schema=SCHEMA, model=model)
        assert "output_config" not in asked
        assert len(asked["system"]) == 2


def judge(asked: dict[str, Any]) -> None:
    """Raises AssertionError for a request that the API would refuse."""
    messages = asked["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2) + ["user"] * (
        len(messages) % 2
    )
    judge_blocks(asked)
    judge_pairs(messages)
    judge_server_tools(messages)
    assert json.dumps(asked).count('"cache_control"') <= 4
    if any(block["type"] in ("tool_use", "tool_result") for message in messages for block in message["content"]):
        assert asked["tools"]


def judge_blocks(asked: dict[str, Any]) -> None:
    for message in asked["messages"]:
        assert message["content"]
        for block in message["content"]:
            if block["type"] == "text":
                assert block["text"].strip()
            if block["type"] == "tool_use":
                assert re.fullmatch("[a-zA-Z0-9_-]+", block["id"])
                assert re.fullmatch("[a-zA-Z0-9_-]{1,128}", block["name"])
                assert isinstance(block["input"], dict)
            if block["type"] in ("thinking", "redacted_thinking", "server_tool_use"):
                assert "cache_control" not in block
        if message["role"] == "assistant":
            assert message["content"][-1]["type"] not in ("thinking", "redacted_thinking")
    last = asked["messages"][-1]
    if last["role"] == "assistant" and last["content"][-1]["type"] == "text":
        assert last["content"][-1]["text"] == last["content"][-1]["text"].rstrip()
    for block in asked.get("system", ()):
        assert block["text"].strip()
    thinks = asked.get("thinking", {}).get("type") == "enabled"
    if thinks and last["content"][0]["type"] == "tool_result":
        assert asked["messages"][-2]["content"][0]["type"] in ("thinking", "redacted_thinking")


def judge_pairs(messages: list[Any]) -> None:
    seen: set[str] = set()
    for message, following in zip(messages, [*messages[1:], {"content": []}], strict=True):
        uses = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        assert not seen & set(uses)
        assert len(set(uses)) == len(uses)
        seen |= set(uses)
        results = [block["tool_use_id"] for block in following["content"] if block["type"] == "tool_result"]
        assert sorted(results) == sorted(uses)
        assert all(block["type"] == "tool_result" for block in following["content"][: len(results)])
        assert message["role"] == "assistant" or not uses
    assert not any(block["type"] == "tool_result" for block in messages[0]["content"])


def judge_server_tools(messages: list[Any]) -> None:
    open_ids: set[str] = set()
    for at, message in enumerate(messages):
        for block in message["content"]:
            if block["type"] == "server_tool_use":
                open_ids.add(block["id"])
            elif block["type"] == "web_search_tool_result":
                assert block["tool_use_id"] in open_ids
                open_ids.discard(block["tool_use_id"])
        following = [block["type"] for later in messages[at + 1 :] for block in later["content"]]
        if message["role"] == "assistant" and set(following) - {"tool_result"}:
            answered_later = {block.get("tool_use_id") for later in messages[at + 1 :] for block in later["content"]}
            assert open_ids <= answered_later


def users_words(history: list[Message]) -> list[str]:
    return [part for message in history if message.role == "user" for part in said_in(message.content)]


def said_in(content: Any) -> list[str]:
    return [part for part in ([content] if isinstance(content, str) else content) if isinstance(part, str) and part.strip()]


texts = st.sampled_from(["", " ", "a", "b \n"])
ids = st.sampled_from([None, "", "toolu_1", "toolu_2", "call_0", "functions.x:1"])
calls = st.builds(
    lambda n, given, name, arguments: ToolCall(f"call_{n}", name, arguments, "", given),
    st.integers(0, 3),
    ids,
    st.sampled_from(["search", "", "no such ç"]),
    st.sampled_from([None, {}, {"a": 1}]),
)
contents = texts | st.lists(texts | st.builds(Image, url=st.just("http://h/x.png")), max_size=3).map(tuple)
counter = iter(range(10**9))


def native(kinds: list[str], calls: list[ToolCall]) -> list[dict[str, Any]]:
    """Blocks as a model may have written them; server tools' ids are never given twice."""
    blocks: list[dict[str, Any]] = []
    for kind in kinds:
        server_id = f"srvtoolu_{next(counter)}"
        call = {**SERVER_CALL, "id": server_id}
        answer = {**SERVER_RESULT, "tool_use_id": server_id}
        blocks += {
            "thought": [THOUGHT],
            "text": [said("a ")],
            "blank": [said("")],
            "call": [use(call_.provider_id or "", call_.name) for call_ in calls[:1]],
            "calls": [use(call_.provider_id or "toolu_9") for call_ in calls],
            "search": [call, answer],
            "open": [call],
            "answer": [answer],
        }[kind]
    return blocks


KINDS = ["thought", "text", "blank", "call", "calls", "search", "open", "answer"]
assistants = st.builds(
    lambda text, calls, kinds, by: turn(*calls, text=text, blocks=native(kinds, calls), by=by),
    texts,
    st.lists(calls, max_size=3),
    st.lists(st.sampled_from(KINDS), max_size=5),
    st.sampled_from([ME, OTHER]),
)
results = st.builds(lambda n, text: Message("tool", text, tool_call_id=n and f"call_{n}"), st.integers(0, 4), contents)
systems = st.builds(Message, st.just("system"), st.sampled_from(["", "S"]))
users = st.builds(Message, st.just("user"), contents)
histories = st.lists(assistants | results | systems | users, max_size=12)


class TestAnyHistory:
    @settings(max_examples=300, deadline=None)
    @given(
        histories,
        st.sampled_from([(), (SEARCH,)]),
        st.sampled_from([(), ("reasoning",), ("web_search",)]),
        st.sampled_from(["auto", "none", "required"]),
    )
    def test_the_api_takes_it(self, history, tools, capabilities, choice):
        """B05, B07, B08, B10, B11, B13, B19, B22: whatever is broken."""
        asked = body(*history, tools=tools, capabilities=capabilities, choice=choice)
        judge(asked)
        told = [block["text"] for m in asked["messages"] if m["role"] == "user" for block in m["content"] if "text" in block]
        assert [text for text in told if text in ("a", "b \n")] == users_words(history)
        assert asked == body(*history, tools=tools, capabilities=capabilities, choice=choice)
        if "thinking" in asked:
            assert asked.get("tool_choice", {}).get("type") not in ("any", "tool")
