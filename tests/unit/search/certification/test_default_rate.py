"""After the certificates, the winner is measured at the certified rate of the default, if there is time for it."""

from pathlib import Path
from typing import Any

import pytest
from certifications import DEFAULT, SLO, NotedBench, bench, tried
from recommendations import certificate
from simulated_bench import BudgetOfLoad
from spaces import two_core_space

from loadgen.spec.limits import LatencyLimit
from search.certification.certify import CertifiedResult
from search.certification.default_rate import SEED_OF_RUN, with_run_at_default_rate
from search.records.slo import Slo
from search.records.trial import LoadRunRecord
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials import events
from search.trials.trial import Trial

RUN = LoadRunRecord(rate_per_s=980.0, latency_ms=35.0, met=True, trusted=True)


def context(folder: Path, given: NotedBench, budget: BudgetOfLoad, **changes: Any) -> TrialRunner:
    store = open_store(two_core_space(folder), folder, storage="sqlite://", seed=7)
    return TrialRunner(store=store, bench=given, **{"slo": SLO, "budget": budget, "seed": 7, **changes})


def compared(
    folder: Path, given: NotedBench, *, default_per_s: float | None = 500.0, left_s: float = 60.0, **changes: Any
) -> Trial:
    """The winner, certified at 1,000/s, which was loaded in 1 s, after that run."""
    known: dict[str, Any] = {"load_runs": (RUN,), "probes": 1, "loading_s": 1.0, **changes.pop("winner", {})}
    winner = tried(folder, 8, 1).changed(certificate=certificate(1000.0), **known)
    its = None if default_per_s is None else certificate(default_per_s)
    certified = CertifiedResult(winner=winner, baseline=tried(folder, DEFAULT, 0).changed(certificate=its))
    budget = BudgetOfLoad(total_s=left_s, spent=given.spent)
    return with_run_at_default_rate(certified, context(folder, given, budget, **changes))


def test_the_winner_has_one_more_run_at_the_rate_of_the_default(tmp_path: Path) -> None:
    given, seen = bench(), list[events.Event]()
    found = compared(tmp_path, given, on_event=seen.append)
    (run,) = given.runs
    assert (run.batch, run.rate_per_s, run.seed) == (8, 500.0, 7 + SEED_OF_RUN)
    first, last = found.load_runs
    assert first == RUN
    assert (last.rate_per_s, last.seed, last.met, last.trusted) == (500.0, run.seed, True, True)
    assert last.latency_ms is not None
    assert 5.0 < last.latency_ms < 50.0
    assert found.probes == 2
    assert found.certificate == certificate(1000.0)
    assert found.measurement == tried(tmp_path, 8, 1).measurement
    (probed,) = seen
    assert isinstance(probed, events.Probed)
    assert probed.rate_per_s == 500.0


@pytest.mark.parametrize(
    ("default_per_s", "runs"),
    [(None, ()), (950.0, ()), (1050.0, ()), (10.0, ()), (500.0, (RUN.changed(rate_per_s=520.0),))],
    ids=["not certified", "just below", "just above", "too few requests", "measured before"],
)
def test_without_a_rate_to_compare_at_nothing_is_loaded(
    default_per_s: float | None, runs: tuple[LoadRunRecord, ...], tmp_path: Path
) -> None:
    given = bench()
    found = compared(tmp_path, given, default_per_s=default_per_s, winner={"load_runs": runs})
    assert given.batches == []
    assert found.load_runs == runs


def test_a_run_that_was_not_trusted_does_not_count_as_measured(tmp_path: Path) -> None:
    late = RUN.changed(rate_per_s=500.0, trusted=False)
    assert len(compared(tmp_path, bench(), winner={"load_runs": (late,)}).load_runs) == 2


def test_the_run_is_left_out_unless_it_ends_within_the_time_budget(tmp_path: Path) -> None:
    made = []
    for left_s in range(1, 20):
        given = bench()
        compared(tmp_path, given, left_s=left_s)
        assert given.spent.load_s + given.spent.loading_s <= left_s
        made.append(len(given.runs))
    assert made == sorted(made)
    assert set(made) == {0, 1}


def test_a_long_limit_has_a_long_warm_up(tmp_path: Path) -> None:
    short, long = bench(), bench(limit_ms=2000.0)
    compared(tmp_path, short)
    compared(tmp_path, long, slo=Slo(limits=(LatencyLimit(limit_ms=2000.0),)))
    assert long.runs[0].most_s > short.runs[0].most_s + 2.0


def test_a_server_that_fails_leaves_the_winner_as_it_was(tmp_path: Path) -> None:
    given = bench(faults=lambda config: "m does not load")
    assert compared(tmp_path, given).load_runs == (RUN,)


@pytest.mark.parametrize("asked_after", [0, 1])
def test_a_user_who_ends_the_run_does_not_wait_for_it(asked_after: int, tmp_path: Path) -> None:
    given = bench()
    assert compared(tmp_path, given, stop=lambda: len(given.loaded) >= asked_after).load_runs == (RUN,)
    assert len(given.runs) == asked_after
    assert given.spent.load_s <= 0.5


def test_the_default_itself_is_compared_with_nothing(tmp_path: Path) -> None:
    given = bench()
    winner = tried(tmp_path, DEFAULT, 0).changed(certificate=certificate(500.0))
    certified = CertifiedResult(winner=winner, baseline=winner)
    budget = BudgetOfLoad(total_s=60.0, spent=given.spent)
    assert with_run_at_default_rate(certified, context(tmp_path, given, budget)) is winner
    assert given.batches == []
