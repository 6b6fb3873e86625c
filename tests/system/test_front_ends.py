"""What Triton's own front ends let through."""

from pathlib import Path

import pytest
from onnx_models import small_cnn

from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from optimizer.run.front_ends import ROUNDS, measure_front_ends
from optimizer.run.prepare import prepare, read_inputs

pytestmark = pytest.mark.system


def test_both_are_measured_and_nothing_but_the_log_is_left(tmp_path: Path) -> None:
    config = OptimizeConfig(
        model=small_cnn(tmp_path / "cnn.onnx"),
        limits=(LatencyLimit(limit_ms=50.0),),
        output=tmp_path / "run",
        cache_dir=tmp_path / "cache",
        precisions=("fp32",),
    )
    config.output.mkdir()
    prepared = prepare(config, read_inputs(config, work_dir=tmp_path / "work"))
    found = measure_front_ends(config, prepared)
    assert found is not None
    assert len(found.http) == len(found.grpc) == ROUNDS
    assert [path.name for path in config.output.iterdir()] == ["server.log"]
