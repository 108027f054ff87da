"""One server as a child: start it on a free port, wait until it answers, start it again where it died, stop it."""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from app.infra.embedded.processes import EmbeddedServersError

HOST = "127.0.0.1"
_START_SECONDS = 120.0  # long, since a server may have to replay its log first
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.002
_LOOK_SECONDS = 0.02
_START_ATTEMPTS = 5
_LOG_LIMIT_BYTES = 5_000_000
_TAIL_LINES = 15


class Server(ABC):
    """Launching and waiting are apart, and so are asking to stop and waiting: two servers do it at the same time."""

    name: str
    stop_signal = signal.SIGTERM
    last_signal = signal.SIGKILL

    def __init__(self, home: Path) -> None:
        """`home` (resolved) keeps its data, log and password. OSError: it cannot be written."""
        home.mkdir(mode=0o700, exist_ok=True)
        self.port = 0
        self._home = home
        self._log = home / "server.log"
        self._log.touch()
        self._log_start = 0
        self._password_file = home / "password"
        self._password_is_new = not self._password_file.exists()
        self._password = _kept_password(self._password_file)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def prepare(self) -> None:
        """End what an earlier launcher left running, and make ready what the process needs."""

    @abstractmethod
    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process on `self.port`."""

    @abstractmethod
    def _is_ready(self, pid: int) -> bool: ...

    def launch(self) -> None:
        """Start the prepared process, and do not wait for it."""
        self.port = _free_port()
        self._log_start = _start_of_log(self._log)
        self._child = self._start()

    def wait_until_ready(self) -> None:
        """Start it again where another program took the port meanwhile. Raises with the end of its log if it fails."""
        for attempt in range(_START_ATTEMPTS):
            if attempt:
                self.launch()
            if self._comes_up():
                return
            tail = log_tail(self._log, self._log_start)
            if "already in use" not in tail:
                break
        raise EmbeddedServersError(f"{self.name} did not start. The end of its log, {self._log}:\n{tail}")

    def _comes_up(self) -> bool:
        assert self._child is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._child.poll() is None:
            if self._is_ready(self._child.pid):
                return True
            time.sleep(_POLL_SECONDS)
        return False

    @property
    def is_alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @abstractmethod
    def clear_away(self) -> None:
        """End what a server that died has left running."""

    async def start_again(self) -> None:
        """After its death: on the same port and data. EmbeddedServersError: it did not come up."""
        await asyncio.to_thread(self.clear_away)
        self._log_start = _start_of_log(self._log)
        self._child = self._start()
        deadline = time.monotonic() + _START_SECONDS
        while not await asyncio.to_thread(self._is_ready, self._child.pid):
            if self._child.poll() is not None or time.monotonic() > deadline:
                tail = log_tail(self._log, self._log_start)
                raise EmbeddedServersError(f"{self.name} did not start again. The end of its log, {self._log}:\n{tail}")
            await asyncio.sleep(_LOOK_SECONDS)

    def ask_to_stop(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(self.stop_signal)

    def wait_until_stopped(self) -> None:
        if self._child is None:
            return
        try:
            self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.send_signal(self.last_signal)
            self._child.wait(_STOP_SECONDS)
        self._child = None


def _kept_password(file: Path) -> str:
    """A random password of URL-safe characters, made once, in a file that only its owner can read."""
    if not file.exists():
        # Whole or not at all: a half-written password would lock its server for good.
        made = file.with_name(f"{file.name}.new")
        made.unlink(missing_ok=True)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(secrets.token_urlsafe(24) + "\n")
            opened.flush()
            os.fsync(opened.fileno())
        made.replace(file)
    return file.read_text().strip()


def log_tail(log: Path, start: int = 0) -> str:
    """The last lines of a log, none from before `start`."""
    with log.open("rb") as opened:
        opened.seek(start)
        lines = opened.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


def _start_of_log(log: Path) -> int:
    """Where the next lines will be. A log that grew long is put aside, in place of the one put aside before."""
    size = log.stat().st_size if log.exists() else 0
    if size < _LOG_LIMIT_BYTES:
        return size
    log.replace(log.with_suffix(".old.log"))
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
