from pathlib import Path
from typing import Any

import pytest
from engines import plain_engine

from model_repo.spec import ServingConfig, TensorSpec


def test_a_shape_is_concrete_if_it_is_fixed_or_has_a_sample() -> None:
    assert TensorSpec(name="x", datatype="FP32", shape=(3, 8)).concrete_shape == (3, 8)
    assert TensorSpec(name="x", datatype="FP32", shape=(-1, 8)).concrete_shape is None
    assert TensorSpec(name="x", datatype="FP32", shape=(-1, 8), sample_shape=(5, 8)).concrete_shape == (5, 8)


@pytest.mark.parametrize("sample", [(5,), (5, 9), (0, 8), (-1, 8)])
def test_a_sample_must_be_a_case_of_the_shape(sample: tuple[int, ...] | None) -> None:
    with pytest.raises(ValueError, match="not a case of shape"):
        TensorSpec(name="x", datatype="FP32", shape=(-1, 8), sample_shape=sample)


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", ".."])
def test_a_model_name_must_be_a_folder_name(name: str) -> None:
    with pytest.raises(ValueError, match="model_name"):
        plain_engine(model_name=name)


@pytest.mark.parametrize("name", ["model.onnx", "model.plan", "engine.json", "kernels.cache", "weights-12.bin"])
def test_engine_files_have_names_of_data(tmp_path: Path, name: str) -> None:
    assert plain_engine(model_file=name, files=((name, tmp_path / "file"),)).model_file == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "/etc/passwd", "../model.onnx", "weights/../../model.onnx", "./model.onnx"),
        *("data/weights-0.bin", "weights.bin", "weights-00.bin", "weights-\u0663.bin", "weights-0.bin\n"),
        *("model.py", "Model.py", "model.onnx\n", "model.cpython-311-x86_64-linux-gnu.so", "numpy.py"),
        *("__pycache__/model.cpython-311.pyc", "tritune_gpu", "tritune_gpu/driver.py", "sitecustomize.py"),
        *("config.pbtxt", "libtriton_python.so", "triton_python_backend_stub"),
    ],
)  # fmt: skip
def test_engine_files_have_no_other_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a name that a file of an engine may have"):
        plain_engine(files=(("model.onnx", tmp_path / "model.onnx"), (name, tmp_path / "file")))


def test_two_engine_files_cannot_have_one_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="have one name"):
        plain_engine(files=(("model.onnx", tmp_path / "a"), ("model.onnx", tmp_path / "b")))


def test_an_engine_made_of_code_needs_no_files(tmp_path: Path) -> None:
    assert plain_engine(model_file="", files=(), code=tmp_path / "own.py").files == ()
    with pytest.raises(ValueError, match="is not among the files"):
        plain_engine(model_file="", files=())


@pytest.mark.parametrize(
    "changes",
    [
        {"max_batch_size": -1},
        {"instance_count": 0},
        {"max_batch_size": 0},  # with dynamic batching
        {"engine": plain_engine(batched=False)},
        {"max_queue_delay_us": -1},
        {"intra_op_threads": -1},
        {"preferred_batch_sizes": (16,)},
        {"cuda_graph_batch_sizes": (0,)},
    ],
)
def test_a_configuration_cannot_contradict_itself(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=r"must be|needs|outside"):
        ServingConfig(**{"engine": plain_engine(), "max_batch_size": 8, **changes})
