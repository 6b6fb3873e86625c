"""Locust's web UI beside a load test: it shows the requests, its Stop button works, and it ends with the run."""

import socket
import subprocess
import sys
from typing import Any

import pytest
import requests
from fake_triton import fake_triton
from machine import free_port
from waiting import wait_until

from loadgen.cli import run_command
from loadgen.records.record import LoadTestRecord

pytestmark = pytest.mark.system


def asked(url: str, *, method: str = "GET") -> Any:
    answer = requests.request(method, url, timeout=120)
    answer.raise_for_status()
    return answer.json()


def requests_shown(url: str) -> int:
    try:
        stats = asked(f"{url}/stats/requests")["stats"]
    except OSError:
        return 0
    return sum(entry["num_requests"] for entry in stats if entry["name"] == "delay")


def test_requests_are_shown_and_stop_ends_the_run_with_a_result() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with fake_triton("--delay-ms", "2") as server:
        command = [sys.executable, "-c", "from loadgen.cli import main; main()", server.url, "--model", "delay"]
        command += ["--rate", "100", "--duration", "600s", "--json", "--web", "--web-port", url.rpartition(":")[2]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            wait_until(lambda: requests_shown(url) >= 200)
            shown = requests_shown(url)
            asked(f"{url}/stop", method="POST")
            out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    record = LoadTestRecord.model_validate_json(out)
    assert record.measurement is not None
    assert 200 <= shown <= record.measurement.requests
    assert requests_shown(url) == 0


def test_a_port_in_use_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["http://127.0.0.1:9", "--model", "m", "--rate", "1", "--web", "--web-port", str(port)]
        assert run_command(arguments) == 2
    assert str(port) in capsys.readouterr().err
