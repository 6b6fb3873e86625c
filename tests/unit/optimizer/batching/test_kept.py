"""Tests of models that earlier runs checked and proved: the same result, and none for other contents."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from batch_models import node, write
from onnx_models import small_cnn

from loadgen.files import sha256_of
from optimizer.batching.kept import Settled, settled
from optimizer.cached import ResultCache


def mixed(path: Path) -> Path:
    """A model whose leading dimension is no batch."""
    return write(path, [node("Softmax", "x", "y", axis=0)], {"x": ["batch", 3]}, {"y": ["batch", 3]})


def fixed(path: Path) -> Path:
    """A model whose batch was fixed at 1 in the file."""
    return write(path, [node("Relu", "x", "y")], {"x": [1, 3]}, {"y": [1, 3]})


def again(path: Path, folder: Path, **changes: Any) -> Settled:
    known: dict[str, Any] = {"shapes": {}, "processor": "a processor"}
    values = {**known, **changes}
    cache = ResultCache(folder=folder / "cache")
    return settled(path, values["shapes"], folder / "work", cache=cache, processor=values["processor"])


@pytest.mark.parametrize(("make", "action"), [(small_cnn, "kept"), (fixed, "rewritten"), (mixed, "unbatched")])
def test_the_same_model_is_the_same_again(make: Any, action: str, tmp_path: Path) -> None:
    path = make(tmp_path / "m.onnx")
    first = again(path, tmp_path)
    shutil.rmtree(tmp_path / "work", ignore_errors=True)
    second = again(path, tmp_path)
    assert (first.cached, second.cached) == (False, True)
    assert second.model == first.model
    assert (second.batching.action, second.batching.reason) == (action, first.batching.reason)
    assert second.batching.model == first.batching.model
    assert sha256_of(second.batching.model.path, {}) == first.batching.model.sha256


def test_other_contents_names_processors_and_shapes_are_other_models(tmp_path: Path) -> None:
    path = small_cnn(tmp_path / "m.onnx")
    assert not again(path, tmp_path).cached
    assert again(path, tmp_path).cached
    assert not again(path, tmp_path, processor="another").cached
    assert not again(path, tmp_path, shapes={"image": (3, 32, 32)}).cached
    assert not again(small_cnn(tmp_path / "n.onnx"), tmp_path).cached
    assert not again(small_cnn(path, size=8), tmp_path).cached
