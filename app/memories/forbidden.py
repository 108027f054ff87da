"""What a drawn note may not hold, and what in it waits for a person. Pure.

The first are values that must not be kept: keys and passwords, numbers of cards, accounts and identity documents. The second
is text that could steer a later conversation: it is not dropped, since a preference may read like that too.
"""

import re
from collections.abc import Callable

_KEY = re.compile(
    r"-----BEGIN|\b(?:sk|pk|rk|ghp|gho|xox[abprs]|whsec|glpat|hf)[-_][\w-]{12,}|\bAKIA[0-9A-Z]{12,}|\bBearer\s+\S{12,}"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}"
)
_RANDOM = re.compile(r"\b(?=\w*\d)(?=\w*[A-Za-z])[A-Za-z0-9_-]{24,}\b")
_PASSWORD = re.compile(
    r"\b(?:password|passphrase|passcode|pin code|contraseña|clave de acceso|pin)\b\s*(?:is|es|:|=|of|de)?\s*[\"'«]?\S*\d",
    re.I,
)
_DIGITS = re.compile(r"(?<![\w.,])\d(?:[ -]?\d){11,18}(?![\w])")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{2,4}){3,8}\b", re.I)
_SPANISH_ID = re.compile(r"\b([XYZ]?)[ -]?(\d{7,8})[ -]?([A-Z])\b", re.I)
_US_ID = re.compile(r"\b(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}\b")
_CHECK_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"


def forbidden_value(text: str) -> str | None:
    """The kind of value that must not be kept, or None: `key`, `password`, `card`, `account`, `identity`."""
    for kind, has in _KINDS.items():
        if has(text):
            return kind
    return None


def _has_card(text: str) -> bool:
    return any(_passes_luhn(re.sub(r"\D", "", found)) for found in _DIGITS.findall(text))


def _passes_luhn(digits: str) -> bool:
    if not 12 <= len(digits) <= 19:
        return False
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


def _has_account(text: str) -> bool:
    """An IBAN whose check digits are right, also one that is followed by further words."""
    return any(
        _is_iban(compact[:length])
        for found in _IBAN.findall(text)
        for compact in [found.replace(" ", "").upper()]
        for length in range(15, min(34, len(compact)) + 1)
    )


def _is_iban(compact: str) -> bool:
    moved = compact[4:] + compact[:4]
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1


def _has_identity(text: str) -> bool:
    if _US_ID.search(text):
        return True
    return any(
        len(first + digits) == 8 and _CHECK_LETTERS[int(_NIE[first.upper()] + digits) % 23] == letter.upper()
        for first, digits, letter in _SPANISH_ID.findall(text)
    )


_NIE = {"": "", "X": "0", "Y": "1", "Z": "2"}
_KINDS: dict[str, Callable[[str], bool]] = {
    "account": _has_account,
    "card": _has_card,
    "identity": _has_identity,
    "password": lambda text: bool(_PASSWORD.search(text)),
    "key": lambda text: bool(_KEY.search(text) or _RANDOM.search(text)),
}

_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+\.\w|\bhttps?:|\bwww\.|\b[\w-]+\.(?:com|net|org|io|dev|es|eu|info|xyz)\b", re.I)
_ORDER = re.compile(
    r"\b(?:ignor(?:e|a|ad|es|en)|disregard|you (?:must|should|have to|are)|always (?:answer|reply|say|send|call|use|bcc|cc)"
    r"|never (?:answer|reply|say|tell|mention|ask)|debes|deberás|tienes que|siempre (?:responde|contesta|di|envía|manda|usa)"
    r"|nunca (?:respondas|contestes|digas|menciones|preguntes)|from now on|a partir de ahora|system prompt|the assistant"
    r"|el asistente|la asistente|instructions?|instrucciones|b?cc)\b",
    re.I,
)
_CODE = re.compile(
    r"`|</?\w+[^>]*>|[{}]|\$\(|\w\(\)|;\s*$|\b(?:SELECT|DROP|INSERT|UPDATE|DELETE)\b.*\b(?:FROM|TABLE|INTO|SET)\b|\bcurl\b"
)


def reads_as_order(text: str) -> bool:
    """Whether it addresses the assistant, holds an address to send to, or code."""
    return bool(_ADDRESS.search(text) or _ORDER.search(text) or _CODE.search(text))
