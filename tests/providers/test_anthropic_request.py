"""What a Messages API server is sent: messages, calls and results, replayed blocks, the cache's marks, tools."""

import json
import re

import pytest

from app.loop.messages import Image, Message
from app.loop.ports import CheckedArguments, OfferedTool
from app.providers.anthropic_messages import CONTINUE, START
from app.providers.anthropic_request import CAPABILITIES
from app.providers.conversation import INTERRUPTED
from tests.providers.messages_request import (
    ME,
    MODEL,
    OTHER,
    OTHER_TOOL,
    SEARCH,
    SERVER_CALL,
    SERVER_RESULT,
    THOUGHT,
    USER,
    answered,
    body,
    made_call,
    result,
    said,
    sent,
    turn,
    use,
)


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
        history = (Message("system", " "), USER, Message("user", ""), turn(text=" "), turn(blocks=blocks), USER)
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
        call = made_call(name="x y")
        assert sent(USER, turn(call, blocks=[broken]), result(call))[1][1] == [use("toolu_1", "x_y")]


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
        call = made_call(arguments={"a": [1.5, "é"], "z": 1})
        asked = body(USER, turn(call, text="Loand then", blocks=blocks), result(call))
        assert json.dumps(asked["messages"][1]["content"]) == json.dumps(blocks)

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

    def test_a_text_that_was_changed_stands_in_the_place_of_the_old_one(self):
        """What a hook made of the reply is all that the model is told; its thoughts are left as they were."""
        call = made_call(arguments={})
        blocks = [THOUGHT, said("My pass"), said("word"), use("toolu_1")]
        changed = turn(call, text="My [hidden]", blocks=blocks)
        assert sent(USER, changed, result(call))[1][1] == [THOUGHT, said("My [hidden]"), use("toolu_1")]
        gone = turn(call, text="", blocks=blocks)
        assert sent(USER, gone, result(call))[1][1] == [THOUGHT, use("toolu_1")]
        new = turn(call, text="I call.", blocks=[THOUGHT, use("toolu_1")])
        assert sent(USER, new, result(call))[1][1] == [THOUGHT, said("I call."), use("toolu_1")]
        assert sent(USER, turn(text="b", blocks=[THOUGHT]), USER)[1][1] == [THOUGHT, said("b")]

    def test_so_does_what_was_changed_in_a_call(self):
        call = made_call(arguments={"q": "new"}, name="find")
        assert sent(USER, turn(call, blocks=[use("toolu_1", q="old")]), result(call))[1][1] == [
            use("toolu_1", "find", q="new")
        ]
        alike = made_call(arguments={}, name="order_status")
        assert sent(USER, turn(alike, blocks=[use("toolu_1", "orderStatus")]), result(alike))[1][1] == [
            use("toolu_1", "orderStatus")
        ]

    def test_thinking_does_not_end_a_message(self):
        assert sent(USER, turn(text="a", blocks=[said("a"), THOUGHT]), USER)[1][1] == [said("a")]
        assert [role for role, _ in sent(USER, turn(blocks=[THOUGHT]), USER)] == ["user"]


class TestPromptCache:
    def test_what_stays_is_marked_at_its_end(self):
        call = made_call()
        history = [Message("system", "S1"), Message("system", "S2"), USER, turn(call, by=OTHER), result(call)]
        asked = body(*history, tools=(SEARCH, OTHER_TOOL))
        assert ["cache_control" in tool for tool in asked["tools"]] == [False, True]
        assert ["cache_control" in block for block in asked["system"]] == [True, False]
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
