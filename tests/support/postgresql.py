"""Run a PostgreSQL for one test: an installed one, or one that `make test` fetched from Debian's archive."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine import free_port
from waiting import wait_until

FETCHED = Path(sys.prefix) / "postgresql"
FOLDERS = ("usr/lib/postgresql/*/bin",)
NOBODY = 65534
PASSWORD = "s3cret-of-the-test"


def program_folder() -> Path:
    """Return the folder of initdb and postgres; skips the test if there is none."""
    found = [folder for root in (FETCHED, Path("/")) for folder in sorted(root.glob(FOLDERS[0]), reverse=True)]
    on_path = shutil.which("initdb")
    candidates = [*found, *([Path(on_path).resolve().parent] if on_path else [])]
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.skip(f"PostgreSQL is neither installed nor in {FETCHED}, where `make test` puts it on Debian")


class Cluster:
    """A cluster in `folder`, on a port of the loopback; `url` carries a password, as real ones do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres"
        self._programs = program_folder()
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        data = self.folder / "data"
        data.mkdir()
        for path in (secret, data):
            os.chown(path, *self.owner())
        options = ("--username=postgres", f"--pwfile={secret}", "--auth=scram-sha-256", "--no-sync", "--no-locale")
        self._run("initdb", f"--pgdata={data}", *options)

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "16MB",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("a") as log:
            process = self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.folder / "data", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as_owner(),
            )
        wait_until(lambda: process.poll() is not None or self._answers())
        assert process.poll() is None, (self.folder / "log").read_text()

    def stop(self) -> None:
        """Stop at once: connections are cut, as by a crash."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: immediate shutdown
            self._process.wait(timeout=240)
            self._process = None

    def _answers(self) -> bool:
        ready = subprocess.run(
            [self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)],
            check=False,
            timeout=60,
            env=self._environment(),
        )
        return ready.returncode == 0

    def skip_where_it_cannot_run(self) -> None:
        """Skip the test if, for example, it runs as root and other users cannot enter the checkout's folder."""
        try:
            subprocess.run([self._programs / "initdb", "--version"], check=True, timeout=120, **self._as_owner())
        except (PermissionError, subprocess.CalledProcessError) as error:
            pytest.skip(f"PostgreSQL in {self._programs} does not run: {error}")

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / name, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            **self._as_owner(),
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _as_owner(self) -> dict[Any, Any]:
        if os.geteuid() != 0:
            return {"env": self._environment()}
        user, group = self.owner()
        return {"user": user, "group": group, "extra_groups": [], "env": self._environment(), "cwd": self.folder}

    def owner(self) -> tuple[int, int]:
        """Return the user that runs it: PostgreSQL refuses to run as root."""
        return (NOBODY, NOBODY) if os.geteuid() == 0 else (os.geteuid(), os.getegid())

    def _environment(self) -> dict[Any, Any]:
        """Return an environment that finds the libraries that were fetched with the programs."""
        libraries = [str(folder) for folder in FETCHED.glob("usr/lib/*-linux-gnu")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)} if libraries else dict(os.environ)


@contextlib.contextmanager
def postgresql() -> Iterator[Cluster]:
    """Run a cluster in its own folder, which its user can enter."""
    program_folder()
    with tempfile.TemporaryDirectory(prefix="tritune-pg-", dir="/tmp") as name:
        cluster = Cluster(Path(name))
        os.chown(name, *cluster.owner())
        cluster.skip_where_it_cannot_run()
        cluster.create()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
