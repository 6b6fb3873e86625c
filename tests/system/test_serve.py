"""`optimize serve`: a finished repository on a server of its own."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from engines import cnn_engine
from infer import infer

from model_repo.layout import write_final_repository
from model_repo.spec import Endpoint, ServingConfig

pytestmark = pytest.mark.system

OPTIMIZE = str(Path(sys.executable).with_name("optimize"))


def test_serves_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4, instance_count=2)
    write_final_repository(tmp_path / "run" / "model_repository", config)
    process = subprocess.Popen([OPTIMIZE, "serve", str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", line).group(1))
        endpoint = Endpoint(host="127.0.0.1", http_port=port, grpc_port=1, metrics_port=None)
        spec = config.engine.inputs[0]
        outputs = infer(endpoint, "cnn", {spec.name: np.zeros((2, *spec.shape), np.float32)})
        assert next(iter(outputs.values())).shape[0] == 2
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=90)
        process.stdout.close()
    assert process.returncode == 0
    deadline = time.monotonic() + 60
    while any(child.is_running() for child in family) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [child for child in family if child.is_running()]


def test_a_folder_without_models_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [OPTIMIZE, "serve", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert len(done.stderr.splitlines()) == 2
