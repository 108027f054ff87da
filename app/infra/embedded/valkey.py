"""An embedded Valkey. What it acknowledged survives the end of any process; of a host, all but the last second."""

import re
import signal
import socket
import subprocess
from pathlib import Path

from app.infra.embedded.leftovers import end_leftovers
from app.infra.embedded.processes import EmbeddedServersError, Identity, own_ids, run_as
from app.infra.embedded.server import HOST, Server

_NAMES = frozenset({"valkey-server", "redis-server"})
_PID_FILE = "server.pid"
# Nothing is ever evicted: events and jobs are no cache. The log of writes is the only copy, so no snapshots beside it.
_CONFIG = f"""\
bind {HOST}
port %d
requirepass %s
dir .
pidfile {_PID_FILE}
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
"""


class Valkey(Server):
    name = "Valkey"

    def __init__(self, home: Path, program: Path) -> None:
        super().__init__(home)
        self._program = program

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@{HOST}:{self.port}/0"

    def prepare(self) -> None:
        self.clear_away()

    def clear_away(self) -> None:
        pid_file = self._home / _PID_FILE
        end_leftovers(self._home, _NAMES, pid_file, (signal.SIGTERM, signal.SIGKILL))
        pid_file.unlink(missing_ok=True)

    def _start(self) -> subprocess.Popen[bytes]:
        config = (_CONFIG % (self.port, self._password)).encode()
        try:
            # It does not mind being root's.
            return run_as(Identity(own_ids()), [self._program, "-"], cwd=self._home, log=self._log, stdin=config)
        except OSError as error:
            raise EmbeddedServersError(f"REDIS_URL: {self._program} cannot be run here ({error}). Set it.") from None

    def _is_ready(self, pid: int) -> bool:
        """Whether it answers to our password, having read its data. A stranger on this port would not."""
        try:
            with socket.create_connection((HOST, self.port), timeout=0.25) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                with connection.makefile("rb") as answers:
                    return re.match(rb"\+OK\r\n\+PONG", answers.readline() + answers.readline()) is not None
        except OSError:
            return False
