"""Tests of the files that a model brings to a model repository, whatever their names in the model."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from batch_models import draw
from weights_elsewhere import NAMES_OF_CODE, NAMES_OF_OURS, model_with

from loadgen.spec.limits import LatencyLimit
from model_repo.repository import write
from model_repo.repository.write import write_final_repository, write_repository
from model_repo.spec import ServingConfig
from optimizer.batching.dynamic_batch import served_model
from optimizer.config import OptimizeConfig
from optimizer.model.onnx_model import read_model
from optimizer.run.prepare import Prepared, prepare, read_inputs

pytestmark = pytest.mark.slow


def prepared(path: Any, precisions: Any = ("fp32",)) -> Prepared:
    run = path.parent / "run"
    config = OptimizeConfig(limits=(LatencyLimit(limit_ms=50),), model=path, output=run, precisions=precisions)
    return prepare(config, read_inputs(config, work_dir=run / "model"))


def result(path: Path) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": draw(3, 8)})[0]


IN_THE_GATE = ("model.py", "__pycache__/model.cpython-311.pyc", "model.onnx", "weights-1.bin")


@pytest.mark.parametrize(
    "location",
    [
        pytest.param(name, marks=() if name in IN_THE_GATE else pytest.mark.long)
        for name in (*NAMES_OF_CODE, *NAMES_OF_OURS)
    ],
)
def test_weights_named_like_code_or_like_a_file_of_ours_are_weights(tmp_path: Path, location: str) -> None:
    path = model_with(tmp_path, location)
    before = result(path)
    done = prepared(path)
    config = ServingConfig(engine=done.engines[0], max_batch_size=4)
    trial = write_repository(tmp_path / "trial", config) / "1"
    final = write_final_repository(tmp_path / "final", config) / "1"
    for version in (trial, final):
        assert (version / "model.py").read_bytes() == (write.RUNTIME / "onnx_runtime.py").read_bytes()
        assert {file.name for file in version.iterdir()} - {"__pycache__"} == {
            "model.onnx",
            "model.py",
            "weights-0.bin",
        }
        assert np.array_equal(result(version / "model.onnx"), before)
    assert (trial / "weights-0.bin").samefile(tmp_path / "run" / "model" / "weights-0.bin")
    assert (path.parent / location).stat().st_nlink == 1  # ONNX refuses files with several links
    onnx.load(path)
    assert len(list((trial / "__pycache__").iterdir())) == 1  # of our own code
    assert not (final / "__pycache__").exists()
    assert done.source.sha256 == done.model.sha256 == read_model(path).sha256


def test_many_files_keep_apart(tmp_path: Path) -> None:
    path = model_with(tmp_path, "weights-1.bin", "weights-0.bin", "a/w", "b/w", *(f"w{n}" for n in range(9)))
    before = result(path)
    engine = prepared(path).engines[0]
    assert len(engine.files) == 14
    version = write_repository(tmp_path / "trial", ServingConfig(engine=engine, max_batch_size=4)) / "1"
    assert np.array_equal(result(version / "model.onnx"), before)


def test_an_export_in_the_work_folder_gets_our_names_too(tmp_path: Path) -> None:
    """torch writes large weights to MODEL.onnx.data, next to MODEL.onnx."""
    path = model_with(tmp_path / "run" / "model", "net.onnx.data")
    before = result(path)
    model = served_model(read_model(path), path.parent)
    assert [name for name, _ in model.files] == ["model.onnx", "weights-0.bin"]
    assert served_model(model, path.parent) is model
    assert np.array_equal(result(model.path), before)


def test_weights_with_several_links_are_prepared(tmp_path: Path) -> None:
    """Package managers link files like this; ONNX's checker and loader refuse such files."""
    path = model_with(tmp_path, "model.py")
    before = result(path)
    os.link(tmp_path / "model.py", tmp_path / "elsewhere")
    done = prepared(path, precisions=("fp32", "fp16"))
    assert [engine.precision for engine in done.engines] == ["fp32", "fp16"]
    assert np.array_equal(result(dict(done.engines[0].files)["model.onnx"]), before)


def test_a_run_is_prepared_again_over_what_it_left(tmp_path: Path) -> None:
    path = model_with(tmp_path, "weights-0.bin", "model.py")
    before = result(path)
    for _ in range(2):
        engine = prepared(path).engines[0]
        version = write_repository(tmp_path / "trial", ServingConfig(engine=engine, max_batch_size=4)) / "1"
        assert np.array_equal(result(version / "model.onnx"), before)
