"""An embedded PostgreSQL: a cluster that is made once, with the database `rondo` in it."""

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from app.infra.embedded.leftovers import end_leftovers
from app.infra.embedded.processes import EmbeddedServersError, ended, run_as
from app.infra.embedded.programs import Programs, choose_programs, give
from app.infra.embedded.server import HOST, Server, log_tail

_NAME = "rondo"  # of the database and of its user
_PROCESS_NAMES = frozenset({"postgres"})
_OPTIONS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "timezone": "UTC",
    "log_checkpoints": "off",
    "log_error_verbosity": "terse",  # the details of an error show what rows hold
}
_FAST_OPTIONS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Postgres(Server):
    """`fast` gives up what protects the data from a sudden end: for tests."""

    name = "PostgreSQL"
    # A "fast" shutdown, then an "immediate" one. SIGTERM would wait for clients, SIGKILL would orphan its children.
    stop_signal = signal.SIGINT
    last_signal = signal.SIGQUIT

    def __init__(self, home: Path, pg_bin: Path | None, *, fast: bool) -> None:
        super().__init__(home)
        self._data = home / "data"
        self._pid_file = self._data / "postmaster.pid"
        self._setup_log = home / "setup.log"
        self._pg_bin = pg_bin
        self._fast = fast
        self._programs: Programs | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{_NAME}:{self._password}@{HOST}:{self.port}/{_NAME}"

    def prepare(self) -> None:
        self.clear_away()
        self._setup_log.unlink(missing_ok=True)
        for unfinished in self._home.glob("new-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        needed = int((self._data / "PG_VERSION").read_text()) if self._data.exists() else None
        self._programs = choose_programs(self._home, needed=needed, pg_bin=self._pg_bin, log=self._setup_log)
        if needed is None:
            self._make_cluster(self._programs)
        elif self._password_is_new:
            self._run_sql(self._programs, self._data, f"ALTER ROLE {_NAME} PASSWORD '{self._password}'")

    def clear_away(self) -> None:
        end_leftovers(self._home, _PROCESS_NAMES, self._pid_file, (signal.SIGINT, signal.SIGQUIT))
        # PostgreSQL would refuse to start while the process named there exists, be it a zombie or another program now.
        self._pid_file.unlink(missing_ok=True)

    def _start(self) -> subprocess.Popen[bytes]:
        assert self._programs is not None
        options = {**_OPTIONS, "port": str(self.port), **(_FAST_OPTIONS if self._fast else {})}
        command: list[str | Path] = [self._programs.folder / "postgres", "-D", self._data]
        command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return run_as(self._programs.identity, command, cwd=self._home, log=self._log, death_signal=self.stop_signal)

    def _is_ready(self, pid: int) -> bool:
        """Line 1 of its file is its pid, line 8 its state. The state alone may be that of a killed one."""
        try:
            lines = self._pid_file.read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def _make_cluster(self, programs: Programs) -> None:
        """Under another name until it is complete, so that what is called `data` is always whole."""
        new = Path(tempfile.mkdtemp(prefix="new-", dir=self._home))
        give(new, programs.identity)
        initdb: list[str | Path] = [programs.folder / "initdb", "-D", new]
        user = ["-U", _NAME, "-A", "scram-sha-256", f"--pwfile={self._password_file}"]
        self._run(programs, [*initdb, *user, "-E", "UTF8", *_locale(programs.release), "--no-sync"])
        self._run_sql(programs, new, f"CREATE DATABASE {_NAME}")
        if not self._fast:
            self._run(programs, [*initdb, "--sync-only"])
        new.rename(self._data)

    def _run_sql(self, programs: Programs, data: Path, sql: str) -> None:
        """One command to a cluster that no server runs on."""
        speed = ["-c", "fsync=off"] if data != self._data else []
        single: list[str | Path] = [
            programs.folder / "postgres",
            "--single",
            "-D",
            data,
            "-c",
            "exit_on_error=on",
            *speed,
            "postgres",
        ]
        self._run(programs, single, f"{sql}\n".encode())

    def _run(self, programs: Programs, command: list[str | Path], stdin: bytes = b"") -> None:
        child = run_as(programs.identity, command, cwd=self._home, log=self._setup_log, stdin=stdin)
        if ended(child) != 0:
            said = log_tail(self._setup_log)
            raise EmbeddedServersError(f"PostgreSQL's data in {self._home} could not be prepared. What it said:\n{said}")


def _locale(release: int) -> list[str]:
    libc = "C.UTF-8" if sys.platform == "linux" else "C"  # not every macOS has the former
    # PostgreSQL's own, from 17 on: no update of the system changes its order, and it compares faster.
    own = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if release >= 17 else []
    return [f"--locale={libc}", *own]
