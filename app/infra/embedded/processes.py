"""Child processes that end with this one."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.infra.settings import SettingsError

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


def ending_with_us(death_signal: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """What a child does before it turns into its program, so that it gets `death_signal` when this process ends (Linux)."""
    launcher = os.getpid()

    def before_exec() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
            if os.getppid() != launcher:  # it ended before the line above
                os._exit(1)

    return before_exec


def run_as(
    identity: Identity,
    command: Sequence[str | Path],
    *,
    cwd: Path,
    log: Path,
    death_signal: signal.Signals = signal.SIGTERM,
    stdin: bytes = b"",
    must_write: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that gets `death_signal` when this process ends, however it ends (Linux; elsewhere it lives on).

    Only for the main thread: the signal is sent when the thread that started the child ends. The child has a session of
    its own, so that Ctrl-C reaches us and not it; few environment variables, so that it holds no secret of ours;
    `stdin` (short) as its input, which keeps passwords out of its arguments; and its output is added to `log`.

    OSError or SubprocessError: it could not be started, or cannot write in `must_write` as who it is.
    """
    end_with_us = ending_with_us(death_signal)

    def before_exec() -> None:
        identity.assume()
        if must_write is not None and not os.access(must_write, os.W_OK | os.X_OK):
            raise PermissionError
        end_with_us()  # after the identity: a change of user clears it

    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,
        )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:  # broken: it ended at once, which the caller sees
        child.stdin.write(stdin)
    return child


def ended(child: subprocess.Popen[bytes]) -> int:
    """Wait for a program that does one thing. If we are interrupted, so is it."""
    try:
        return child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise


def _environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    # TZ spares initdb a search through all time zones.
    return {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C", "TZ": "UTC"}
