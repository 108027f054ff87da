"""What a chat-completions server is sent."""

import re

import pytest

from app.loop.messages import Image, Message, ToolCall
from app.providers.openai_request import wire_name
from tests.providers.chat_request import OTHER, SEARCH, body, made_call, result, turn


class TestMessages:
    def test_each_role_has_its_form(self):
        picture = ("look", Image(url="http://x/y.png"), Image(data="QUJD", media_type="image/webp"))
        sent = body(Message("system", "S"), Message("user", "U"), Message("user", picture), turn(text="A"))["messages"]
        assert sent[0] == {"role": "system", "content": "S"}
        assert sent[1] == {"role": "user", "content": "U"}
        assert sent[2]["content"] == [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/webp;base64,QUJD"}},
        ]
        assert sent[3] == {"role": "assistant", "content": "A"}

    def test_an_empty_assistant_turn_is_not_sent(self):
        """A40."""
        assert body(Message("user", "a"), turn(text=" \n"), Message("user", "b"))["messages"] == [
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
        ]

    def test_a_result_without_its_call_is_not_sent(self):
        assert body(Message("tool", "x", tool_call_id="call_9"))["messages"] == []


class TestPicturesInResults:
    def test_they_are_shown_by_the_user_behind_all_results(self):
        """The API takes texts only in a result, and nothing between the results of a turn."""
        first, second = (ToolCall(f"call_{n}", "search", {}, "{}", f"p{n}") for n in (1, 2))
        seen, plain = (Image(url="http://x/y.png"), "seen"), (Image(data="QUJD", media_type="image/png"),)
        asked = body(turn(first, second), result(first, seen), result(second, plain), Message("user", "well?"))["messages"]
        assert [message["role"] for message in asked] == ["assistant", "tool", "tool", "user", "user"]
        assert [message["content"] for message in asked[1:3]] == ["seen", "(The result is the picture below.)"]
        assert [part["type"] for part in asked[3]["content"]] == ["text", "image_url", "image_url"]
        assert asked[4]["content"] == "well?"

    def test_behind_the_last_result_too(self):
        call = made_call()
        assert body(turn(call), result(call, (Image(url="http://x/y.png"),)))["messages"][-1]["role"] == "user"


class TestCalls:
    def test_arguments_are_always_an_object_in_a_text(self):
        """A14, A16, A17: what was no object goes back as an empty one."""
        for arguments, sent in ((None, "{}"), ({}, "{}"), ({"city": "México"}, '{"city":"México"}')):
            call = made_call(arguments=arguments)
            assert body(turn(call), result(call))["messages"][0]["tool_calls"][0]["function"]["arguments"] == sent

    @pytest.mark.parametrize("provider_id", ["functions.x:1", "call_0", "a" * 70])
    def test_a_model_gets_back_the_ids_it_gave(self, provider_id):
        """A38, B22: untouched for the one that issued them."""
        call = made_call(provider_id)
        sent = body(turn(call), result(call))["messages"]
        assert sent[0]["tool_calls"][0]["id"] == sent[1]["tool_call_id"] == provider_id

    @pytest.mark.parametrize("provider_id", ["functions.x:1", None, "a" * 70])
    def test_another_model_gets_ids_that_every_server_accepts(self, provider_id):
        """B22: the same on both sides, and the same each time."""
        call = made_call(provider_id)
        sent = body(turn(call, by=OTHER), result(call))["messages"]
        assert re.fullmatch("[A-Za-z0-9_-]{1,40}", sent[0]["tool_calls"][0]["id"])
        assert sent[0]["tool_calls"][0]["id"] == sent[1]["tool_call_id"]
        assert sent == body(turn(call, by=OTHER), result(call))["messages"]

    def test_one_id_for_two_calls_of_a_message_is_made_two(self):
        """A42."""
        first, second = (ToolCall(f"call_{n}", "search", {}, "{}", "same") for n in (1, 2))
        sent = body(turn(first, second), result(first), result(second))["messages"]
        assert [call["id"] for call in sent[0]["tool_calls"]] == ["same", "same_2"]
        assert [message["tool_call_id"] for message in sent[1:]] == ["same", "same_2"]

    def test_the_same_id_in_later_turns_pairs_with_its_own_result(self):
        """A43."""
        calls = [ToolCall(f"call_{n}", "search", {}, "{}", "call_0") for n in range(3)]
        sent = body(*[message for call in calls for message in (turn(call), result(call))])["messages"]
        assert len(sent) == 6
        assert {m["tool_call_id"] for m in sent[1::2]} == {"call_0"}

    def test_a_name_that_the_model_made_up_is_made_acceptable(self):
        """H13."""
        call = made_call(name="a.b ç")
        assert body(turn(call), result(call))["messages"][0]["tool_calls"][0]["function"]["name"] == "a_b__"
        assert (wire_name(""), len(wire_name("x" * 99))) == ("unknown", 64)


