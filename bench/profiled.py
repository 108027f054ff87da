"""The service's command line under a profiler: `python -m bench.profiled sample|calls FILE serve`.

`sample` looks at the stack at every tick of the process's CPU time, which costs next to nothing; C code counts for the
Python function that called it, or comes next. `calls` counts every call (cProfile), which slows small functions down, but
tells how often.
"""

import cProfile
import json
import os
import signal
import site
import sys
from collections import Counter
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


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)  # the server raises it once more at its end
    how, target, *rest = sys.argv[1:]
    (serve_sampled if how == "sample" else serve_counted)(Path(target), rest)
