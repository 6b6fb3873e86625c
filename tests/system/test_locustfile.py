"""A locustfile over gRPC, and one that cannot run, under Locust's own command."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_grpc import fake_grpc
from fake_triton import fake_triton

pytestmark = [pytest.mark.system, pytest.mark.long]

LOCUSTFILE = """
from loadgen.triton_user import {user}

class Delay({user}):
    model_name = "{model}"
    rate_per_s = 100
    timeout_s = 1.0
"""


def start(folder: Path, url: str, *options: str, user: str = "TritonHttpUser", model: str = "delay") -> list[str]:
    file = folder / "locustfile.py"
    file.write_text(LOCUSTFILE.format(user=user, model=model))
    locust = str(Path(sys.executable).with_name("locust"))
    return [locust, "-f", str(file), "-H", url, "-u", "1", *options]


def statistics(stdout: str) -> dict[str, Any]:
    return next(entry for entry in json.loads(stdout) if entry["name"] == "delay")


def test_headless_over_grpc_with_failures(tmp_path: Path) -> None:
    with fake_grpc("--fault", "error", "--good-first", "1") as url:
        options = ("--headless", "-t", "3s", "--stop-timeout", "2", "--json")
        command = start(tmp_path, url, *options, user="TritonGrpcUser")
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1, ended.stderr  # Locust's own answer to failures
    entry = statistics(ended.stdout)
    assert entry["num_failures"] == entry["num_requests"] > 0
    assert "grpc INTERNAL" in ended.stderr


def test_a_model_that_is_not_there_is_said_and_ends_the_test(tmp_path: Path) -> None:
    with fake_triton() as server:
        command = start(tmp_path, server.url, "--headless", model="other")
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.stderr.count("does not serve other") == 1
    assert ended.returncode == 2
