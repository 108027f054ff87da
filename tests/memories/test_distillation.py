"""What a distilling model is asked, and what is read of its answer."""

import json
from datetime import UTC, date, datetime
from typing import Any

import jsonschema_rs
import pytest

from app.memories.admission import Known, Line
from app.memories.distillation import MAX_TOKENS, Said, messages, proposals_of, schema, stretch_of
from tests.memories.scopes import SCOPES

LINES = (Line(1, 4, "user", "Vivo en Bilbao.", by="letrado"), Line(2, 5, "assistant", "Tomo nota."))
KNOWN = (Known("mem_1", SCOPES["C"], "Prefiere PDF."), Known("mem_2", SCOPES["B"], "La vista es en mayo."))
NOTE = {
    "why": "they say so", "evidence": [1], "action": "add", "target": None, "about": "despacho", "applies_to": "letrado",
    "kind": "fact", "text": "Vive en Bilbao.", "importance": 3, "valid_until": None,
}  # fmt: skip


def said(*texts: tuple[str, str, int]) -> list[Said]:
    return [Said(position, role, text, tokens) for position, (role, text, tokens) in enumerate(texts, 1)]  # type: ignore[arg-type]


class TestAStretch:
    def test_it_has_the_lines_with_their_numbers_and_who_wrote_them(self) -> None:
        stretch = stretch_of(said(("user", "Hola.", 2), ("assistant", "Buenas.", 2)), 7, "letrado")
        assert stretch.lines == (Line(1, 1, "user", "Hola.", "letrado"), Line(2, 2, "assistant", "Buenas."))
        assert stretch.to_position == 7, "also of what holds no prose"

    def test_it_is_cut_at_a_turn(self) -> None:
        half = MAX_TOKENS // 2
        turns = [("user", "a", half), ("assistant", "b", 10), ("user", "c", half), ("assistant", "d", 1)]
        stretch = stretch_of(said(*turns), 4, None)
        assert ([line.text for line in stretch.lines], stretch.to_position) == (["a", "b"], 2)

    def test_a_turn_that_is_too_long_alone_loses_the_middle_of_its_line(self) -> None:
        stretch = stretch_of(said(("user", "a" * 50_000 + "z" * 50_000, 4 * MAX_TOKENS)), 1, None)
        (line,) = stretch.lines
        assert 24_000 < len(line.text) < 26_000
        assert (line.text[0], line.text[-1]) == ("a", "z")

    def test_where_not_all_was_read_it_ends_with_what_was(self) -> None:
        assert stretch_of(said(("user", "Hola.", 2)), 9, None, is_all=False).to_position == 1

    @pytest.mark.parametrize(
        ("role", "text", "worth"),
        [("user", "Vivo en Vigo", True), ("user", "ok, gracias", False), ("assistant", "Vive en Vigo.", False)],
    )
    def test_it_needs_a_line_of_a_user_that_says_something(self, role: str, text: str, worth: bool) -> None:
        assert stretch_of(said((role, text, 3)), 1, None).is_worth_it is worth

    def test_nothing_said_is_not_worth_it(self) -> None:
        assert not stretch_of([], 3, None).is_worth_it


class TestTheRequest:
    def material(self, scope: str = "D") -> Any:
        return json.loads(messages(LINES, KNOWN, SCOPES[scope], date(2026, 3, 1))[-1].text)

    def test_the_callers_words_are_the_scopes_and_no_id_or_word_of_ours_is_in_it(self) -> None:
        material = self.material()
        assert [one["alias"] for one in material["scopes"]["about"]] == ["expediente", "despacho"]
        assert material["scopes"]["applies_to"] == ["everyone", "letrado"]
        text = json.dumps([message.text for message in messages(LINES, KNOWN, SCOPES["D"], date(2026, 3, 1))])
        for word in ("org42", "matter7", "maria", "mem_", "tenant", "subject", "member"):
            assert word not in text

    def test_lines_and_known_notes_are_numbered(self) -> None:
        material = self.material()
        assert material["lines"][0] == {"number": 1, "role": "user", "by": "letrado", "text": "Vivo en Bilbao."}
        assert material["lines"][1] == {"number": 2, "role": "assistant", "text": "Tomo nota."}
        known = {"number": 2, "text": "La vista es en mayo.", "about": "expediente", "applies_to": "everyone"}
        assert material["known"][1] == known
        assert material["today"] == "2026-03-01"

    def test_its_enums_are_those_of_the_session(self) -> None:
        note = schema(LINES, KNOWN, SCOPES["D"])["properties"]["notes"]["items"]["properties"]
        assert note["about"]["enum"] == ["expediente", "despacho"]
        assert note["applies_to"]["enum"] == ["everyone", "letrado"]
        assert note["evidence"]["items"]["enum"] == [1, 2]
        assert note["target"]["enum"] == [1, 2, None]
        assert next(iter(note)) == "why"

    def test_a_session_of_one_axis_has_one_of_each(self) -> None:
        note = schema(LINES, (), SCOPES["A"])["properties"]["notes"]["items"]["properties"]
        assert (note["about"]["enum"], note["applies_to"]["enum"]) == (["despacho"], ["everyone"])
        assert (note["action"]["enum"], note["target"]["enum"]) == (["add"], [None])

    def test_an_answer_as_it_is_wanted_fits(self) -> None:
        jsonschema_rs.validator_for(schema(LINES, KNOWN, SCOPES["D"])).validate({"notes": [NOTE]})


class TestTheAnswer:
    def test_its_notes_are_proposals(self) -> None:
        (read,) = proposals_of({"notes": [{**NOTE, "valid_until": "2026-12-31"}]}) or [None]
        assert read is not None
        assert (read.action, read.text, read.evidence, read.target) == ("add", "Vive en Bilbao.", (1,), None)
        assert read.valid_until == datetime(2027, 1, 1, tzinfo=UTC)

    @pytest.mark.parametrize("answer", [{"notes": []}, []])
    def test_an_empty_list_is_an_answer(self, answer: Any) -> None:
        assert proposals_of(answer) == []

    @pytest.mark.parametrize("answer", [None, {}, {"notes": None}, "none", 3, {"notes": {"0": NOTE}}])
    def test_what_is_no_list_of_notes_is_none(self, answer: Any) -> None:
        assert proposals_of(answer) is None

    @pytest.mark.parametrize(
        "wrong",
        [
            {"action": "delete"}, {"about": None}, {"importance": "3"}, {"importance": True}, {"evidence": ["1"]},
            {"evidence": None}, {"target": "1"}, {"valid_until": "soon"}, {"valid_until": 5}, {"text": ["a"]},
        ],
    )  # fmt: skip
    def test_a_malformed_note_does_not_take_the_others_with_it(self, wrong: dict[str, Any]) -> None:
        first, second = proposals_of({"notes": [{**NOTE, **wrong}, NOTE]}) or [None, None]
        assert first is None
        assert second is not None

    def test_what_it_says_beside_is_of_no_interest_and_little_is_needed(self) -> None:
        less = {name: value for name, value in NOTE.items() if name not in ("why", "target", "valid_until")}
        assert None not in (proposals_of({"notes": [{**less, "mood": 1}]}) or [None])
