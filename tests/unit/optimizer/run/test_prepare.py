"""Tests of the order of preparation: quick checks of the arguments, then the server, then slow steps."""

from pathlib import Path

import onnx_models
import pytest

from loadgen.errors import UserError
from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from optimizer.errors import ModelError
from optimizer.run.prepare import Prepared, prepare


class NoServer(UserError):
    pass


def no_server() -> None:
    raise NoServer("The server does not run models.", "Install it.")


def prepared(tmp_path: Path, model: str | Path) -> Prepared:
    config = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=50),), model=model, output=tmp_path, precisions=("fp32", "fp16")
    )
    return prepare(config, work_dir=tmp_path / "work", check_server=no_server)


def test_a_server_that_cannot_run_models_ends_it_before_any_variant_is_made(tmp_path: Path) -> None:
    with pytest.raises(NoServer):
        prepared(tmp_path, onnx_models.small_cnn(tmp_path / "m.onnx"))
    assert not list((tmp_path / "work").iterdir())


def test_a_model_that_cannot_be_read_needs_no_server(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        prepared(tmp_path, tmp_path / "gone.onnx")


@pytest.mark.parametrize("source", ["no_such_package.models:build", "gone.pt2"])
def test_an_export_waits_for_the_server(tmp_path: Path, source: str) -> None:
    with pytest.raises(NoServer):
        prepared(tmp_path, source if ":" in source else tmp_path / source)
