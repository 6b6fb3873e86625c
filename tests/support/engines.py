"""Provide engines for the tests of serving: the tiny models of onnx_models, described for the repository."""

from pathlib import Path
from typing import Any

import onnx_models

from model_repo.spec import Engine, TensorSpec


def cnn_engine(folder: Path, *, model_name: str = "cnn", size: int = 32) -> Engine:
    """image (3, size, size) -> logits (10,)."""
    return _engine(
        model_name,
        onnx_models.small_cnn(folder / "cnn.onnx", size=size),
        inputs=(TensorSpec(name="image", datatype="FP32", shape=(3, size, size)),),
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(10,)),),
    )


def fixed_batch_engine(folder: Path) -> Engine:
    """The same without a batch dimension that may vary: image (1, 3, 32, 32) -> logits (1, 10)."""
    return _engine(
        "fixed",
        onnx_models.small_cnn(folder / "fixed.onnx", batch=1),
        inputs=(TensorSpec(name="image", datatype="FP32", shape=(1, 3, 32, 32)),),
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(1, 10)),),
        batched=False,
    )


def token_engine(folder: Path) -> Engine:
    """ids, mask (tokens,) int64 -> scores (4,), states (tokens, 8)."""
    return _engine(
        "tokens",
        onnx_models.token_classifier(folder / "tokens.onnx"),
        inputs=tuple(
            TensorSpec(name=name, datatype="INT64", shape=(-1,), sample_shape=(16,)) for name in ("ids", "mask")
        ),
        outputs=(
            TensorSpec(name="scores", datatype="FP32", shape=(4,)),
            TensorSpec(name="states", datatype="FP32", shape=(-1, 8)),
        ),
    )


def doubler_engine(folder: Path) -> Engine:
    """x () -> doubled ()."""
    return _engine(
        "doubler",
        onnx_models.doubler(folder / "doubler.onnx"),
        inputs=(TensorSpec(name="x", datatype="FP32", shape=()),),
        outputs=(TensorSpec(name="doubled", datatype="FP32", shape=()),),
    )


def echo_engine(folder: Path) -> Engine:
    """words (2,) -> echoed (2,), text."""
    return _engine(
        "echo",
        onnx_models.echo(folder / "echo.onnx"),
        inputs=(TensorSpec(name="words", datatype="BYTES", shape=(2,)),),
        outputs=(TensorSpec(name="echoed", datatype="BYTES", shape=(2,)),),
    )


def broken_engine(folder: Path) -> Engine:
    """An engine that no runtime can load."""
    return _engine(
        "broken",
        onnx_models.unknown_operator(folder / "broken.onnx"),
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(4,)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(4,)),),
    )


def plain_engine(**changes: Any) -> Engine:
    """x (3, 8) -> y (10,) on ONNX Runtime, with a file that need not exist; any field can be changed."""
    given: dict[str, Any] = {
        "model_name": "m",
        "backend": "onnxruntime",
        "precision": "fp32",
        "model_file": "model.onnx",
        "files": (("model.onnx", Path("somewhere/model.onnx")),),
        "inputs": (TensorSpec(name="x", datatype="FP32", shape=(3, 8)),),
        "outputs": (TensorSpec(name="y", datatype="FP32", shape=(10,)),),
        "batched": True,
    }
    return Engine(**{**given, **changes})


def _engine(
    model_name: str,
    path: Path,
    *,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    batched: bool = True,
) -> Engine:
    return Engine(
        model_name=model_name,
        backend="onnxruntime",
        precision="fp32",
        model_file="model.onnx",
        files=(("model.onnx", path),),
        inputs=inputs,
        outputs=outputs,
        batched=batched,
    )


def parameters(**values: str) -> str:
    """The lines of `config.pbtxt` that set these parameters; the last one of a name holds."""
    lines = (
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )
    return "".join(lines)
