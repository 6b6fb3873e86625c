from pathlib import Path

import numpy as np
import pytest
from load_records import capacity, load, measurement, record
from simulated_queues import log_of
from virtual_load_test import order_of

from loadgen.command.measure import load_record
from loadgen.command.verdict import compare, read_baseline
from loadgen.errors import BadInput
from loadgen.measurement.request_log import RequestLog
from loadgen.records.comparison import ratio_bounds
from loadgen.records.record import LoadTestRecord
from loadgen.spec.load_test import LoadTest
from loadgen.statistics.checks import p99_bounds


def p99(low: float | None, value: float, high: float | None) -> LoadTestRecord:
    return record(measurement=measurement(latency_p99_low_ms=low, latency_p99_ms=value, latency_p99_high_ms=high))


def order(**changes: object) -> LoadTest:
    return order_of(**{"url": "http://127.0.0.1", "model": "m", "rate": 200.0, **changes})


def read_for(path: Path, order: LoadTest) -> LoadTestRecord:
    limits = [limit.text for limit in order.limits.latency]
    return read_baseline(path, load_record(order), limits, find_max=order.find_max)


def written(folder: Path, baseline: LoadTestRecord) -> Path:
    path = folder / "baseline.json"
    path.write_text(baseline.model_dump_json())
    return path


@pytest.mark.parametrize(
    ("before", "now", "answer"),
    [
        ((9, 10, 11), (9.2, 10.2, 11.3), "no difference seen"),
        ((9, 10, 11), (18, 20, 22), "worse"),
        ((9, 10, 11), (4, 5, 6), "better"),
        ((9, 10, 11), (10.2, 11.2, 12.3), "no difference seen"),  # outside the interval, but not beyond both
        ((9, 10, 11), (11.1, 12.3, 13.6), "worse"),
    ],
)
def test_p99_is_worse_only_beyond_both_uncertainties(
    before: tuple[float, float, float], now: tuple[float, float, float], answer: str
) -> None:
    assert [found.answer for found in compare(p99(*before), p99(*now))] == [answer]


def test_a_lower_capacity_is_worse() -> None:
    before = record(capacity=capacity())
    now = record(capacity=capacity(estimate_per_s=300.0, low_per_s=290.0, high_per_s=310.0))
    (found,) = compare(before, now)
    assert (found.figure, found.answer) == ("highest rate", "worse")
    assert compare(now, before)[0].answer == "better"


@pytest.mark.parametrize("now", [(None, 30, 40), (None, 30, None), (9, 10, None), (None, 5, 6)])
def test_nothing_is_said_where_a_run_is_too_short_for_it(now: tuple[float | None, float, float | None]) -> None:
    assert compare(p99(9, 10, 11), p99(*now)) == ()


def test_one_bound_is_enough_to_be_worse() -> None:
    (found,) = compare(p99(9, 10, 11), p99(25, 30, None))
    assert (found.answer, found.ratio_high) == ("worse", None)


def test_the_bounds_hold_the_true_ratio_as_often_as_they_promise() -> None:
    # 4,000 pairs of log-normal estimates with known errors, 95 % intervals each; the true ratio is 1.
    rng = np.random.default_rng(0)
    errors = rng.normal(scale=(0.08, 0.03), size=(4000, 2))
    missed = 0
    for first, second in errors:
        before = tuple(float(np.exp(first + shift)) for shift in (-1.96 * 0.08, 0, 1.96 * 0.08))
        now = tuple(float(np.exp(second + shift)) for shift in (-1.96 * 0.03, 0, 1.96 * 0.03))
        low, _, high = ratio_bounds(before, now)  # type: ignore[arg-type]
        missed += not low <= 1 <= high
    assert 0.03 < missed / len(errors) < 0.07


def test_a_short_baseline_says_how_long_it_should_have_been(tmp_path: Path) -> None:
    short = measurement(requests=1600, duration_s=8.0, latency_p99_high_ms=None, latency_p99_bounded_after_s=21.3)
    with pytest.raises(BadInput) as caught:
        read_for(written(tmp_path, record(measurement=short)), order())
    assert "--duration 22s" in str(caught.value)


@pytest.mark.parametrize(("rate_per_s", "seconds"), [(50, 5), (200, 3), (1000, 2)])
def test_a_run_of_the_length_that_was_named_bounds_its_p99(rate_per_s: int, seconds: int) -> None:
    def run_of(length_s: float) -> RequestLog:
        n = round(rate_per_s * length_s)
        due_s = np.arange(n) / rate_per_s
        return log_of(due_s, due_s + np.random.default_rng(n).exponential(5e-3, n))

    short = p99_bounds(run_of(1.2 if rate_per_s == 1000 else seconds), 0.95)
    assert short.high_ms is None
    longer = p99_bounds(run_of(short.needed_s), 0.95)
    if longer.needed_s is not None:  # of runs that showed nothing of their bursts the length is a guess
        assert longer.needed_s < 2 * short.needed_s
        longer = p99_bounds(run_of(longer.needed_s), 0.95)
    assert longer.high_ms is not None
    assert short.needed_s < 60


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', '{"schema_version": 2}', "not json"])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"baseline\.json"):
        read_for(path, order())


@pytest.mark.parametrize("outcome", ["untrustworthy", "interrupted"])
def test_a_run_that_measured_nothing_is_no_baseline(tmp_path: Path, outcome: str) -> None:
    with pytest.raises(BadInput, match=outcome):
        read_for(written(tmp_path, record(outcome=outcome)), order())


@pytest.mark.parametrize(
    ("baseline", "changes", "named"),
    [
        (record(), {"rate": 210.0}, "200/s, not 210/s"),
        (record(), {"arrivals": "constant"}, "poisson"),
        (record(), {"batch_size": 8}, "batch size"),
        (record(), {"shape": ("ids:128",)}, "shapes"),
        (record(), {"format": "json"}, "json"),
        (record(), {"ask_output": ("y",)}, "outputs"),
        (record(), {"rate": None, "concurrency": 4}, "closed loop"),
        (record(), {"find_max": True, "p99": "50ms"}, "--find-max"),
        (record(capacity=capacity()), {}, "--find-max"),
        (record(capacity=capacity()), {"find_max": True, "p99": "20ms"}, "20 ms"),
        (record(measurement=measurement(latency_p99_high_ms=None)), {}, "too few requests"),
        (record(load=load(rate_per_s=100.0)), {}, "100/s, not 200/s"),
    ],
)
def test_another_question_is_refused_before_any_load(
    baseline: LoadTestRecord, changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as caught:
        read_for(written(tmp_path, baseline), order(**changes))
    assert named in str(caught.value)


def test_a_baseline_of_a_highest_rate_needs_no_upper_bound(tmp_path: Path) -> None:
    baseline = record(capacity=capacity(high_per_s=None))
    names = [check.name for check in baseline.checks if check.kind == "latency"]
    given = order(find_max=True, p99="50ms")
    path = written(tmp_path, baseline)
    assert read_baseline(path, load_record(given), names, find_max=True).capacity == baseline.capacity
    with pytest.raises(BadInput):
        read_baseline(
            written(tmp_path, record(capacity=capacity(low_per_s=0.0))), load_record(given), names, find_max=True
        )
