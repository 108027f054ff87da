"""Profiles to tables: where the service's CPU time goes."""

import io
import json
import pstats
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path


def sampled_table(file: Path, cpu_ms_per_run: float, rows: int) -> str:
    """Milliseconds per run: by who called for it, by function with all it calls, and by function alone."""
    stacks: list[tuple[list[str], int]] = json.loads(file.read_text())
    total = sum(count for _, count in stacks) or 1
    scale = cpu_ms_per_run / total

    def table(title: str, named: Callable[[list[str]], Iterable[str]]) -> str:
        counts: Counter[str] = Counter()
        for stack, count in stacks:
            for name in set(named(stack)):
                counts[name] += count
        lines = [f"{count * scale:8.2f} ms {count / total:6.1%}  {name}" for name, count in counts.most_common(rows)]
        return "\n".join([f"\n{title}", *lines])

    return "\n".join(
        [
            f"{total} samples; {cpu_ms_per_run:.1f} ms of CPU per run, of which:",
            table("by package, itself", lambda stack: [_package(stack[0])]),
            table("by our innermost function, with what it calls in libraries", _innermost_own),
            table("our functions, with all they call", lambda stack: [name for name in stack if name.startswith("app/")]),
            table("all functions, with all they call", lambda stack: stack),
            table("all functions, alone", lambda stack: stack[:1]),
        ]
    )


def _package(name: str) -> str:
    parts = name.partition(":")[0].split("/")
    return "/".join(parts[:2]) if parts[0] == "app" else parts[0]


def _innermost_own(stack: list[str]) -> list[str]:
    return [next((name for name in stack if name.startswith("app/")), f"none of ours: {_package(stack[0])}")]


def counted_table(file: Path, rows: int) -> str:
    text = io.StringIO()
    pstats.Stats(str(file), stream=text).strip_dirs().sort_stats("tottime").print_stats(rows)
    return text.getvalue()
