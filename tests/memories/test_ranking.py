"""How heavy a note is, and which ones are taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.memories.notes import Kind
from app.memories.ranking import (
    HALF_LIFE_DAYS,
    Candidate,
    choose,
    ordered,
    prefix_queries,
    relevance_of,
    terms,
    weight_of,
)
from tests.memories.scopes import note


class TestWeight:
    def test_its_parts_are_weighed_as_designed(self) -> None:
        assert weight_of(note(1, importance=5, evidence_count=15), 1.0) == pytest.approx(1.0)
        assert weight_of(note(1, importance=1, evidence_count=15), 0.0) == pytest.approx(0.20 + 0.15)
        assert weight_of(note(1, importance=3, evidence_count=1), 0.5) == pytest.approx(0.2 + 0.125 + 0.2 + 0.15 / 4)

    def test_without_a_question_the_rest_is_scaled_up(self) -> None:
        assert weight_of(note(1, importance=5, evidence_count=15), None) == pytest.approx(1.0)

    @pytest.mark.parametrize("kind", list(Kind))
    def test_recency_halves_in_the_half_life_of_its_kind(self, kind: Kind) -> None:
        fresh = weight_of(note(1, kind=kind, importance=1, evidence_count=0), 0.0)
        old = weight_of(note(1, kind=kind, importance=1, evidence_count=0, days_since_confirmed=HALF_LIFE_DAYS[kind]), 0.0)
        assert (fresh, old) == (pytest.approx(0.20), pytest.approx(0.10))

    @given(st.integers(1, 5), st.integers(0, 10**6), st.floats(-1, 10**6), st.floats(0, 1), st.sampled_from(list(Kind)))
    def test_it_is_always_between_0_and_1(
        self, importance: int, count: int, days: float, relevance: float, kind: Kind
    ) -> None:
        judged = note(1, importance=importance, evidence_count=count, days_since_confirmed=days, kind=kind)
        for found in (relevance, None):
            assert 0 <= weight_of(judged, found) <= 1.0000001


class TestRelevance:
    def test_first_in_every_list_is_1_and_in_none_is_0(self) -> None:
        notes = [note(1, word_rank=1, likeness_rank=1), note(2, word_rank=2), note(3)]
        relevance = relevance_of(notes)
        assert relevance[notes[0].id] == pytest.approx(1.0)
        assert relevance[notes[1].id] == pytest.approx(61 / 62 / 2)
        assert relevance[notes[2].id] == 0.0

    def test_a_list_that_is_not_there_costs_nothing(self) -> None:
        assert relevance_of([note(1, word_rank=1)]) == {"mem_0001": pytest.approx(1.0)}

    def test_nothing_found_is_no_relevance(self) -> None:
        assert relevance_of([note(1), note(2)]) == {"mem_0001": 0.0, "mem_0002": 0.0}


class TestTerms:
    def test_a_question_is_asked_by_the_beginnings_of_its_words(self) -> None:
        assert prefix_queries(terms("Which invoices of 2027 are in PDF?")) == ["'invoic':*", "'2027'", "'pdf'"]

    @pytest.mark.parametrize("blank", ["", "  ", "?!", "¿Qué es lo que…?", "\x00"])
    def test_a_question_without_words_of_its_own_has_none(self, blank: str) -> None:
        assert terms(blank) == []

    def test_a_long_question_is_bounded(self) -> None:
        assert len(terms(" ".join(f"word{number}" for number in range(100_000)))) == 32


class TestOrder:
    def order(self, notes: list[Candidate], *, asked: bool = True) -> list[str]:
        return [f"{one.id[-1]} {why}" for one, _, why in ordered(notes, asked=asked)]

    def test_pinned_then_the_five_heaviest_whatever_was_asked_then_by_weight(self) -> None:
        notes = [
            note(1, importance=1, pinned=True), note(2, importance=1, word_rank=1), note(3, importance=1),
            *(note(number, importance=5) for number in (4, 5, 6, 7, 8)),
        ]  # fmt: skip
        assert self.order(notes) == [
            "1 pinned", *(f"{number} heaviest" for number in (4, 5, 6, 7, 8)), "2 weight", "3 weight",
        ]  # fmt: skip

    def test_the_order_of_the_rows_changes_nothing(self) -> None:
        notes = [note(number, importance=1 + number % 5, word_rank=number % 3 or None) for number in range(30)]
        assert self.order(notes) == self.order(notes[::-1])

    def test_one_that_does_not_fit_lets_a_shorter_one_in(self) -> None:
        notes = [note(1, importance=5), note(2, importance=4), note(3, importance=3)]
        chosen, considered = choose(notes, asked=False, fits=lambda one: one.id != "mem_0002")
        assert [one.id for one in chosen] == ["mem_0001", "mem_0003"]
        assert [(one.chosen, one.reason) for one in considered] == [
            (True, "heaviest"), (False, "no_room"), (True, "heaviest"),
        ]  # fmt: skip
