"""The sentences: values stand in them as `{{LABEL|value}}`; every other line is held out from tuning."""

import re
from dataclasses import dataclass
from pathlib import Path

from app.redaction.dictionary import Entry

FOLDER = Path(__file__).parent / "corpus"
LANGUAGES = ("es", "en", "fr", "de", "pt", "it")
_VALUE = re.compile(r"\{\{([A-Z]+)\|(.+?)\}\}")

DICTIONARY = [
    Entry("PER", name)
    for name in (
        "Lucía Ferrer", "Pablo Ortega Ruiz", "Núria Vila", "Kate O'Neil", "John Smith", "Priya Patel", "Claire Dupont",
        "Jean-Marc Petit", "Éloïse Lambert", "Klaus Schulz", "Anna Weiß", "Jürgen Vogel", "Rui Costa", "Inês Magalhães",
        "João dos Santos", "Giulia Bianchi", "Sara Conti", "Luca Ricci",
    )
]  # fmt: skip
"""Half of the names, as a caller would hand them over; the others stand behind an honorific, or free."""


@dataclass(frozen=True)
class Sentence:
    language: str
    text: str
    values: tuple[tuple[int, int, str], ...]
    """Start, end, label."""

    held_out: bool


def sentences(kind: str = "") -> list[Sentence]:
    """Those with values, or with `_lookalikes` those without."""
    found = []
    for language in LANGUAGES:
        lines = (FOLDER / f"{language}{kind}.txt").read_text(encoding="utf-8").splitlines()
        found += [_sentence(language, line, place % 2 == 1) for place, line in enumerate(lines)]
    return found


def _sentence(language: str, line: str, held_out: bool) -> Sentence:
    text, values, done = "", [], 0
    for match in _VALUE.finditer(line):
        text += line[done : match.start()]
        values.append((len(text), len(text) + len(match[2]), match[1]))
        text += match[2]
        done = match.end()
    return Sentence(language, text + line[done:], tuple(values), held_out)