class TestNativeFields:
    def test_the_model_that_wrote_them_gets_them_back(self):
        """A37, A38."""
        signature = {"google": {"thought_signature": "sig"}}
        call = made_call(extra_content=signature, function={"note": 1})
        sent = body(turn(call, reasoning_content="hm", reasoning_details=[{"n": 1}]), result(call))["messages"][0]
        assert (sent["reasoning_content"], sent["reasoning_details"]) == ("hm", [{"n": 1}])
        assert sent["tool_calls"][0]["extra_content"] == signature
        assert sent["tool_calls"][0]["function"] == {"note": 1, "name": "search", "arguments": "{}"}

    def test_another_model_gets_none_of_them(self):
        call = made_call(extra_content={"x": 1})
        sent = body(turn(call, by=OTHER, reasoning_content="hm"), result(call))["messages"][0]
        assert sent.keys() == {"role", "content", "tool_calls"}
        assert sent["tool_calls"][0].keys() == {"id", "type", "function"}

    def test_a_reasoning_model_gets_the_field_on_each_turn_with_calls(self):
        """A37: empty where the turn was another model's, or held no thought."""
        call = made_call()
        foreign, own = turn(call, by=OTHER), turn(call, reasoning_content="hm")
        assert body(foreign, result(call), own, result(call))["messages"][0]["reasoning_content"] == ""
        options = {"reasoning_content": "always"}
        asked = body(foreign, result(call), turn(text="prose"), options=options)
        assert asked["messages"][0]["reasoning_content"] == ""
        assert "reasoning_content" not in asked["messages"][2]
        assert "reasoning_content" not in asked

    def test_they_cannot_take_the_place_of_the_message(self):
        assert body(turn(text="A", role="system", content="B"))["messages"] == [{"role": "assistant", "content": "A"}]


class TestTools:
    def test_without_tools_nothing_speaks_of_them(self):
        """H14."""
        sent = body(choice="required", options={"parallel_tool_calls": False})
        assert not sent.keys() & {"tools", "tool_choice", "parallel_tool_calls"}

    @pytest.mark.parametrize("choice", ["auto", "none", "required"])
    def test_a_choice_is_passed_on(self, choice):
        sent = body(tools=(SEARCH,), choice=choice)
        assert sent["tool_choice"] == choice
        assert sent["tools"][0]["function"] == {"name": "search", "description": "Finds.", "parameters": SEARCH.parameters}

    def test_a_named_tool_is_chosen(self):
        sent = body(tools=(SEARCH,), choice="search", options={"parallel_tool_calls": False})
        assert sent["tool_choice"] == {"type": "function", "function": {"name": "search"}}
        assert sent["parallel_tool_calls"] is False


class TestOptions:
    def test_options_are_passed_on_and_what_would_break_the_loop_is_not(self):
        sent = body(options={"temperature": 0.5, "stop": ["x"], "seed": 7, "stream": False, "n": 3, "think_tags": True})
        assert (sent["temperature"], sent["stop"], sent["seed"], sent["stream"]) == (0.5, ["x"], 7, True)
        assert not sent.keys() & {"n", "think_tags"}

    @pytest.mark.parametrize(
        ("base_url", "key"),
        [
            ("https://api.openai.com/v1", "max_completion_tokens"),
            ("https://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
            ("http://h/v1", "max_tokens"),
            ("http://api.openai.com.example/v1", "max_tokens"),
        ],
    )
    def test_the_output_limit_has_the_servers_name(self, base_url, key):
        sent = body(options={"max_output_tokens": 9}, base_url=base_url)
        assert sent[key] == 9
        assert "max_output_tokens" not in sent

    def test_capabilities_are_asked_for_and_an_option_wins(self):
        assert body(capabilities=("web_search", "reasoning"))["web_search_options"] == {}
        assert body(capabilities=("reasoning",))["reasoning_effort"] == "medium"
        assert body(capabilities=("reasoning",), options={"reasoning_effort": "low"})["reasoning_effort"] == "low"

    def test_a_schema_of_the_answer_becomes_the_response_format(self):
        assert body(response_schema={"type": "object"})["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": False, "schema": {"type": "object"}},
        }
