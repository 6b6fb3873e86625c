"""After a first confirmation that was met follows a second one on a restarted server, or a caveat."""

from pathlib import Path
from typing import Any

import pytest
from certifications import DEFAULT, LOADING_S, bench, ended, tried
from recommendations import measurement

from search.certification.certify import WHEN_STOPPED_S, Caveat
from search.certification.first_rate import LAST_RESORT_SHARE
from search.records.trial import ReplayRecord
from search.study.drift import speed_variation_of
from search.trials import events
from search.trials.objective import Objective


def test_if_the_restarted_server_fails_the_first_run_stands_with_a_caveat(tmp_path: Path) -> None:
    given = bench()
    given.faults = lambda config: "it died" if given.restarts else None
    found = ended(tmp_path, given, tried(tmp_path, 8, 1))
    assert (found.certificate.runs, found.certificate.caveat) == (1, Caveat.SERVER_FAILED)
    assert found.codes == [("certification_failed", 1)]


def test_without_time_for_a_second_run_the_first_stands_with_a_caveat(tmp_path: Path) -> None:
    given = bench()
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=8.0)
    assert given.batches == [8]
    assert found.certificate.runs == 1
    assert str(found.certificate.caveat).endswith(Caveat.NO_TIME)
    found.assert_within_budget()
    assert found.winner.changed(certificate=None, measurement=None) == tried(tmp_path, 8, 1, measurement=None)


def test_a_second_run_that_needs_all_time_left_gets_it_and_the_default_none(tmp_path: Path) -> None:
    given = bench()
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1), total_s=14.0)
    again = next(run for run in given.runs if run.restarts)
    assert again.most_s == pytest.approx(found.all_left_s(again), abs=LOADING_S)
    found.assert_within_budget()
    assert found.baseline is not None
    assert found.baseline.certificate is None


def test_a_rate_that_is_not_met_again_is_followed_by_a_far_lower_one(tmp_path: Path) -> None:
    """The second run measured the client for half a minute."""
    given = bench()
    given.late_runs = range(1, 20)
    found = ended(tmp_path, given, tried(tmp_path, 8, 1))
    again = [run for run in given.runs if run.restarts]
    first_per_s, lower_per_s = dict.fromkeys(run.rate_per_s for run in again)
    assert first_per_s == given.runs[0].rate_per_s
    assert 0.999 * LAST_RESORT_SHARE * first_per_s <= lower_per_s < 0.9 * first_per_s
    lower = next(run for run in again if run.rate_per_s == lower_per_s)
    assert lower.most_s == pytest.approx(found.all_left_s(lower))
    assert (found.certificate.runs, found.certificate.rate_per_s) == (1, first_per_s)
    assert found.certificate.caveat == f"{Caveat.NOT_AGAIN}: the client sent late"
    found.assert_within_budget()


def test_a_far_lower_rate_that_is_met_has_been_met_twice(tmp_path: Path) -> None:
    given = bench(late_runs=range(1, 7))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=110.0)
    found.assert_confirmed_twice()
    assert found.certificate.rate_per_s < 0.9 * given.runs[0].rate_per_s
    found.assert_within_budget()


def test_no_rate_below_the_one_that_was_asked_for_is_tried_again(tmp_path: Path) -> None:
    given = bench(late_runs=range(1, 50))
    one = tried(tmp_path, 8, 1, measurement=measurement(rate_per_s=500.0))
    found = ended(tmp_path, given, one, objective=Objective(name="latency", rate_per_s=500.0))
    assert {round(run.rate_per_s, 6) for run in given.runs} == {500.0}
    assert found.certificate.caveat == f"{Caveat.NOT_AGAIN}: the client sent late"


def test_no_lower_rate_is_tried_again_in_too_little_time(tmp_path: Path) -> None:
    given = bench(late_runs=range(1, 50))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=16.5)
    assert given.batches == [8, 8]
    assert len({round(run.rate_per_s, 6) for run in given.runs}) == 1
    assert str(found.certificate.caveat).startswith(Caveat.NOT_AGAIN)
    found.assert_within_budget()


def test_a_user_who_asks_to_finish_gets_one_short_run_well_below_the_estimate(tmp_path: Path) -> None:
    given = bench()
    given.spent.load_s = 40.0
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1), stop=lambda: True)
    (run,) = given.runs
    assert run.rate_per_s < 0.9 * 1050.0
    assert run.load_s <= run.most_s <= WHEN_STOPPED_S
    assert (found.certificate.runs, found.certificate.confidence) == (1, 0.95)
    assert found.certificate.caveat == Caveat.STOPPED
    assert found.baseline is not None
    assert found.baseline.certificate is None


def test_a_user_who_asks_to_finish_gets_no_last_resort(tmp_path: Path) -> None:
    given = bench(late_runs=range(100))
    assert ended(tmp_path, given, tried(tmp_path, 8, 1), stop=lambda: True).certified is None
    assert len({run.rate_per_s for run in given.runs}) == 1
    assert given.spent.load_s <= WHEN_STOPPED_S


def test_a_user_who_asks_during_the_first_run_gets_it_with_a_caveat_and_no_default(tmp_path: Path) -> None:
    given = bench()
    trials = (tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1))
    found = ended(tmp_path, given, *trials, stop=lambda: bool(given.runs))
    assert given.batches == [8]
    assert found.baseline == trials[0]
    assert found.certificate.caveat == Caveat.STOPPED


def test_a_user_who_asks_during_the_second_run_gets_it_without_the_default(tmp_path: Path) -> None:
    given = bench()
    trials = (tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1))
    found = ended(tmp_path, given, *trials, stop=lambda: given.restarts > 0)
    assert given.batches == [8, 8]
    assert found.baseline == trials[0]
    found.assert_confirmed_twice()


def test_a_caveat_is_added_to_that_of_an_unsteady_machine(tmp_path: Path) -> None:
    def replayed(batch: int, number: int, slowdown: float) -> Any:
        replay = ReplayRecord(slowdown=slowdown, rate_per_s=1000.0, error=0.01)
        return tried(tmp_path, batch, number, 1000.0, replay=replay)

    trials = (replayed(2, 1, 0.8), replayed(8, 2, 1.0), replayed(16, 3, 1.2))
    found = ended(tmp_path, bench(), *trials, stop=lambda: True)
    assert found.notes == []
    assert found.certificate.caveat == f"{speed_variation_of(trials).text}; {Caveat.STOPPED}"
    assert not any(isinstance(event, events.BudgetExtended) for event in found.seen)
