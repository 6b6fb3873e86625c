"""Tests that `run.json` keeps a run's configuration, so that `--resume` continues with the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from optimizer.accuracy.thresholds import accuracy_rule
from optimizer.call_options import OPTIONS
from optimizer.command.arguments import resumed_config
from optimizer.config import OptimizeConfig
from optimizer.run_file import save_config, saved_config


@pytest.mark.parametrize("model", [Path("/models/m.onnx"), "models.resnet:small"])
def test_what_was_given_comes_back(tmp_path: Path, model: str | Path) -> None:
    config = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=50),),
        model=model,
        output=tmp_path,
        precisions=("fp32", "int8"),
        calibration_data=Path("/data/c.npz"),
        accuracy=accuracy_rule("standard,sqnr_db=28"),
        io_precision="fp16",
        calibration_method="entropy",
        storage="sqlite:///secret",
    )
    save_config(config, tmp_path)
    assert saved_config(tmp_path) == replace(config, storage=None)


def test_a_password_is_not_kept(tmp_path: Path) -> None:
    config = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=50),),
        model=Path("/models/m.onnx"),
        output=tmp_path,
        server="remote",
        server_url="http://me:s3cret@host:8000",
        server_repository=Path("/models"),
        storage="postgresql://me:s3cret@db/optuna",
    )
    save_config(config, tmp_path)
    assert "s3cret" not in (tmp_path / "run.json").read_text()
    assert saved_config(tmp_path).server_url == "http://host:8000"
    given = {"resume": tmp_path, "storage": config.storage, "server_url": config.server_url}
    resumed, _ = resumed_config({name: one.default for name, one in OPTIONS.items()} | given, {})
    assert resumed == config


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"client_batch": 10**400}, "--client-batch 1e308 or more is out of range"),
        ({"seed": -(10**400)}, "--seed -1e308 or less is out of range"),
        ({"confidence": 0.5}, "--confidence 0.5 is out of range"),
        ({"time_budget_s": -(10**400)}, "--time-budget -1e308 or less is not above zero"),
    ],
)
def test_numbers_out_of_range_are_shown(tmp_path: Path, changes: dict[str, Any], shown: str) -> None:
    with pytest.raises(BadInput, match=shown):
        replace(
            OptimizeConfig(limits=(LatencyLimit(limit_ms=50),), model=Path("m.onnx"), output=tmp_path), **changes
        )
