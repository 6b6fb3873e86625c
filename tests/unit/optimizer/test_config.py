"""What a run is told survives `run.json`, so that `--resume` goes on with the same."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from optimizer.config import OptimizeConfig, save_config, saved_config
from optimizer.resuming import resumed_config
from optimizer.thresholds import accuracy_rule


@pytest.mark.parametrize("model", [Path("/models/m.onnx"), "models.resnet:small"])
def test_what_was_given_comes_back(tmp_path, model):
    config = OptimizeConfig(
        model=model,
        limit_ms=50,
        output=tmp_path,
        precisions=("fp32", "int8"),
        calibration_data=Path("/data/c.npz"),
        accuracy=accuracy_rule("standard,sqnr_db=28"),
        io_precision="fp16",
        calibration_method="entropy",
        storage="sqlite:///secret",
    )
    save_config(config, tmp_path)
    assert saved_config(tmp_path) == config.model_copy(update={"storage": None})


def test_a_password_is_not_kept(tmp_path):
    config = OptimizeConfig(
        model=Path("/models/m.onnx"),
        limit_ms=50,
        output=tmp_path,
        server="remote",
        server_url="http://me:s3cret@host:8000",
        server_repository=Path("/models"),
        storage="postgresql://me:s3cret@db/optuna",
    )
    save_config(config, tmp_path)
    assert "s3cret" not in (tmp_path / "run.json").read_text()
    assert saved_config(tmp_path).server_url == "http://host:8000"
    resumed, _ = resumed_config(tmp_path, given={}, storage=config.storage, server_url=config.server_url)
    assert resumed == config


def test_a_precision_that_is_none(tmp_path):
    with pytest.raises(ValidationError):
        OptimizeConfig(model=Path("m.onnx"), limit_ms=50, output=tmp_path, precisions=("fp64",))
