"""Which PostgreSQL programs to run, and as whom: it refuses root, and each release reads only its own data."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.infra.embedded.binaries import postgres_folders
from app.infra.embedded.processes import EmbeddedServersError, Identity, ended, own_ids, run_as
from app.infra.embedded.server import log_tail

if sys.platform != "win32":
    import pwd


@dataclass(frozen=True)
class Programs:
    """A folder of programs that run as `identity`; `release` is the major one."""

    folder: Path
    identity: Identity
    release: int


def choose_programs(home: Path, *, needed: int | None, pg_bin: Path | None, log: Path) -> Programs:
    """The preferred programs of the release that is needed (or of any). `home` then belongs to who will run them."""
    found: list[int] = []
    for folder in postgres_folders(pg_bin):
        programs = _working(folder, home, log)
        if programs and needed in {None, programs.release}:
            return programs
        found += [programs.release] if programs else []
    if found:
        raise EmbeddedServersError(
            f"The data in {home} needs PostgreSQL {needed}; found: {', '.join(map(str, found))}. "
            "Set RONDO_PG_BIN to the folder of its programs, or move the data away."
        )
    advice = "Set DATABASE_URL to a PostgreSQL that runs elsewhere."
    if os.geteuid() == 0:
        advice += f" Or start Rondo as an ordinary user: PostgreSQL refuses root, and no other user can work in {home}."
    raise EmbeddedServersError(f"DATABASE_URL: PostgreSQL cannot be run here. {advice} What was tried:\n{log_tail(log)}")


def give(folder: Path, identity: Identity) -> None:
    """Give a folder of ours and all in it to who shall work there. Only root has another to give it to."""
    if os.geteuid() != 0 or folder.stat().st_uid == identity.owner[0]:
        return
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*folders, *files):
            os.chown(Path(place, name), *identity.owner, follow_symlinks=False)
    os.chown(folder, *identity.owner)  # last, so that a cut-off change is made again


def _working(folder: Path, home: Path, log: Path) -> Programs | None:
    for identity, programs in _ways_to_run(folder, home, log):
        give(home, identity)
        release = _release(programs, identity, home, log)
        if release is not None:
            return Programs(programs, identity, release)
    return None


def _ways_to_run(folder: Path, home: Path, log: Path) -> Iterator[tuple[Identity, Path]]:
    """As ourselves. But root in a user namespace, where it passes for another; where that is refused, as another."""
    if os.geteuid() != 0:
        yield Identity(own_ids()), folder
        return
    if sys.platform == "linux":
        yield Identity(own_ids(), in_user_namespace=True), folder
    for other in _unprivileged():
        yield other, folder
        if _runs(["true"], other, home, log):  # so home is in reach
            yield other, _copy(folder, home)


def _unprivileged() -> list[Identity]:
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known.get("nobody")
    return [Identity((entry.pw_uid, entry.pw_gid))] if entry else []


def _release(programs: Path, identity: Identity, home: Path, log: Path) -> int | None:
    """None, and why in the log, if they do not run so."""
    start = log.stat().st_size if log.exists() else 0
    runs = _runs([programs / "postgres", "-V"], identity, home, log)
    number = re.search(r"PostgreSQL\) (\d+)", log_tail(log, start))
    return int(number[1]) if runs and number else None


def _runs(command: list[str | Path], identity: Identity, home: Path, log: Path) -> bool:
    try:
        return ended(run_as(identity, command, cwd=home, log=log, must_write=home)) == 0
    except (OSError, subprocess.SubprocessError) as error:
        with log.open("a") as opened:
            opened.write(f"{command[0]} as {identity}: {error}\n")
        return False


def _copy(folder: Path, home: Path) -> Path:
    """A copy beside the data, for a user who cannot reach the original. Made once for each build of it."""
    root = folder.parent
    package = root.parent
    copy = home / "programs" / f"{root.name}-{(folder / 'postgres').stat().st_mtime_ns}"
    if not copy.exists():
        new = Path(tempfile.mkdtemp(prefix="new-", dir=home))
        new.chmod(0o755)
        shutil.copytree(root, new / package.name / root.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")  # where wheels keep them; found by their relative place
        if libraries.exists():
            shutil.copytree(libraries, new / libraries.name, symlinks=True)
        copy.parent.mkdir(mode=0o755, exist_ok=True)
        new.rename(copy)
    return copy / package.name / root.name / folder.name
