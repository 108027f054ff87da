"""Telephone numbers, by the plans of the countries whose languages Rondo's tests speak, and by words near them.

A number with `+` or `00` needs a country code and a fitting length. One without is taken when it is grouped as a plan of its
country groups it, or when a word near it speaks of a telephone; dates, prices and order numbers are not.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.redaction import cues
from app.redaction.labels import Label, Span

REGIONS = ("ES", "FR", "US", "GB", "IT", "DE", "PT")
"""In this order a number without country code is tried."""

_PLANS = {
    "ES": ("34", re.compile("[6-9][0-9]{8}")),
    "FR": ("33", re.compile("0[1-9][0-9]{8}")),
    "US": ("1", re.compile("1?[2-9][0-9]{2}[2-9][0-9]{6}")),
    "GB": ("44", re.compile("0[1-9][0-9]{8,9}")),
    "IT": ("39", re.compile("3[0-9]{8,9}|0[1-9][0-9]{5,9}")),
    "DE": ("49", re.compile("0[1-9][0-9]{5,11}")),
    "PT": ("351", re.compile("[239][0-9]{8}")),
}
_SHAPES = {
    (3, 3, 3): "ES PT", (3, 2, 2, 2): "ES", (2, 3, 2, 2): "ES", (3, 6): "ES", (2, 7): "ES", (2, 3, 4): "ES",
    (2, 2, 2, 2, 2): "FR", (4, 2, 2, 2): "FR", (3, 3, 4): "US IT", (1, 3, 3, 4): "US", (3, 7): "IT", (3, 2, 2, 3): "IT",
    (3, 3, 2, 2): "IT",
}  # fmt: skip
_SURE = re.compile("[6-9]|0[1-9]|3[0-9]{9}|1?[2-9][0-9]{2}[2-9][0-9]{6}")

_WORD = re.compile("[^\\W\\d_]{2}")
_GROUP = re.compile("[0-9]+")
_GAP = re.compile(r"[ \u00a0\u202f.\-–/]|[ \u00a0]?\(0\)[ \u00a0]?|\)[ \u00a0\-]?|[ \u00a0\-]?\(| [\-/–] ")
_LOOSE_GAP = re.compile(r"\s|/|\Z")
_TIGHT_BEFORE = re.compile(r"[^\W_]\Z|[^\W_][\-_/=#]\Z|[#€$£¥_]\s?\Z|[0-9][.,:]\Z|(?:\b(?:eur|usd|gbp|brl)|r\$)\s?\Z")
_TIGHT_AFTER = re.compile(
    r"[^\W_]|[.,:\-–_/][^\W_]|\s?[€$£¥%°]"
    r"|\s(?:eur|usd|gbp|chf|brl|euros?|dolar|dollar|pounds?|pesos|reais|libras|k[gm]\b|m[²2]|ms\b|bytes?|px\b|tokens?\b"
    r"|habitan|inhabitan|einwohner|abitanti|personas\b|people\b|personnes|menschen|pessoas|persone\b|unidades|units?\b|lignes|filas\b|rows\b"
    r"|visit|views?\b|users\b|usuarios\b)"
)
_CUE = re.compile(
    r"\btel\b|telefon|telephone|\btelf|\btlfn?\b|\bmov(?:il|el)|\bmobil|celular|cellulare|\bcel[l.:]|\bcel\b|\bphone|\bfax|whats?app|handy"
    r"|rufnummer|anruf|\bruf|\bllam|\bcall\b|\btext me|\bring me|\bappel|joindre|joignable|portable|telemovel|\bligu?[ae]\b"
    r"|\bligar|chiam|recapito|contact|kontakt|erreich|reach me|\bsms\b|marca[rd]? |numero es|number is|numero e\b|nummer ist"
)
_NO_CUE = re.compile(
    r"pedido|\borden\b|\border|factura|invoice|\bref\b|referenci|reference|expedient|commande|facture|bestell|rechnung|auftrag|encomenda|fatura"
    r"|ordine|fattura|\blote\b|\bsku\b|\bisbn|\bissn|\bean\b|\bserie|serial|vers[ia]|tracking|matricula|poliza|articul|article|artikel|ticket"
    r"|\bid\b|codigo|\bcode\b|build|\bnif\b|\bcpf\b|\bdni\b|siren|siret|steuer|\biva\b|contribuinte|catastr|seguimiento|sendung|reserv|\bssn\b"
)
_EITHER_CUE = re.compile(rf"(?P<telephone>{_CUE.pattern})|(?:{_NO_CUE.pattern})")
_COUNTRY = re.compile(
    r"1|7|2[07]|3[0123469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|21[1-8]|2[2-69][0-9]|35[0-9]|37[0-9]|38[0-9]|42[0-3]|50[0-9]|59[0-9]"
    r"|6[789][0-9]|80[08]|85[0-6]|88[0-8]|96[0-8]|97[0-79]|99[2-8]"
)
_LENGTHS = {"34": (9, 9), "33": (9, 9), "1": (10, 10), "44": (9, 10), "39": (6, 11), "49": (6, 12), "351": (9, 9)}


@dataclass(slots=True)
class _Run:
    """Groups of digits with what stands between them; `bounds[i]` is where group i starts and ends."""

    text: str
    bounds: Sequence[tuple[int, int]]
    fronts: dict[int, int] = field(default_factory=dict)

    def said_before(self, group: int) -> int:
        """1: the nearest word in front speaks of a telephone; -1: of something else; 0: none does."""
        if group not in self.fronts:
            front = _speaking(cues.before(self.text, self.bounds[group][0]))
            said = [match["telephone"] is not None for match in _EITHER_CUE.finditer(front)]
            self.fronts[group] = (1 if said[-1] else -1) if said else 0
        return self.fronts[group]

    def said_after(self, group: int) -> bool:
        back = _speaking(cues.after(self.text, self.bounds[group][1]))
        return _CUE.search(back.partition(". ")[0]) is not None

    def digits(self, first: int, last: int) -> str:
        return "".join(self.text[start:end] for start, end in self.bounds[first : last + 1])

    def shape(self, first: int, last: int) -> tuple[int, ...]:
        return tuple(end - start for start, end in self.bounds[first : last + 1])

    def gap(self, group: int) -> str:
        return self.text[self.bounds[group][1] : self.bounds[group + 1][0]]


def telephones(text: str, regions: Sequence[str] = REGIONS) -> Iterator[Span]:
    """Each number once, its key in E.164 where its country can be told, by `regions` in their order."""
    for run in _runs(text):
        first = 0
        while first < len(run.bounds):
            span = next((span for last in _lasts(run, first) if (span := _number(run, first, last, regions))), None)
            if span:
                yield span
                while first < len(run.bounds) and run.bounds[first][0] < span.end:
                    first += 1
            else:
                first += 1


def national_key(digits: str, regions: Sequence[str] = REGIONS) -> str:
    """E.164 of a number without country code, or its digits where no plan has it."""
    for region in regions:
        code, plan = _PLANS[region]
        if plan.fullmatch(digits):
            return "+" + code + (digits if region == "IT" else digits.removeprefix("1" if region == "US" else "0"))
    return digits


def _runs(text: str) -> Iterator[_Run]:
    bounds: list[tuple[int, int]] = []
    for match in _GROUP.finditer(text):
        if bounds and not (match.start() - bounds[-1][1] <= 5 and _GAP.fullmatch(text, bounds[-1][1], match.start())):
            yield _Run(text, bounds)
            bounds = []
        bounds.append(match.span())
    if bounds:
        yield _Run(text, bounds)


def _lasts(run: _Run, first: int) -> list[int]:
    """The groups at which a number that starts at `first` may end, the longest first."""
    if first and not _LOOSE_GAP.search(run.gap(first - 1)) and "(" not in run.gap(first - 1):
        return []
    total, singles, lasts = 0, 0, []
    for last in range(first, min(first + 7, len(run.bounds))):
        size = run.bounds[last][1] - run.bounds[last][0]
        total, singles = total + size, singles + (size == 1)
        if total > 17 or singles > 1:
            break
        if total >= 7:
            lasts.append(last)
    return lasts[::-1]


def _number(run: _Run, first: int, last: int, regions: Sequence[str]) -> Span | None:
    text, start, end = run.text, run.bounds[first][0], run.bounds[last][1]
    if last + 1 < len(run.bounds) and not _LOOSE_GAP.search(run.gap(last)):
        return None
    digits = run.digits(first, last)
    plus = text[start - 1 : start] == "+" or text[max(0, start - 2) : start] == "+("
    if plus or digits.startswith("00"):
        key = _international(run, first, last, digits if plus else digits[2:], sure=plus)
        start -= (2 if text[start - 1] == "(" else 1) if plus else 0
    else:
        key = national_key(digits, regions) if _is_national(run, first, last, digits, regions) else None
        start -= 1 if text[start - 1 : start] == "(" and ")" in text[start:end] else 0
    if key is None or _TIGHT_BEFORE.search(cues.before(text, start, 6)) or _TIGHT_AFTER.match(cues.after(text, end, 14)):
        return None
    return Span(start, end, Label.TEL, key)


def _international(run: _Run, first: int, last: int, digits: str, *, sure: bool) -> str | None:
    country = _COUNTRY.match(digits)
    if country is None or any("(0)" in run.gap(group) for group in range(first + 1, last)):
        return None
    code = next((code for code in ("351", "34", "33", "44", "39", "49", "1") if digits.startswith(code)), None)
    rest = digits[len(code or country[0]) :]
    if last > first and "(0)" not in run.gap(first) and rest.startswith("0") and code in ("33", "44", "49"):
        rest = rest[1:]
    least, most = _LENGTHS[code] if code else (6, 13)
    if not least <= len(rest) <= most or len(digits) > 16:
        return None
    known = code is not None and (code != "34" or rest[0] in "6789")
    if not sure and not ((known and (last > first or code == "34")) or _spoken_of(run, first, last)):
        return None
    return "+" + (code or country[0]) + rest


def _is_national(run: _Run, first: int, last: int, digits: str, regions: Sequence[str]) -> bool:
    shape = run.shape(first, last)
    if not 7 <= len(digits) <= 13 or _is_date(run, first, last, shape):
        return False
    if _spoken_of(run, first, last):
        return min(shape) >= 2 or shape[0] == 1
    if last == first or run.said_before(first) < 0:
        return False
    gaps = {run.gap(group).strip("()") for group in range(first, last)}
    outside = {run.gap(group) for group in (first - 1, last) if 0 <= group < len(run.bounds) - 1}
    if outside & gaps:
        return False
    thousands = gaps == {"."} and all(size == 3 for size in shape[1:])
    if thousands or len(gaps - {" ", ""}) > 1:
        return False
    if digits[0] == "0" and gaps != {"."}:
        return digits[1] != "0" and 9 <= len(digits) <= 12 and 2 <= shape[0] <= 5 and min(shape) >= 2
    plans = _SHAPES.get(shape, "").split()
    return (_SURE.match(digits) is not None or _is_listed(run, first, last)) and any(
        region in plans and _PLANS[region][1].fullmatch(digits) for region in regions
    )


def _is_listed(run: _Run, first: int, last: int) -> bool:
    """Whether it stands alone between commas, as in the line of a form."""
    start, end = run.bounds[first][0], run.bounds[last][1]
    front, back = run.text[max(0, start - 2) : start], run.text[end : end + 1]
    return front.rstrip()[-1:] in (",", ";", ":", "(") and back in (",", ";", ".", ")", "")


def _spoken_of(run: _Run, first: int, last: int) -> bool:
    """A word that says telephone stands nearer than one that says something else."""
    said = run.said_before(first)
    return said > 0 or (said == 0 and run.said_after(last))


def _speaking(text: str) -> str:
    """The text if it has a word at all."""
    return text if _WORD.search(text) else ""


def _is_date(run: _Run, first: int, last: int, shape: tuple[int, ...]) -> bool:
    if len(shape) not in (1, 3) or (len(shape) == 3 and max(shape) > 4):
        return False
    numbers = [int(run.text[start:end]) for start, end in run.bounds[first : last + 1]]
    if len(shape) == 1:
        return (
            shape == (8,)
            and 1900 <= numbers[0] // 10000 <= 2100
            and numbers[0] // 100 % 100 <= 12
            and numbers[0] % 100 <= 31
        )
    if shape[0] == 4 and max(shape[1:]) <= 2:
        return numbers[1] <= 12 and numbers[2] <= 31
    return shape[2] == 4 and max(shape[:2]) <= 2 and max(numbers[:2]) <= 31
