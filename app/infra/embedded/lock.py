"""One Rondo per data directory."""

import os
import sys
from pathlib import Path

from app.infra.embedded.processes import EmbeddedServersError

if sys.platform != "win32":
    import fcntl


class DirectoryLock:
    """Held until `release` or the end of this process, whatever ends it. OSError: the directory cannot be written.

    Its file tells the holder's pid, and stays: removing it would let two processes lock two files of one name.
    """

    def __init__(self, directory: Path) -> None:
        file = directory / "rondo.lock"
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 20).decode().strip()
            os.close(self._descriptor)
            raise EmbeddedServersError(
                f"RONDO_DATA_DIR: {directory} is in use by another Rondo (process {holder or 'unknown'}). "
                "Stop it, or set RONDO_DATA_DIR to another directory."
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)
