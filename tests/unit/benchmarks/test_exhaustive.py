"""Exhaustive search by elimination: whether it finds the best, goes on where it stopped, and adds up."""

import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lib.elimination import Elimination, throughput_bound_per_s, too_little, tried
from lib.plain_bisection import Reading, bisected

from search.simulator.server import NO_NOISE
from search.simulator.service_times import ServiceCurve
from search.study.store import key_of


def knobs(batch: int, instances: int = 1) -> dict[Any, Any]:
    return {
        "engine": "onnxruntime-fp32",
        "max_batch_size": batch,
        "instance_count": instances,
        "intra_op_threads": 0,
        "max_queue_delay_us": 0,
    }


def reading(rate_per_s: float, capacity_per_s: float) -> Reading:
    """Clear but for rates within 1 % of the capacity."""
    met = rate_per_s <= capacity_per_s
    sure = abs(math.log(rate_per_s / capacity_per_s)) > 0.01
    return Reading(rate_per_s=rate_per_s, met=met, sure=sure, overloaded=False, share=0.0, requests=1000)


@pytest.mark.parametrize("start", [7.0, 101.0, 5000.0])
@pytest.mark.parametrize("step", [1.03, 2.0])
def test_a_bisection_closes_in_on_the_capacity_from_anywhere(start: float, step: float) -> None:
    found = bisected(lambda rate: reading(rate, 100.0), start, step=step, floor_per_s=5.0, resolution=0.01)
    assert found.low_per_s <= 100.0 < found.high_per_s
    assert math.log(found.high_per_s / found.low_per_s) <= 0.01


def test_what_breaks_even_alone_has_no_capacity() -> None:
    found = bisected(lambda rate: reading(rate, 1.0), 300.0, step=2.0, floor_per_s=5.0, resolution=0.01)
    assert found.rate_per_s == 0.0


CAPACITIES = dict(zip(itertools.count(1), [50, 200, 97, 210, 203, 8, 209, 100, 214, 30], strict=False))


def eliminated(order: list[int], lines: list[dict[str, Any]], most: int) -> Elimination:
    """The lines after `most` more configurations."""
    state = Elimination([knobs(batch) for batch in order], lines)
    for point in itertools.islice(state.left(), most):
        verdict, tested, capacity = tried(
            lambda rate, point=point: reading(rate, CAPACITIES[point["max_batch_size"]]),  # type: ignore[misc]
            best_per_s=state.best_per_s(1.0),
            guess_per_s=100.0,
            floor_per_s=5.0,
        )
        figures = {} if capacity is None else capacity.figures()
        lines.append({"knobs": point, "verdict": verdict, "tested": tested, "pace_s": 1.0, **figures})
    return state


@pytest.mark.parametrize("seed", range(5))
def test_the_best_is_a_finalist_in_any_order_and_over_several_calls(seed: int) -> None:
    order = sorted(CAPACITIES, key=lambda batch: (batch * 7919 + seed * 104_729) % 11)
    lines: list[Any] = []
    for _ in range(3):
        state = eliminated(order, lines, 4)
    assert len(lines) == len(CAPACITIES) == len({key_of(line["knobs"]) for line in lines})
    assert state.counts()["left"] == 0
    assert knobs(9) in state.finalists(3)
    violated = [line for line in lines if line["verdict"] == "violated"]
    assert all(CAPACITIES[line["knobs"]["max_batch_size"]] < line["tested"] <= 0.97 * 218 for line in violated)


def test_late_requests_break_a_rate_only_when_they_do_it_twice() -> None:
    seen = []

    def hiccup_first(rate_per_s: float) -> Reading:
        seen.append(rate_per_s)
        return reading(rate_per_s, 50.0 if len(seen) == 1 else 100.0)

    verdict, tested, capacity = tried(hiccup_first, best_per_s=100.0, guess_per_s=1.0, floor_per_s=1.0)
    assert (verdict, tested, seen[1]) == ("measured", 97.0, 97.0)
    assert capacity.low_per_s <= 100.0 < capacity.high_per_s


@pytest.mark.parametrize(("capacity", "expected", "runs"), [(90.0, "below", 2), (94.0, "measured", 3)])
def test_what_breaks_the_limit_further_below_too_is_not_bisected(
    capacity: float, expected: str, runs: int
) -> None:
    seen = []

    def never_sure(rate_per_s: float) -> Reading:
        seen.append(rate_per_s)
        met = rate_per_s <= capacity
        return Reading(rate_per_s=rate_per_s, met=met, sure=False, overloaded=False, share=0.0, requests=1000)

    verdict, tested, found = tried(never_sure, best_per_s=100.0, guess_per_s=1.0, floor_per_s=1.0)
    assert (verdict, tested) == (expected, 97.0)
    assert len(seen) == runs
    assert (found is None) == (expected == "below")
    assert found is None or found.low_per_s <= capacity < found.high_per_s


def test_what_the_client_spoilt_is_tried_again_but_not_in_the_same_call() -> None:
    spoilt = {"knobs": knobs(1), "verdict": "untrusted", "pace_s": 1.0}
    state = Elimination([knobs(1), knobs(2)], [spoilt])
    assert list(state.left()) == [knobs(1), knobs(2)]
    state.skipped.add(key_of(knobs(1)))
    assert list(state.left()) == [knobs(2)]
    assert state.counts()["left"] == 2


def curve(busy: int, *seconds: Any) -> ServiceCurve:
    sizes = tuple(float(2**index) for index in range(len(seconds)))
    return ServiceCurve(
        busy=busy, sizes=sizes, seconds=seconds, handover_s=0.0, fit_error=0.0, overhead_s=0.0, noise=NO_NOISE
    )


def test_a_throughput_is_the_most_of_any_size_and_of_any_number_of_instances() -> None:
    curves = {1: curve(1, 0.010, 0.012, 0.030), 2: curve(2, 0.030, 0.040, 0.060)}
    assert throughput_bound_per_s(curves, knobs(4, 1)) == pytest.approx(2 / 0.012)
    assert throughput_bound_per_s(curves, knobs(4, 2)) == pytest.approx(2 / 0.012)
    assert throughput_bound_per_s(curves, knobs(1, 1)) == pytest.approx(100.0)
    assert throughput_bound_per_s(curves, knobs(1, 3)) == math.inf
    assert too_little(100.0, 120.0)
    assert not too_little(110.0, 120.0)
    assert not too_little(1.0, None)
