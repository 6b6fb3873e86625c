"""The images' recipes without Docker: what they install serves the model, and the bundle's checks decide on it."""

import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from live_bundles import written_bundle
from recipes import Installed, carry_out

pytestmark = [pytest.mark.system, pytest.mark.alone, pytest.mark.timeout(900), pytest.mark.long]

START_S = 60
CHECK_S = 120
"""The README's check has to decide within two minutes."""

PATIENT = "--max-send-lag=1s"
"""How late the client is on a busy machine is no matter here."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def container(bundle: Path, path: str) -> Any:
    (manifest,) = yaml.safe_load_all((bundle / path).read_text())
    (found,) = manifest["spec"]["template"]["spec"]["containers"]
    return found


@contextmanager
def started(server: Installed, bundle: Path, scratch: Path) -> Iterator[int]:
    """The entrypoint with the Deployment's arguments; yields its HTTP port when the readiness probe succeeds."""
    described = container(bundle, "kubernetes/base/deployment.yaml")
    port = free_port()
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
        ready = f"http://127.0.0.1:{port}{described['readinessProbe']['httpGet']['path']}"
        deadline = time.monotonic() + START_S
        while not answers(ready):
            assert process.poll() is None, (scratch / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (scratch / "log").read_text()[-3000:]
            time.sleep(0.2)
        yield port
        process.send_signal(signal.SIGTERM)  # as Kubernetes ends a pod
        assert process.wait(40) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own server
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def ended(client: Installed, arguments: list[str], **limits: Any) -> tuple[int, str]:
    done = subprocess.run(
        [*client.command, *arguments],
        env=client.environment, cwd="/", capture_output=True, text=True, check=False, **limits,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def readme_check(bundle: Path) -> list[str]:
    """The arguments of the README's check."""
    lines = (line.strip() for line in (bundle / "README.md").read_text().splitlines())
    (line,) = (line for line in lines if line.startswith("loadtest http://localhost:8000"))
    return shlex.split(line)[1:]


def test_the_recipes_serve_and_check_the_model(tmp_path: Path) -> None:
    """One test for all of it, because the installations are what takes the time."""
    bundle = written_bundle(tmp_path)
    for name in ("server", "client"):
        (tmp_path / name).mkdir()
    server = carry_out(bundle / "images" / "triton.Dockerfile", tmp_path / "server")
    client = carry_out(bundle / "images" / "loadtest.Dockerfile", tmp_path / "client")
    for package in ("onnxruntime", "numba", "optuna"):
        assert not list(client.prefix.glob(f"lib/python3*/site-packages/{package}*")), package
    with started(server, bundle, tmp_path / "scratch") as port:
        code, said = ended(
            client, [*readme_check(bundle)[1:], f"http://127.0.0.1:{port}", PATIENT], timeout=CHECK_S
        )
        assert code == 0, said
        _, *smoke = container(bundle, "kubernetes/smoke/job.yaml")["args"]
        code, said = ended(client, [f"http://127.0.0.1:{port}", *smoke, PATIENT], timeout=150)
        assert code == 0, said
        impossible = [argument for argument in smoke if not argument.startswith(("--p90", "--duration"))]
        code, said = ended(
            client,
            [f"http://127.0.0.1:{port}", *impossible, "--p90=0.01ms", "--duration=15s", PATIENT],
            timeout=100,
        )
        assert code == 99, said
