"""The worked examples of the design, each on a session whose dictionary holds one name."""

import json

import pytest

from app.redaction.dictionary import Entry
from app.redaction.redactor import Redactor
from app.redaction.restorer import StreamRestorer, restore, restore_json
from app.redaction.tokens import Token
from app.redaction.vault import SessionVault

MARIA = Entry("PER", "María García")
FIRST = "Soy María García, DNI 12345678Z, correo maria@ejemplo.es y tel 612 345 678."


class Session:
    """A vault with its redactor, as one run has them."""

    def __init__(self) -> None:
        self.vault = SessionVault()
        self.redactor = Redactor(self.vault, [MARIA])
        self.redact = self.redactor.redact

    def restore(self, text: str) -> str:
        return restore(text, self.vault)


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def begun(session: Session) -> Session:
    session.redact(FIRST)
    return session


class TestRedacting:
    def test_a_sentence_of_values_becomes_tokens_and_comes_back_to_the_byte(self, session: Session) -> None:
        assert session.redact(FIRST) == "Soy «PER_1», DNI «ID_1», correo «EMAIL_1» y tel «TEL_1»."
        assert session.restore(session.redact(FIRST)) == FIRST

    def test_a_value_keeps_its_token(self, begun: Session) -> None:
        assert begun.redact("Repito: maria@ejemplo.es") == "Repito: «EMAIL_1»"

    def test_a_value_keeps_its_token_in_another_process(self, begun: Session) -> None:
        later = SessionVault(begun.vault.fresh())
        assert Redactor(later, [MARIA]).redact("Repito: maria@ejemplo.es") == "Repito: «EMAIL_1»"

    def test_another_spelling_is_a_variant(self, begun: Session) -> None:
        assert begun.redact("Llama al +34612345678") == "Llama al «TEL_1b»"
        assert begun.restore("«TEL_1b»") == "+34612345678"

    def test_wrong_check_digits_are_no_values(self, session: Session) -> None:
        text = "El DNI 12345678A y la tarjeta 4111 1111 1111 1112 están mal"
        assert session.redact(text) == text

    def test_account_and_card(self, session: Session) -> None:
        text = "IBAN ES91 2100 0418 4502 0005 1332, tarjeta 4111 1111 1111 1111"
        assert session.redact(text) == "IBAN «IBAN_1», tarjeta «CARD_1»"

    def test_the_stop_behind_an_address_is_not_of_it(self, session: Session) -> None:
        assert session.redact("mira https://inmo.example/f?id=1&email=ana%40ejemplo.es.") == "mira «URL_1»."

    def test_a_name_in_another_case_is_a_variant(self, session: Session) -> None:
        text = "María  GARCÍA y María García"
        assert session.redact(text) == "«PER_1» y «PER_1b»"
        assert session.restore("«PER_1» y «PER_1b»") == text


class TestForgedTokens:
    def test_a_token_that_a_user_types_is_literal_text(self, session: Session) -> None:
        session.redact("tarjeta 4111 1111 1111 1111")
        assert session.redact("¿Qué hay en «CARD_1»?") == "¿Qué hay en «LIT_1»?"
        assert session.restore("En «LIT_1» no hay nada") == "En «CARD_1» no hay nada"

    @pytest.mark.parametrize(
        "forged",
        ["« card_1 »", "«CARD_1", "CARD_1»", "CARD_1", "<<CARD_1>>", "«CARD\\_1»", "&laquo;CARD_1&raquo;", "«NEW_1»"],
    )
    def test_so_is_whatever_would_be_taken_for_one(self, session: Session, forged: str) -> None:
        text = f"¿Qué hay en {forged}?"
        assert session.redact(text) == "¿Qué hay en «LIT_1»?"
        assert session.restore("¿Qué hay en «LIT_1»?") == text


