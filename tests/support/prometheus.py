"""Run Prometheus and promtool: from PATH, or fetched by `make test` from Debian's archive."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from machine import free_port
from waiting import wait_until

FETCHED = Path(sys.prefix) / "prometheus"


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`; skips the test if there is none."""
    found = shutil.which(name) or shutil.which(name, path=str(FETCHED))
    if found is None:
        pytest.skip(f"{name} is neither on PATH nor in {FETCHED}, where `make test` puts it on Debian")
    return found


def promtool(*arguments: str | Path, cwd: Path | None = None) -> str:
    """Run promtool; returns its output with its errors, and raises if it fails."""
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: Any) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        answer = requests.get(f"{self.url}{path}", params=parameters, timeout=60)
        answer.raise_for_status()
        return answer.json()["data"]

    def query(self, expression: str) -> list[Any]:
        """Return (labels, value) of every series that the expression has now."""
        found = self.get("/api/v1/query", query=expression)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in found["result"]]


@contextmanager
def prometheus(folder: Path, config: Any) -> Iterator[Prometheus]:
    """Run a Prometheus with this configuration, which is written to `folder`, until the block ends."""
    port = free_port()
    path = folder / "prometheus.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    command = [
        program("prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    server = Prometheus(port)
    try:
        wait_until(lambda: process.poll() is not None or is_ready(server))
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(timeout=240)


def is_ready(server: Prometheus) -> bool:
    try:
        return bool(requests.get(f"{server.url}/-/ready", timeout=2).ok)
    except OSError:
        return False
