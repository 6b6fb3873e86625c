"""`optimize serve`: a finished repository on a server of its own."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from engines import broken_engine, cnn_engine
from infer import infer
from recommendations import certificate, recommendation, run_dir, trial
from waiting import wait_until

from loadgen.errors import TargetRefused
from loadgen.spec.limits import LatencyLimit
from loadgen.spec.target import Target
from loadgen.wire.questions import read_model_info
from model_repo.repository.write import write_final_repository
from model_repo.server.hosts import serve_repository
from model_repo.server.options import ServerOptions
from model_repo.spec import Endpoint, ServingConfig
from optimizer.config import OptimizeConfig
from optimizer.profiling.timeline import STAGES
from optimizer.run_file import save_config
from search.records.recommendation import ModelRecord

pytestmark = pytest.mark.system

OPTIMIZE = str(Path(sys.executable).with_name("optimize"))
LOADTEST = str(Path(sys.executable).with_name("loadtest"))


def test_serves_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4, instance_count=2)
    write_final_repository(tmp_path / "run" / "model_repository", config)
    data = tmp_path / "run" / "input-data.json"
    data.write_text("{}")
    process = subprocess.Popen([OPTIMIZE, "serve", str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert f"--input-data {data}" in process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", line).group(1))
        endpoint = Endpoint(host="127.0.0.1", http_port=port, grpc_port=1, metrics_port=None)
        spec = config.engine.inputs[0]
        outputs = infer(endpoint, "cnn", {spec.name: np.zeros((2, *spec.shape), np.float32)})
        assert next(iter(outputs.values())).shape[0] == 2
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=240)
        process.stdout.close()
    assert process.returncode == 0
    wait_until(lambda: not any(child.is_running() for child in family))


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """The address that `optimize serve` prints, while it serves `folder`."""
    command = [OPTIMIZE, "serve", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline()).group(0)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=240)
        process.stdout.close()


def shared_memory_test(url: str) -> subprocess.CompletedProcess[str]:
    """`loadtest` of the same user, with inputs in shared memory."""
    options = "--model cnn --rate 20 --duration 1s --shared-memory system --max-send-lag 30s"
    command = [LOADTEST, url, *options.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.long
def test_shared_memory_is_for_its_owner_and_only_where_it_was_asked_for(tmp_path: Path) -> None:
    write_final_repository(tmp_path, ServingConfig(engine=cnn_engine(tmp_path / "engine"), max_batch_size=4))
    with serving(tmp_path, "--shared-memory", "system") as url:
        done = shared_memory_test(url)
        assert "does not take shared memory" not in done.stderr
        assert done.returncode == 0, done.stderr
    with serving(tmp_path) as url:
        done = shared_memory_test(url)
        assert done.returncode == 2
        assert "does not take shared memory" in done.stderr
        assert "optimize serve --shared-memory system" in done.stderr


def test_a_model_that_does_not_load_says_why(tmp_path: Path) -> None:
    engine = broken_engine(tmp_path / "engine")
    write_final_repository(tmp_path, ServingConfig(engine=engine, max_batch_size=4))
    done = subprocess.run(
        [OPTIMIZE, "serve", str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 2
    assert "broken does not load" in done.stderr.splitlines()[0]
    assert "NoSuchOperator" in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_load_test_of_an_unknown_model_is_answered_with_what_is_served(tmp_path: Path, protocol: Any) -> None:
    write_final_repository(tmp_path / "models", ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4))
    with serve_repository(tmp_path / "models", ServerOptions(run_dir=tmp_path)) as host:
        target = Target(url=host.endpoint.url(protocol), model_name="ccn")
        with pytest.raises(TargetRefused) as refused:
            read_model_info(target)
    assert " cnn" in str(refused.value).splitlines()[1]


def test_profile_draws_every_request_execution_and_operator(tmp_path: Path) -> None:
    served = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4, instance_count=2)
    found = recommendation(
        model=ModelRecord(name="cnn", file="cnn.onnx", sha256="0" * 64, opset=17, batching="It has a batch."),
        winner=trial(config=served, certificate=certificate(20.0)),
    )
    folder = run_dir(tmp_path / "run", found)
    save_config(OptimizeConfig(model="cnn.onnx", limits=(LatencyLimit(limit_ms=50.0),), output=folder), folder)
    write_final_repository(folder / "model_repository", served)
    command = [OPTIMIZE, "profile", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    spans = [one for one in json.loads((folder / "timeline.json").read_text())["traceEvents"] if one["ph"] == "X"]
    requests = [one for one in spans if one["name"].startswith("request ")]
    executions = [one for one in spans if one["name"].startswith("batch of ")]
    assert requests
    assert sum(one["args"]["requests"] for one in executions) >= len(requests)
    assert {*STAGES[:-1], "Conv"} <= {one["name"] for one in spans}
    for text in (done.stdout, (folder / "timeline.html").read_text()):
        assert all(word in text for word in (*STAGES, "Conv", "2 instances"))
