"""The embedded servers, for real: they start, keep their data through every kind of end, and leave nothing behind."""

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import redis

from app.infra.embedded import binaries, processes, server
from app.infra.embedded.launcher import EmbeddedServers, Servers
from app.infra.embedded.processes import EmbeddedServersError
from app.infra.settings import Settings, SettingsError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc; elsewhere no child ends with its parent")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="about root")

REPOSITORY = Path(__file__).parents[2]
NOBODY = 65534

# Prints the URLs, then serves until its input ends. The servers of an "orphans" one outlive it.
LAUNCHER = """
import json, sys
from pathlib import Path
from app.infra.embedded import processes
from app.infra.embedded.launcher import EmbeddedServers
from app.infra.settings import Settings

class Libc:
    unshare = processes._libc.unshare
    def prctl(self, *arguments): pass

if "orphans" in sys.argv:
    processes._libc = Libc()
with EmbeddedServers(Settings(data_dir=Path(sys.argv[1]))) as servers:
    print(json.dumps([servers.database_url, servers.redis_url]), flush=True)
    sys.stdin.read()
"""


def embedded(directory: Path, **more: Any) -> EmbeddedServers:
    return EmbeddedServers(Settings(data_dir=directory, **more), fast=True)


def sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last statement."""

    async def fetch() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            rows = [await connection.fetch(statement) for statement in statements]
        finally:
            await connection.close()
        return [tuple(row) for row in rows[-1]]

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(fetch())
    finally:
        loop.close()


@contextmanager
def valkey(url: str) -> Iterator[Any]:
    client = redis.Redis.from_url(url, decode_responses=True)
    try:
        yield client
    finally:
        client.close()


def write_to_both(servers: Servers) -> None:
    sql(servers.database_url, "CREATE TABLE kept (n int)", "INSERT INTO kept SELECT generate_series(1, 100)")
    with valkey(servers.redis_url) as client:
        client.mset({f"kept:{n}": n for n in range(100)})


def assert_both_kept(servers: Servers) -> None:
    assert sql(servers.database_url, "SELECT count(*), sum(n) FROM kept") == [(100, 5050)]
    with valkey(servers.redis_url) as client:
        assert client.dbsize() == 100
        assert client.get("kept:99") == "99"


def processes_in(directory: Path) -> list[int]:
    """Whatever living process works in the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(directory):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def server_pids(directory: Path) -> list[int]:
    files = (directory / "postgres/data/postmaster.pid", directory / "valkey/server.pid")
    return [int(file.read_text().split("\n", 1)[0]) for file in files]


def wait_until(is_so: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.005)


