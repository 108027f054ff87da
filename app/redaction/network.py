"""Addresses of the net: URLs, e-mail, IP."""

import re
from collections.abc import Iterator
from ipaddress import IPv6Address

from app.redaction import cues
from app.redaction.labels import Label, Span, normal_form

_URL = re.compile(r"(?<![^\W_])(?:[A-Za-z][A-Za-z0-9+.\-]{1,14}://|(?i:www)\.(?=[^\W_]))[^\s<>\"“”«»`{}|\\^\ufdd0\ufdd1]++")
_TAIL = ".,;:!?…'’*_~"
_PAIRS = {")": "(", "]": "["}

_AT = re.compile("@|%40")
_LOCAL = re.compile(r"[\w.!#$%&'*+/=?^`{|}~\-]{1,64}+\Z")
_DOMAIN = re.compile(r"[^\W_](?:[\w\-]{0,61}[^\W_])?(?:\.[^\W_](?:[\w\-]{0,61}[^\W_])?){1,8}+(?![\w\-]*[^\W_])")
_TOP = re.compile(r"[^\W\d_]{2,24}|xn--[A-Za-z0-9\-]{2,59}")

_V4 = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\w|\.[0-9])")
_V4_FRONT = re.compile(r"[\w.]\Z|[0-9],\Z")
_VERSION_CUE = re.compile(
    r"(?:\bv|vers[a-z]*|release|build|firmware|ausgabe|section|seccion|capitulo|apartado|§)[ .:]{0,3}\Z"
)
_V6_HINT = re.compile("::|:[0-9A-Fa-f]{1,4}:")
_V6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{2,39}(?:(?<=:)[0-9.]{7,15})?(?![\w:])")


def urls(text: str) -> Iterator[Span]:
    """Every address with a scheme or `www.`; what a sentence puts behind it stays outside."""
    if "://" not in text and "www." not in text.lower():
        return
    for match in _URL.finditer(text):
        end = _trimmed(text, match.start(), match.end())
        value = text[match.start() : end]
        if len(value.partition("://")[2] or value) > 1:
            yield Span(match.start(), end, Label.URL, value)


def _trimmed(text: str, start: int, end: int) -> int:
    """Without closing punctuation, and without a bracket that was opened before the address."""
    spare = {
        closing: text.count(closing, start, end) - text.count(opening, start, end) for closing, opening in _PAIRS.items()
    }
    while end > start:
        last = text[end - 1]
        if last in spare and spare[last] > 0:
            spare[last] -= 1
        elif last not in _TAIL:
            break
        end -= 1
    return end


def emails(text: str) -> Iterator[Span]:
    for match in _AT.finditer(text):
        local = _LOCAL.search(text, max(0, match.start() - 64), match.start())
        domain = _DOMAIN.match(text, match.end())
        end = match.end() + _domain_chars(domain[0]) if domain else match.end()
        if local is None or end == match.end():
            continue
        start = match.start() - len(local[0].lstrip(".'*`/{|=?&"))
        if start < match.start():
            yield Span(start, end, Label.EMAIL, normal_form(Label.EMAIL, text[start:end]))


def _domain_chars(domain: str) -> int:
    """Up to the last part that may stand at the top, with one more in front of it; 0 if there is none."""
    while "." in domain:
        if _TOP.fullmatch(domain.rpartition(".")[2]):
            return len(domain)
        domain = domain.rpartition(".")[0]
    return 0


def addresses(text: str) -> Iterator[Span]:
    """IPv4 unless a version is spoken of; IPv6 only where no time, MAC or `a::b` of a program can be meant."""
    for match in _V4.finditer(text):
        if _V4_FRONT.search(text[max(0, match.start() - 2) : match.start()]):
            continue
        if all(int(part) < 256 for part in match[0].split(".")) and not _VERSION_CUE.search(
            cues.before(text, match.start(), 16)
        ):
            yield Span(match.start(), match.end(), Label.IP, match[0])
    if not _V6_HINT.search(text):
        return
    for match in _V6.finditer(text):
        value = match[0]
        if value.count(":") < 2 or not _is_v6(value.rstrip(":") if value.endswith(":") and value[-2:] != "::" else value):
            continue
        end = match.end() - (1 if value.endswith(":") and value[-2:] != "::" else 0)
        yield Span(match.start(), end, Label.IP, normal_form(Label.IP, text[match.start() : end]))


def _is_v6(value: str) -> bool:
    try:
        IPv6Address(value)
    except ValueError:
        return False
    groups = value.split(":")
    speaking = any(len(group) >= 3 and any(char.isdigit() for char in group) for group in groups)
    return "::" not in value or (len([group for group in groups if group]) >= 2 and speaking)
