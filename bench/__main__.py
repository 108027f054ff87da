"""`python -m bench`: the service beside a plain proxy, in turns, and a table of both. See bench/README.md."""

import argparse
import asyncio
import contextlib
import functools
import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import uvloop

from app.infra.embedded.launcher import EmbeddedServers
from app.infra.settings import Settings
from bench import measures, profile, report
from bench.load import run as run_load
from bench.measures import SERVICE, Plan
from bench.model import model_name
from bench.processes import Child, Meter, children_named, free_port, on_core
from bench.subjects import DIRECT, DIRECT_LOOP, RONDO, TOOL_TURNS, Proxy, Rondo, asked, looped, plain_environment

RESULTS = Path(__file__).parent / "results"
WHAT = ("lat", "slope", "sat", "mem", "cold")


@dataclass(frozen=True, slots=True)
class Bench:
    """What stands while measurements go on."""

    model_port: int
    service_core: int
    pids: dict[str, int]
    proxy: Proxy
    rondo: Rondo
    log: IO[bytes]
    folder: Path


class Records:
    """Kept for the table, and written as they come."""

    def __init__(self, file: Path) -> None:
        self.all: list[dict[str, Any]] = []
        file.parent.mkdir(exist_ok=True)
        self._file = file.open("w")

    def add(self, **record: Any) -> None:
        self.all.append(record)
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if "measure" in record:
            print(f"{time.strftime('%H:%M:%S')} {record['subject']} {record['measure']}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def standing(rig_core: int, service_core: int) -> Iterator[Bench]:
    """The model, PostgreSQL and Valkey with their usual durability, on one core; the log file of all services."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rondo-bench-"))
        folder.chmod(0o755)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        log = stack.enter_context((folder / "services.log").open("w+b", buffering=0))
        stack.push(functools.partial(_show_log, log))
        os.sched_setaffinity(0, {rig_core})
        port = free_port()
        model = Child(
            ["bench.model", "--port", str(port)], core=rig_core, port=port, ready_path="/", environment=plain_environment(),
            log=log,
        )  # fmt: skip
        stack.callback(model.stop)
        servers = stack.enter_context(EmbeddedServers(Settings(data_dir=folder / "servers")))
        key = "bench:" + b64encode(secrets.token_bytes(32)).decode()
        rondo = Rondo(port, servers.database_url, servers.redis_url, folder / "service", key)
        with on_core(service_core):
            migrating = [sys.executable, "-m", "app.cli", "migrate"]
            subprocess.run(migrating, env=rondo.environment, check=True, stdout=log, stderr=log)
        pids = {"model": model.pid}
        for name in ("postgres", "valkey"):
            pids |= dict.fromkeys([name], next(iter(children_named(name)), 0))
        yield Bench(port, service_core, {k: v for k, v in pids.items() if v}, Proxy(port), rondo, log, folder)


def _show_log(log: IO[bytes], kind: type[BaseException] | None, *rest: object) -> None:
    """The end of what the services wrote, where something went wrong."""
    if kind is not None and issubclass(kind, Exception):
        log.seek(max(0, log.tell() - 4000))
        print(log.read().decode(errors="replace"), file=sys.stderr)


async def measure_direct(bench: Bench, plan: Plan, number: int, records: Records) -> None:
    for name, unit in ((DIRECT, asked), (DIRECT_LOOP, looped)):
        record = await measures.latency(unit, bench.model_port, TOOL_TURNS[name], plan, bench.pids)
        records.add(subject=name, measure="lat", round=number, **record)


async def measure_service(
    bench: Bench, service: Proxy | Rondo, child: Child, plan: Plan, what: set[str], number: int, records: Records
) -> None:
    pids = bench.pids | {SERVICE: child.pid}
    units = await service.units(child.port)
    for name, unit in units.items():
        tools = TOOL_TURNS[name]
        await measures.warm_up(unit, child.port, tools, plan)
        first_name = name == service.names[0]
        if "lat" in what:
            record = await measures.latency(unit, child.port, tools, plan, pids)
            records.add(subject=name, measure="lat", round=number, **record)
        if "slope" in what and first_name:
            record = await measures.slope(unit, child.port, tools, plan, pids)
            records.add(subject=name, measure="slope", round=number, **record)
        if "sat" in what:
            for gap in (5, 0):
                record = await measures.saturation(unit, child.port, tools, plan, pids, gap)
                records.add(subject=name, measure=f"sat{gap}", round=number, **record)


async def measure_memory(service: Proxy | Rondo, child: Child, plan: Plan, number: int, records: Records) -> None:
    name = service.names[0]
    unit, tools = (await service.units(child.port))[name], TOOL_TURNS[name]
    await measures.warm_up(unit, child.port, tools, plan)
    record = await measures.memory(unit, child.port, tools, plan, child.pid)
    records.add(subject=name, measure="mem", round=number, **record)


def measure(bench: Bench, plan: Plan, what: set[str], records: Records) -> None:
    """Every round takes all subjects in turn, and every second round the other way round."""
    for number in range(1, plan.rounds + 1):
        if "lat" in what:
            uvloop.run(measure_direct(bench, plan, number, records))
        services: list[Proxy | Rondo] = [bench.proxy, bench.rondo]
        for service in services if number % 2 else reversed(services):
            starts = []
            if "mem" in what and number == 1:
                # In a process of its own: load leaves memory in it that streams would then use.
                with started(bench, service) as child:
                    starts.append(child.start_seconds)
                    uvloop.run(measure_memory(service, child, plan, number, records))
            for _ in range(plan.cold_starts if "cold" in what else 0):
                with started(bench, service) as child:
                    starts.append(child.start_seconds)
            with started(bench, service) as child:
                seconds = min([*starts, child.start_seconds])
                records.add(subject=service.names[0], measure="cold", round=number, seconds=seconds)
                uvloop.run(measure_service(bench, service, child, plan, what, number, records))


@contextlib.contextmanager
def started(bench: Bench, service: Proxy | Rondo) -> Iterator[Child]:
    child = service.start(bench.service_core, bench.log)
    try:
        yield child
    finally:
        child.stop()


async def profiled_load(bench: Bench, child: Child, given: argparse.Namespace) -> float:
    """A load with the profiler on; returns CPU milliseconds per run."""
    unit = (await bench.rondo.units(child.port))[RONDO]
    await measures.warm_up(unit, child.port, 1, measures.FULL)
    os.kill(child.pid, signal.SIGUSR1)
    await asyncio.sleep(0.05)
    with Meter({SERVICE: child.pid}) as meter:
        model = model_name(chunks=given.profile_chunks, gap=given.profile_gap, tools=1)
        sample = await run_load(
            unit, child.port, model, given.profile_chunks, workers=given.profile_workers, seconds=given.profile_seconds
        )
    os.kill(child.pid, signal.SIGUSR2)
    await asyncio.sleep(0.05)
    if not sample.done:
        raise RuntimeError(sample.errors[0])
    return meter.cpu[SERVICE] / sample.done * 1000


def profile_service(bench: Bench, given: argparse.Namespace) -> str:
    file = bench.folder / "profile"
    child = bench.rondo.start(bench.service_core, bench.log, through=("bench.profiled", given.profile, str(file)))
    try:
        cpu_ms = uvloop.run(profiled_load(bench, child, given))
    finally:
        child.stop()
    if given.profile == "sample":
        return profile.sampled_table(file, cpu_ms, given.rows)
    return profile.counted_table(file, given.rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the service against a plain proxy.")
    parser.add_argument("--quick", action="store_true", help="about a minute and a half instead of about four minutes")
    parser.add_argument("--rounds", type=int, help="how often all subjects take their turn")
    parser.add_argument("--what", default=",".join(WHAT), help=f"some of {','.join(WHAT)}")
    parser.add_argument("--service-core", type=int, help="the core of the service or proxy (the last one)")
    parser.add_argument("--rig-core", type=int, help="the core of everything else (the first one)")
    parser.add_argument(
        "--profile", choices=("sample", "calls"), nargs="?", const="sample", help="profile the service instead"
    )
    parser.add_argument("--profile-gap", type=int, default=5, help="milliseconds between chunks while profiling")
    parser.add_argument("--profile-chunks", type=int, default=200, help="of an answer while profiling")
    parser.add_argument("--profile-workers", type=int, default=64, help="runs at a time while profiling")
    parser.add_argument("--profile-seconds", type=float, default=10.0)
    parser.add_argument("--rows", type=int, default=40, help="of each table of a profile")
    return parser.parse_args()


def main() -> int:
    if sys.platform != "linux":
        print("bench: only Linux tells what is needed here.", file=sys.stderr)
        return 2
    given = arguments()
    # An orderly end, so that everything that was started is stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cores = sorted(os.sched_getaffinity(0))
    rig_core = cores[0] if given.rig_core is None else given.rig_core
    service_core = cores[-1] if given.service_core is None else given.service_core
    plan = measures.QUICK if given.quick else measures.FULL
    if given.rounds:
        plan = replace(plan, rounds=given.rounds)
    try:
        with standing(rig_core, service_core) as bench:
            if given.profile:
                print(profile_service(bench, given))
                return 0
            file = RESULTS / time.strftime("%Y%m%d-%H%M%S.jsonl")
            records = Records(file)
            records.add(python=platform.python_version(), machine=platform.machine(), cores=len(cores), plan=asdict(plan))
            measure(bench, plan, set(given.what.split(",")), records)
    except KeyboardInterrupt:
        return 130
    if service_core == rig_core:
        print("There is one core only: nothing stands apart, so trust the CPU figures and no times.")
    print(report.Table(records.all).text())
    for line in report.problems(records.all):
        print("!", line)
    print(f"Medians of {plan.rounds} rounds (least-most); the records are in {file.relative_to(Path.cwd())}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
