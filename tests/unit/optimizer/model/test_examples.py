"""Tests that the example models match their description in the README."""

import subprocess
import sys
from pathlib import Path

from optimizer.batching.dynamic_batch import dynamic_batch
from optimizer.model.onnx_model import read_model
from optimizer.model.shapes import with_shapes

EXAMPLES = Path(__file__).parents[4] / "examples"


def written(name: str, folder: Path) -> Path:
    """Return the example's model, which is the same every time."""
    targets = [folder / again / f"{name}.onnx" for again in ("deep", "again")]
    for target in targets:
        subprocess.run([sys.executable, EXAMPLES / f"{name}.py", target], check=True, capture_output=True)
    assert targets[0].read_bytes() == targets[1].read_bytes()
    return targets[0]


def test_small_cnn(tmp_path: Path) -> None:
    path = written("small_cnn", tmp_path)
    assert 100_000 < path.stat().st_size < 400_000
    done = dynamic_batch(with_shapes(read_model(path), {}), tmp_path / "work")
    assert done.action == "kept"
    assert done.model.inputs[0].shape == (3, 64, 64)
    assert done.model.outputs[0].shape == (10,)


def test_small_transformer(tmp_path: Path) -> None:
    path = written("small_transformer", tmp_path)
    assert 1_000_000 < path.stat().st_size < 5_000_000
    done = dynamic_batch(with_shapes(read_model(path), {"input_ids": (128,)}), tmp_path / "work")
    assert done.action == "kept"
    assert [(spec.name, spec.datatype, spec.shape) for spec in done.model.inputs] == [
        ("input_ids", "INT64", (-1,)),
        ("attention_mask", "INT64", (-1,)),
    ]
    assert "compared at its outputs" in done.reason
