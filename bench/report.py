"""Records to a table: medians over the rounds, their range, and ratios to the proxy taken within each round."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bench.measures import SERVICE
from bench.subjects import BASES, PROXY, RONDO, RONDO_KEPT

Record = dict[str, Any]
Value = Callable[[str, int], float | None]
_SUBJECTS = (PROXY, RONDO, RONDO_KEPT)


class Table:
    def __init__(self, records: Sequence[Record]) -> None:
        self._records = {(one["subject"], one["measure"], one["round"]): one for one in records if "measure" in one}
        self._rounds = sorted({one["round"] for one in records if "round" in one})

    def text(self) -> str:
        head = ("", *_SUBJECTS, f"{RONDO} / {PROXY}", f"{RONDO_KEPT} / {PROXY}")
        rows = [self._row(*row) for row in self._rows()]
        lines = [head, *(row for row in rows if set(row[1:]) != {"-"})]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def _rows(self) -> list[tuple[str, Value, int, bool]]:
        return [
            ("first token over direct, p50 ms", self._over_direct("first_p50_ms"), 1, False),
            ("first token over direct, p99 ms", self._over_direct("first_p99_ms"), 1, False),
            ("gap between chunks, p99 ms", self._at("lat", "gap_p99_ms"), 1, False),
            ("CPU ms per run, chunks 5 ms apart", self._at("sat5", "cpu_ms", SERVICE), 1, True),
            ("CPU ms per run, all at once", self._at("sat0", "cpu_ms", SERVICE), 1, True),
            ("CPU us per chunk, unhurried", self._at("slope", "chunk_us", SERVICE), 0, True),
            ("CPU ms per run beside its chunks", self._at("slope", "fixed_ms", SERVICE), 1, True),
            ("runs a second, chunks 5 ms apart", self._at("sat5", "runs_per_second"), 1, True),
            ("first token at that load, p50 ms", self._at("sat5", "first_p50_ms"), 0, False),
            ("first token at that load, p99 ms", self._at("sat5", "first_p99_ms"), 0, False),
            ("CPU ms per run of PostgreSQL", self._at("sat5", "cpu_ms", "postgres"), 2, False),
            ("CPU ms per run of Valkey", self._at("sat5", "cpu_ms", "valkey"), 2, False),
            ("core used by the service", self._at("sat5", "util", SERVICE), 2, False),
            ("SSE events per run", self._at("sat5", "events_per_run"), 0, False),
            ("KiB per run", self._at("sat5", "kib_per_run"), 0, False),
            ("MiB per 100 open streams", self._at("mem", "hundred_streams_mib"), 1, False),
            ("RSS MiB, idle", self._at("mem", "idle_rss_mib"), 0, False),
            ("seconds from start to ready", self._at("cold", "seconds"), 2, False),
            ("cores used by others", self._most_used_by_others, 2, False),
        ]

    def _at(self, measure: str, *path: str) -> Value:
        def value(subject: str, number: int) -> float | None:
            found: Any = self._records.get((subject, measure, number))
            for key in path:
                found = found.get(key) if isinstance(found, dict) else None
            return found

        return value

    def _over_direct(self, key: str) -> Value:
        at = self._at("lat", key)

        def value(subject: str, number: int) -> float | None:
            own, base = at(subject, number), at(BASES[subject], number)
            return None if own is None or base is None else own - base

        return value

    def _most_used_by_others(self, subject: str, number: int) -> float | None:
        found = [
            one["others_cores"]
            for (name, _, at), one in self._records.items()
            if name == subject and at == number and "others_cores" in one
        ]
        return max(found, default=None)

    def _row(self, name: str, value: Value, digits: int, with_ratio: bool) -> tuple[str, ...]:
        cells = [_summary([value(subject, number) for number in self._rounds], digits) for subject in _SUBJECTS]
        for subject in (RONDO, RONDO_KEPT):
            ratios = []
            for number in self._rounds:
                own, base = value(subject, number), value(PROXY, number)
                ratios.append(own / base if with_ratio and own is not None and base else None)
            cells.append(_summary(ratios, 2))
        return (name, *cells)


def _summary(values: Sequence[float | None], digits: int) -> str:
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    middle = f"{statistics.median(found):.{digits}f}"
    return middle if len(found) == 1 else f"{middle} ({min(found):.{digits}f}-{max(found):.{digits}f})"


def problems(records: Sequence[Record]) -> list[str]:
    """What went wrong, a line each."""
    return [
        f"{one['subject']} {one['measure']} round {one['round']}: {one['errors']} errors of {one['errors'] + one['done']} "
        f"{' '.join(one.get('error') or [])}"
        for one in records
        if one.get("errors")
    ]
