"""Where the service's CPU time goes: its command line under a profiler, and the profile as a table.

`sample` looks at the stack at every tick of the process's CPU time, which costs next to nothing; C code counts for the
Python function that called it. `calls` counts every call (cProfile), which slows small functions down, but tells how often.
"""

import cProfile
import io
import json
import os
import pstats
import signal
import site
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType

from app.cli import main as rondo

_TICK_SECONDS = 0.001
_ROOTS = tuple(
    sorted((f"{root}/" for root in (*site.getsitepackages(), os.getcwd(), str(Path(os.__file__).parent))), key=len)
)


class Sampler:
    def __init__(self) -> None:
        self._stacks: Counter[tuple[int, ...]] = Counter()
        self._codes: dict[int, CodeType] = {}

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, _TICK_SECONDS, _TICK_SECONDS)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, number: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            code = frame.f_code
            self._codes[id(code)] = code
            stack.append(id(code))
            frame = frame.f_back
        self._stacks[tuple(stack)] += 1

    def write(self, file: Path) -> None:
        """Stacks as lists of names, the innermost first, each with its count."""
        names = {key: _name(code) for key, code in self._codes.items()}
        stacks = [[[names[key] for key in stack], count] for stack, count in self._stacks.items()]
        file.write_text(json.dumps(stacks))


def _name(code: CodeType) -> str:
    path = code.co_filename
    for root in reversed(_ROOTS):
        path = path.removeprefix(root)
    return f"{path.removesuffix('.py')}:{code.co_qualname}"


def serve_sampled(file: Path, arguments: list[str]) -> None:
    sampler = Sampler()
    # SIGUSR1 begins and SIGUSR2 ends, so that neither start nor warm-up counts.
    signal.signal(signal.SIGUSR1, lambda *_: sampler.start())
    signal.signal(signal.SIGUSR2, lambda *_: sampler.stop())
    try:
        rondo(arguments)
    finally:
        sampler.write(file)


def serve_counted(file: Path, arguments: list[str]) -> None:
    profiler = cProfile.Profile()
    signal.signal(signal.SIGUSR1, lambda *_: profiler.enable())
    signal.signal(signal.SIGUSR2, lambda *_: profiler.disable())
    try:
        rondo(arguments)
    finally:
        profiler.disable()
        profiler.dump_stats(file)


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


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)  # the server raises it once more at its end
    how, target, *rest = sys.argv[1:]
    (serve_sampled if how == "sample" else serve_counted)(Path(target), rest)
