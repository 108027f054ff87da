"""The vault in memory: one token for a value, and siblings that store at once."""

from app.redaction.redactor import Redactor
from app.redaction.restorer import restore
from app.redaction.tokens import Token, safe_cut
from app.redaction.vault import Pair, SessionVault


class TestNumbers:
    def test_are_per_label_and_in_order(self) -> None:
        vault = SessionVault()
        assert [str(vault.token_for("PER", name, name)) for name in "abc"] == ["«PER_1»", "«PER_2»", "«PER_3»"]
        assert str(vault.token_for("TEL", "a", "a")) == "«TEL_1»"

    def test_variants_go_beyond_the_alphabet(self) -> None:
        vault = SessionVault()
        tokens = [str(vault.token_for("PER", f"x{number}", "x")) for number in range(29)]
        assert tokens[:3] == ["«PER_1»", "«PER_1b»", "«PER_1c»"] and tokens[25:] == [
            "«PER_1z»",
            "«PER_1aa»",
            "«PER_1ab»",
            "«PER_1ac»",
        ]
        assert restore(" ".join(tokens), vault) == " ".join(f"x{number}" for number in range(29))

    def test_a_new_label_is_read_once_it_is_known(self) -> None:
        vault = SessionVault()
        assert restore("CLIENT_1", vault) == "CLIENT_1"
        vault.token_for("CLIENT", "Ana", "ana")
        assert restore("CLIENT_1 and «client_1»", vault) == "Ana and Ana"


class TestSiblings:
    def test_the_slower_one_takes_the_stored_token_and_a_new_number(self) -> None:
        first, second = SessionVault(), SessionVault()
        first.token_for("PER", "Ana", "ana")
        second.token_for("PER", "Luis", "luis")
        second.token_for("PER", "Ana", "ana")
        first.mark_stored(stored := first.fresh())
        assert second.rebase(stored) and second.generation == 1
        assert [str(pair.token) for pair in second.fresh()] == ["«PER_2»"]
        assert str(second.token_for("PER", "Ana", "ana")) == "«PER_1»" and not first.fresh()

    def test_who_has_no_clash_goes_on(self) -> None:
        vault = SessionVault()
        vault.token_for("PER", "Ana", "ana")
        assert not vault.rebase([Pair(Token("TEL", 1), "612 345 678", "+34612345678")]) and vault.generation == 0
        assert vault.value_of(Token("TEL", 1)) == "612 345 678"

    def test_a_retired_number_stays_retired_in_the_store(self) -> None:
        vault = SessionVault()
        Redactor(vault).redact("see «PER_1»", trusted=True)
        assert str(SessionVault(vault.fresh()).token_for("PER", "Ana", "ana")) == "«PER_2»"


class TestCuts:
    def test_a_cut_falls_before_a_token(self) -> None:
        assert [safe_cut("ab «PER_12» cd", limit) for limit in (2, 3, 4, 10, 11, 12, 99)] == [2, 3, 3, 3, 11, 12, 14]

    def test_a_guillemet_of_prose_may_be_cut_from_its_other_half(self) -> None:
        assert safe_cut("«hola amigo»", 5) == 5