@contextmanager
def launcher(
    directory: Path, *arguments: str, python: str = sys.executable, user: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], Servers]]:
    """A launcher process that serves. It is killed at the end if it still lives."""
    who: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    child = subprocess.Popen(
        [python, "-c", LAUNCHER, str(directory), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": python_path(), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **who,
    )
    with child:
        try:
            assert child.stdout is not None
            yield child, Servers(*json.loads(child.stdout.readline()))
        finally:
            child.kill()


def python_path() -> str:
    site_packages = Path(asyncpg.__file__).parents[1]
    return f"{REPOSITORY}:{site_packages}"


def python_of_everybody() -> str:
    """An interpreter that an ordinary user may run, with our packages."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            tried = subprocess.run(
                [python, "-c", "import app.infra.embedded"],
                cwd=REPOSITORY,
                env={"PYTHONPATH": python_path(), "PYTHONDONTWRITEBYTECODE": "1"},
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if tried.returncode == 0:
            return python
    pytest.skip("no interpreter here is within the reach of an ordinary user")


@pytest.fixture
def new_directory() -> Iterator[Path]:
    """A path where nothing is yet, in memory if there is such a place. What still works there at the end is killed."""
    parent = Path(tempfile.mkdtemp(prefix="rondo-embedded-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        yield parent / "data"
    finally:
        for pid in processes_in(parent):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes_in(parent))
        shutil.rmtree(parent)


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A data directory after a first start with 100 rows and keys and a clean stop. To be copied, not to be used."""
    parent = Path(tempfile.mkdtemp(prefix="rondo-embedded-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        with embedded(parent / "data") as servers:
            write_to_both(servers)
        yield parent / "data"
    finally:
        shutil.rmtree(parent)


@pytest.fixture
def directory(made: Path, new_directory: Path) -> Path:
    """A data directory of an earlier start, with 100 rows and keys."""
    shutil.copytree(made, new_directory)
    return new_directory


class TestFirstStart:
    def test_makes_both_servers_from_nothing(self, new_directory: Path) -> None:
        with embedded(new_directory) as servers:
            assert sql(
                servers.database_url,
                "SELECT datname, pg_encoding_to_char(encoding), datcollate, current_setting('max_connections')"
                " FROM pg_database WHERE datname = current_database()",
            ) == [("rondo", "UTF8", "C.UTF-8", "200")]
            with valkey(servers.redis_url) as client:
                assert client.config_get("appendonly")["appendonly"] == "yes"
                assert client.config_get("appendfsync")["appendfsync"] == "everysec"
                assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
                assert client.config_get("save")["save"] == ""

    def test_is_durable_unless_told_to_be_fast(self, new_directory: Path) -> None:
        with EmbeddedServers(Settings(data_dir=new_directory, redis_url="redis://elsewhere")) as servers:
            for name in ("fsync", "synchronous_commit", "full_page_writes"):
                assert sql(servers.database_url, f"SHOW {name}") == [("on",)]

    def test_begins_again_where_an_earlier_one_was_cut_off(self, new_directory: Path) -> None:
        half_made = new_directory / "postgres/new-1"
        half_made.mkdir(parents=True)
        (half_made / "PG_VERSION").write_text("18\n")
        with embedded(new_directory, redis_url="redis://elsewhere") as servers:
            assert sql(servers.database_url, "SELECT 1") == [(1,)]
        assert not half_made.exists()


class TestUrlsThatAreSet:
    def test_nothing_is_started_when_both_are(self, new_directory: Path) -> None:
        given = {"database_url": "postgresql://elsewhere/x", "redis_url": "redis://elsewhere"}
        with embedded(new_directory, **given) as servers:
            assert servers == Servers(**given)
            assert not new_directory.exists()

    def test_only_the_other_one_is_started(self, directory: Path) -> None:
        with embedded(directory, database_url="postgresql://elsewhere/x") as servers:
            assert servers.database_url == "postgresql://elsewhere/x"
            with valkey(servers.redis_url) as client:
                assert client.ping()
            assert not (directory / "postgres/data/postmaster.pid").exists()


class TestSecrets:
    def test_are_in_files_of_the_owner_only(self, directory: Path) -> None:
        for file in (directory / "postgres/password", directory / "valkey/password"):
            assert file.stat().st_mode & 0o777 == 0o600

    def test_are_in_no_arguments_and_none_of_ours_in_a_childs_environment(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-ours")
        with embedded(directory):
            passwords = [(directory / name / "password").read_bytes().strip() for name in ("postgres", "valkey")]
            for pid in server_pids(directory):
                arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                assert not any(password in arguments + environment for password in passwords)
                assert b"sk-secret-of-ours" not in environment

    def test_are_asked_for(self, directory: Path) -> None:
        with embedded(directory) as servers:
            address = servers.database_url.rpartition("@")[2]
            with pytest.raises(asyncpg.InvalidPasswordError):
                sql(f"postgresql://rondo:wrong@{address}", "SELECT 1")
            address = servers.redis_url.rpartition("@")[2]
            with valkey(f"redis://{address}") as client, pytest.raises(redis.AuthenticationError):
                client.ping()

    def test_that_are_lost_are_made_again(self, directory: Path) -> None:
        for name in ("postgres", "valkey"):
            (directory / name / "password").unlink()
        with embedded(directory) as servers:
            assert_both_kept(servers)


class TestRestart:
    def test_keeps_rows_and_keys_after_a_clean_stop(self, directory: Path) -> None:
        with embedded(directory) as servers:
            assert_both_kept(servers)

    def test_is_quick(self, directory: Path) -> None:
        started = time.monotonic()
        with embedded(directory):
            assert time.monotonic() - started < 3  # some 0.1 on a quiet machine

    def test_works_with_one_object(self, directory: Path) -> None:
        servers = embedded(directory)
        try:
            assert servers.start() is servers.start()
            servers.stop()
            assert_both_kept(servers.start())
        finally:
            servers.stop()

    def test_takes_another_port_when_one_was_lost_meanwhile(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            pick, picks = server._free_port, iter([taken.getsockname()[1]] * 2)
            monkeypatch.setattr(server, "_free_port", lambda: next(picks, None) or pick())
            with embedded(directory) as servers:
                assert_both_kept(servers)


class TestStop:
    def test_leaves_no_process_even_with_a_client_connected(self, directory: Path) -> None:
        servers = embedded(directory)
        with valkey(servers.start().redis_url) as client:
            client.ping()
            assert len(processes_in(directory)) > 2
            servers.stop()
        assert processes_in(directory) == []

    def test_may_come_twice_or_without_a_start(self, directory: Path) -> None:
        servers = embedded(directory)
        servers.stop()
        servers.start()
        servers.stop()
        servers.stop()

    def test_copes_with_servers_that_were_killed(self, directory: Path) -> None:
        servers = embedded(directory)
        servers.start()
        for pid in server_pids(directory):
            os.kill(pid, signal.SIGKILL)
        servers.stop()
        wait_until(lambda: processes_in(directory) == [])
        with servers as again:
            assert_both_kept(again)


class TestSuddenEnd:
    def test_of_the_launcher_ends_the_servers_and_loses_nothing(self, new_directory: Path) -> None:
        with launcher(new_directory) as (process, servers):
            write_to_both(servers)
            process.kill()
            process.wait()
            wait_until(lambda: processes_in(new_directory) == [])
        with embedded(new_directory) as again:
            assert_both_kept(again)

    def test_of_both_servers_loses_nothing(self, new_directory: Path) -> None:
        with EmbeddedServers(Settings(data_dir=new_directory)) as servers:
            write_to_both(servers)
            for pid in server_pids(new_directory):
                os.kill(pid, signal.SIGKILL)
        with embedded(new_directory) as again:
            assert_both_kept(again)

    def test_of_a_launcher_whose_servers_live_on_is_cleared_up_by_the_next(self, directory: Path) -> None:
        with launcher(directory, "orphans") as (process, _):
            process.kill()
            process.wait()
            orphans = server_pids(directory)
        assert set(orphans) <= set(processes_in(directory))
        with embedded(directory) as servers:
            assert not set(orphans) & set(processes_in(directory))
            assert_both_kept(servers)

    def test_leaves_a_pid_file_that_does_not_hinder_though_its_pid_is_taken(self, directory: Path) -> None:
        (directory / "postgres/data/postmaster.pid").write_text(f"{os.getpid()}\n\n\n\n\n\n\nready\n")
        (directory / "valkey/server.pid").write_text(f"{os.getpid()}\n")
        with embedded(directory) as servers:
            assert_both_kept(servers)


class TestRefusal:
    def test_of_a_directory_in_use_names_who_uses_it(self, directory: Path) -> None:
        with launcher(directory) as (process, servers):
            with pytest.raises(SettingsError, match=rf"in use by another Rondo \(process {process.pid}\)"):
                embedded(directory).start()
            assert_both_kept(servers)
            process.communicate()
        assert process.returncode == 0
        with embedded(directory):
            pass

    def test_of_a_directory_that_cannot_be_written(self, new_directory: Path) -> None:
        new_directory.write_text("a file")
        with pytest.raises(SettingsError, match=r"RONDO_DATA_DIR: .* cannot be used"):
            embedded(new_directory / "below").start()

    def test_of_a_folder_without_programs(self, new_directory: Path) -> None:
        with pytest.raises(SettingsError, match=r"RONDO_PG_BIN: /nowhere does not hold"):
            embedded(new_directory, pg_bin=Path("/nowhere"), redis_url="redis://elsewhere").start()

    @pytest.mark.parametrize(("given", "missing"), [("redis_url", "DATABASE_URL"), ("database_url", "REDIS_URL")])
    def test_where_no_server_is_installed(
        self, new_directory: Path, monkeypatch: pytest.MonkeyPatch, given: str, missing: str
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(binaries, "_SYSTEM_POSTGRES", Path("/nowhere"))
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(SettingsError, match=f"{missing}: no .* was found"):
            embedded(new_directory, **{given: "set"}).start()

    def test_of_data_of_another_release(self, new_directory: Path) -> None:
        (new_directory / "postgres/data").mkdir(parents=True)
        (new_directory / "postgres/data/PG_VERSION").write_text("9\n")
        with pytest.raises(SettingsError, match="needs PostgreSQL 9; found: "):
            embedded(new_directory, redis_url="redis://elsewhere").start()

    def test_tells_the_end_of_the_log_and_frees_the_directory(self, directory: Path) -> None:
        config = directory / "postgres/data/postgresql.conf"
        good = config.read_text()
        config.write_text("no_such_setting = 1\n")
        with pytest.raises(EmbeddedServersError, match=r"PostgreSQL did not start[\s\S]*no_such_setting"):
            embedded(directory).start()
        assert processes_in(directory) == []
        config.write_text(good)
        with embedded(directory) as servers:
            assert_both_kept(servers)

    def test_outside_the_main_thread(self, directory: Path) -> None:
        seen: list[BaseException] = []

        def start() -> None:
            try:
                embedded(directory).start()
            except RuntimeError as error:
                seen.append(error)

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        assert "main thread" in str(seen)


class TestUser:
    @as_root
    def test_root_needs_no_directory_that_others_may_enter(self, directory: Path) -> None:
        assert directory.parent.stat().st_mode & 0o777 == 0o700
        with embedded(directory) as servers:
            assert_both_kept(servers)
        assert directory.parent.stat().st_mode & 0o777 == 0o700
        assert (directory / "postgres/data").stat().st_uid == 0

    @as_root
    def test_an_ordinary_one_will_do(self, new_directory: Path) -> None:
        python = python_of_everybody()
        new_directory.mkdir(mode=0o700)
        os.chown(new_directory, NOBODY, NOBODY)
        new_directory.parent.chmod(0o755)
        with launcher(new_directory, python=python, user=NOBODY) as (process, servers):
            write_to_both(servers)
            assert_both_kept(servers)
            process.communicate()
        assert process.returncode == 0
        assert processes_in(new_directory) == []

    @as_root
    @pytest.mark.parametrize("programs_are_hidden", [False, True])
    def test_root_without_user_namespaces_has_another_run_it_and_takes_it_back_later(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, programs_are_hidden: bool
    ) -> None:
        pg_bin = hidden_copy_of_programs(directory.with_name("hidden")) if programs_are_hidden else None
        directory.parent.chmod(0o755)
        with monkeypatch.context() as patched:
            patched.setattr(processes, "_enter_user_namespace", refuse)
            with embedded(directory, pg_bin=pg_bin) as servers:
                assert_both_kept(servers)
                assert Path(f"/proc/{server_pids(directory)[0]}").stat().st_uid != 0
                assert (directory / "postgres/data").stat().st_uid != 0
            assert (directory / "postgres/programs").exists() == programs_are_hidden
        with embedded(directory) as servers:
            assert_both_kept(servers)
            assert (directory / "postgres/data").stat().st_uid == 0

    @as_root
    def test_root_is_told_where_nobody_else_can_reach_the_directory(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "_enter_user_namespace", refuse)
        with pytest.raises(SettingsError, match=r"DATABASE_URL: .* start Rondo as an ordinary user"):
            embedded(directory).start()
        assert not (directory / "postgres/programs").exists()


def refuse() -> None:
    raise PermissionError("no user namespaces here")


def hidden_copy_of_programs(place: Path) -> Path:
    """The folder of a copy that only root can reach."""
    original = next(binaries.postgres_folders(None))
    package = original.parents[1]
    place.mkdir(mode=0o700)
    shutil.copytree(original.parent, place / package.name / original.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, place / libraries.name)
    return place / package.name / original.parent.name / "bin"
