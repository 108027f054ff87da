"""What a tool is given of a call that carries tokens."""

from typing import Any

import pytest

from app.redaction.policy import Mode, Refused, ToolPolicy, opened_arguments
from app.redaction.redactor import Redactor
from app.redaction.vault import SessionVault


@pytest.fixture
def vault() -> SessionVault:
    vault = SessionVault()
    Redactor(vault).redact("a@b.es paga con 4111 1111 1111 1111")
    Redactor(vault).redact("«CARD_1»")
    return vault


def opened(vault: SessionVault, arguments: dict[str, Any], mode: Mode = Mode.RESTORE, *allow: str) -> Any:
    return opened_arguments(arguments, vault, ToolPolicy(mode, frozenset(allow)))


class TestPolicy:
    def test_by_default_values_are_restored(self, vault: SessionVault) -> None:
        assert opened(vault, {"to": ["«EMAIL_1»"]}) == {"to": ["a@b.es"]}

    def test_but_a_call_with_a_card_is_not_made(self, vault: SessionVault) -> None:
        refused = opened(vault, {"to": "«EMAIL_1»", "text": "«CARD_1»"})
        assert isinstance(refused, Refused) and "CARD" in refused.reason and "4111" not in refused.reason

    def test_unless_the_tool_is_allowed_it(self, vault: SessionVault) -> None:
        assert opened(vault, {"card": "«CARD_1»"}, Mode.RESTORE, "CARD") == {"card": "4111 1111 1111 1111"}

    def test_tokens_stay_where_a_tool_wants_them(self, vault: SessionVault) -> None:
        arguments = {"to": "«EMAIL_1»", "card": "«CARD_1»", "n": 1}
        assert opened(vault, arguments, Mode.TOKENS) == arguments
        assert opened(vault, arguments, Mode.TOKENS, "EMAIL") == {**arguments, "to": "a@b.es"}

    def test_a_tool_may_refuse_any(self, vault: SessionVault) -> None:
        assert isinstance(opened(vault, {"to": "«EMAIL_1»"}, Mode.REFUSE), Refused)
        assert opened(vault, {"to": "x"}, Mode.REFUSE) == {"to": "x"}

    def test_literal_text_is_given_in_any_mode(self, vault: SessionVault) -> None:
        assert opened(vault, {"text": "«LIT_1»"}, Mode.REFUSE) == {"text": "«CARD_1»"}

    def test_an_unknown_token_or_two_keys_of_one_value_are_refused(self, vault: SessionVault) -> None:
        assert isinstance(opened(vault, {"to": "«EMAIL_7»"}), Refused)
        assert isinstance(opened(vault, {"«EMAIL_1»": 1, "EMAIL_1": 2}), Refused)


class TestResultPaths:
    def test_a_path_says_what_its_texts_are(self) -> None:
        result = {"items": [{"owner": "Ana Gil", "note": "Ana Gil"}], "owner": "x"}
        redacted = Redactor(SessionVault()).redact_json(result, labels={"items[].owner": "PER"})
        assert redacted == {"items": [{"owner": "«PER_1»", "note": "«PER_1»"}], "owner": "x"}
