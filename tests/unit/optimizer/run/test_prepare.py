"""Tests of the stages of preparation: quick checks of the arguments, then the server, then slow steps."""

import os
from pathlib import Path

import foreign_models
import onnx_models
import pytest

from loadgen.errors import UserError
from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from optimizer.errors import ModelError
from optimizer.run.prepare import prepare, read_inputs
from optimizer.run.serving import checked_inputs
from search.space import engine_label
from search.trials.events import Note, ignore


def without_server(tmp_path: Path, model: str | Path) -> OptimizeConfig:
    return OptimizeConfig(
        limits=(LatencyLimit(limit_ms=50),),
        model=model,
        output=tmp_path,
        precisions=("fp32", "fp16"),
        server="local",
    )


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


def test_strings_are_computed_on_the_cpu_of_a_machine_with_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA L4, 23034, 550.54.15, 8.9, GPU-1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    data, notes = tmp_path / "words.json", list[str]()
    data.write_text(foreign_models.SAMPLES["string_input"])
    config = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=50),),
        model=foreign_models.string_input(tmp_path / "m.onnx"),
        output=tmp_path,
        input_data=data,
    )
    inputs = read_inputs(config, work_dir=tmp_path / "work")
    found = prepare(
        config, inputs, on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None
    )
    assert [gpu.name for gpu in found.machine.gpus] == ["NVIDIA L4"]
    assert [(engine_label(engine), engine.device) for engine in found.engines] == [("onnxruntime-fp32", "cpu")]
    assert len([note for note in notes if "strings" in note]) == 1
    assert found.batching.model.batched


@pytest.mark.usefixtures("no_server")
def test_a_server_that_cannot_run_models_ends_it_before_any_variant_is_made(tmp_path: Path) -> None:
    config = without_server(tmp_path, onnx_models.small_cnn(tmp_path / "m.onnx"))
    inputs = read_inputs(config, work_dir=tmp_path / "work")
    with pytest.raises(UserError, match="tritonserver"):
        checked_inputs(config, inputs, ignore)
    assert not list((tmp_path / "work").iterdir())


def test_a_model_that_cannot_be_read_needs_no_server(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        read_inputs(without_server(tmp_path, tmp_path / "gone.onnx"), work_dir=tmp_path / "work")


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("source", ["no_such_package.models:build", "gone.pt2"])
def test_an_export_waits_for_the_server(tmp_path: Path, source: str) -> None:
    config = without_server(tmp_path, source if ":" in source else tmp_path / source)
    with pytest.raises(UserError, match="tritonserver"):
        checked_inputs(config, read_inputs(config, work_dir=tmp_path / "work"), ignore)
