"""Tests of when the use of time is said; its sentences are in tests/golden/texts.json."""

from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn
from recommendations import config, measurement, timings, trial

from optimizer.engines.candidates import onnxruntime_engine
from optimizer.model.onnx_model import read_model
from optimizer.profiling.breakdown import time_use_of
from optimizer.profiling.text import time_summary


def test_without_timings_nothing_is_said() -> None:
    assert time_summary(trial(measurement=measurement(server=None)), None) == ""


def test_the_default_is_not_compared_at_another_rate() -> None:
    default = trial(0, measurement=measurement(rate_per_s=50.0, server=timings(queue_ms=9.0)))
    assert time_summary(trial(), None, default) == time_summary(trial(), None)


def test_stages_add_up_to_the_latency() -> None:
    seen = measurement(server=timings(response_ms=0.2)).stages_ms
    assert list(seen) == ["client and network", "queue", "input", "inference", "output", "response"]
    assert sum(seen.values()) == pytest.approx(12.0)


def test_an_engine_that_cannot_be_profiled_costs_only_its_layers(tmp_path: Path) -> None:
    model = read_model(small_cnn(tmp_path / "cnn.onnx"))
    served = config(engine=onnxruntime_engine(model))
    model.path.write_bytes(b"nonsense")
    notes: list[Any] = []
    used = time_use_of(trial(config=served), trial(0, config=served), model=model, on_event=notes.append)
    assert (used.winner, used.baseline) == (None, None)
    assert used.summary.startswith("A request takes 11.8 ms")
    assert any("layers' times are not known" in getattr(event, "text", "") for event in notes)


@pytest.mark.parametrize(("device", "most_s"), [("cpu", 0.0), ("gpu", 5.0)])
def test_an_engine_is_not_profiled_beyond_the_time_for_it(device: Any, most_s: float, tmp_path: Path) -> None:
    model = read_model(small_cnn(tmp_path / "cnn.onnx"))
    served = config(engine=onnxruntime_engine(model, device=device))
    notes: list[Any] = []
    used = time_use_of(trial(config=served), None, model=model, most_s=most_s, on_event=notes.append)
    assert used.winner is None
    assert any("time budget is used up" in getattr(event, "text", "") for event in notes)


def test_a_server_elsewhere_is_not_profiled_here() -> None:
    notes: list[Any] = []
    used = time_use_of(trial(), None, model=None, on_event=notes.append)
    assert used.winner is None
    assert notes == []
