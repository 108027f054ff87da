"""National numbers of persons and companies, by shape and check digits.

Where a shape is as common as a bare number and the check digit lets one in ten pass, a word near it must say what it is.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from app.redaction import checks, cues
from app.redaction.labels import Label, Span

_SEPARATORS = re.compile(r"[\W_]+")
_DENSE = re.compile(r"[0-9](?:[A-Za-z .\-/]{0,3}[0-9])*+")
_LEAST_CHARS, _ROOM = 6, 12


def _always(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Kind:
    shape: re.Pattern[str]
    check: Callable[[str], bool]
    cue: re.Pattern[str] | None = None
    prefix: int = 0
    """Characters in front that the check does not take, such as the country of a VAT number."""


def _kind(shape: str, check: Callable[[str], bool], cue: str | None = None, prefix: int = 0) -> _Kind:
    bounded = re.compile(rf"(?<![^\W_])(?<![0-9][.,\-/])(?:{shape})(?![^\W_])(?![.,/\-][0-9])")
    return _Kind(bounded, check, re.compile(cue) if cue else None, prefix)


_PORTUGUESE = r"\bnif\b|contribuinte|\bnipc\b|fiscal"
_FRENCH = r"\bsiren\b|\bsiret\b|\brcs\b"
_GERMAN = r"steuer|idnr|\btin\b|identifikationsnummer"
_ITALIAN = r"p\.? ?iva|partita|codice fiscale|\bc\.?f\b"
_AMERICAN = r"\bssn\b|social security|seguro social|\bss#"
_BRAZILIAN = r"\bcpf\b"

_KINDS = (
    _kind(r"[0-9]{8}[ \-]?[A-HJ-NP-TV-Za-hj-np-tv-z]", checks.spanish_dni),
    _kind(r"[0-9]{1,2}\.[0-9]{3}\.[0-9]{3}[ \-]?[A-HJ-NP-TV-Za-hj-np-tv-z]", checks.spanish_dni),
    _kind(r"[XYZxyz][ \-]?[0-9]{7}[ \-]?[A-HJ-NP-TV-Za-hj-np-tv-z]", checks.spanish_dni),
    _kind(r"[XYZxyz][ \-]?[0-9]\.[0-9]{3}\.[0-9]{3}[ \-]?[A-HJ-NP-TV-Za-hj-np-tv-z]", checks.spanish_dni),
    _kind(r"[KLMklm][ \-]?[0-9]{7}[ \-]?[A-HJ-NP-TV-Za-hj-np-tv-z]", lambda text: checks.spanish_dni("0" + text[1:])),
    _kind(r"(?:ES[ \-]?)?[ABCDEFGHJNPQRSUVW][ \-]?[0-9]{7}[ \-]?[0-9A-J]", lambda text: checks.spanish_cif(text[-9:])),
    _kind(r"[A-Za-z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-Da-d]", checks.british_nino),
    _kind(r"[0-9]{3}-[0-9]{2}-[0-9]{4}", checks.american_ssn),
    _kind(r"[0-9]{3} ?[0-9]{2} ?[0-9]{4}", checks.american_ssn, _AMERICAN),
    _kind(r"[0-9]{3}[ .]?[0-9]{3}[ .]?[0-9]{3}", checks.portuguese_nif, _PORTUGUESE),
    _kind(r"PT ?[0-9]{9}", checks.portuguese_nif, prefix=2),
    _kind(r"[0-9]{8}[ \-]?[0-9][ \-]?[A-Za-z0-9]{2}[0-9]", checks.portuguese_card, r"cartao|cidadao|\bcc\b|\bbi\b"),
    _kind(r"[0-9]{8} [0-9] [A-Z]{2}[0-9]", checks.portuguese_card),
    _kind(
        r"[12] ?[0-9]{2} ?(?:0[1-9]|1[0-2]|[2-5][0-9]|6[0-2]) ?(?:[0-9]{2}|2[AB]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}",
        checks.french_nir,
    ),
    _kind(r"[0-9]{3} ?[0-9]{3} ?[0-9]{3}(?: ?[0-9]{5})?", checks.luhn, _FRENCH),
    _kind(r"FR ?[0-9]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}", checks.french_vat, prefix=2),
    _kind(
        r"[A-Za-z]{6}[0-9L-NP-Vl-np-v]{2}[A-EHLMPR-Ta-ehlmpr-t][0-9L-NP-Vl-np-v]{2}[A-Za-z][0-9L-NP-Vl-np-v]{3}[A-Za-z]",
        checks.italian_code,
    ),
    _kind(r"[A-Z]{3} [A-Z]{3} [0-9]{2}[A-EHLMPR-T][0-9]{2} [A-Z][0-9]{3}[A-Z]", checks.italian_code),
    _kind(r"[0-9]{11}", checks.luhn, _ITALIAN),
    _kind(r"IT ?[0-9]{11}", checks.luhn, prefix=2),
    _kind(r"[0-9]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}", checks.german_tax_id, _GERMAN),
    _kind(r"[0-9]{2} [0-9]{3} [0-9]{3} [0-9]{3}", checks.german_tax_id),
    _kind(r"DE ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}", checks.iso_11_10, prefix=2),
    _kind(r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}", checks.brazilian_cpf),
    _kind(r"[0-9]{11}", checks.brazilian_cpf, _BRAZILIAN),
    _kind(r"[0-9]{2}\.[0-9]{3}\.[0-9]{3}/[0-9]{4}-[0-9]{2}", checks.brazilian_cnpj),
)  # fmt: skip


def identities(text: str) -> Iterator[Span]:
    for start, end in _places(text):
        for kind in _KINDS:
            for match in kind.shape.finditer(text, start, end):
                plain = _SEPARATORS.sub("", match[0]).upper()
                if not kind.check(plain[kind.prefix :]):
                    continue
                if kind.cue is None or cues.around(text, match.start(), match.end(), kind.cue):
                    yield Span(match.start(), match.end(), Label.ID, plain)


def _places(text: str) -> Iterator[tuple[int, int]]:
    """Where digits stand close enough for one of the shapes, with room for letters on both sides."""
    start, end = 0, -1
    for match in _DENSE.finditer(text):
        if match.end() - match.start() < _LEAST_CHARS:
            continue
        if match.start() - _ROOM > end:
            if end >= 0:
                yield start, end
            start = max(0, match.start() - _ROOM)
        end = min(len(text), match.end() + _ROOM)
    if end >= 0:
        yield start, end
