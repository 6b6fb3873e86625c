"""Tests of `optimize fleet` on run directories: recorded ones, hand-made ones, and unusable ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from recommendations import certificate, recommendation, trial

from loadgen.spec.limits import LatencyLimit
from optimizer.cli import run_command
from optimizer.command.fleet import plan_fleet
from search.choices import Term
from search.cost.cost import PriceRecord
from search.records.recommendation import CostRecord, ModelRecord
from search.records.slo import Slo

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


def test_the_cheapest_machine_comes_first_with_as_many_replicas_as_the_rate_needs(tmp_path: Path) -> None:
    runs = [run(tmp_path / "large", 1000.0, 1.0), run(tmp_path / "small", 150.0, 0.18)]
    for rate, expected in (
        (120.0, [("small", 1, 0.18), ("large", 1, 1.0)]),
        (1100.0, [("small", 8, 1.44), ("large", 2, 2.0)]),
        (2500.0, [("large", 3, 3.0), ("small", 17, 3.06)]),
    ):
        offers = plan_fleet(runs, rate_per_s=rate).offers
        assert [(one.run, one.replicas, round(one.usd_per_hour, 9)) for one in offers] == expected


@pytest.mark.parametrize("rate", [90.0, 700.0, 6789.0])
def test_recorded_runs_serve_the_rate_and_one_machine_less_does_not(rate: float) -> None:
    for offer in plan_fleet(RECORDED, rate_per_s=rate).offers:
        assert (
            (offer.replicas - 1) * offer.certified_rate_per_s < rate <= offer.replicas * offer.certified_rate_per_s
        )


def test_an_offer_by_a_provisional_rate_says_so(tmp_path: Path) -> None:
    once = trial(certificate=certificate(1000.0, runs=1, servers=1))
    runs = [written(tmp_path / "once", winner=once), run(tmp_path / "twice", 1000.0, 1.0)]
    assert {one.run: one.provisional for one in plan_fleet(runs, rate_per_s=10.0).offers} == {
        "once": True,
        "twice": False,
    }


def test_headroom_is_left_on_every_replica(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", 1000.0, 1.0)]
    assert plan_fleet(runs, rate_per_s=2000.0).offers[0].replicas == 2
    assert plan_fleet(runs, rate_per_s=2000.0, headroom=0.2).offers[0].replicas == 3


def test_a_price_that_is_given_wins(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", 100.0, 1.0), run(tmp_path / "b", 100.0, 0.5)]
    first, _ = plan_fleet(runs, rate_per_s=300.0, prices=[f"{runs[0]}=0.1"]).offers
    assert (first.run, first.price_source) == ("a", "--price-per-hour")


def test_machines_are_bought_on_the_term_that_is_wanted(tmp_path: Path) -> None:
    runs = [run(tmp_path / "a", 500.0, 1.0, term="on-demand", other_terms_usd_per_hour={"1-year": 0.6})]
    bought: tuple[tuple[Term | None, float], ...] = ((None, 1.0), ("on-demand", 1.0), ("1-year", 0.6))
    for term, usd in bought:
        (offer,) = plan_fleet(runs, rate_per_s=10.0, term=term).offers
        assert (offer.term, offer.usd_per_hour) == (term or "on-demand", usd)


def test_a_term_without_a_recorded_price_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path / "a", 500.0, 1.0, term="on-demand")
    assert run_command(["fleet", str(path), "--rate", "10", "--price-term", "spot"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "no spot price (it has: on-demand)" in said[0]
    assert f"--price-per-hour {path}=USD" in said[1]


BAD = [
    (["--rate", "0"], "--rate 0"),
    ([], "some traffic"),
    (["--rate", "5", "--headroom", "1"], "--headroom 1"),
    (["--rate", "5", "--price-term", "lease"], "--price-term lease"),
    (["--rate", "5", "--price-per-hour", "other=1"], "--price-per-hour other=1"),
    (["--rate", "5", "--price-per-hour", "RUN=cheap"], "no number above zero"),
    (["--rate", "9e9"], "over 10,000 machines"),
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
        ("nothing", "has not ended: 1 trial,"),
        ("killed", "has not ended: 1 trial,"),
        ("cut", "is not a recommendation"),
    ):
        assert run_command(["fleet", str(tmp_path / name), "--rate", "5"]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2
        assert said in lines[0]


def test_json_alone_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path / "a", 500.0, 1.0)
    assert run_command(["fleet", str(path), "--rate", "1200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["offers"][0]["replicas"] == 3
