"""How a token is written, and everything that is taken for one.

A token is `«LABEL_N»`; `«LABEL_Nb»`, `c` … `z`, `aa` … are further spellings of the same value. Models change tokens, so
more is read than is written: any case inside guillemets, blanks, `<< >>`, `&laquo;`, `\\u00ab`, one guillemet missing,
`\\_`, and `LABEL_N` alone in capitals at word bounds.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from app.redaction.labels import BUILT_IN, Label, Span

MAX_TOKEN_CHARS = 48
"""No spelling that is read as a token is longer."""

NOTE = (
    "Marks like «PER_n» or «EMAIL_n», with a number in the place of n, each stand for a real value that you are not shown. "
    "Treat one as that value, and copy it exactly, guillemets and number too, wherever the value belongs, also in tool "
    "arguments. Never make up such a mark."
)
"""What a model is told about tokens. No token stands in it, which would keep a number from being used."""

_OPEN = r"(?:«|&laquo;|\\u00[aA][bB])"
_OPEN_ANY = r"(?:«|<<|&laquo;|\\u00[aA][bB])"
_CLOSE = r"(?:»|>>|&raquo;|\\u00[bB][bB])"
_BLANK = r"[ \u00a0\u202f]{0,2}"
_NUMBER = r"\\{0,2}_(?P<%s>[1-9][0-9]{0,5})(?P<%s>%s{0,3})"
_SHAPE = r"[A-Za-z][A-Za-z0-9]{0,15}"
_EXACT = re.compile(r"«[A-Z][A-Z0-9]{0,15}_[1-9][0-9]{0,5}[a-z]{0,3}»")
_EXACT_BYTES = re.compile("«([A-Z][A-Z0-9]{0,15})_([1-9][0-9]{0,5})([a-z]{0,3})»".encode())

_OPENED = "«".encode()
_OPENINGS = ("«", "<<", "&laquo;", "\\u00ab")
_CLOSINGS = ("»", ">>", "&raquo;", "\\u00bb")
_NAME = re.compile("[A-Za-z0-9]{0,16}")
_BLANKS = " \u00a0\u202f"


@dataclass(frozen=True, slots=True)
class Token:
    """`variant` counts the spellings of one value from 0."""

    label: str
    number: int
    variant: int = 0

    def __str__(self) -> str:
        return f"«{self.label}_{self.number}{_letters(self.variant)}»"


@dataclass(frozen=True, slots=True)
class Seen:
    """A token at `text[start:end]`, in whatever spelling. `bare`: without any guillemet."""

    start: int
    end: int
    token: Token
    bare: bool


def _letters(variant: int) -> str:
    """0 is none, 1 is b, … 25 is z, 26 is aa."""
    if variant == 0:
        return ""
    letters, rest = "", variant + 1
    while rest:
        rest, place = divmod(rest - 1, 26)
        letters = chr(97 + place) + letters
    return letters


def _variant(letters: str) -> int:
    number = 0
    for letter in letters.lower():
        number = number * 26 + ord(letter) - 96
    return max(number - 1, 0)


def seen_tokens(text: str, labels: frozenset[str] = BUILT_IN, *, any_label: bool = False) -> Iterator[Seen]:
    """Whatever reads as a token of one of the labels, from left to right; one step of one pass.

    `any_label`: in guillemets also of labels that are not known, since they may come to be.
    """
    if "_" not in text:
        return
    for match in _pattern(labels, any_label).finditer(text):
        place = match.lastgroup or ""
        label, number, letters = match["label" + place[-1]], match["n" + place[-1]], match["v" + place[-1]]
        if letters.lower() != "a":
            token = Token(label.upper(), int(number), _variant(letters))
            yield Seen(match.start(), match.end(), token, place == "v3")


@lru_cache(maxsize=256)
def _pattern(labels: frozenset[str], any_label: bool) -> re.Pattern[str]:
    known = "|".join(sorted(map(re.escape, labels), key=len, reverse=True))
    opened = rf"{_OPEN_ANY}{_BLANK}(?P<label1>{known})"
    if any_label:
        opened = (
            rf"(?:{_OPEN}{_BLANK}(?={_SHAPE}\\{{0,2}}_)|{_OPEN_ANY}{_BLANK}(?=(?:{known})\\{{0,2}}_))(?P<label1>{_SHAPE})"
        )
    closed = _SHAPE if any_label else known
    return re.compile(
        rf"(?i:{opened}{_NUMBER % ('n1', 'v1', '[a-z]')}(?:{_BLANK}{_CLOSE}|(?!\w)))"
        rf"|(?<!\w)(?i:(?P<label2>{closed}){_NUMBER % ('n2', 'v2', '[a-z]')}{_CLOSE})"
        rf"|(?<!\w)(?P<label3>{known}){_NUMBER % ('n3', 'v3', '[a-z]')}(?!\w)"
    )


def look_alikes(text: str, labels: frozenset[str] = BUILT_IN) -> Iterator[Span]:
    """What restore would take for a token, or might one day, as literal text."""
    for seen in seen_tokens(text, labels, any_label=True):
        yield Span(seen.start, seen.end, Label.LIT, text[seen.start : seen.end])


def held_from(text: str, labels: frozenset[str], before: str) -> int:
    """Where a stream must stop showing: from there on the text may still become a token, or a longer one.

    `before` is the character in front of the text, or nothing. At most `MAX_TOKEN_CHARS` are held.
    """
    start = max(0, len(text) - MAX_TOKEN_CHARS)
    for match in _starts(labels).finditer(text, start):
        at = match.start()
        front = text[at - 1] if at else before
        if not (text[at].isalnum() and (front == "_" or front.isalnum())) and _may_grow(text[at:], labels):
            return at
    return len(text)


@lru_cache(maxsize=256)
def _starts(labels: frozenset[str]) -> re.Pattern[str]:
    first = "".join(sorted({char for label in labels for char in (label[0], label[0].lower())}))
    return re.compile(rf"[«<&\\]|(?<!\w)[{first}](?=[\w\\&>»;]*\Z)")


def _may_grow(text: str, labels: frozenset[str]) -> bool:
    """Whether more characters could make it a token, or change where its token ends."""
    opening = next((opening for opening in _OPENINGS if text[: len(opening)].lower() == opening), "")
    if not opening and any(opening.startswith(text.lower()) for opening in _OPENINGS):
        return True
    rest = text[len(opening) :]
    if opening:
        rest = rest[_count(rest, _BLANKS, 2) :]
    name = _NAME.match(rest)
    word = name[0].upper() if name else ""
    rest = rest[len(word) :]
    if not rest:
        return any(label.startswith(word) for label in labels)
    if word not in labels:
        return False
    rest = rest[_count(rest, "\\", 2) :]
    if not rest:
        return True
    digits = _count(rest[1:], "0123456789", 6)
    if rest[0] != "_" or rest[1:2] == "0" or not digits:
        return rest == "_"
    return _may_close(rest[1 + digits :], blanks=bool(opening))


def _may_close(rest: str, *, blanks: bool) -> bool:
    rest = rest[_count(rest.lower(), "abcdefghijklmnopqrstuvwxyz", 3) :]
    if blanks:
        rest = rest[_count(rest, _BLANKS, 2) :]
    return any(closing.startswith(rest.lower()) and closing != rest.lower() for closing in _CLOSINGS)


def _count(text: str, chars: str, most: int) -> int:
    """How many of the first characters are of these."""
    count = 0
    while count < most and count < len(text) and text[count] in chars:
        count += 1
    return count


def replace_exact(data: bytes, written: Callable[[Token], bytes | None]) -> bytes:
    """UTF-8 with something else in the place of each token that is written exactly as a token is; None leaves it."""

    def one(match: re.Match[bytes]) -> bytes:
        letters = match[3].decode()
        token = Token(match[1].decode(), int(match[2]), _variant(letters))
        made = None if letters == "a" else written(token)
        return match[0] if made is None else made

    return _EXACT_BYTES.sub(one, data) if _OPENED in data else data


def safe_cut(text: str, limit: int) -> int:
    """Where to cut so that at most `limit` characters stay and no token is cut in two."""
    if len(text) <= limit:
        return len(text)
    start = text.rfind("«", max(0, limit - MAX_TOKEN_CHARS), limit)
    token = _EXACT.match(text, start) if start >= 0 else None
    return start if token and token.end() > limit else limit
