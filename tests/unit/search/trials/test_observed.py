"""The bench that keeps what every second of load showed."""

from pathlib import Path

import pytest
from certifications import bench, tried

from search.trials.bench import BenchFailed, ObservedBench, observed


def test_each_run_at_a_rate_is_kept_with_its_configuration(tmp_path: Path) -> None:
    given, one = ObservedBench(bench()), tried(tmp_path, 8, 1).served
    given.load(one)
    probe = given.measure(200.0, 5.0, 1)
    given.saturate(4, 1.0, 1)
    given.measure(1.0, 1.0, 1)
    (run,) = given.runs
    assert run.config == given.config == one
    assert len(run.sent_s) == len(run.taken_s) == len(probe.log)
    assert run.sent_s[0] == 0.0
    assert run.taken_s == pytest.approx(probe.log.latency_ns / 1e9)
    assert run.seconds == pytest.approx(5.0, abs=0.2)
    assert given.spent is given.bench.spent
    assert observed(given) is given


def test_after_a_failure_no_configuration_is_taken_to_be_served(tmp_path: Path) -> None:
    """The next run loads its own again."""
    inner = bench()
    given, one = ObservedBench(inner), tried(tmp_path, 8, 1).served
    given.load(one)
    inner.faults = lambda config: "it died"
    with pytest.raises(BenchFailed):
        given.load(tried(tmp_path, 16, 2).served)
    assert given.config is None
    inner.faults = lambda config: None
    given.load(one)
    inner.faults = lambda config: "it died"
    with pytest.raises(BenchFailed):
        given.restart()
    assert given.config is None
