"""Two runs side by side: worse only by more than the uncertainties of both."""

import math
from pathlib import Path
from typing import Any

import pytest
from recommendations import accuracy, certificate, contention, output_accuracy, recommendation, trial

from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from search.answer.comparison import compare_runs, wilson
from search.records.recommendation import CostRecord, MachineRecord, RecommendationRecord
from search.records.slo import Slo, WorkloadRecord

PATHS = Path("a"), Path("b")


def run(
    rate: float = 1000.0, *, spread: float = 0.03, certified: float = 900.0, p99: float = 30.0, usd: float = 0.5
) -> RecommendationRecord:
    bounds: dict[str, Any] = {"rate_low_per_s": rate * (1 - spread), "rate_high_per_s": rate * (1 + spread)}
    seen = certificate(
        certified, first={"latency_ms": p99, "latency_low_ms": p99 * 0.95, "latency_high_ms": p99 * 1.05}
    )
    known = recommendation()
    price = known.cost.price.model_copy(update={"usd_per_hour": usd})
    cost = CostRecord(**{**known.cost.model_dump(), "price": price})
    winner = trial(rate_at_limit_per_s=rate, certificate=seen, **bounds)
    return recommendation(winner=winner, cost=cost)


def answers(before: RecommendationRecord, now: RecommendationRecord, tolerance: float = 0.02) -> dict[str, str]:
    found = compare_runs(before, now, paths=PATHS, tolerance=tolerance)
    return {"all": found.answer, **{figure.figure: figure.answer for figure in found.figures}}


def test_the_same_run_is_no_different() -> None:
    assert set(answers(run(), run()).values()) == {"no difference seen"}


def test_a_tenth_of_the_capacity_lost_is_seen() -> None:
    seen = answers(run(), run(900.0))
    assert seen["all"] == seen["capacity"] == seen["cost per million at capacity"] == "worse"


def test_a_tenth_lost_is_noise_where_the_bounds_are_wide() -> None:
    assert answers(run(spread=0.1), run(900.0, spread=0.1))["all"] == "no difference seen"


def test_runs_under_other_conditions_are_refused() -> None:
    for changes in (
        {"slo": Slo(limits=(LatencyLimit(limit_ms=20.0),))},
        {"workload": WorkloadRecord(rows_per_request=8)},
    ):
        with pytest.raises(BadInput):
            compare_runs(run(), run().model_copy(update=changes), paths=PATHS)


def test_an_agreement_of_zero_has_no_ratio() -> None:
    wrong = accuracy(output_accuracy(top1_agreement=0.0), precision="fp32", inputs=64)
    found = run().model_copy(update={"accuracy": (wrong,)})
    assert "top-1 agreement with fp32" not in answers(found, found)


def test_a_sure_difference_below_the_tolerance_is_not_judged() -> None:
    before, now = run(spread=0.001), run(985.0, spread=0.001)
    assert answers(before, now)["all"] == "no difference seen"
    assert answers(before, now, tolerance=0.01)["all"] == "worse"


def test_a_dearer_machine_is_worse_though_it_is_as_fast() -> None:
    seen = answers(run(), run(usd=0.6))
    assert seen["capacity"] == "no difference seen"
    assert seen["cost per million at capacity"] == seen["all"] == "worse"


def test_the_cost_is_that_of_a_million_rows() -> None:
    eight = run(rate=1000.0, usd=3.6)
    eight = eight.model_copy(update={"workload": eight.workload.model_copy(update={"rows_per_request": 8})})
    costs = {figure.figure: figure.now for figure in compare_runs(eight, eight, paths=PATHS).figures}
    assert costs["cost per million at capacity"] == pytest.approx(0.125)


def test_one_figure_worse_is_worse_though_another_is_better() -> None:
    assert answers(run(), run(1300.0, usd=0.3, p99=40.0))["all"] == "worse"


@pytest.mark.parametrize(
    ("rate", "p99", "answer"),
    [
        (900.0, 40.0, "worse"),
        (900.0, 20.0, "better"),
        (600.0, 40.0, "worse"),  # slower though it had less to do
        (1200.0, 20.0, "better"),  # faster though it had more to do
        (600.0, 20.0, None),  # no wonder
        (1200.0, 40.0, None),
    ],
)
def test_p99_is_compared_where_the_rates_allow(rate: float, p99: float, answer: str | None) -> None:
    before, now = run(), run(certified=rate, p99=p99)
    assert answers(before, now).get("p99") == answer
    notes = compare_runs(before, now, paths=PATHS, tolerance=0.02).notes
    assert any("p99 was not compared" in note for note in notes) == (answer is None)


def test_a_baseline_without_bounds_decides_nothing() -> None:
    unbounded = run()
    winner = unbounded.winner.model_copy(update={"rate_low_per_s": None, "rate_high_per_s": None})
    found = compare_runs(unbounded.model_copy(update={"winner": winner}), run(), paths=PATHS, tolerance=0.02)
    assert "capacity" not in {figure.figure for figure in found.figures}
    assert any("Capacity and its cost were not compared" in note for note in found.notes)


def test_what_else_changed_is_said() -> None:
    machines = [
        MachineRecord(cpu="a", cores=cores, memory_bytes=1, gpus=(), versions={"numpy": version})
        for cores, version in ((2, "1.0"), (4, "2.0"))
    ]
    model = run().model.model_copy(update={"sha256": "f" * 64})
    before = run().model_copy(update={"machine": machines[0]})
    now = run().model_copy(update={"machine": machines[1], "model": model})
    notes = " ".join(compare_runs(before, now, paths=PATHS, tolerance=0.02).notes)
    for words in ("The models differ", "The machines differ", "2 cores", "4 cores", "numpy 1.0 to 2.0"):
        assert words in notes


def test_wilsons_interval_holds_the_share() -> None:
    # (0.95 + z^2/200 +- z sqrt(0.95 * 0.05 / 100 + z^2/40,000)) / (1 + z^2/100) with z = 1.645, by hand.
    low, share, high = wilson(0.95, 100)
    assert (round(low, 3), share, round(high, 3)) == (0.901, 0.95, 0.975)
    assert wilson(1.0, 256)[2] == 1.0
    assert math.isclose(wilson(1.0, 256)[0], 256 / (256 + 1.6449**2))


def test_a_run_that_neighbours_disturbed_is_named() -> None:
    busy = contention(34.0, of_s=120.0)
    disturbed = run().model_copy(update={"contention": busy})
    notes = compare_runs(run(), disturbed, paths=PATHS, tolerance=0.02).notes
    assert any("later" in note and busy.text in note for note in notes)
    assert not any("earlier" in note for note in notes)
