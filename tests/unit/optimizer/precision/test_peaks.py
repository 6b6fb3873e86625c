from pathlib import Path

import numpy as np
import pytest
from onnx_models import small_cnn

from optimizer.model.onnx_model import read_model
from optimizer.model.ort_child import run_model
from optimizer.model.samples import synthetic_samples
from optimizer.precision.half_plan import observed_peaks


def test_peaks_are_the_largest_magnitudes(tmp_path: Path) -> None:
    model = read_model(small_cnn(tmp_path / "m.onnx", size=8))
    samples = synthetic_samples(model, 4, seed=0)
    peaks = observed_peaks(model, samples)
    logits = [result["logits"] for result in run_model(model.path, samples.feeds(1))]
    assert peaks["logits"] == pytest.approx(np.abs(logits).max())
    assert set(peaks) == {"conv", "relu", "pooled", "flat", "logits"}
    assert peaks["relu"] <= peaks["conv"]
