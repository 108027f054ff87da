"""Tool-call deltas of every known shape become the calls they meant."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.providers.assembly import CallAssembly

OFFERED = ("f", "g", "search", "read_file", "calc")


def entry(index: Any = None, id: Any = None, name: Any = None, arguments: Any = None, **native: Any) -> dict[str, Any]:
    made: dict[str, Any] = dict(native)
    function = {"name": name, "arguments": arguments}
    made.update({key: value for key, value in (("index", index), ("id", id)) if value is not None})
    made["function"] = {key: value for key, value in function.items() if value is not None}
    return made


def assembled(*chunks: Any) -> list[tuple[str | None, str, str]]:
    calls = CallAssembly(OFFERED)
    for chunk in chunks:
        calls.add(chunk if isinstance(chunk, list) else [chunk])
    return [(call.provider_id, call.name, call.arguments) for call in calls.calls()]


class TestWithoutIndex:
    def test_a_call_without_index_is_made_once(self):
        """A01."""
        assert assembled(entry(None, "a", "f", "{}")) == [("a", "f", "{}")]

    def test_its_later_pieces_need_neither_index_nor_id(self):
        """A01."""
        pieces = [entry(None, "a", "f"), entry(arguments='{"x"'), entry(arguments=":1}")]
        assert assembled(*pieces) == [("a", "f", '{"x":1}')]

    @pytest.mark.parametrize("together", [False, True])
    def test_ids_tell_several_calls_apart(self, together):
        """A02: the position in a chunk is no identity."""
        chunks = [entry(None, "a", "f", '{"q":1}'), entry(None, "b", "g", '{"q":2}')]
        expected = [("a", "f", '{"q":1}'), ("b", "g", '{"q":2}')]
        assert assembled(*([chunks] if together else chunks)) == expected

    @pytest.mark.parametrize("index", ["0", 0.0, True, None, [0]])
    def test_an_index_that_is_no_whole_number_is_none(self, index):
        chunks = [{"index": index, **entry(None, id, "f", "{}")} for id in ("a", "b")]
        assert [call[0] for call in assembled(*chunks)] == ["a", "b"]


class TestAllAtIndexZero:
    def test_another_id_with_a_name_is_another_call(self):
        """A04 with ids."""
        chunks = [entry(0, "a", "f", '{"q":1}'), entry(0, "b", "f", '{"q":2}')]
        assert assembled(*chunks) == [("a", "f", '{"q":1}'), ("b", "f", '{"q":2}')]

    def test_without_ids_a_finished_object_is_followed_by_another_call(self):
        """A04 without ids."""
        chunks = [entry(0, None, "f", '{"q":1}'), entry(0, None, "f", '{"q":2}'), entry(0, None, "g", "{}")]
        assert assembled(*chunks) == [(None, "f", '{"q":1}'), (None, "f", '{"q":2}'), (None, "g", "{}")]

    def test_pieces_follow_the_call_that_holds_the_index(self):
        chunks = [entry(0, "a", "f", '{"q":1}'), entry(0, "b", "f", '{"q"'), entry(0, arguments=":2}")]
        assert assembled(*chunks) == [("a", "f", '{"q":1}'), ("b", "f", '{"q":2}')]


class TestIndexes:
    def test_two_entries_of_one_chunk_may_be_one_call(self):
        """A05."""
        first = [entry(0, "a", "f"), entry(0, None, None, '{"x"')]
        assert assembled(first, entry(0, arguments=":1}")) == [("a", "f", '{"x":1}')]

    def test_interleaved_pieces_go_where_their_index_says(self):
        """A07."""
        heads = [entry(i, f"id{i}", name) for i, name in enumerate(("f", "g", "search"))]
        pieces = [entry(i, arguments=piece) for piece in ('{"k":', '"v"', "}") for i in (2, 0, 1)]
        assert assembled(*heads, *pieces) == [(f"id{i}", n, '{"k":"v"}') for i, n in enumerate(("f", "g", "search"))]

    def test_indexes_may_have_gaps_and_calls_keep_the_order_in_which_they_began(self):
        assert assembled(entry(5, "a", "f", "{}"), entry(2, "b", "g", "{}")) == [("a", "f", "{}"), ("b", "g", "{}")]


class TestIds:
    @pytest.mark.parametrize("absent", ["", None])
    def test_an_empty_id_or_name_is_none(self, absent):
        """A08."""
        rest = {"index": 0, "id": absent, "type": absent, "function": {"name": absent, "arguments": '"e":1}'}}
        assert assembled(entry(0, "call_x", "calc", "{"), rest) == [("call_x", "calc", '{"e":1}')]

    def test_a_second_id_without_a_name_continues_the_call_under_its_first_id(self):
        """A10."""
        pieces = [entry(0, "B", None, piece) for piece in ('{"a', '":1', "}")]
        assert assembled(entry(0, "A", "f"), *pieces) == [("A", "f", '{"a":1}')]

    def test_an_id_may_come_late(self):
        assert assembled(entry(0, None, "f", "{"), entry(0, "a", None, "}")) == [("a", "f", "{}")]
        assert assembled(entry(None, None, "f", "{"), entry(None, "a", None, "}")) == [("a", "f", "{}")]

    def test_one_id_at_another_index_with_a_name_is_a_second_call(self):
        chunks = [entry(0, "a", "f", '{"q":1}'), entry(1, "a", "g", "{"), entry(1, arguments="}")]
        assert assembled(*chunks) == [("a", "f", '{"q":1}'), ("a", "g", "{}")]

    @pytest.mark.parametrize("index", [None, 0])
    def test_a_whole_call_under_a_known_id_is_a_second_call(self, index):
        """So that the loop can tell a repeated call from another one; pasted together they would be neither."""
        chunks = [entry(index, "a", "f", '{"q":1}'), entry(index, "a", "f", '{"q":2}')]
        assert assembled(*chunks) == [("a", "f", '{"q":1}'), ("a", "f", '{"q":2}')]

    def test_a_number_as_id_is_its_text(self):
        assert assembled(entry(0, 7, "f", "{}")) == [("7", "f", "{}")]


class TestNames:
    def test_a_name_said_with_every_piece_is_one_name(self):
        """A11."""
        pieces = [entry(0, None, "read_file", piece) for piece in ("{", '"a":', "1}")]
        assert assembled(*pieces) == [(None, "read_file", '{"a":1}')]

    def test_a_name_in_pieces_is_joined(self):
        assert assembled(entry(0, "a", "sea"), entry(0, None, "rch"), entry(0, arguments="{}")) == [("a", "search", "{}")]

    def test_an_offered_name_is_not_made_longer_into_one_that_is_not(self):
        assert assembled(entry(0, "a", "f"), entry(0, "a", "x")) == [("a", "f", "")]
        assert assembled(entry(0, "a", "f"), entry(0, "a", "g")) == [("a", "g", "")]

    def test_a_type_is_never_added_up(self):
        """A13."""
        pieces = [{"index": 0, "type": "function", "id": "a", "function": {"name": "f", "arguments": p}} for p in "{}   "]
        assert assembled(*pieces) == [("a", "f", "{}   ")]


class TestArguments:
    def test_an_object_is_taken_as_its_json(self):
        """A14."""
        assert assembled(entry(0, "a", "f", {"city": "México"})) == [("a", "f", '{"city":"México"}')]

    def test_objects_in_pieces_are_merged(self):
        """A14."""
        assert assembled(entry(0, "a", "f", {"x": 1}), entry(0, "a", None, {"y": 2})) == [("a", "f", '{"x":1,"y":2}')]

    @pytest.mark.parametrize("text", ["", '{"a": "cut', "[]", "null", "[" * 100_000, "\x00", "\ud83d"])
    def test_what_is_no_json_is_kept_as_it_is(self, text):
        assert assembled(entry(0, "a", "f", text)) == [("a", "f", text)]


class TestWhatIsNoCall:
    @pytest.mark.parametrize("junk", [None, 5, "x", {}, {"index": 0}, {"index": 0, "function": None}, {"id": ""}])
    def test_junk_is_ignored(self, junk):
        assert assembled([junk], [entry(0, "a", "f", "{}"), junk]) == [("a", "f", "{}")]

    def test_a_piece_that_belongs_nowhere_is_counted(self):
        calls = CallAssembly(OFFERED)
        calls.add([entry(0, arguments="{}")])
        assert not calls
        assert calls.dropped == 1


class TestUnknownKeys:
    def test_they_are_kept_as_they_came_also_when_they_come_late(self):
        """A38."""
        signature = {"google": {"thought_signature": "c2ln+/="}}
        calls = CallAssembly(OFFERED)
        calls.add([entry(0, "a", "f", "{", extra_content=signature)])
        calls.add([entry(0, arguments="}", extra_content={"google": {"more": 1}}, x_note="n")])
        native = calls.calls()[0].native
        assert native == {"extra_content": {"google": {"thought_signature": "c2ln+/=", "more": 1}}, "x_note": "n"}

    def test_unknown_keys_of_the_function_and_another_type_are_kept(self):
        calls = CallAssembly(OFFERED)
        calls.add([{"id": "a", "type": "builtin_function", "function": {"name": "f", "arguments": "{}", "sig": "s"}}])
        assert calls.calls()[0].native == {"type": "builtin_function", "function": {"sig": "s"}}


SHAPES = ("standard", "empty id and name", "id each time", "name each time", "no index", "no index, id each time", "zero")

arguments_text = st.dictionaries(st.text(max_size=3), st.text(max_size=6) | st.integers(), max_size=3).map(json.dumps)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Any], list[tuple[str, str, str]]]:
    """Entries as a server of some shape sends them, and the calls they mean."""
    shape = draw(st.sampled_from(SHAPES))
    calls = [(f"id{i}", draw(st.sampled_from(OFFERED)), draw(arguments_text)) for i in range(draw(st.integers(1, 4)))]
    queues = []
    for number, (id_, name, text) in enumerate(calls):
        cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=4)))
        bounds = [0, *cuts, len(text)]
        pieces = [text[start:end] for start, end in pairwise(bounds)]
        queues.append([_shaped(shape, number, id_, name, piece, i == 0) for i, piece in enumerate(pieces)])
    if shape in ("no index", "zero"):
        return [item for queue in queues for item in queue], calls
    # Heads first, as servers send them, then the pieces of all calls in any order.
    ordered = [queue.pop(0) for queue in queues]
    while queue := draw(st.sampled_from([q for q in queues if q] or [[]])):
        ordered.append(queue.pop(0))
    return ordered, calls


def _shaped(shape: str, number: int, id_: str, name: str, piece: str, first: bool) -> dict[str, Any]:
    if shape == "empty id and name":
        return entry(number, id_ if first else "", name if first else "", piece)
    index = None if shape.startswith("no index") else 0 if shape == "zero" else number
    with_id = first or shape.endswith("id each time")
    with_name = first or shape == "name each time"
    return entry(index, id_ if with_id else None, name if with_name else None, piece)


class TestAnyStream:
    @settings(max_examples=300, deadline=None)
    @given(streams())
    def test_the_calls_come_out_exactly(self, stream):
        entries, calls = stream
        assert assembled(*entries) == calls
