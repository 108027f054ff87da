"""What a Messages API server is sent: options, thinking, and the shape of the answer, as each model takes them."""

import json

import pytest

from app.loop.messages import Message
from app.providers.answer_schema import translated
from app.providers.anthropic_request import OWN_OPTIONS, RESERVED_OPTIONS
from tests.providers.messages_request import (
    OTHER,
    THOUGHT,
    USER,
    body,
    made_call,
    result,
    turn,
    use,
)


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
