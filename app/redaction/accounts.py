"""Bank accounts, cards and crypto addresses, by their check digits."""

import hashlib
import re
from collections.abc import Iterator
from itertools import accumulate

from app.redaction import checks, cues
from app.redaction.labels import Label, Span

_IBAN = re.compile(r"(?<![^\W_])[A-Za-z]{2}[0-9]{2}(?:[ \u00a0\u202f\-]?[A-Za-z0-9]){11,30}+")
_IBAN_CHARS = {
    length: countries.split()
    for length, countries in {
        15: "NO", 16: "BE", 18: "DK FI FO GL NL", 19: "MK SI", 20: "AT BA EE KZ LT LU XK", 21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST", 26: "IS TR", 27: "FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB PL SV",
        29: "BR EG PS QA UA", 30: "JO KW MU", 31: "MT SC", 32: "LC",
    }.items()
}  # fmt: skip
_LENGTH_OF = {country: length for length, countries in _IBAN_CHARS.items() for country in countries}

_DIGITS = re.compile(r"(?<![0-9A-Za-z])(?<![0-9][.,])[0-9]{4,19}(?:[ \u00a0\-][0-9]{1,7}){0,24}+(?![0-9A-Za-z])")
_GROUP = re.compile("[0-9]+")
_ISSUERS = (
    (re.compile("4"), (16, 19)),
    (re.compile("5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), (16,)),
    (re.compile("3[47]"), (15,)),
    (re.compile("6011|65|64[4-9]|62"), (16, 17, 18, 19)),
    (re.compile("30[0-5]|36|3[89]"), (14, 16)),
    (re.compile("352[89]|35[3-8]"), (16,)),
    (re.compile("220[0-4]"), (16,)),
    (re.compile("50|5[678]|6304|6759|676[1-3]"), (16, 18, 19)),
)
_RARE = re.compile("4|50|5[678]|6304|6759|676[1-3]")
_CARD_CUE = re.compile(r"tarjeta|\bcard|visa|mastercard|maestro|carte|karte|cartao|carta\b|credit|debit")

_LONG_WORD = re.compile("[A-Za-z0-9]{14}")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_CANDIDATE = re.compile(rf"(?<![^\W_])[13LMTDA9r][{_BASE58}]{{24,34}}(?![^\W_])")
_BASE58_VERSIONS = frozenset((0x00, 0x05, 0x1E, 0x16, 0x30, 0x32, 0x41))
_BECH32 = re.compile(r"(?<![^\W_])(?i:bc1|ltc1|tb1)[02-9ac-hj-np-zA-HJ-NP-Z]{11,87}(?![^\W_])")
_BECH32_CHARS = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_ETHEREUM = re.compile(r"(?<![^\W_])0x[0-9a-fA-F]{40}(?![^\W_])")


def ibans(text: str) -> Iterator[Span]:
    """The country's length decides where one ends, so that words behind it stay."""
    for match in _IBAN.finditer(text):
        length = _LENGTH_OF.get(match[0][:2].upper())
        places = [at for at, char in enumerate(match[0]) if char.isalnum()]
        if length is None or len(places) < length:
            continue
        start, end = match.start(), match.start() + places[length - 1] + 1
        plain = "".join(match[0][at] for at in places[:length]).upper()
        if text[end : end + 1].isalnum() or not checks.iso_97(plain):
            continue
        yield Span(start, end, Label.IBAN, plain)


def cards(text: str) -> Iterator[Span]:
    """Whole groups of a run of digits that have an issuer's start and length and pass Luhn."""
    for match in _DIGITS.finditer(text):
        groups = [(match.start() + group.start(), group[0]) for group in _GROUP.finditer(match[0])]
        first = 0
        while first < len(groups):
            taken = _card_from(text, groups, first)
            if taken:
                start, end = groups[first][0], groups[first + taken - 1][0] + len(groups[first + taken - 1][1])
                yield Span(start, end, Label.CARD, "".join(digits for _, digits in groups[first : first + taken]))
            first += taken or 1


def _card_from(text: str, groups: list[tuple[int, str]], first: int) -> int:
    """How many groups from `first` on make a card; 0 if none do."""
    if len(groups[first][1]) < 4:
        return 0
    lengths = list(accumulate(len(digits) for _, digits in groups[first : first + 8]))
    for count in range(len(lengths), 0, -1):
        if 12 <= lengths[count - 1] <= 19:
            digits = "".join(group for _, group in groups[first : first + count])
            if _issued(digits, text, groups[first][0]) and checks.luhn(digits):
                return count
    return 0


def _issued(digits: str, text: str, start: int) -> bool:
    length = len(digits)
    if any(length in lengths and start_of.match(digits) for start_of, lengths in _ISSUERS):
        return True
    return _RARE.match(digits) is not None and _CARD_CUE.search(cues.before(text, start)) is not None


def coins(text: str) -> Iterator[Span]:
    """Base58Check and Bech32 by their checksums, Ethereum by its shape."""
    if not _LONG_WORD.search(text):
        return
    for match in _ETHEREUM.finditer(text):
        yield Span(match.start(), match.end(), Label.COIN, match[0].lower())
    for match in _BASE58_CANDIDATE.finditer(text):
        if _base58_check(match[0]):
            yield Span(match.start(), match.end(), Label.COIN, match[0])
    for match in _BECH32.finditer(text):
        if _bech32_check(match[0].lower()):
            yield Span(match.start(), match.end(), Label.COIN, match[0].lower())


def _base58_check(text: str) -> bool:
    number = 0
    for char in text:
        number = number * 58 + _BASE58.index(char)
    if number.bit_length() > 200:
        return False
    raw = number.to_bytes(25, "big")
    return raw[0] in _BASE58_VERSIONS and hashlib.sha256(hashlib.sha256(raw[:21]).digest()).digest()[:4] == raw[21:]


def _bech32_check(text: str) -> bool:
    """Bech32 and Bech32m (BIP 173, BIP 350)."""
    prefix, _, data = text.partition("1")
    values = [ord(char) >> 5 for char in prefix] + [0] + [ord(char) & 31 for char in prefix]
    values += [_BECH32_CHARS.find(char) for char in data]
    if -1 in values:
        return False
    checksum = 1
    for value in values:
        top = checksum >> 25
        checksum = (checksum & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            checksum ^= generator if top >> bit & 1 else 0
    return checksum in (1, 0x2BC830A3)
