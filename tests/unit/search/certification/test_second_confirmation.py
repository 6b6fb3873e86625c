"""What is made of a first confirmation that was met: the second one, on a restarted server, or a caveat."""

from pathlib import Path
from typing import Any

import pytest
from certifications import DEFAULT, bench, caveat_of, ended, tried
from recommendations import measurement

from search.records.trial import ReplayRecord
from search.trials import events
from search.trials.objective import Objective


def test_where_the_restarted_server_fails_the_first_run_stands_with_a_caveat(tmp_path: Path) -> None:
    given = bench()
    given.faults = lambda config: "it died" if given.restarts else None
    found = ended(tmp_path, given, tried(tmp_path, 8, 1))
    assert caveat_of(found) == "the server failed while it was confirmed again"
    assert found.notes == ["Trial 1 failed while it was certified: it died"]


def test_without_time_for_a_second_run_the_first_stands_with_a_caveat(tmp_path: Path) -> None:
    given = bench()
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=12.0)
    assert given.batches == [8]
    assert caveat_of(found) == "there was no time to confirm it again on a restarted server"
    assert found.winner.changed(certificate=None, measurement=None) == tried(tmp_path, 8, 1, measurement=None)


def test_a_second_run_that_would_have_too_little_time_gets_all_that_is_left(tmp_path: Path) -> None:
    """At 50 ms and p99, a usual confirmation takes 11 s; 60 % of the time left after the first one is less."""
    given = bench()
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1), total_s=16.0)
    again = next(run for run in given.runs if run.restarts)
    assert again.most_s == pytest.approx(16.0 - again.spent_s - 1.0)
    assert found.baseline is not None
    assert found.baseline.certificate is None


def test_what_was_not_met_again_is_tried_far_lower(tmp_path: Path) -> None:
    """The second run measured the client for half a minute."""
    given = bench()
    given.late_runs = range(1, 20)
    found = ended(tmp_path, given, tried(tmp_path, 8, 1))
    again = [run for run in given.runs if run.restarts]
    rates = list(dict.fromkeys(round(run.rate_per_s, 2) for run in again))
    assert rates == [976.5, pytest.approx(0.6 * 976.5)]
    lower = next(run for run in again if run.rate_per_s < 900.0)
    assert lower.most_s > 200.0
    assert caveat_of(found) == "it met the SLO once, but not again on a restarted server: the client sent late"


def test_what_is_met_far_lower_has_been_met_twice(tmp_path: Path) -> None:
    given = bench(late_runs=range(1, 7))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=110.0)
    certificate = found.winner.certificate
    assert certificate is not None
    assert (certificate.runs, certificate.caveat) == (2, None)
    assert certificate.rate_per_s == pytest.approx(0.6 * 976.5)


def test_where_a_rate_was_asked_for_no_lower_one_is_tried_again(tmp_path: Path) -> None:
    given = bench(late_runs=range(1, 50))
    one = tried(tmp_path, 8, 1, measurement=measurement(rate_per_s=500.0))
    found = ended(tmp_path, given, one, objective=Objective(name="latency", rate_per_s=500.0))
    assert {round(run.rate_per_s, 6) for run in given.runs} == {500.0}
    assert caveat_of(found) == "it met the SLO once, but not again on a restarted server: the client sent late"


def test_a_lower_rate_is_not_tried_again_in_less_than_six_seconds(tmp_path: Path) -> None:
    given = bench(late_runs=range(1, 50))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=16.5)
    assert given.batches == [8, 8]
    assert len({round(run.rate_per_s, 6) for run in given.runs}) == 1
    assert caveat_of(found) is not None


def test_who_asks_to_finish_gets_one_run_of_half_a_minute_well_below_the_estimate(tmp_path: Path) -> None:
    given = bench()
    given.spent.load_s = 40.0
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1), stop=lambda: True)
    (run,) = given.runs
    assert (run.rate_per_s, run.most_s) == (pytest.approx(0.8 * 1050.0), 30.0)
    certificate = found.winner.certificate
    assert certificate is not None
    assert (certificate.runs, certificate.confidence) == (1, 0.95)
    assert certificate.caveat == "the run was stopped before it could be confirmed again"
    assert found.baseline is not None
    assert found.baseline.certificate is None


def test_who_asks_to_finish_gets_no_last_resort(tmp_path: Path) -> None:
    given = bench(late_runs=range(100))
    assert ended(tmp_path, given, tried(tmp_path, 8, 1), stop=lambda: True).certified is None
    assert {round(run.rate_per_s, 1) for run in given.runs} == {840.0}


def test_who_asks_to_finish_during_the_first_run_gets_it_with_a_caveat_and_no_default(tmp_path: Path) -> None:
    given = bench()
    trials = (tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1))
    found = ended(tmp_path, given, *trials, stop=lambda: bool(given.runs))
    assert given.batches == [8]
    assert found.baseline == trials[0]
    assert caveat_of(found) == "the run was stopped before it could be confirmed again"


def test_who_asks_to_finish_during_the_second_run_gets_it_without_the_default(tmp_path: Path) -> None:
    given = bench()
    trials = (tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1))
    found = ended(tmp_path, given, *trials, stop=lambda: given.restarts > 0)
    assert given.batches == [8, 8]
    assert found.baseline == trials[0]
    assert caveat_of(found) is None


def test_a_caveat_is_added_to_that_of_a_machine_that_is_not_steady(tmp_path: Path) -> None:
    def replayed(batch: int, number: int, slowdown: float) -> Any:
        replay = ReplayRecord(slowdown=slowdown, rate_per_s=1000.0, error=0.01)
        return tried(tmp_path, batch, number, 1000.0, replay=replay)

    trials = (replayed(2, 1, 0.8), replayed(8, 2, 1.0), replayed(16, 3, 1.2))
    found = ended(tmp_path, bench(), *trials, stop=lambda: True)
    assert found.notes == []
    unsteady, stopped = str(caveat_of(found)).split("; ")
    assert "speed went up and down" in unsteady
    assert stopped == "the run was stopped before it could be confirmed again"
    assert not any(isinstance(event, events.BudgetExtended) for event in found.seen)
