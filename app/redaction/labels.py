"""The kinds of personal values, what was found where, and the errors of redaction."""

import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address


class Label(StrEnum):
    """The built-in kinds. A dictionary may bring its own beside them (`CUSTOMER`)."""

    PER = "PER"
    EMAIL = "EMAIL"
    TEL = "TEL"
    IBAN = "IBAN"
    CARD = "CARD"
    ID = "ID"
    IP = "IP"
    URL = "URL"
    KEY = "KEY"
    COIN = "COIN"
    ENT = "ENT"
    LIT = "LIT"
    """Text that looks like a token but was written by somebody who may not write tokens."""


BUILT_IN = frozenset(str(label) for label in Label)
MAX_LABEL_CHARS = 16
MAX_TEXT_CHARS = 200_000
"""Longer texts are refused. All texts and leaves that are redacted in one go count together."""

LONG_TEXT_CHARS = 10_000
"""From here on redaction takes more than a few milliseconds and belongs in a thread."""

_LABEL = re.compile(rf"[A-Z][A-Z0-9]{{0,{MAX_LABEL_CHARS - 1}}}")
_SEPARATORS = re.compile(r"[\W_]+")
_PLAIN = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ı": "i", "’": "'"})


class RedactionError(Exception):
    """Something could not be redacted; nothing of it may be sent. The message holds no value."""


class TextTooLong(RedactionError):
    """More than `MAX_TEXT_CHARS` characters."""


class TookTooLong(RedactionError):
    """The detectors used up their time."""


@dataclass(frozen=True, slots=True)
class Span:
    """A value at `text[start:end]`. Spans with one `label` and `key` are one value, in whatever spelling."""

    start: int
    end: int
    label: str
    key: str


def is_label(name: str) -> bool:
    """Whether a caller may use it as the type of a dictionary entry; `LIT` is kept for the service."""
    return name != Label.LIT and _LABEL.fullmatch(name) is not None


@lru_cache(maxsize=8192)
def fold(text: str) -> str:
    """Without case and marks: `GARCÍA` and `garcia` are one."""
    if text.isascii():
        return text.lower()
    bare = "".join(char for char in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(char))
    return bare.casefold().translate(_PLAIN)


def normal_form(label: str, value: str) -> str:
    """What the spellings of one value have in common; telephones and dictionary entries bring their own."""
    match label:
        case Label.EMAIL:
            return value.replace("%40", "@").casefold()
        case Label.URL | Label.KEY | Label.COIN | Label.LIT:
            return value
        case Label.IP:
            return _canonical_address(value)
        case Label.IBAN | Label.CARD | Label.ID | Label.TEL:
            return _SEPARATORS.sub("", value).upper()
        case _:
            return " ".join(_SEPARATORS.sub(" ", fold(value)).split()) or value


def _canonical_address(value: str) -> str:
    try:
        return str(ip_address(value))
    except ValueError:
        return value
