"""A plain locustfile: Locust's own command, its statistics, its web UI's figures."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import requests
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


def test_headless_over_http(tmp_path: Path) -> None:
    with fake_triton("--delay-ms", "30") as server:
        command = start(tmp_path, server.url, "--headless", "-t", "3s", "--stop-timeout", "2", "--json")
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        sent = len(server.document("/kept")["kept_ns"])
    assert ended.returncode == 0, ended.stderr
    entry = statistics(ended.stdout)
    assert entry["num_requests"] == sent - 1 > 0  # one request is tried before the load
    assert entry["num_failures"] == 0
    assert entry["min_response_time"] >= 30
    assert sum(entry["response_times"].values()) == entry["num_requests"]


def test_headless_over_grpc_with_failures(tmp_path: Path) -> None:
    with fake_grpc("--fault", "error", "--good-first", "1") as url:
        options = ("--headless", "-t", "3s", "--stop-timeout", "2", "--json")
        command = start(tmp_path, url, *options, user="TritonGrpcUser")
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1, ended.stderr  # Locust's own answer to failures
    entry = statistics(ended.stdout)
    assert entry["num_failures"] == entry["num_requests"] > 0
    assert "grpc INTERNAL" in ended.stderr


def test_a_model_that_is_not_there_is_said_and_ends_the_user(tmp_path: Path) -> None:
    with fake_triton() as server:
        command = start(tmp_path, server.url, "--headless", model="other")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as locust:
            assert locust.stderr is not None
            said = []
            for line in locust.stderr:
                said.append(line)
                if "does not serve other" in line:
                    locust.send_signal(signal.SIGTERM)
    assert "".join(said).count("does not serve other") == 1
    assert locust.returncode == 2


def test_the_web_ui_shows_the_load(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with fake_triton("--delay-ms", "5") as server:
        command = start(tmp_path, server.url, "--autostart", "--web-host", "127.0.0.1", "-P", str(port))
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as locust:
            try:
                text = _page(f"http://127.0.0.1:{port}/stats/requests", until='"name": "delay"')
            finally:
                os.kill(locust.pid, signal.SIGTERM)
    assert '"name": "delay"' in text


def _page(url: str, *, until: str) -> str:
    deadline = time.monotonic() + 60
    text = ""
    while until not in text and time.monotonic() < deadline:
        time.sleep(0.2)
        try:
            text = requests.get(url, timeout=5).text
        except OSError:
            continue
    return text