class TestRestoring:
    @pytest.mark.parametrize(
        "written",
        [
            "« per_1 »",
            "«PER_1",
            "PER_1»",
            "PER_1",
            "<<PER_1>>",
            "«PER\\_1»",
            "&laquo;PER_1&raquo;",
            "\\u00abPER_1\\u00bb",
            "«Per_1»",
        ],
    )
    def test_what_a_model_makes_of_a_token_is_read(self, begun: Session, written: str) -> None:
        assert begun.restore(f"Hola {written}, adiós") == "Hola María García, adiós"

    @pytest.mark.parametrize("written", ["per_1", "SUPER_1", "PER_12", "«PER_12»", "PER_1_2", "PER_01", "«PER_0»", "PER_1a"])
    def test_what_is_none_stays(self, begun: Session, written: str) -> None:
        assert begun.restore(f"Hola {written}, adiós") == f"Hola {written}, adiós"

    def test_a_restored_value_is_not_read_again(self) -> None:
        vault = SessionVault()
        vault.token_for("PER", "«PER_2»", "a")
        vault.token_for("PER", "Ana", "ana")
        assert restore("«PER_1» «PER_2»", vault) == "«PER_2» Ana"

    def test_of_twelve_persons_none_is_taken_for_another(self) -> None:
        vault = SessionVault()
        names = [f"Name {chr(65 + number)}" for number in range(12)]
        tokens = [str(vault.token_for("PER", name, name)) for name in names]
        assert restore(" ".join(tokens), vault) == " ".join(names)
        assert restore("«PER_13» «PER_120»", vault) == "«PER_13» «PER_120»"


class TestStream:
    def feed(self, session: Session, *deltas: str) -> list[str]:
        stream = StreamRestorer(session.vault)
        return [*(stream.feed(delta) for delta in deltas), stream.flush()]

    def test_a_token_in_pieces_is_restored_when_it_is_whole(self, begun: Session) -> None:
        shown = self.feed(begun, "Hola «P", "ER", "_", "1", "»", ", adiós")
        assert shown == ["Hola ", "", "", "", "María García", ", adiós", ""]

    def test_an_ordinary_guillemet_passes_at_once(self, begun: Session) -> None:
        assert self.feed(begun, "usa « como comilla ") == ["usa « como comilla ", ""]

    def test_what_was_held_comes_at_the_end(self, begun: Session) -> None:
        assert self.feed(begun, "Hola «PER_1") == ["Hola ", "María García"]


class TestJson:
    def test_arguments_are_restored_at_any_depth(self, begun: Session) -> None:
        raw = '{"to":"\\u00abEMAIL_1\\u00bb","meta":{"tels":["«TEL_1»","x"],"n":3}}'
        restored = restore_json(json.loads(raw), begun.vault)
        assert restored.value == {"to": "maria@ejemplo.es", "meta": {"tels": ["612 345 678", "x"], "n": 3}}
        assert restored.labels == {"EMAIL", "TEL"} and restored.unknown == ()

    def test_a_quote_in_a_value_leaves_the_json_whole(self, begun: Session) -> None:
        begun.vault.token_for("PER", 'Ana "la rubia" Díaz', "ana la rubia diaz")
        value = restore_json({"to": "«PER_2»"}, begun.vault).value
        assert json.loads(json.dumps(value)) == {"to": 'Ana "la rubia" Díaz'}

    def test_a_token_for_nothing_is_told(self, begun: Session) -> None:
        assert restore_json({"to": ["«PER_9»", "«FOO_1»"]}, begun.vault).unknown == ("«PER_9»", "«FOO_1»")

    def test_a_result_is_redacted_with_its_keys_and_long_integers(self, begun: Session) -> None:
        result = {"items": [{"name": "María García", "tel": 612345678, "ref": 4471}], "maria@ejemplo.es": True}
        redacted = begun.redactor.redact_json(result)
        assert redacted == {"items": [{"name": "«PER_1»", "tel": "«TEL_1b»", "ref": 4471}], "«EMAIL_1»": True}

    def test_an_integer_that_is_no_value_stays_one(self, session: Session) -> None:
        assert session.redactor.redact_json({"ref": 4471000000123}) == {"ref": 4471000000123}


class TestUnknownTokens:
    def test_the_number_of_one_that_a_model_made_up_is_never_given_out(self, begun: Session) -> None:
        assert begun.redact("Pregunta a «PER_2», o a PER_3", trusted=True) == "Pregunta a «PER_2», o a PER_3"
        assert begun.vault.token_for("PER", "Luis", "luis") == Token("PER", 4)
