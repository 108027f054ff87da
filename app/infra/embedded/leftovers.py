"""Servers that a killed launcher left running. Only who holds the lock of the data directory may look for them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from app.infra.embedded.processes import EmbeddedServersError

_WAIT_SECONDS = 15.0
_POLL_SECONDS = 0.002


def end_leftovers(folder: Path, names: frozenset[str], pid_file: Path, signals: Sequence[signal.Signals]) -> None:
    """End the processes with these program names that work in `folder` (resolved) or below, and wait for their end.

    Each signal in turn goes to the server that `pid_file` names: its own children follow it. Without such a one nothing
    is sent at first, for the children of a server that was killed are ending already.
    """
    for number, asked in enumerate(signals):
        head = _pid_in(pid_file)
        running = _running(folder, names, head)
        for pid in [head] if head in running else running if number else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, asked)
        deadline = time.monotonic() + _WAIT_SECONDS
        while running and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            running = _running(folder, names, head)
        if not running:
            return
    raise EmbeddedServersError(
        f"Processes of an earlier start still use {folder} and do not end: {running}. End them first."
    )


def _pid_in(pid_file: Path) -> int:
    """0, which is no process's, where there is none."""
    try:
        return int(pid_file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return 0


def _running(folder: Path, names: frozenset[str], head: int) -> list[int]:
    if sys.platform != "linux":
        # A process cannot be asked where it works; so it is the one that the pid file names, if it still has that name.
        command = ["ps", "-o", "stat=,command=", "-p", str(head)]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        return [head] if not shown.startswith("Z") and any(name in shown for name in names) else []
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _works_in(entry, folder, names)]


def _works_in(entry: Path, folder: Path, names: frozenset[str]) -> bool:
    try:
        return (entry / "cwd").readlink().is_relative_to(folder) and (entry / "comm").read_text().strip() in names
    except OSError:
        return False  # it is gone, a zombie, or another user's: none of ours
