"""The measurements. Each gives one record: plain numbers, in the units that its keys name."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import load
from bench.load import Sample, Unit, quantile
from bench.model import model_name
from bench.processes import Meter, memory_mib

SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    rounds: int
    lat_runs: int
    slope_chunks: int
    slope_runs: int
    slope_short_runs: int
    sat_seconds: float
    sat_workers: int
    burst_seconds: float
    mem_gap: int
    cold_starts: int
    warm_runs: int


QUICK = Plan(
    rounds=2, lat_runs=15, slope_chunks=220, slope_runs=16, slope_short_runs=64, sat_seconds=3.0, sat_workers=64,
    burst_seconds=1.0, mem_gap=60, cold_starts=0, warm_runs=24,
)  # fmt: skip
FULL = Plan(
    rounds=3, lat_runs=40, slope_chunks=420, slope_runs=48, slope_short_runs=128, sat_seconds=6.0, sat_workers=64,
    burst_seconds=3.0, mem_gap=120, cold_starts=1, warm_runs=40,
)  # fmt: skip
_SHORT_CHUNKS = 20
_GAP = 5
_SLOPE_WORKERS = 16
_HELD_STREAMS = 100
_HELD_CHUNKS = 60


async def warm_up(unit: Unit, port: int, tools: int, plan: Plan) -> None:
    """Raises RuntimeError when nothing works, with the first error."""
    model = model_name(chunks=200, tools=tools)
    sample = await load.run(unit, port, model, 200, workers=4, count=plan.warm_runs)
    if sample.errors:
        raise RuntimeError(sample.errors[0])


async def latency(unit: Unit, port: int, tools: int, plan: Plan, pids: Mapping[str, int]) -> dict[str, Any]:
    """One run at a time, chunks 5 ms apart: the first token and the gaps."""
    model = model_name(chunks=_SHORT_CHUNKS, gap=_GAP, tools=tools)
    with Meter(pids) as meter:
        sample = await load.run(unit, port, model, _SHORT_CHUNKS, workers=1, count=plan.lat_runs, gaps_of_every=1)
    return {
        **_counts(sample, meter),
        "first_p50_ms": _ms(quantile(sample.first, 0.5)),
        "first_p99_ms": _ms(quantile(sample.first, 0.99)),
        "gap_p50_ms": _ms(quantile(sample.gaps, 0.5)),
        "gap_p99_ms": _ms(quantile(sample.gaps, 0.99)),
    }


async def slope(unit: Unit, port: int, tools: int, plan: Plan, pids: Mapping[str, int]) -> dict[str, Any]:
    """CPU of long runs minus that of short ones, far from saturation: what a chunk costs, and the rest of a run."""
    costs: list[dict[str, float]] = []
    records: list[dict[str, Any]] = []
    for chunks, count in ((_SHORT_CHUNKS, plan.slope_short_runs), (plan.slope_chunks, plan.slope_runs)):
        model = model_name(chunks=chunks, gap=_GAP, tools=tools)
        with Meter(pids) as meter:
            sample = await load.run(unit, port, model, chunks, workers=_SLOPE_WORKERS, count=count, stagger=0.03)
        costs.append(_cpu_ms(sample, meter))
        records.append(_counts(sample, meter) | {"util": meter.cpu[SERVICE] / meter.wall})
    short, long = costs
    per_chunk = {name: (long[name] - short[name]) / (plan.slope_chunks - _SHORT_CHUNKS) for name in short}
    return {
        "done": sum(record["done"] for record in records),
        "errors": sum(record["errors"] for record in records),
        "others_cores": max(record["others_cores"] for record in records),
        "util": records[1]["util"],
        "chunk_us": {name: value * 1000 for name, value in per_chunk.items()},
        "fixed_ms": {name: short[name] - _SHORT_CHUNKS * per_chunk[name] for name in short},
    }


async def saturation(unit: Unit, port: int, tools: int, plan: Plan, pids: Mapping[str, int], gap: int) -> dict[str, Any]:
    """A closed loop with as much as it can do: CPU of a run of 200 chunks, runs a second."""
    model = model_name(chunks=200, gap=gap, tools=tools)
    seconds = plan.sat_seconds if gap else plan.burst_seconds
    with Meter(pids) as meter:
        sample = await load.run(unit, port, model, 200, workers=plan.sat_workers, seconds=seconds, gaps_of_every=7)
    return {
        **_counts(sample, meter),
        "cpu_ms": _cpu_ms(sample, meter),
        "util": {name: value / meter.wall for name, value in meter.cpu.items()},
        "runs_per_second": sample.done / meter.wall,
        "first_p50_ms": _ms(quantile(sample.first, 0.5)),
        "first_p99_ms": _ms(quantile(sample.first, 0.99)),
        "events_per_run": sample.events / max(1, sample.done),
        "kib_per_run": sample.size / 1024 / max(1, sample.done),
    }


async def memory(unit: Unit, port: int, tools: int, plan: Plan, pid: int) -> dict[str, Any]:
    """Memory of a warm process, and with a hundred streams held open."""
    before = memory_mib(pid)
    model = model_name(chunks=_HELD_CHUNKS, gap=plan.mem_gap, tools=tools)
    held = asyncio.create_task(
        load.run(unit, port, model, _HELD_CHUNKS, workers=_HELD_STREAMS, count=_HELD_STREAMS, stagger=0.01)
    )
    await asyncio.sleep(_HELD_STREAMS * 0.01 + plan.mem_gap / 1000 * _HELD_CHUNKS * 0.6)
    during = memory_mib(pid)
    is_open = not held.done()
    sample = await held
    return {
        "done": sample.done,
        "errors": len(sample.errors) + (0 if is_open else 1),
        "error": sample.errors[:1],
        "idle_rss_mib": before["rss"],
        "idle_pss_mib": before["pss"],
        "hundred_streams_mib": during["rss"] - before["rss"],
    }


def _counts(sample: Sample, meter: Meter) -> dict[str, Any]:
    return {
        "done": sample.done, "errors": len(sample.errors), "error": sample.errors[:1], "wall": meter.wall,
        "others_cores": meter.others,
    }  # fmt: skip


def _cpu_ms(sample: Sample, meter: Meter) -> dict[str, float]:
    return {name: value / max(1, sample.done) * 1000 for name, value in meter.cpu.items()}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
