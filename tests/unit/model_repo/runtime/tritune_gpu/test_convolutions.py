"""Which models need a session of ONNX Runtime for each batch size."""

from pathlib import Path

import pytest
from onnx_models import small_cnn, token_classifier

from model_repo.runtime.tritune_gpu.onnxruntime_engine import convolves


@pytest.mark.parametrize(("write", "has"), [(small_cnn, True), (token_classifier, False)])
def test_convolutions_are_found_in_the_file(tmp_path: Path, write: object, has: bool) -> None:
    assert callable(write)
    assert convolves(write(tmp_path / "m.onnx")) is has
