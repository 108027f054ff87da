"""The words of notes: one line, one normal form, stems."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.memories.wording import content_words, norm, norm_hash, one_line, overlap, share_found, stem, stems


class TestOneLine:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("a\nb\r\nc", "a b c"), ("  a \t b ", "a b"), ("a\x00b\x1bc", "a b c"), ("a\u2028b\u2029c\x85d", "a b c d"),
            ("pay\u202epal", "paypal"), ("zero\u200bwidth\ufeff", "zerowidth"), ("tag\U000e0041", "tag"), ("", ""),
            ("a\u200db", "a\u200db"), ("a\xa0b", "a b"),
        ],
    )  # fmt: skip
    def test_line_ends_and_what_is_not_seen_are_collapsed(self, text: str, shown: str) -> None:
        assert one_line(text) == shown

    @given(st.text())
    def test_it_is_one_line_and_stays_as_it_is(self, text: str) -> None:
        line = one_line(text)
        assert len(line.splitlines()) <= 1
        assert line == line.strip()
        assert one_line(line) == line


class TestNorm:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("Prefiere PDF.", "prefiere  pdf"), ("Él vive en León", "el vive en leon"), ("STRASSE", "Straße"),
            ("ﬁle", "file"), ("Ⅳ", "iv"), ("¿Qué?", "que"), ("A–B", "a-b"), ("Привет!", "привет"), ("カフェ", "カフェ"),
        ],
    )  # fmt: skip
    def test_what_says_the_same_is_the_same(self, one: str, other: str) -> None:
        assert norm(one) == norm(other)
        assert norm_hash(norm(one)) == norm_hash(norm(other))

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("Knows C#", "Knows C"),
            ("Knows C++", "Knows C"),
            ("3.5 kg", "35 kg"),
            ("!!!", "???"),
            ("10%", "10"),
            ("कि", "का"),
        ],
    )
    def test_what_says_something_else_is_not(self, one: str, other: str) -> None:
        assert norm(one) != norm(other)

    @given(st.text())
    def test_it_is_its_own_norm_and_never_holds_a_line_end(self, text: str) -> None:
        assert len(norm(text).splitlines()) <= 1
        assert "  " not in norm(text)


class TestWords:
    def test_fillers_are_left_out_and_negations_are_not(self) -> None:
        assert content_words("¿Por qué no le gusta a ella el PDF?") == ["no", "gusta", "pdf"]

    def test_scripts_without_spaces_are_cut_into_characters(self) -> None:
        assert content_words("喜欢绿茶") == ["喜", "欢", "绿", "茶"]

    @pytest.mark.parametrize(
        ("word", "beginning"), [("invoices", "invoic"), ("vive", "viv"), ("pdf", "pdf"), ("2027", "2027"), ("de", "de")]
    )
    def test_a_stem_is_seven_tenths_of_a_word(self, word: str, beginning: str) -> None:
        assert stem(word) == beginning

    def test_a_share_is_found_over_inflections(self) -> None:
        assert share_found(stems("Vive en Bilbao"), stems("Ahora vivo en Bilbao, ¿sabes?")) == 1.0
        assert share_found(stems("Vive en Vitoria"), stems("Vivo en Bilbao")) == 0.5
        assert share_found(stems(""), stems("anything")) == 0.0

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("The deposit for surgery is 15 days before", "The deposit for surgery is 20 days before"),
            (
                "The client wants to be called at home in the evening",
                "The client never wants to be called at home in the evening",
            ),
        ],
    )
    def test_texts_whose_numbers_or_negations_differ_do_not_overlap(self, one: str, other: str) -> None:
        assert overlap(stems(one), stems(other)) == 0.0
        assert overlap(stems(one), stems(one)) == 1.0
