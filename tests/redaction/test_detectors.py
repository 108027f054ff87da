"""What each detector takes and leaves; the bench has whole sentences."""

import time

import pytest

from app.redaction.detectors import Context, detect
from app.redaction.dictionary import Dictionary, Entry
from app.redaction.labels import MAX_TEXT_CHARS, TextTooLong, TookTooLong
from app.redaction.redactor import Redactor
from app.redaction.tokens import look_alikes
from app.redaction.vault import SessionVault

VALUES = [
    ("EMAIL", "maria.lopez+x@sub.ejemplo.co.uk"), ("EMAIL", "josé@españa.es"), ("EMAIL", "a%40b.example"),
    ("URL", "https://a.example/x(y)?q=1#z"), ("URL", "www.ejemplo.es/x"), ("URL", "postgres://u:p@host/db"),
    ("IBAN", "ES91 2100 0418 4502 0005 1332"), ("IBAN", "DE89370400440532013000"), ("IBAN", "gb29 nwbk 6016 1331 9268 19"),
    ("CARD", "4111-1111-1111-1111"), ("CARD", "378282246310005"), ("CARD", "5555 5555 5555 4444"),
    ("IP", "192.168.1.20"), ("IP", "2001:db8::8a2e:370:7334"), ("IP", "fe80::1"),
    ("ID", "12345678Z"), ("ID", "12.345.678-z"), ("ID", "X1234567L"), ("ID", "B12345674"),
    ("ID", "078-05-1120"), ("ID", "AB 12 34 56 C"), ("ID", "1 84 12 76 451 089 46"), ("ID", "RSSMRA85T10A562S"),
    ("ID", "DE136695976"), ("ID", "IT00743110157"), ("ID", "529.982.247-25"),
    ("TEL", "612 345 678"), ("TEL", "91 234 56 78"), ("TEL", "+44 20 7946 0958"), ("TEL", "01 23 45 67 89"),
    ("TEL", "(212) 555-0147"), ("TEL", "030/901820"), ("TEL", "347 123 4567"), ("TEL", "+49 (0)30 901820"),
    ("TEL", "0034 612345678"), ("TEL", "+52 55 1234 5678"),
    ("COIN", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"), ("COIN", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"),
    ("COIN", "0x52908400098527886E0F7030069857D2E4169EE7"),
    ("KEY", "sk-proj-abcdefghij0123456789"), ("KEY", "AKIAIOSFODNN7EXAMPLE"), ("KEY",
    "ghp_abcdefghijklmnopqrstuvwxyz012345"),
    ("KEY", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"),
    ("KEY", "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"),
]  # fmt: skip
CUED = [
    ("TEL", "mi teléfono es 612345678", "612345678"), ("TEL", "612345678 es mi móvil", "612345678"),
    ("TEL", "call me at 2125550147", "2125550147"), ("ID", "NIF de contribuinte 123456789", "123456789"),
    ("ID", "SIREN 732 829 320", "732 829 320"), ("ID", "Steuer-ID 86095742719", "86095742719"),
    ("KEY", 'password: "hunter22x"', "hunter22x"), ("KEY", "Authorization: Bearer abc123def456", "abc123def456"),
    ("PER", "la Sra. Ana de la Peña vino", "Ana de la Peña"), ("PER", "Mr O'Brien called", "O'Brien"),
    ("PER", "Herr Dr. Müller-Lüdenscheidt kommt", "Müller-Lüdenscheidt"), ("PER", "Je m'appelle Chloé Martin",
    "Chloé Martin"),
    ("PER", "Signor Rossi e signora", "Rossi"), ("PER", "Frau Weber hat", "Weber"), ("PER", "Senhor Silva disse", "Silva"),
]  # fmt: skip
LEFT = [
    "12345678A", "4111 1111 1111 1112", "ES91 2100 0418 4502 0005 1333", "1.234.567,89 €", "978-84-376-0494-7", "2024-05-12",
    "12.05.2024", "10:30:45", "versión 1.2.3.4", "std::vector<int>", "a::b", "550e8400-e29b-41d4-a716-446655440000",
    "404-1234567-1234567", "612.345.678 habitantes", "612 345 678 €", "pedido 612345678", "hosted-eu-20260812-09",
    "@property",
    "00:1B:44:11:3A:B7", "1700000000", "0000001234",
    "password: none", "the token is secret", "256.1.1.1", "+1.5", "1e-9",
    "40.416775, -3.703790", "3fa85f64", "user@localhost", "Don't", "Dr. No", "«hola»", "foo_1", "UTF_8",
]  # fmt: skip


def labels_of(text: str) -> list[tuple[str, str]]:
    return [(span.label, text[span.start : span.end]) for span in detect(text, Context())]


class TestValues:
    @pytest.mark.parametrize(("label", "value"), VALUES)
    def test_a_value_is_found_with_its_bounds(self, label: str, value: str) -> None:
        assert labels_of(f"Anota esto, {value}, por favor.") == [(label, value)]

    @pytest.mark.parametrize(("label", "text", "value"), CUED)
    def test_a_word_near_it_says_what_it_is(self, label: str, text: str, value: str) -> None:
        assert labels_of(text) == [(label, value)]

    @pytest.mark.parametrize("text", LEFT)
    def test_a_look_alike_stays(self, text: str) -> None:
        assert labels_of(f"Anota esto, {text}, ya.") == []

    def test_a_span_inside_another_is_dropped(self) -> None:
        assert labels_of("https://u:p@maria.example/12345678Z") == [("URL", "https://u:p@maria.example/12345678Z")]

    def test_only_kinds_that_are_wanted_are_found(self) -> None:
        found = detect("a@b.es 12345678Z", Context(labels=frozenset({"ID"})))
        assert [span.label for span in found] == ["ID"]


class TestTelephoneKeys:
    @pytest.mark.parametrize(
        "text", ["tel 612345678", "612 345 678", "+34 612-345-678", "0034612345678", "tel (612) 345 678"]
    )
    def test_spellings_of_a_number_share_a_key(self, text: str) -> None:
        assert [span.key for span in detect(text, Context())] == ["+34612345678"]

    def test_the_order_of_regions_decides(self) -> None:
        assert detect("tel 912 345 678", Context(regions=("PT", "ES")))[0].key == "+351912345678"


class TestDictionary:
    def find(self, text: str, *entries: Entry) -> list[str]:
        return [text[span.start : span.end] for span in Dictionary(entries).find(text)]

    @pytest.mark.parametrize(
        "text", ["MARIA GARCIA", "María  García", "garcía, maría", "Mari\u0301a-García", "maría\ngarcía"]
    )
    def test_case_marks_gaps_and_order_do_not_matter(self, text: str) -> None:
        assert self.find(f"Soy {text}.", Entry("PER", "María García")) == [text]

    @pytest.mark.parametrize("text", ["banana", "Rosalía", "also", "al", "Anais"])
    def test_a_name_inside_a_word_is_none(self, text: str) -> None:
        assert self.find(text, Entry("PER", "Ana"), Entry("PER", "Rosa"), Entry("PER", "Al")) == []

    def test_an_alias_has_the_key_of_its_value(self) -> None:
        spans = list(Dictionary([Entry("PER", "María Pérez", ("Mari",))]).find("Mari es María Pérez"))
        assert [span.key for span in spans] == ["maria perez"] * 2

    def test_the_longest_wins(self) -> None:
        assert self.find("Ana Díaz Gil", Entry("PER", "Ana Díaz"), Entry("PER", "Ana Díaz Gil")) == ["Ana Díaz Gil"]

    def test_names_of_scripts_without_spaces_are_found_inside(self) -> None:
        assert self.find("我是王小明。", Entry("PER", "王小明")) == ["王小明"]

    @pytest.mark.parametrize(
        ("label", "value"), [("per", "Ana"), ("LIT", "Ana"), ("A_B", "Ana"), ("PER", "…"), ("PER", "x" * 501)]
    )
    def test_an_entry_that_cannot_work_is_refused(self, label: str, value: str) -> None:
        with pytest.raises(ValueError, match="a "):
            Entry(label, value)

    def test_hundreds_of_entries_cost_no_more_than_one(self) -> None:
        many = Dictionary(Entry("PER", f"Nombre{number} Apellido{number}") for number in range(2000))
        text = "Nombre7 Apellido7 y otros tantos hablaron de la casa. " * 400
        started = time.process_time()
        assert len(list(many.find(text))) == 400
        assert time.process_time() - started < 0.5


class TestKnownValues:
    def test_a_name_known_by_its_honorific_is_one_everywhere(self) -> None:
        redactor = Redactor(SessionVault())
        assert redactor.redact("García llamó. La Sra. García espera.") == "«PER_1» llamó. La Sra. «PER_1» espera."

    def test_a_number_once_known_needs_no_cue(self) -> None:
        redactor = Redactor(SessionVault())
        redactor.redact("tel 612 345 678")
        assert redactor.redact("apunta 612345678") == "apunta «TEL_1b»"

    def test_a_vault_from_the_store_brings_its_values(self) -> None:
        first = SessionVault()
        Redactor(first).redact("La Sra. García, tel 612 345 678")
        later = SessionVault(first.fresh())
        assert Redactor(later, known=later.pairs()).redact("García: 612345678") == "«PER_1»: «TEL_1b»"


HOSTILE = [
    "a@", "a.", "@", "aaaaaaaa", "1 ", "1", "1.", "12-", "+1 ", "0(", "::", "1:", ":1:", "eyJ", "eyJaaaaaaaa.", "sk-", "«",
    "«PER_", "PER_1 ",
    "«PER_1 ", "<<", "\\u00ab", "&laquo;", "https://", "www.", "http://a(", "ES91", "ES91 ", "4111 ", "41111111 ", "Sr. ",
    "Sra. Ana ",
    "D. A. ", "Ana de la ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----«", "password=", "password ",
    "a1b2c3d4 ",
    "tel 612345678 ", "e\u0301", "\u0301", "María ", "María-", "0x", "bc1q", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa ",
    "12345678Z", "1Z",
    "X1234567L ", "(((((", ")", "a_1»", "é" * 7, "%40", "a%40", "xn--", "a@b.c.", "1,", "/", "王小明", "a'", "O'B",
]  # fmt: skip


class TestHostileTexts:
    @pytest.mark.parametrize("seed", HOSTILE)
    def test_time_grows_with_length_alone(self, seed: str) -> None:
        context = Context(names=Dictionary([Entry("PER", "María María García"), Entry("PER", "王小")]), seconds=60)
        text = (seed * (20_000 // len(seed) + 1))[:20_000]
        started = time.process_time()
        detect(text, context, look_alikes)
        assert time.process_time() - started < 2

    def test_a_text_that_is_too_long_is_refused(self) -> None:
        with pytest.raises(TextTooLong):
            Redactor(SessionVault()).redact("x" * MAX_TEXT_CHARS + "x")

    def test_a_detector_that_takes_too_long_ends_it(self) -> None:
        with pytest.raises(TookTooLong):
            Redactor(SessionVault(), context=Context(seconds=0)).redact("hola")

    def test_a_detector_that_raises_is_heard(self) -> None:
        def broken(_: str) -> list[object]:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            Redactor(SessionVault(), context=Context(extra=(broken,))).redact("hola")  # type: ignore[arg-type]
