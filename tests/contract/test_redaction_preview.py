"""Trying redaction over HTTP: what would stand in the place of what."""

from typing import Any

import pytest

from tests.api import Api
from tests.contract.test_doors import problem

MARIA = {"type": "PER", "value": "María García"}


async def previewed(api: Api, text: str, *entries: dict[str, Any]) -> dict[str, Any]:
    return await api.post("/v1/redaction/preview", {"text": text, "dictionary": list(entries)}, 200)


class TestPreview:
    async def test_each_value_has_a_token_in_its_place(self, api: Api) -> None:
        text = "Soy María García, DNI 12345678Z, correo maria@ejemplo.es y tel 612 345 678."
        shown = await previewed(api, text, MARIA)
        assert shown["text"] == "Soy «PER_1», DNI «ID_1», correo «EMAIL_1» y tel «TEL_1»."
        assert [text[span["start"] : span["end"]] for span in shown["spans"]] == [
            "María García", "12345678Z", "maria@ejemplo.es", "612 345 678",
        ]  # fmt: skip
        assert [(span["type"], span["token"]) for span in shown["spans"]][:2] == [("PER", "«PER_1»"), ("ID", "«ID_1»")]

    async def test_what_only_looks_like_a_value_stays(self, api: Api) -> None:
        text = "El DNI 12345678A y la tarjeta 4111 1111 1111 1112 están mal"
        assert await previewed(api, text) == {"text": text, "spans": []}

    async def test_another_spelling_is_the_same_value(self, api: Api) -> None:
        shown = await previewed(api, "612 345 678, o sea +34612345678")
        assert shown["text"] == "«TEL_1», o sea «TEL_1b»"

    async def test_a_token_that_somebody_types_is_a_literal(self, api: Api) -> None:
        assert (await previewed(api, "¿Qué hay en «CARD_1»?"))["text"] == "¿Qué hay en «LIT_1»?"

    async def test_nothing_is_kept_from_one_to_the_next(self, api: Api) -> None:
        assert (await previewed(api, "Soy María García", MARIA))["text"] == "Soy «PER_1»"
        assert (await previewed(api, "Soy María García"))["spans"] == []

    @pytest.mark.parametrize(
        "wanted",
        [
            {},
            {"text": 5},
            {"text": "x" * 200_001},
            {"text": "x", "dictionary": [{"type": "LIT", "value": "x"}]},
            {"text": "x", "dictionary": [{"type": "per", "value": "Ana"}]},
            {"text": "x", "dictionary": [{"type": "PER", "value": "---"}]},
            {"text": "x", "dictionary": [{"type": "PER", "value": ""}]},
            {"text": "x", "entities": []},
        ],
    )
    async def test_what_cannot_be_tried_is_refused(self, api: Api, wanted: dict[str, Any]) -> None:
        problem(await api.call("POST", "/v1/redaction/preview", wanted), 422, "invalid_request")
