"""Starting processes on a core, and reading what they use. Linux only: it reads /proc."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started inside belongs on this core, from its first instruction on; this process comes back."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """A free port below those that the system gives to clients: a client polling one of those may connect to itself."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(10_000, max(lowest, 11_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port was found")


class Child:
    """A Python module as a process on a core. `ready_path` is polled until it answers; `start_seconds` tells how long."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        core: int,
        port: int,
        ready_path: str,
        environment: Mapping[str, str],
        log: IO[bytes],
    ) -> None:
        started = time.perf_counter()
        with on_core(core):
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments], env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid
        self.port = port
        try:
            self._wait_until_ready(ready_path, started + 60)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.perf_counter() - started

    def _wait_until_ready(self, path: str, deadline: float) -> None:
        request = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode()
        while time.perf_counter() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"a process ended with {self._process.returncode} before it was ready")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(request)
                if connection.recv(100).startswith(b"HTTP/1.1 200"):
                    return
            time.sleep(0.005)
        raise RuntimeError("a process was not ready in time")

    def stop(self) -> None:
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def children_named(name: str) -> list[int]:
    """This process's own children that run a program of this name."""
    pids = tree(os.getpid())[1:]
    return [pid for pid in pids if _name(pid).startswith(name) and _parent(pid) == os.getpid()]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process tree, with that of its children that have ended."""
    total = 0.0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~one << 3) | 2)  # the clock of another process, in nanoseconds
            total += sum(map(int, _stat(one)[13:15])) / _TICKS
    return total


def memory_mib(pid: int) -> dict[str, float]:
    """Resident memory of a process tree: `rss`, and `pss` with shared pages counted once."""
    sums = {"Rss": 0, "Pss": 0}
    for one in tree(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in sums:
                    sums[name] += int(value.split()[0])
    return {name.lower(): value / 1024 for name, value in sums.items()}


def busy_seconds() -> float:
    """CPU time of the whole machine since its start."""
    times = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(times) - times[3] - times[4]) / _TICKS


class Meter:
    """CPU time of named process trees and of all others, between entering and leaving."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids) | {"client": os.getpid()}
        self.cpu: dict[str, float] = {}
        self.wall = self.others = 0.0

    def __enter__(self) -> "Meter":
        self._before = self._read()
        self._busy, self._started = busy_seconds(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.wall = time.perf_counter() - self._started
        self.cpu = {name: value - self._before[name] for name, value in self._read().items()}
        foreign = busy_seconds() - self._busy - sum(self.cpu.values())
        self.others = max(0.0, foreign / self.wall) if self.wall else 0.0

    def _read(self) -> dict[str, float]:
        """This process's own time is without its children, which have names of their own."""
        return {name: time.process_time() if pid == os.getpid() else cpu_seconds(pid) for name, pid in self._pids.items()}
