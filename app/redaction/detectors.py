"""Every detector over one text, and their spans made into one list without overlaps."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from app.redaction import accounts, identities, keys, network, telephones, titles
from app.redaction.dictionary import Dictionary
from app.redaction.labels import MAX_TEXT_CHARS, Span, TextTooLong, TookTooLong, normal_form

Detector = Callable[[str], Iterable[Span]]

_SUREST_FIRST = ("LIT", "KEY", "URL", "EMAIL", "IBAN", "CARD", "IP", "COIN", "ID", "TEL", "PER")
_RANK = {label: rank for rank, label in enumerate(_SUREST_FIRST)}


@dataclass(frozen=True)
class Context:
    """What to look for and how.

    `labels` are the kinds wanted, None for all; dictionary entries are looked for in any case. `regions` are the countries
    whose telephone numbers are tried when a number has no country code, in their order. `names` may be None. `extra` are
    detectors beside the built-in ones (a name recogniser). `seconds` is what one call may take of the processor.
    """

    labels: frozenset[str] | None = None
    regions: Sequence[str] = telephones.REGIONS
    names: Dictionary | None = None
    extra: tuple[Detector, ...] = ()
    seconds: float = 2.0
    detectors: tuple[Detector, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        numbers = partial(telephones.telephones, regions=self.regions)
        object.__setattr__(self, "detectors", (*_BUILT_IN, numbers, *self.extra))


_BUILT_IN: tuple[Detector, ...] = (
    keys.secrets,
    network.urls,
    network.emails,
    accounts.ibans,
    accounts.cards,
    network.addresses,
    accounts.coins,
    identities.identities,
    titles.titled_names,
)


def detect(text: str, context: Context, also: Detector | None = None, *, ends: float | None = None) -> list[Span]:
    """The values in the text, in order, without overlaps: a span inside another is dropped, partial overlaps are united.

    Raises `TextTooLong`, `TookTooLong`, and whatever a detector raises. `also` is a further detector whose spans stay
    whatever `context.labels` says. `ends` is the thread's CPU time by which all is done, by default as `context` has it.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise TextTooLong(f"a text of {len(text)} characters is too long to be redacted (at most {MAX_TEXT_CHARS})")
    ends = time.thread_time() + context.seconds if ends is None else ends
    named = list(context.names.find(text)) if context.names else []
    found = list(also(text)) if also else []
    for detector in context.detectors:
        for span in detector(text):
            if context.labels is None or span.label in context.labels:
                found.append(span)
        if time.thread_time() > ends:
            raise TookTooLong(f"the detectors took over {context.seconds} s")
    return list(_united(text, named, found)) if named or found else []


def _united(text: str, named: list[Span], found: list[Span]) -> Iterator[Span]:
    """Of two with the same bounds the caller's own entry wins, else the surer kind."""
    ranked = [(span, -1) for span in named] + [(span, _RANK.get(span.label, len(_RANK))) for span in found]
    ranked.sort(key=lambda item: (item[0].start, -item[0].end, item[1]))
    current, current_rank = ranked[0]
    for span, rank in ranked[1:]:
        if span.start >= current.end:
            yield current
            current, current_rank = span, rank
        elif span.end > current.end:
            label = current.label if current_rank <= rank else span.label
            current_rank = min(current_rank, rank)
            current = Span(current.start, span.end, label, normal_form(label, text[current.start : span.end]))
    yield current
