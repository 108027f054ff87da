"""`python -m tests.faults`: a storm for as long as asked, and its report. Exit code 1 when a promise was broken."""

import argparse
import asyncio
import random
import signal
import sys
from pathlib import Path

from tests.faults.faults import KINDS
from tests.faults.judge import judge
from tests.faults.report import report
from tests.faults.storm import Storm, Weather


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Kill, pause and cut, and see what is lost.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long it blows")
    parser.add_argument("--seed", type=int, default=None, help="of runs and faults; printed in any case")
    parser.add_argument("--faults", default=",".join(KINDS), help=f"some of {','.join(KINDS)}")
    parser.add_argument("--sessions", type=int, default=8, help="how many work at a time")
    parser.add_argument("--logs", type=Path, default=None, help="a folder for the logs of the processes")
    given = parser.parse_args()
    kinds = tuple(given.faults.split(","))
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}")
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    evidence = asyncio.run(Storm(Weather(seed, given.seconds, kinds, given.sessions, logs=given.logs)).run())
    objections = judge(evidence)
    for objection in objections:
        print(f"! {objection}")
    print(report(evidence, objections))
    return 1 if objections else 0


if __name__ == "__main__":
    sys.exit(main())
