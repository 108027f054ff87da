import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.infra.errors import Invalid
from app.tools.coercion import read_as
from app.tools.schema import compile_schema, compiled

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "price_max": {"type": "integer", "minimum": 0},
        "area": {"type": "number"},
        "garden": {"type": "boolean"},
        "floors": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "filters": {"type": "object", "properties": {"rooms": {"$ref": "#/$defs/rooms"}}},
        "budget": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "kind": {"enum": ["flat", "house"]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"rooms": {"type": ["integer", "null"]}},
}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


class TestAcceptingSchemas:
    def test_an_ordinary_schema_is_kept_as_it_is(self) -> None:
        assert compile_schema(SEARCH).schema == SEARCH

    def test_an_empty_schema_is_a_tool_without_arguments(self) -> None:
        accepted = compile_schema({})
        assert accepted.schema == {"type": "object", "properties": {}}
        assert accepted.check({}).problems == ()

    @pytest.mark.parametrize(
        "schema", [{"properties": {"a": {}}}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}, {"required": []}, {"anyOf": [{}]}]
    )
    def test_a_type_that_is_left_out_is_completed(self, schema: dict[str, Any]) -> None:
        assert compile_schema(schema).schema == {"type": "object", **schema}

    def test_the_dialect_that_common_generators_name_is_understood(self) -> None:
        schema = {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "definitions": {"n": {"type": "integer"}},
            "properties": {"a": {"$ref": "#/definitions/n"}},
        }
        assert compile_schema(schema).check({"a": "x"}).problems == ('a: "x" is not an integer',)

    @pytest.mark.parametrize(
        ("schema", "place", "said"),
        [
            ([], (), "JSON Schema of an object"),
            (None, (), "JSON Schema of an object"),
            (True, (), "JSON Schema of an object"),
            ({"type": "array"}, ("type",), '"object"'),
            ({"type": ["object", "null"]}, ("type",), '"object"'),
            ({"title": "x"}, (), '"type": "object"'),
            ({"type": "function", "function": {"name": "x"}}, ("type",), "not a tool definition"),
            ({"name": "x", "parameters": {"type": "object"}}, (), "not a tool definition"),
            ({"type": "object", "properties": 5}, ("properties",), "not valid"),
            ({"type": "object", "properties": {"a": {"type": "strin"}}}, ("properties", "a", "type"), "strin"),
            ({"type": "object", "required": "city"}, ("required",), "not valid"),
            ({"type": "object", "properties": {"a": {"pattern": "("}}}, ("properties", "a", "pattern"), "not valid"),
            ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, (), "not valid"),
            ({"type": "object", "$schema": "http://dialects.test/own"}, (), "dialect"),
            ({"type": "object", "x": float("nan")}, (), "not valid JSON"),
            ({"type": "object", "x": "\ud800"}, (), "not valid JSON"),
            ({"type": "object", "description": "x" * 200_000}, (), "larger than"),
            (nested(40), (), "nested deeper"),
            (nested(5000), (), "nested deeper"),
        ],
    )
    def test_what_is_no_schema_of_an_object_is_refused_with_its_place(
        self, schema: Any, place: tuple[str, ...], said: str
    ) -> None:
        with pytest.raises(Invalid) as caught:
            compile_schema(schema)
        assert caught.value.status == 422
        (error,) = caught.value.extra["errors"]
        assert error["loc"] == ["body", "parameters", *place]
        assert said in error["msg"]
        assert len(error["msg"]) < 400

    @pytest.mark.parametrize("target", ["http://127.0.0.1:1/s.json", "file:///etc/passwd", "other.json", "urn:x:y"])
    def test_nothing_outside_the_schema_is_fetched(self, target: str) -> None:
        with pytest.raises(Invalid, match=r"\$ref"):
            compile_schema({"type": "object", "$id": "http://own.test/", "properties": {"a": {"$ref": target}}})

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object", "$ref": "#"},
            {"type": "object", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            {"type": "object", "properties": {"child": {"$ref": "#"}}},
        ],
    )
    def test_a_schema_that_refers_to_itself_ends(self, schema: dict[str, Any]) -> None:
        assert compile_schema(schema).check({"child": {"child": {}}}).problems == ()

    def test_a_pattern_that_explodes_is_given_up(self) -> None:
        schema = {"type": "object", "properties": {"a": {"pattern": "^(a|aa|(?=b)b)+$"}}}
        assert compile_schema(schema).check({"a": "a" * 60 + "!"}).problems

    def test_a_text_is_compiled_once(self) -> None:
        text = json.dumps(SEARCH)
        assert compiled(text) is compiled(text)


