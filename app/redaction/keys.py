"""Secrets: tokens and keys by the marks their issuers give them, PEM blocks, and what stands behind `password=`."""

import re
from collections.abc import Iterator

from app.redaction.cues import LEAF
from app.redaction.labels import Label, Span

_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_BODY = re.compile(r"[A-Za-z0-9+/=\s\\:,.\-]*+")

_MARKED = re.compile(
    r"(?<![^\W_])(?:"
    r"eyJ[A-Za-z0-9_\-]{8,}+\.[A-Za-z0-9_\-]{8,}+(?:\.[A-Za-z0-9_\-]*+){1,3}"
    r"|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|sk-[A-Za-z0-9_\-]{20,}+"
    r"|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}+|whsec_[A-Za-z0-9+/=]{20,}+"
    r"|gh[pousr]_[A-Za-z0-9]{30,}+|github_pat_[A-Za-z0-9_]{30,}+|glpat-[A-Za-z0-9_\-]{20,}+"
    r"|xox[abeoprs]-[A-Za-z0-9\-]{10,}+|xapp-[A-Za-z0-9\-]{20,}+"
    r"|AIza[A-Za-z0-9_\-]{35}|ya29\.[A-Za-z0-9_\-]{20,}+|GOCSPX-[A-Za-z0-9_\-]{20,}+"
    r"|SG\.[A-Za-z0-9_\-]{16,}+\.[A-Za-z0-9_\-]{16,}+"
    r"|hf_[A-Za-z0-9]{30,}+|npm_[A-Za-z0-9]{30,}+|pypi-[A-Za-z0-9_\-]{40,}+|dop_v1_[a-f0-9]{40,}+"
    r"|(?:AC|SK)[a-f0-9]{32}(?![A-Za-z0-9])|key-[a-f0-9]{32}(?![A-Za-z0-9])"
    r")"
)
_LONG_WORD = re.compile(r"[A-Za-z0-9_\-.]{15}")
_VALUE = re.compile(r"[^\s\"'`,;«»<>\ufdd0\ufdd1]{8,}+")
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[^\W\d_]")
_ASSIGNED = re.compile(
    r"(?i)(?:passw(?:or)?d|passwort|kennwort|contrase(?:ñ|n)a|mot de passe|senha|pwd|secret|api[_\- ]?key|access[_\- ]?key"
    r"|account[_\- ]?key|auth[_\- ]?token|access[_\- ]?token|clave|bearer)"
    r"(?:[\"']?\s{0,2}(?::|=|=>| is| es| est| ist| é| è)\s{0,2}|\s)[\"'`]?(?P<value>[^\s\"'`,;«»<>\ufdd0\ufdd1]{8,}+)"
)


def secrets(text: str) -> Iterator[Span]:
    if "-----BEGIN" in text:
        yield from _blocks(text)
    if _LONG_WORD.search(text):
        for match in _MARKED.finditer(text):
            yield _span(text, match.start(), match.end())
    yield from _assigned(text)


def _assigned(text: str) -> Iterator[Span]:
    """Words of letters and digits, eight and more, behind one that says that they are secret."""
    for word in _VALUE.finditer(text):
        if not (_DIGIT.search(word[0]) and _LETTER.search(word[0])):
            continue
        for match in _ASSIGNED.finditer(text, max(0, word.start() - 30), word.end()):
            value = match["value"].rstrip(".,;:!?)]}")
            if len(value) >= 8 and _DIGIT.search(value) and _LETTER.search(value):
                yield _span(text, match.start("value"), match.start("value") + len(value))


def _blocks(text: str) -> Iterator[Span]:
    ended, may_close = 0, True
    for match in _PEM.finditer(text):
        if match.start() < ended:
            continue
        leaf_end = text.find(LEAF, match.end()) if may_close else -1
        closing = _PEM_END.search(text, match.end(), leaf_end if leaf_end >= 0 else len(text)) if may_close else None
        may_close = closing is not None or leaf_end >= 0
        ended = closing.end() if closing else match.end() + len(_body(text, match.end()))
        yield _span(text, match.start(), ended)


def _body(text: str, start: int) -> str:
    """What may still belong to a block that was cut off."""
    found = _PEM_BODY.match(text, start)
    return found[0].rstrip() if found else ""


def _span(text: str, start: int, end: int) -> Span:
    return Span(start, end, Label.KEY, text[start:end])
