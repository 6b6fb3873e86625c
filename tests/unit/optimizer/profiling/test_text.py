"""Tests of the paragraph on the use of time: each case names the reader's next step."""

from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn
from recommendations import config, measurement, timings, trial

from optimizer.engines.candidates import onnxruntime_engine
from optimizer.model.onnx_model import read_model
from optimizer.profiling.breakdown import time_use_of
from optimizer.profiling.text import stage_means, time_summary
from search.records.engine_profile import CeilingsRecord, EngineProfileRecord, LayerRecord
from search.records.trial import ServerTimingsRecord, TrialRecord


def record(
    number: int = 1, changes: dict[Any, Any] | None = None, **measured: float | ServerTimingsRecord | None
) -> TrialRecord:
    knobs = {"intra_op_threads": 1, "instance_count": 1, **(changes or {})}
    return trial(number, config=config(**knobs), measurement=measurement(**measured))


def profile(bound: Any = "arithmetic", **changes: Any) -> EngineProfileRecord:
    layer = LayerRecord(name="conv1", operator="Conv", mean_ms=3.0, share=0.6, bound=bound)
    known: dict[str, Any] = {
        "engine": "onnxruntime-fp32",
        "batch_size": 3,
        "execution_ms": 7.5,
        "layers": (layer,),
        "layer_count": 12,
        "bound_shares": {bound: 0.8},
        "operator_shares": {"Conv": 0.9, "Relu": 0.1},
        "ceilings": CeilingsRecord(flops_per_s=92e9, bytes_per_s=8e9),
        "profiler": "onnxruntime",
    }
    return EngineProfileRecord(**{**known, **changes})


def test_the_stages_largest_first_and_small_ones_left_out() -> None:
    text = time_summary(record(), None)
    assert text == (
        "Of 11.8 ms that a request takes on average at 100/s, 68 % in the model, 25 % waiting in the queue and "
        "4 % in client and network."
    )


def test_without_timings_nothing_is_said() -> None:
    assert time_summary(record(server=None), profile()) == ""


@pytest.mark.parametrize(
    ("measured", "knobs", "words"),
    [
        ({"server": timings(queue_ms=30.0)}, {}, "Waiting is the price of that rate"),
        ({"server": timings(queue_ms=30.0)}, {"max_queue_delay_us": 30_000}, "is the queue delay"),
        ({"network_and_client_ms": 30.0}, {}, "gRPC, smaller inputs"),
        ({"server": timings(compute_input_ms=30.0)}, {}, "smaller inputs or outputs"),
        ({"server": timings(response_ms=30.0)}, {}, "way to the server and back"),
    ],
)
def test_the_largest_stage_says_what_helps(
    measured: dict[str, ServerTimingsRecord] | dict[str, float], knobs: dict[Any, Any], words: str
) -> None:
    assert words in time_summary(record(changes=knobs, **measured), None)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("arithmetic", "Arithmetic bounds 80 % of it (this machine multiplies matrices at 92 GFLOP/s)"),
        ("bytes", "Memory traffic bounds 80 % of it (this machine moves 8 GB/s)"),
        ("overhead", "Neither arithmetic nor memory explains 80 % of it"),
    ],
)
def test_what_bounds_the_engine(bound: str, words: str) -> None:
    text = time_summary(record(), profile(bound))
    assert words in text
    assert "Standalone, the engine takes 7.5 ms for a batch of 3. 90 % of its layers' time is Conv" in text
    assert "the slowest of 12 layers, conv1 (Conv), takes 60 %." in text


def test_what_is_known_is_said_beside_what_is_not() -> None:
    shares = {"unknown": 0.6, "bytes": 0.3, "arithmetic": 0.1}
    assert "Memory traffic bounds 30 % of it" in time_summary(record(), profile(bound_shares=shares))


def test_a_bound_that_is_not_known_is_not_claimed() -> None:
    text = time_summary(record(), profile("unknown"))
    assert "bounds" not in text
    assert "explains" not in text


def test_an_engine_that_is_slower_when_served() -> None:
    text = time_summary(record(changes={"instance_count": 2}), profile(execution_ms=4.0))
    assert "4 ms for a batch of 3; served it takes 8 ms: 2 instances share the machine" in text


def test_the_layers_of_an_engine_that_hardly_counts_are_not_discussed() -> None:
    text = time_summary(record(), profile(execution_ms=0.0118))
    assert text.endswith(
        "takes 0.0118 ms for a batch of 3, 0.1 % of that: the rest is around it, not in its layers."
    )


@pytest.mark.parametrize(
    ("sizes", "other_ms", "words"),
    [
        ((1, 2), 15.0, "50 % of an execution is launching kernels if CUDA graphs are off."),
        ((), 3.75, "50 % of an execution is launching kernels if CUDA graphs are off, as they are here."),
        ((), 7.4, "CUDA graphs change nothing"),
    ],
)
def test_launch_overhead_is_the_difference_that_graphs_make(
    sizes: tuple[int, int] | tuple[()], other_ms: float, words: str
) -> None:
    changes = {"cuda_graph_batch_sizes": sizes}
    assert words in time_summary(record(changes=changes), profile(other_graph_ms=other_ms))


def test_the_default_is_compared_where_the_two_differ_most() -> None:
    text = time_summary(record(), None, record(0, rate_per_s=95.0, server=timings(queue_ms=9.0)))
    assert text.endswith(
        "Triton's default takes 17.8 ms at 95/s; the largest difference is 9 instead of 3 ms waiting in the queue."
    )


def test_the_default_is_not_compared_at_another_rate() -> None:
    text = time_summary(record(), None, record(0, rate_per_s=50.0, server=timings(queue_ms=9.0)))
    assert text == time_summary(record(), None)


def test_stages_add_up_to_the_latency() -> None:
    seen = stage_means(measurement(server=timings(response_ms=0.2)))
    assert list(seen) == ["client and network", "queue", "input", "inference", "output", "response"]
    assert sum(seen.values()) == pytest.approx(12.0)


def test_an_engine_that_cannot_be_profiled_costs_only_its_layers(tmp_path: Path) -> None:
    model = read_model(small_cnn(tmp_path / "cnn.onnx"))
    served = config(engine=onnxruntime_engine(model))
    model.path.write_bytes(b"nonsense")
    notes: list[Any] = []
    used = time_use_of(trial(config=served), trial(0, config=served), model=model, on_event=notes.append)
    assert used is not None
    assert (used.winner, used.baseline) == (None, None)
    assert used.summary.startswith("Of 11.8 ms")
    assert any("layers' times are not known" in getattr(event, "text", "") for event in notes)


@pytest.mark.parametrize(("device", "most_s"), [("cpu", 0.0), ("gpu", 5.0)])
def test_an_engine_is_not_profiled_beyond_the_time_for_it(device: Any, most_s: float, tmp_path: Path) -> None:
    model = read_model(small_cnn(tmp_path / "cnn.onnx"))
    served = config(engine=onnxruntime_engine(model, device=device))
    notes: list[Any] = []
    used = time_use_of(trial(config=served), None, model=model, most_s=most_s, on_event=notes.append)
    assert used is not None
    assert used.winner is None
    assert any("time budget is used up" in getattr(event, "text", "") for event in notes)


def test_a_server_elsewhere_is_not_profiled_here() -> None:
    notes: list[Any] = []
    used = time_use_of(trial(), None, model=None, here=False, on_event=notes.append)
    assert used is not None
    assert used.winner is None
    assert notes == []