class TestNumbersInStrings:
    @pytest.mark.parametrize(
        ("given_", "taken"),
        [
            ({"price_max": "5"}, {"price_max": 5}),
            ({"price_max": "5.0"}, {"price_max": 5}),
            ({"area": "-2.50"}, {"area": -2.5}),
            ({"area": "1e3"}, {"area": 1000.0}),
            ({"garden": "true"}, {"garden": True}),
            ({"floors": ["1", 2, "3"]}, {"floors": [1, 2, 3]}),
            ({"filters": {"rooms": "4"}}, {"filters": {"rooms": 4}}),
            ({"budget": "7"}, {"budget": 7}),
        ],
    )
    def test_a_string_that_is_exactly_the_wanted_json_is_taken_as_that(
        self, given_: dict[str, Any], taken: dict[str, Any]
    ) -> None:
        arguments = {"city": "12", **given_}
        before = copy.deepcopy(arguments)
        checked = compile_schema(SEARCH).check(arguments)
        assert checked.problems == ()
        assert checked.arguments == {"city": "12", **taken}
        assert [type(value) for value in checked.arguments.values()] == [type(value) for value in ("", *taken.values())]
        assert arguments == before

    @pytest.mark.parametrize("text", [" 5", "5 ", "05", "+5", "5,0", "0x5", "five", "", "5.5", "1e999", "NaN", "٥", "1_000"])
    def test_what_is_not_exactly_it_is_not(self, text: str) -> None:
        checked = compile_schema(SEARCH).check({"city": "Rome", "price_max": text})
        assert len(checked.problems) == 1
        assert checked.arguments == {"city": "Rome", "price_max": text}

    @pytest.mark.parametrize("text", ["True", "TRUE", "yes", "1", "null"])
    def test_only_true_and_false_are_booleans(self, text: str) -> None:
        assert compile_schema(SEARCH).check({"city": "Rome", "garden": text}).problems

    def test_a_string_that_the_schema_takes_stays_a_string(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": ["integer", "string"]}, "b": {}, "c": {"enum": ["1", 1]}}}
        arguments = {"a": "5", "b": "true", "c": "1"}
        assert compile_schema(schema).check(arguments).arguments == arguments

    def test_an_option_of_an_enum_is_wanted_too(self) -> None:
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"const": True}}}
        assert compile_schema(schema).check({"a": "2", "b": "true"}).arguments == {"a": 2, "b": True}
        assert compile_schema(schema).check({"a": "3"}).problems

    def test_limits_hold_for_the_number_that_was_meant(self) -> None:
        assert compile_schema(SEARCH).check({"city": "Rome", "price_max": "-1"}).problems == (
            "price_max: -1 is less than 0",
        )

    def test_a_number_never_becomes_a_string(self) -> None:
        assert compile_schema(SEARCH).check({"city": 12}).problems == ("city: 12 is not a string",)

    @given(st.one_of(st.integers(-(10**18), 10**18), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
    def test_every_number_and_boolean_written_as_json_is_read_back(self, value: int | float | bool) -> None:
        wanted = "boolean" if isinstance(value, bool) else "integer" if isinstance(value, int) else "number"
        assert read_as(json.dumps(value), [wanted]) == value

    @given(st.text(max_size=30))
    def test_whatever_is_read_is_what_json_says_it_is(self, text: str) -> None:
        value = read_as(text, ["number", "boolean"])
        if value is not None:
            assert json.loads(text) == value
            assert text == text.strip()

    @given(st.recursive(st.integers(-99, 99), lambda inner: st.lists(inner, max_size=3), max_leaves=8))
    def test_at_any_depth_of_arrays(self, value: Any) -> None:
        schema = {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/n"}}]}},
        }

        def written(item: Any) -> Any:
            return [written(inner) for inner in item] if isinstance(item, list) else str(item)

        shallow = not isinstance(value, list) or not any(isinstance(item, list) for item in value)
        checked = compile_schema(schema).check({"a": written(value)})
        if shallow:
            assert checked.arguments == {"a": value}
        assert checked.problems == () or not shallow


class TestProblems:
    def test_each_names_its_place_and_what_is_wrong(self) -> None:
        arguments = {
            "price_max": "cheap", "area": None, "floors": [1, "x", 3, 4], "filters": {"rooms": "many"}, "kind": "boat",
            "budget": "much", "colour": "red",
        }  # fmt: skip
        assert set(compile_schema(SEARCH).check(arguments).problems) == {
            'the field "city" is required',
            'price_max: "cheap" is not an integer',
            "area: null is not a number",
            'floors[1]: "x" is not an integer',
            "floors: has 4 items, at most 3 are allowed",
            'filters.rooms: "many" is not an integer or null',
            'kind: "boat" is not one of "flat", "house"',
            'budget: "much" fits none of the allowed forms: a number; or null',
            'unknown field "colour"',
        }

    def test_they_are_few_and_short(self) -> None:
        schema = {"type": "object", "additionalProperties": {"enum": ["x" * 500] * 1}}
        checked = compile_schema(schema).check({f"{n} {'y' * 400}": "z" * 5000 for n in range(50)})
        assert len(checked.problems) == 10
        assert checked.problems[-1] == "and 41 more problems"
        assert all(len(line) <= 300 and "\n" not in line for line in checked.problems)

    def test_a_value_with_line_breaks_stays_on_one_line(self) -> None:
        (line,) = compile_schema(SEARCH).check({"city": "Rome", "kind": "a\nb", "area": 1}).problems
        assert line == 'kind: "a\\nb" is not one of "flat", "house"'

    @pytest.mark.parametrize(
        ("schema", "value", "said"),
        [
            ({"minimum": 3}, 1, "1 is less than 3"),
            ({"exclusiveMaximum": 3}, 3, "3 is not less than 3"),
            ({"multipleOf": 7}, 3, "3 is not a multiple of 7"),
            ({"maxLength": 2}, "abc", "is longer than 2 characters"),
            ({"pattern": "^x+$"}, "y", "does not match the pattern ^x+$"),
            ({"minItems": 2}, [], "has 0 items, at least 2 are needed"),
            ({"uniqueItems": True}, [1, 1], "rule: uniqueItems"),
            ({"const": 3}, 4, "4 is not 3"),
            ({"not": {"type": "string"}}, "x", "rule: not"),
            (False, 1, "is not allowed"),
            ({"minProperties": 1}, {}, "has 0 fields, at least 1 are needed"),
            ({"propertyNames": {"maxLength": 1}}, {"long": 1}, "a field's name is not allowed"),
            ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1, "more than one of the forms"),
        ],
    )
    def test_every_rule_has_its_words(self, schema: Any, value: Any, said: str) -> None:
        (line,) = compile_schema({"type": "object", "properties": {"a": schema}}).check({"a": value}).problems
        assert line.startswith("a: ")
        assert said in line
