"""Serve a bundle by its own recipes, without Docker, and let its own checks decide on it."""

import os
import shlex
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from machine import free_port
from recipes import Installed, carry_out
from waiting import wait_until

PATIENT = "--max-send-lag=1s"
"""How late the client is on a busy machine is no matter here: it counts as latency in any case."""


@dataclass(frozen=True)
class ServedBundle:
    """A bundle whose server answers at `url`, and an environment with its load generator alone."""

    bundle: Path
    client: Installed
    url: str

    def readme_check(self) -> tuple[int, str]:
        """Carry out the check of the bundle's README; return its exit code and output."""
        lines = (line.strip() for line in (self.bundle / "README.md").read_text().splitlines())
        (line,) = (line for line in lines if line.startswith("loadtest http://localhost:8000"))
        return self.load_test(shlex.split(line)[2:])

    @property
    def smoke_options(self) -> list[str]:
        """The options of the smoke job."""
        _, *options = container(self.bundle, "kubernetes/smoke/job.yaml")["args"]
        return list(map(str, options))

    def smoke(self) -> tuple[int, str]:
        """Carry out the smoke job; return its exit code and output."""
        return self.load_test(self.smoke_options)

    def load_test(self, options: Sequence[str]) -> tuple[int, str]:
        """Run the client's entrypoint with these options; return its exit code and output."""
        done = subprocess.run(
            [*self.client.command, self.url, *options, PATIENT],
            env=self.client.environment, cwd="/", capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


@contextmanager
def served_by_its_recipes(bundle: Path, folder: Path) -> Iterator[ServedBundle]:
    """Install what the bundle's images would hold in `folder`, and serve the bundle until the block ends."""
    for name in ("server", "client"):
        (folder / name).mkdir()
    server = carry_out(bundle / "images" / "triton.Dockerfile", folder / "server")
    client = carry_out(bundle / "images" / "loadtest.Dockerfile", folder / "client")
    with started(server, bundle, folder / "scratch") as url:
        yield ServedBundle(bundle, client, url)


def container(bundle: Path, path: str) -> Any:
    """Return the only container of a manifest."""
    (manifest,) = yaml.safe_load_all((bundle / path).read_text())
    (found,) = manifest["spec"]["template"]["spec"]["containers"]
    return found


@contextmanager
def started(server: Installed, bundle: Path, scratch: Path) -> Iterator[str]:
    """Start the entrypoint with the Deployment's arguments; yields its URL when the readiness probe succeeds."""
    described = container(bundle, "kubernetes/base/deployment.yaml")
    url = f"http://127.0.0.1:{(port := free_port())}"
    here = [f"--http-port={port}", f"--grpc-port={free_port()}", f"--metrics-port={free_port()}"]
    here += [f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")]
    arguments = [argument.replace("=/models", f"={bundle / 'model_repository'}") for argument in described["args"]]
    assert arguments != described["args"]
    scratch.mkdir()
    environment = {**server.environment, "HOME": str(scratch), "TMPDIR": str(scratch)}
    with (scratch / "log").open("wb") as log:
        process = subprocess.Popen(
            [*server.command, *arguments, *here],
            env=environment, cwd="/", stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        ready = f"{url}{described['readinessProbe']['httpGet']['path']}"
        wait_until(lambda: process.poll() is not None or answers(ready))
        assert process.poll() is None, (scratch / "log").read_text()[-3000:]
        yield url
        process.send_signal(signal.SIGTERM)  # as Kubernetes ends a pod
        assert process.wait(240) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(url: str) -> bool:
    """True if the address answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own server
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
