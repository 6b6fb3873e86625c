"""Tests of runners as a server opens them, on a fake GPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import DoublingEngine, FakeCuda

from model_repo.runtime.tritune_gpu import opening, tensorrt_engine

CONFIG: dict[str, Any] = {
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
    "output": [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]} for name in ("y", "sums")],
    "parameters": {
        name: {"string_value": value}
        for name, value in {
            "engine_backend": "tensorrt_rtx", "model_file": "model.plan", "batch_sizes": "1,2,4,8",
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("in_slots", [False, True])
def test_a_first_execution_of_a_size_is_not_one_of_a_request(
    in_slots: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = DoublingEngine(FakeCuda())
    monkeypatch.setattr(opening, "DriverCuda", lambda device, **_: FakeCuda())
    monkeypatch.setattr(tensorrt_engine, "TensorRtEngine", lambda *_, **__: engine)
    if in_slots:
        slot = opening.open_slots(tmp_path, CONFIG, device=0)()
    else:
        runner = opening.open_runner(tmp_path, CONFIG, device=0)
    warm = list(engine.executed)
    assert all(warm.count((size, 3)) >= 2 for size in (1, 2, 4, 8))
    for rows in range(1, 9):
        if in_slots:
            slot.runner.run_in_place(rows, {"x": (rows, 3)})
        else:
            runner.run([{"x": np.zeros((rows, 3), np.float32)}])
    assert set(engine.executed) == set(warm)
    assert len(engine.executed) == len(warm) + 8
    if in_slots:
        slot.close()
