"""Tests of `optimize fleet` on run directories: recorded ones, hand-made ones, and unusable ones."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from recommendations import certificate, recommendation, trial
from rich.console import Console

from loadgen.spec.limits import LatencyLimit
from optimizer.cli import run_command
from optimizer.command.fleet import FleetOrder, fleet_order, plan_fleet
from optimizer.reports.run_views import fleet_view
from search.records.recommendation import CostRecord, ModelRecord, PriceRecord, RecommendationRecord
from search.records.run_files import read_recommendation
from search.records.slo import Slo

DAY = (120.0,) * 7 + (900.0,) * 3 + (2500.0,) * 8 + (1400.0,) * 4 + (300.0,) * 2


DATA = Path(__file__).parents[3] / "data"
RECORDED = [
    DATA / "recorded_runs" / "early",
    DATA / "recorded_runs" / "two-cores",
    DATA / "recorded_runs" / "one-core",
]


def written(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    (folder / "recommendation.json").write_text(recommendation(**changes).model_dump_json())
    return folder


def cost(usd_per_hour: float, **more: Any) -> CostRecord:
    price = PriceRecord(usd_per_hour=usd_per_hour, source="somewhere", as_of="2026-01-02", describes="it", **more)
    return CostRecord(
        price=price,
        cost_per_million_inferences_usd=1.0,
        baseline_cost_per_million_inferences_usd=None,
        rate_to_serve_per_s=None,
        replicas=None,
        total_usd_per_hour=None,
    )


def run(folder: Path, rate: float, usd: float, **more: object) -> Path:
    winner = trial(certificate=certificate(rate))
    return written(folder, winner=winner, cost=cost(usd, **more))


def order(runs: list[Path], **changes: Any) -> FleetOrder:
    known: dict[str, Any] = {
        "rate": None,
        "traffic": None,
        "prices": [],
        "terms": [],
        "at_most": [],
        "headroom": 0.0,
    }
    return fleet_order(runs, **{**known, **changes})


@pytest.fixture
def day(tmp_path: Path) -> Path:
    path = tmp_path / "day.csv"
    path.write_text("time,rate_per_s\n" + "".join(f"{hour:02}:00,{rate}\n" for hour, rate in enumerate(DAY)))
    return path


def test_a_day_is_planned_hour_by_hour(tmp_path: Path, day: Path) -> None:
    runs = [run(tmp_path / "large", 1000.0, 1.0), run(tmp_path / "small", 150.0, 0.18)]
    fleet = plan_fleet(order(runs, traffic=day))
    assert fleet.rates_per_s == DAY
    assert fleet.hours[0].replicas == (0, 1)  # 120/s fits on a small one
    assert fleet.hours[10].replicas == (2, 4)  # 2,500/s: the third large one would be half idle
    assert math.isclose(fleet.usd_per_day, sum(hour.usd for hour in fleet.hours))
    titles = [other.plan for other in fleet.alternatives]
    assert sorted(titles) == ["only large", "only small", "the peak's mix, all day"]
    assert all(other.dearer_by is not None and other.dearer_by > 0 for other in fleet.alternatives)


def cheapest_by_force(found: list[RecommendationRecord], rate: float) -> list[tuple[int, ...]]:
    """Return the replica counts that serve the rate at the lowest price, found by trying all combinations."""
    rates = [record.winner.certificate.rate_per_s for record in found]
    prices = [record.cost.price.usd_per_hour for record in found]
    most = [range(math.ceil(rate / one) + 1) for one in rates]
    enough = [
        (sum(n * usd for n, usd in zip(counts, prices, strict=True)), counts)
        for counts in itertools.product(*most)
        if sum(n * one for n, one in zip(counts, rates, strict=True)) >= rate
    ]
    lowest = min(usd for usd, _ in enough)
    return [counts for usd, counts in enough if math.isclose(usd, lowest)]


@pytest.mark.parametrize("rate", [90.0, 700.0, 1000.0, 2345.0, 6789.0])
def test_three_recorded_runs_give_the_mix_that_trying_them_all_gives(rate: float) -> None:
    found = [read_recommendation(path) for path in RECORDED]
    assert len({record.cost.price.usd_per_hour for record in found}) > 1
    fleet = plan_fleet(order(RECORDED, rate=rate))
    expected = cheapest_by_force(found, rate)
    assert {hour.replicas for hour in fleet.hours} <= set(expected)
    prices = [record.cost.price.usd_per_hour for record in found]
    assert math.isclose(fleet.usd_per_day, 24 * sum(n * usd for n, usd in zip(expected[0], prices, strict=True)))


def test_headroom_is_left_on_every_replica(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", 1000.0, 1.0)]
    assert plan_fleet(order(runs, rate=2000.0)).hours[0].replicas == (2,)
    assert plan_fleet(order(runs, rate=2000.0, headroom=0.2)).hours[0].replicas == (3,)


def test_a_price_that_is_given_wins(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", 100.0, 1.0), run(tmp_path / "b", 100.0, 0.5)]
    fleet = plan_fleet(order(runs, rate=300.0, prices=[f"{runs[0]}=0.1"]))
    assert fleet.hours[0].replicas == (3, 0)
    assert fleet.offers[0].price_source == "--price-per-hour"


def test_terms_are_mixed_commitments_for_the_valley(tmp_path: Path, day: Path) -> None:
    bought = {"term": "on-demand", "other_terms_usd_per_hour": {"1-year": 0.6}}
    fleet = plan_fleet(
        order([run(tmp_path / "a", 500.0, 1.0, **bought)], traffic=day, terms=["on-demand", "1-year"])
    )
    assert [offer.term for offer in fleet.offers] == ["on-demand", "1-year"]
    kept = {hour.replicas[1] for hour in fleet.hours}
    assert len(kept) == 1
    assert kept != {0}


def test_a_term_without_a_recorded_price_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path / "a", 500.0, 1.0, term="on-demand")
    assert run_command(["fleet", str(path), "--rate", "10", "--price-term", "spot"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "no spot price (it has: on-demand)" in said[0]
    assert f"--price-per-hour {path}=USD" in said[1]


def test_the_view_names_every_figure(tmp_path: Path, day: Path) -> None:
    runs = [run(tmp_path / "large", 1000.0, 1.0), run(tmp_path / "small", 150.0, 0.18)]
    console = Console(width=110, record=True)
    with console.capture() as capture:
        console.print(fleet_view(plan_fleet(order(runs, traffic=day, at_most=[f"{runs[1]}=9"]))))
    text = capture.get()
    assert "120 to 2,500 requests/s" in text
    assert "00-07" in text
    assert "only small" in text
    assert "cannot serve the highest rate" in text
    assert "somewhere, 2026-01-02" in text


def test_json_alone_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path / "a", 500.0, 1.0)
    assert run_command(["fleet", str(path), "--rate", "1200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hours"][0]["replicas"] == [3]


BAD = [
    (["--rate", "0"], "--rate 0"),
    ([], "some traffic"),
    (["--rate", "5", "--traffic", "x.csv"], "some traffic"),
    (["--rate", "5", "--headroom", "1"], "--headroom 1"),
    (["--rate", "5", "--price-term", "lease"], "--price-term lease"),
    (["--rate", "5", "--price-per-hour", "other=1"], "--price-per-hour other=1"),
    (["--rate", "5", "--price-per-hour", "RUN=cheap"], "no number above zero"),
    (["--rate", "5", "--at-most", "RUN=1.5"], "no number of machines"),
    (["--rate", "1001", "--at-most", "RUN=2"], "over the fleet's limit"),
    (["--rate", "9e9"], "over the fleet's limit"),
    (["--rate", "5", "RUN"], "given twice"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD)
def test_what_cannot_be_planned_is_said_in_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    path = str(run(tmp_path / "a", 500.0, 1.0))
    assert run_command(["fleet", path, *(word.replace("RUN", path) for word in arguments)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert said in lines[0]


def test_runs_that_promise_different_things_do_not_share_traffic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = written(tmp_path / "one")
    model = ModelRecord(name="other", file="o.onnx", sha256="1" * 64, opset=17, batching="")
    for changes, said in (
        ({"model": model}, "cannot share traffic"),
        ({"slo": Slo(limits=(LatencyLimit(limit_ms=20.0),))}, "within 20 ms"),
    ):
        other = written(tmp_path / said.replace(" ", "-"), **changes)
        assert run_command(["fleet", str(one), str(other), "--rate", "5"]) == 2
        assert said in capsys.readouterr().err


def test_run_directories_that_hold_no_recommendation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing").mkdir()
    slow = trial(0, state="infeasible", certificate=None, rate_at_limit_per_s=0.0)
    (tmp_path / "nothing" / "trials.jsonl").write_text(slow.model_dump_json() + "\n")
    (tmp_path / "killed").mkdir()
    fast = trial(0, certificate=None).model_dump_json()
    (tmp_path / "killed" / "trials.jsonl").write_text(fast + "\n" + fast[:100])
    cut = written(tmp_path / "cut") / "recommendation.json"
    cut.write_text(cut.read_text()[:500])
    for name, said in (
        ("absent", "is not a directory"),
        ("empty", "holds no finished run"),
        ("nothing", "nothing keeps its limit (1 trials)"),
        ("killed", "was not finished: 1 trials"),
        ("cut", "is not a recommendation"),
    ):
        assert run_command(["fleet", str(tmp_path / name), "--rate", "5"]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2
        assert said in lines[0]
