"""A model whose weights are named like code, on a real Triton: it gives its results, and none of its code runs."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from batch_models import draw
from infer import infer
from weights_elsewhere import NAMES_OF_CODE, model_with

from loadgen.spec.limits import LatencyLimit
from model_repo.repository.write import write_final_repository
from model_repo.server.hosts import serve_repository
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import ServingConfig
from optimizer.config import OptimizeConfig
from optimizer.run.prepare import prepare, read_inputs

pytestmark = pytest.mark.system


def test_weights_named_like_code_are_served_and_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_TEST_RAN", str(tmp_path / "ran"))
    path = model_with(tmp_path / "given", *NAMES_OF_CODE)
    x = draw(1, 8)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})[0]
    config = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=50),), model=path, output=tmp_path / "run", precisions=("fp32",)
    )
    served = ServingConfig(
        engine=prepare(config, read_inputs(config, work_dir=tmp_path / "run" / "model")).engines[0],
        max_batch_size=4,
    )
    options = ServerOptions(run_dir=tmp_path / "run")
    with serve(options) as server:
        server.load(served)
        np.testing.assert_array_equal(infer(server.endpoint, "net", {"x": x})["y"], expected)
    write_final_repository(tmp_path / "final", served)
    with serve_repository(tmp_path / "final", options) as standing:
        np.testing.assert_array_equal(infer(standing.endpoint, "net", {"x": x})["y"], expected)
    assert not (tmp_path / "ran").exists()
