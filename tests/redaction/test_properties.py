"""What holds for any text, any split, any nesting."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.redaction.detectors import Context, detect
from app.redaction.dictionary import Dictionary, Entry
from app.redaction.redactor import Redactor
from app.redaction.restorer import StreamRestorer, restore, restore_json
from app.redaction.tokens import MAX_TOKEN_CHARS, look_alikes, safe_cut
from app.redaction.vault import SessionVault

ENTRIES = [Entry("PER", "María García"), Entry("PER", "Al"), Entry("CLIENT", "Ños & Cía", ("NC7",)), Entry("PER", "王小明")]

PARTS = st.sampled_from(
    [
        "María García", "garcía, maría", "MARIA", "Al", "ños  cía", "王小明", "Sra. Ana de la Peña", "Mr ", "D. ",
        "Me llamo ",
        "maria@ejemplo.es", "a%40b.de", "@", "ejemplo.es", "https://x.example/a?b=1", "://", "www.", "http", "x",
        "12345678Z", "X1234567L", "612 345 678", "+34612345678", "+34 ", "612345678", "tel ", "tel: ", "(0)30 901820", "00",
        "ES91 2100 0418 4502 0005 1332", "4111 1111 1111 1111", "4111111111111111", "192.168.1.20", "2001:db8::1", "::",
        "sk-abcdefghijklmnopqrstuvwx1", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "password=hunter22x",
        "0x52908400098527886E0F7030069857D2E4169EE7", "«PER_1»", "« per_1b »", "PER_1", "«PER_", "_1",
        "»", "«", "<<", ">>",
        "&laquo;", "&raquo;", "\\u00ab", "\\u00bb", "CLIENT_1", "«NEW_3»", "LIT_1", "«LIT_1»", "\\_2", "EMAIL",
        "\ufdd0", "\ufdd1",
        " ", "  ", "\n", ".", ",", "-", "/", ":", "_", "1", "12", "é", "e\u0301", "\u00a0", "'", '"', "\\", "ñ", "İ", "ß",
    ]
)  # fmt: skip
TEXTS = st.lists(PARTS | st.text(max_size=6), max_size=14).map("".join)
JSON = st.recursive(
    TEXTS | st.integers(-(10**8) + 1, 10**8 - 1) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


def session() -> tuple[SessionVault, Redactor]:
    vault = SessionVault()
    return vault, Redactor(vault, ENTRIES)


class TestAnyText:
    @given(st.lists(TEXTS, min_size=1, max_size=3))
    @settings(max_examples=120, deadline=None)
    def test_what_was_redacted_comes_back_to_the_byte(self, texts: list[str]) -> None:
        vault, redactor = session()
        redacted = [redactor.redact(text) for text in texts]
        assert [restore(text, vault) for text in redacted] == texts

    @given(TEXTS)
    @settings(max_examples=120, deadline=None)
    def test_redacted_text_read_as_trusted_stays(self, text: str) -> None:
        _, redactor = session()
        once = redactor.redact(text)
        assert redactor.redact(once, trusted=True) == once

    @given(TEXTS)
    @settings(max_examples=80, deadline=None)
    def test_trusted_text_is_redacted_once(self, text: str) -> None:
        _, redactor = session()
        redactor.redact("maria@ejemplo.es, María García")
        once = redactor.redact(text, trusted=True)
        assert redactor.redact(once, trusted=True) == once

    @given(TEXTS)
    @settings(max_examples=80, deadline=None)
    def test_no_character_that_was_flagged_stays(self, text: str) -> None:
        _, redactor = session()
        _, found = redactor.found(text)
        hidden = {at for span in found for at in range(span.start, span.end)}
        for span in detect(text, Context(names=Dictionary(ENTRIES)), look_alikes):
            assert set(range(span.start, span.end)) <= hidden

    @given(TEXTS)
    @settings(max_examples=60, deadline=None)
    def test_spans_say_where_values_stood(self, text: str) -> None:
        vault, redactor = session()
        redacted, found = redactor.found(text)
        assert all(restore(span.token, vault) == text[span.start : span.end] for span in found)
        rebuilt, done = "", 0
        for span in found:
            rebuilt += text[done : span.start] + span.token
            done = span.end
        assert rebuilt + text[done:] == redacted

    @given(TEXTS)
    @settings(max_examples=60, deadline=None)
    def test_a_new_session_of_the_same_texts_gives_the_same(self, text: str) -> None:
        first, second = session()[1], session()[1]
        assert first.redact(text) == second.redact(text)


class TestAnySplit:
    @given(TEXTS, st.lists(st.integers(0, 200), max_size=12))
    @settings(max_examples=150, deadline=None)
    def test_streamed_is_unstreamed(self, text: str, cuts: list[int]) -> None:
        vault, redactor = session()
        redactor.redact("María García, Ana, maria@ejemplo.es, ños cía, NC7, maria garcía «PER_1»")
        places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
        stream = StreamRestorer(vault)
        shown = "".join(stream.feed(text[start:end]) for start, end in pairwise(places))
        assert shown + stream.flush() == restore(text, vault)

    @given(TEXTS)
    @settings(max_examples=80, deadline=None)
    def test_character_by_character_too_and_little_is_held(self, text: str) -> None:
        vault, redactor = session()
        redacted = redactor.redact(text)
        stream, shown = StreamRestorer(vault), ""
        for place, char in enumerate(redacted):
            shown += stream.feed(char)
            assert shown.startswith(restore(redacted[: max(0, place + 1 - MAX_TOKEN_CHARS)], vault)[:-MAX_TOKEN_CHARS])
        assert shown + stream.flush() == text


class TestAnyNesting:
    @given(JSON)
    @settings(max_examples=80, deadline=None)
    def test_json_comes_back(self, value: Any) -> None:
        vault, redactor = session()
        redacted = redactor.redact_json(value)
        restored = restore_json(json.loads(json.dumps(redacted)), vault)
        assert restored.value == value and not restored.clash and not restored.unknown

    @given(JSON)
    @settings(max_examples=50, deadline=None)
    def test_redacted_json_read_as_trusted_stays(self, value: Any) -> None:
        _, redactor = session()
        once = redactor.redact_json(value)
        assert redactor.redact_json(once, trusted=True) == once


class TestAnyCut:
    @given(TEXTS, st.integers(0, 150))
    @settings(max_examples=80, deadline=None)
    def test_no_token_is_cut_in_two(self, text: str, limit: int) -> None:
        vault, redactor = session()
        redacted = redactor.redact(text)
        cut = safe_cut(redacted, limit)
        assert cut == len(redacted) or limit - MAX_TOKEN_CHARS < cut <= limit
        assert text.startswith(restore(redacted[:cut], vault))
