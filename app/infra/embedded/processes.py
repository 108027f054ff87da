"""Child processes that end with this one, and what a killed launcher left behind."""

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.infra.settings import SettingsError

START_SECONDS = 120.0
"""Long, since PostgreSQL may have to replay its log first."""
STOP_SECONDS = 15.0
_POLL_SECONDS = 0.002
_START_ATTEMPTS = 5
_LOG_LIMIT_BYTES = 5_000_000
_TAIL_LINES = 15

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1
# Loaded once: a child between fork and exec must not load libraries.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class EmbeddedServersError(SettingsError):
    """The embedded servers cannot be had as things are. The text tells a person what to do."""


@dataclass(frozen=True)
class Identity:
    """Who a child is to the system: `owner` is the (user, group) that its files belong to.

    In a user namespace the child takes itself for an ordinary user, while its files stay root's.
    """

    owner: tuple[int, int]
    in_user_namespace: bool = False

    def assume(self) -> None:
        """Become it. Called in the child, before it turns into the program."""
        if self.in_user_namespace:
            _enter_user_namespace()
        elif self.owner != own_ids():
            user, group = self.owner
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)


def own_ids() -> tuple[int, int]:
    return os.geteuid(), os.getegid()


def _enter_user_namespace() -> None:
    assert _libc is not None
    if _libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", "1000 0 1"), ("gid_map", "1000 0 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def run_as(
    identity: Identity,
    command: Sequence[str | Path],
    *,
    cwd: Path,
    log: Path,
    death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a program that gets `death_signal` when this process ends, however it ends (Linux; elsewhere it lives on).

    Only for the main thread: the signal is sent when the thread that started the child ends. The child has a session of
    its own, so that Ctrl-C reaches us and not it; few environment variables, so that it holds no secret of ours; a pipe
    as stdin; and its output is added to `log`.
    """
    launcher = os.getpid()

    def before_exec() -> None:
        identity.assume()
        if _libc is not None:  # after the identity: a change of user clears it
            _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
            if os.getppid() != launcher:  # it ended before the line above
                os._exit(1)

    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,
        )


def _environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    # TZ spares initdb a search through all time zones.
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C", "TZ": "UTC"}


class Server(ABC):
    """One server that listens on a free port of 127.0.0.1. `launch`, `wait_until_ready`, `ask_to_stop`, `wait_until_stopped`."""

    name: str
    stop_signal = signal.SIGTERM
    last_signal = signal.SIGKILL

    def __init__(self, log: Path) -> None:
        self.log = log
        self.port = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @abstractmethod
    def _start(self, port: int) -> subprocess.Popen[bytes]: ...

    @abstractmethod
    def _is_ready(self) -> bool: ...

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        self.port = free_port()
        self._log_start = start_of_log(self.log)
        self._child = self._start(self.port)

    def wait_until_ready(self) -> None:
        for _ in range(_START_ATTEMPTS):
            if self._comes_up():
                return
            tail = log_tail(self.log, self._log_start)
            if "already in use" not in tail:
                break
            self.launch()  # somebody took the port since we picked it
        raise EmbeddedServersError(f"{self.name} did not start. Its log, {self.log}, ends so:\n{tail}")

    def _comes_up(self) -> bool:
        assert self._child is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._is_ready():
                return True
            if self._child.poll() is not None:
                return False
            time.sleep(_POLL_SECONDS)
        return False

    def ask_to_stop(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(self.stop_signal)

    def wait_until_stopped(self) -> None:
        if self._child is None:
            return
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.send_signal(self.last_signal)
            self._child.wait(STOP_SECONDS)
        self._child = None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kept_secret(file: Path) -> str:
    """A random password of URL-safe characters, made once, in a file that only its owner can read."""
    if not file.exists():
        # Whole or not at all: a half-written password would lock its server for good.
        made = file.with_name(f"{file.name}.{os.getpid()}")
        made.unlink(missing_ok=True)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(secrets.token_urlsafe(24) + "\n")
            opened.flush()
            os.fsync(opened.fileno())
        made.replace(file)
    return file.read_text().strip()


def start_of_log(log: Path) -> int:
    """Where the next lines will be. A log that grew long is put aside, in place of the one put aside before."""
    size = log.stat().st_size if log.exists() else 0
    if size < _LOG_LIMIT_BYTES:
        return size
    log.replace(log.with_suffix(".old.log"))
    return 0


def log_tail(log: Path, start: int) -> str:
    with log.open("rb") as opened:
        opened.seek(start)
        lines = opened.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


def leftovers(folder: Path, names: frozenset[str], pid_file: Path) -> list[int]:
    """Living processes with one of these program names that work in `folder` (resolved) or below it.

    Elsewhere than on Linux a process cannot be asked where it works, so there it is only the one that `pid_file` names.
    """
    if sys.platform != "linux":
        return _named_in(pid_file, names)
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        # Gone, or another user's: neither is one that we started. A zombie has no working directory.
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                if (entry / "comm").read_text().strip() in names:
                    found.append(int(entry.name))
    return found


def _named_in(pid_file: Path, names: frozenset[str]) -> list[int]:
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return []
    shown = subprocess.run(["ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    is_ours = any(name in shown.stdout for name in names) and not shown.stdout.startswith("Z")
    return [pid] if is_ours else []


def end_leftovers(folder: Path, names: frozenset[str], pid_file: Path, *, signals: Sequence[signal.Signals]) -> None:
    """End what a killed launcher left running: each signal in turn to whom `pid_file` names, then wait for all.

    The others are children of that one and see its end by themselves. Without such a one, they all are asked.
    """
    for asked in signals:
        running = leftovers(folder, names, pid_file)
        head = [pid for pid in _named_in(pid_file, names) if pid in running]
        for pid in head or (running if asked is not signals[0] else []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, asked)
        deadline = time.monotonic() + STOP_SECONDS
        while running and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            running = leftovers(folder, names, pid_file)
        if not running:
            return
    raise EmbeddedServersError(f"processes of an earlier start still use {folder} and do not end: {running}")
