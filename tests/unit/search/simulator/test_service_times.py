"""Service times from closed loops, on a simulated server whose times are known."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import plain_engine
from simulated_bench import SimulatedBench, default_service_s
from simulated_queues import log_of

from loadgen.measurement.server_stats import BatchTimings
from model_repo.spec import ServingConfig
from search.simulator.service_times import (
    ClosedLoop,
    NotMeasured,
    ServiceCurve,
    curve_from_loops,
    measure_curve,
)
from search.simulator.service_times_file import read_curves, write_curves
from search.simulator.surrogate import Kind


def config(*, instances: int = 1, threads: int = 1, max_batch: int = 64) -> ServingConfig:
    return ServingConfig(
        engine=plain_engine(), max_batch_size=max_batch, instance_count=instances, intra_op_threads=threads
    )


def row(size: int, executions: int, ms: float) -> BatchTimings:
    return BatchTimings(batch_size=size, executions=executions, input_ms=0.5, infer_ms=ms - 1, output_ms=0.5)


def loop(*rows: BatchTimings, users: int = 64, latency_ms: float = 3.0, gap_ms: float = 3.0) -> ClosedLoop:
    sent = np.arange(20) * gap_ms / 1e3
    return ClosedLoop(concurrency=users, log=log_of(sent, sent + latency_ms / 1e3), batches=rows)


def curve(busy: int = 1, **changes: Any) -> ServiceCurve:
    given: dict[str, Any] = {
        "busy": busy,
        "sizes": (1.0, 4.0),
        "seconds": (0.002 * busy, 0.005 * busy),
        "handover_s": 0.0,
        "overhead_s": 0.0005,
        "noise": (1.0,),
    }
    return ServiceCurve(**{**given, **changes})


@pytest.mark.parametrize("instances", [1, 2])
def test_the_measured_curve_is_that_of_the_server(instances: int) -> None:
    bench = SimulatedBench()
    serving = config(instances=instances)
    bench.load(serving)
    found = measure_curve(bench.saturate, instances=instances, max_batch_size=64, limit_s=0.5, seed=1)
    sizes = np.array([1.0, 2, 5, 16, 40, 64])
    truth = [default_service_s(serving, int(size)) for size in sizes]
    assert found.at(sizes) == pytest.approx(truth, rel=0.02)
    assert found.overhead_s == pytest.approx(0, abs=1e-4)
    assert bench.spent.load_s < 10


def test_profiling_ends_at_the_batch_that_takes_the_limit() -> None:
    bench = SimulatedBench()
    bench.load(config())
    measure_curve(bench.saturate, instances=1, max_batch_size=64, limit_s=0.5, seed=1)
    whole = bench.spent.load_s
    short = SimulatedBench()
    short.load(config())
    measure_curve(short.saturate, instances=1, max_batch_size=64, limit_s=0.02, seed=1)
    assert short.spent.load_s < 0.7 * whole


def test_what_passes_between_executions_is_the_handover_and_what_they_differ_by_is_noise() -> None:
    """Answers 3.4 ms apart on average, a tenth of them 7 ms, from executions of 2.9 ms."""
    gaps = np.where(np.arange(200) % 10 == 0, 0.007, 0.003)
    done = np.cumsum(gaps)
    two = ClosedLoop(concurrency=2, log=log_of(np.maximum(0, done - 0.006), done), batches=(row(1, 200, 2.9),))
    found = curve_from_loops([loop(row(1, 20, 2.4)), two], instances=1)
    assert found.handover_s == pytest.approx(0.0005, rel=0.05)
    assert found.overhead_s == pytest.approx(0.0006, rel=0.01)
    assert np.mean(found.noise) == pytest.approx(1)
    assert max(found.noise) / min(found.noise) == pytest.approx(7 / 3, rel=0.01)


def test_times_never_fall_with_the_batch_size() -> None:
    falling = loop(row(1, 10, 4.0), row(2, 30, 3.6), row(8, 10, 6.0))
    found = curve_from_loops([loop(row(1, 20, 2.4)), falling], instances=2)
    assert list(found.seconds) == sorted(found.seconds)
    assert found.seconds[0] == pytest.approx(0.0037)


def test_a_batch_that_left_too_few_users_for_the_other_instances_was_alone() -> None:
    first_of_all = loop(row(1, 40, 9.0), row(6, 10, 20.0), row(12, 1, 5.0), users=12)
    found = curve_from_loops([loop(row(1, 20, 2.4)), first_of_all], instances=3)
    assert found.sizes == (1.0, 6.0)
    against_one = curve_from_loops([first_of_all], instances=3, alone=curve(1))
    assert against_one.at(np.array([1.0, 4.0])) == pytest.approx([0.009, 0.0225])  # 4.5 times as long


def test_long_executions_are_hindered_as_much_as_the_many_short_ones() -> None:
    """One of eight met instances that had just ended; one instance alone takes 2 ms, and 0.5 ms a request more."""
    alone = curve(1, sizes=(1.0, 33.0), seconds=(0.0025, 0.0185))
    crowded = loop(row(1, 50, 7.5), row(2, 20, 9.0), row(4, 10, 12.0), row(8, 1, 6.2))
    found = curve_from_loops([crowded], instances=3, alone=alone)
    assert found.at(np.array([1.0, 4.0])) == pytest.approx([0.0075, 0.012], rel=0.05)
    assert found.at(np.array([8.0, 16.0, 33.0])) == pytest.approx([0.018, 0.030, 0.0555], rel=0.05)
    assert found.overhead_s == alone.overhead_s


def test_instances_that_take_turns_for_a_part_of_their_time_hinder_small_batches_more() -> None:
    """Four, each 1 ms and 0.1 ms a request by itself, and 1 ms on what they share."""
    alone = curve(1, sizes=(1.0, 64.0), seconds=(0.0021, 0.0084))
    together = loop(row(1, 400, 4.0), row(16, 100, 4.0), row(64, 60, 8.4), users=324)
    found = curve_from_loops([together], instances=4, alone=alone)
    assert found.at(np.array([1.0, 16.0, 64.0])) == pytest.approx([0.004, 0.004, 0.0084], rel=0.05)


def test_a_lone_instance_that_met_a_slow_phase_does_not_make_several_slow() -> None:
    """It took twice as long as each of three that ran together, and at half of its batch sizes only."""
    slow = curve(1, sizes=(1.0, 33.0), seconds=(0.005, 0.037))
    together = loop(row(1, 50, 2.5), row(4, 40, 4.0), row(8, 30, 6.0))
    found = curve_from_loops([together], instances=3, alone=slow)
    assert found.at(np.array([1.0, 4.0, 8.0])) == pytest.approx([0.0025, 0.004, 0.006], rel=0.02)
    assert found.at(np.array([33.0])) == pytest.approx([0.0185], rel=0.02), "larger batches were as slow alone"


def test_the_highest_rate_of_closed_loops_is_kept_and_failures_are_no_answers() -> None:
    quick, slow = loop(row(1, 20, 2.0), gap_ms=2.0), loop(row(1, 20, 2.0), gap_ms=4.0)
    found = curve_from_loops([loop(row(1, 20, 2.5), gap_ms=1.0), quick, slow], instances=2)
    # From the first answer, at 3 ms, to the last request, at 38 ms; not of one user, the first loop.
    assert found.let_through_per_s == pytest.approx(17 / 0.035, rel=0.001)
    for failed, per_s in ((10, 7 / 0.015), (20, math.inf)):
        quick.log.outcome[:failed] = 1
        found = curve_from_loops([loop(row(1, 20, 2.5)), quick], instances=2)
        assert found.let_through_per_s == pytest.approx(per_s, rel=0.001)


def test_a_server_without_a_table_of_batches_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="table"):
        curve_from_loops([loop(), loop()], instances=1)


def test_a_profile_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    of_two_shapes = curve(2, handover_s=None, larger=(curve(2), curve(2, seconds=(0.5, 0.9))))
    curves: dict[Kind, dict[int, ServiceCurve]] = {
        ("onnxruntime-fp32", 1, 0): {1: curve(1, let_through_per_s=900.0), 2: of_two_shapes}
    }
    write_curves(tmp_path, curves)
    assert read_curves(tmp_path) == curves
    # Python alone reads numbers that JSON does not have.
    json.loads((tmp_path / "service_times.json").read_text(), parse_constant=pytest.fail)


def test_padded_batches_count_as_the_size_that_was_executed() -> None:
    loops = [loop(row(1, 10, 2.0)), loop(row(1, 30, 2.0)), loop(row(3, 10, 4.0), row(4, 30, 4.0), row(9, 5, 9.0))]
    found = curve_from_loops(loops, instances=2, executed_sizes=(1, 2, 4, 8))
    assert found.sizes == pytest.approx((1.0, 4.0, 9.0))
    assert found.seconds == pytest.approx((0.002, 0.004, 0.009))


@pytest.mark.parametrize("text", ["", "{}", '{"curves": [{"engine": 3}]}', "not json"])
def test_a_profile_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "service_times.json").write_text(text)
    assert read_curves(tmp_path) == {}
