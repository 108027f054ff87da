"""The words of notes and questions: one line, one normal form, and the stems by which texts are compared. Pure.

A stem is the first 70 % of a word (three characters at least): it finds `vive` by `vivo` and `invoices` by `invoicing` in
any language, without a dictionary of any.
"""

import hashlib
import math
import unicodedata
from collections.abc import Iterator

_INVISIBLE = {"Cc", "Zl", "Zp", "Cs", "Cf"}
_JOINERS = "\u200c\u200d"
_KEPT_PUNCTUATION = "#%&@"
_NEGATIONS_TEXT = "no not never nunca jamas ni sin without none tampoco nadie nobody cannot don doesn didn isn aren won"
_FILLERS_TEXT = """
a about al algo alguien algun alguna alguno an and any are as at be been but by can con como cual cuales cuando cuanto
cuantos de del desde did do does donde e el ella ellas ellos en entre era es esa ese eso esta estan estar este esto for from
fue ha had han has hay have he her him his how i if in into is it its la las le les lo los mas me mi more my nos o of on or
our para pero por porque que quien s se ser she should si sobre son su sus t te tell than that the their them there these
they this those tiene to tu u un una unas uno unos was we were what when where which who whom whose why will with would y ya
you your
"""
_NEGATIONS = frozenset(_NEGATIONS_TEXT.split())
_FILLERS = frozenset(_FILLERS_TEXT.split())

Stems = frozenset[str]


def one_line(text: str) -> str:
    """`text` with line ends, control characters and runs of spaces each collapsed to one space, and nothing invisible."""
    if text.isprintable():
        return " ".join(text.split())
    shown = "".join(
        character if unicodedata.category(character) not in _INVISIBLE or character in _JOINERS else _in_place_of(character)
        for character in text
    )
    return " ".join(shown.split())


def _in_place_of(invisible: str) -> str:
    return "" if unicodedata.category(invisible) == "Cf" else " "


def norm(text: str) -> str:
    """The form by which two notes are the same: NFKD, no combining marks, no punctuation, casefolded, single spaces.

    What makes another word stays (`C#`, `C++`, `10%`). Scripts without spaces are cut into their characters. A text of
    punctuation alone is its own norm.
    """
    line = one_line(text)
    folded = unicodedata.normalize("NFKD", line.casefold())
    return " ".join("".join(_folded(folded)).split()) or line


def _folded(text: str) -> Iterator[str]:
    for character in text:
        if unicodedata.combining(character):
            continue
        if unicodedata.category(character).startswith("P") and character not in _KEPT_PUNCTUATION:
            yield " "
        elif "\u3040" <= character <= "\u30ff" or "\u3400" <= character <= "\u9fff":
            yield f" {character} "
        else:
            yield character


def norm_hash(normal: str) -> bytes:
    """SHA-256 of a norm: what is unique in a scope, and all that a tombstone keeps of a text."""
    return hashlib.sha256(normal.encode("utf-8", "replace")).digest()


def content_words(text: str) -> list[str]:
    """The words of a text that say something, in their order, each once. Negations do."""
    return [word for word in dict.fromkeys(norm(text).split()) if word not in _FILLERS and any(map(str.isalnum, word))]


def stem(word: str) -> str:
    """The first 70 % of a word, three characters at least; numbers and short words whole."""
    if len(word) <= 3 or any(character.isdigit() for character in word):
        return word
    return word[: max(3, math.ceil(len(word) * 0.7))]


def stems(text: str) -> Stems:
    return frozenset(stem(word) for word in content_words(text))


def share_found(wanted: Stems, text: Stems) -> float:
    """Which share of `wanted` stands in `text`, 0 to 1; a stem also stands there as the beginning of another one."""
    if not wanted:
        return 0.0
    return sum(_stands(word, text) for word in wanted) / len(wanted)


def _stands(word: str, text: Stems) -> bool:
    if word in text:
        return True
    return len(word) >= 3 and any(len(other) >= 3 and (other.startswith(word) or word.startswith(other)) for other in text)


def overlap(one: Stems, other: Stems) -> float:
    """Of all their stems, the share that both have. Texts whose numbers or negations differ have nothing in common."""
    if _decisive(one) != _decisive(other):
        return 0.0
    return len(one & other) / len(one | other) if one | other else 0.0


def _decisive(found: Stems) -> Stems:
    return frozenset(word for word in found if word in _NEGATION_STEMS or any(character.isdigit() for character in word))


_NEGATION_STEMS = frozenset(stem(word) for word in _NEGATIONS)
