"""`python -m bench.crowd`: many at once. A thousand streams held open, and a flood of starts against a few places.

    python -m bench.crowd --streams 1000 --runs 50
    python -m bench.crowd --flood 2000 --places 50 --queue 500

The service is one `rondo serve` on embedded servers, as in the other measurements; both parts check what they promise and
end with 1 where it does not hold.
"""

import argparse
import asyncio
import os
import re
import resource
import sys
import time
from datetime import datetime
from typing import Any

import uvloop

from bench.__main__ import Bench, standing, started
from bench.load import Answer, Connection
from bench.processes import cpu_seconds, memory_mib

ALONE = {"tenant": {"type": "shop", "id": "1"}, "model": "scripted/crowd", "input": "Hello", "background": True}
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *([1-9]\d*)", re.IGNORECASE)
_DONE = frozenset({"completed", "failed", "incomplete", "cancelled"})


class Crowd:
    """One service, and what is asked of it."""

    def __init__(self, port: int, pid: int, key: str) -> None:
        self.port, self.pid = port, pid
        self._headers = [("authorization", f"Bearer {key}")]

    async def ask(self, method: str, path: str, body: Any = None, connection: Connection | None = None) -> Answer:
        own = connection or await Connection.to(self.port)
        try:
            return await own.request(method, path, body, self._headers)
        finally:
            if connection is None:
                own.close()

    async def start(self, delay_ms: int) -> str:
        answer = await self.ask("POST", "/v1/runs", {**ALONE, "script": [{"text": "Hi.", "delay_ms": delay_ms}]})
        assert answer.status == 202, bytes(answer.body)
        run_id: str = answer.json()["id"]
        return run_id


async def hold(crowd: Crowd, streams: int, runs: int) -> list[str]:
    """Open streams on some runs, look at the memory, end the runs, and see that every stream was told."""
    run_ids = [await crowd.start(600_000) for _ in range(runs)]
    await asyncio.sleep(1)
    before, cpu = memory_mib(crowd.pid), cpu_seconds(crowd.pid)
    begun = time.perf_counter()
    held = []
    for number in range(streams):
        held.append(asyncio.create_task(crowd.ask("GET", f"/v1/runs/{run_ids[number % runs]}/events")))
        if number % 20 == 19:
            await asyncio.sleep(0.02)
    open_now = 0.0
    while open_now < streams and time.perf_counter() - begun < 60:
        await asyncio.sleep(0.2)
        metrics = bytes((await crowd.ask("GET", "/metrics")).body)
        open_now = float(re.findall(rb"\nrondo_open_streams (\S+)", metrics)[0])
    opened = time.perf_counter() - begun
    opening_cpu = cpu_seconds(crowd.pid) - cpu
    during, cpu, idle = memory_mib(crowd.pid), cpu_seconds(crowd.pid), time.perf_counter()
    await asyncio.sleep(20)
    idle_cpu = (cpu_seconds(crowd.pid) - cpu) / (time.perf_counter() - idle)
    for run_id in run_ids:
        await crowd.ask("POST", f"/v1/runs/{run_id}/cancel")
    answers = await asyncio.gather(*held)
    told = sum(b"\nevent: run.cancelled\n" in answer.body for answer in answers)
    print(f"{int(open_now)} streams open on {runs} runs after {opened:.1f} s ({opening_cpu:.1f} s CPU)")
    print(f"memory {before['rss']:.1f} MiB before, {during['rss']:.1f} MiB with them: "
          f"{(during['rss'] - before['rss']) * 1024 / streams:.1f} KiB a stream")  # fmt: skip
    print(f"{idle_cpu * 100:.1f} % of a core while nothing happens; {told} were told the end")
    wrong = [] if open_now >= streams else [f"only {open_now} streams were open at once"]
    return wrong if told == streams else [*wrong, f"only {told} streams were told the end"]


async def flood(crowd: Crowd, posts: int, places: int) -> list[str]:
    """All starts at once; every accepted run must end, and every refusal say when to come back."""
    connections = [await Connection.to(crowd.port) for _ in range(posts)]
    body = {**ALONE, "script": [{"text": "Hi.", "delay_ms": 200}]}
    begun = time.perf_counter()
    answers = await asyncio.gather(*(crowd.ask("POST", "/v1/runs", body, connection) for connection in connections))
    answered = time.perf_counter() - begun
    accepted = [answer.json()["id"] for answer in answers if answer.status == 202]
    refused = [connection for connection, answer in zip(connections, answers, strict=True) if answer.status in (429, 503)]
    silent = [connection for connection in refused if not _RETRY_AFTER.search(connection.head)]
    others = sorted({answer.status for answer in answers} - {202, 429, 503})
    for connection in connections:
        connection.close()
    runs: list[dict[str, Any]] = []
    waiting, deadline = list(accepted), time.perf_counter() + 120
    while waiting and time.perf_counter() < deadline:
        await asyncio.sleep(2)  # asking for each of them is a load too
        found = [(await crowd.ask("GET", f"/v1/runs/{run_id}")).json() for run_id in waiting]
        runs += [run for run in found if run["status"] in _DONE]
        waiting = [run["id"] for run in found if run["status"] not in _DONE]
    good = sum(run["status"] == "completed" for run in runs)
    most = _at_once(runs)
    print(f"{posts} starts at once: answered after {answered:.1f} s; {len(accepted)} accepted, {len(refused)} refused")
    print(f"{good} of the accepted completed after {time.perf_counter() - begun:.1f} s, {most} under way at once at most")
    wrong = [f"status {status}" for status in others]
    wrong += [f"{len(silent)} refusals do not say when to come back"] if silent else []
    wrong += [f"{len(accepted) - good} accepted runs did not complete"] if good != len(accepted) else []
    return [*wrong, f"{most} runs at once"] if most > places else wrong


def _at_once(runs: list[dict[str, Any]]) -> int:
    steps = [(datetime.fromisoformat(run["started_at"]), 1) for run in runs]
    steps += [(datetime.fromisoformat(run["finished_at"]), -1) for run in runs]
    most = now = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


async def measure(bench: Bench, given: argparse.Namespace, port: int, pid: int) -> list[str]:
    crowd = Crowd(port, pid, bench.rondo.environment["RONDO_SERVICE_KEY"])
    await crowd.start(1)
    if given.flood:
        return await flood(crowd, given.flood, given.places)
    return await hold(crowd, given.streams, given.runs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description="Many streams, or many starts, at once.")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=50, help="the runs that the streams follow")
    parser.add_argument("--flood", type=int, default=0, help="starts at once, instead of streams")
    parser.add_argument("--places", type=int, default=50, help="runs at once during a flood")
    parser.add_argument("--queue", type=int, default=500, help="runs that may wait during a flood")
    given = parser.parse_args()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most_files, 65_536), most_files))
    cores = sorted(os.sched_getaffinity(0))
    with standing(cores[0], cores[-1]) as bench:
        if given.flood:
            limits = {"RONDO_MAX_CONCURRENT_RUNS": str(given.places), "RONDO_MAX_QUEUED_RUNS": str(given.queue)}
            bench.rondo.environment |= limits
        with started(bench, bench.rondo) as child:
            wrong = uvloop.run(measure(bench, given, child.port, child.pid))
        bench.log.seek(0)
        lost = bench.log.read().count(b"run_lost")
    if lost:
        wrong.append(f"{lost} runs were lost to another owner")
    for line in wrong:
        print("!", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
