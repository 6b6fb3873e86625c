"""Tests of the record of where a run's wall time went, with a clock that is set by hand."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from optimizer.run.pipeline import SecondsOfRun
from search.records.recommendation import SecondsRecord
from search.trials.bench import Spent
from search.trials.events import PhaseStarted, StepEnded, StepStarted, timed_step

IN_ALL = SecondsRecord(total=100.0, load=60.0, loading_models=10.0, other=30.0)


class Run:
    """A run whose clock and bench are moved on by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.passed_on: list[Any] = []
        self.bench: Any = SimpleNamespace(spent=Spent())
        self.seconds = SecondsOfRun(on_event=self.passed_on.append, clock=lambda: self.now)

    def stage(self, name: str, seconds: float, *, load_s: float = 0.0, loading_s: float = 0.0) -> None:
        self.seconds(PhaseStarted(name=name))
        self.now += seconds
        self.bench.spent.load_s += load_s
        self.bench.spent.loading_s += loading_s

    @contextmanager
    def entered(self) -> Any:
        yield self.bench


def test_stages_that_alternate_are_added_up_and_are_all_of_the_time() -> None:
    run = Run()
    run.stage("prepare", 20.0)
    with run.seconds.watching(run.entered()):
        run.stage("search", 30.0, load_s=20.0, loading_s=5.0)
        run.stage("profile", 10.0, load_s=8.0)
        run.stage("search", 15.0, load_s=12.0, loading_s=3.0)
        run.stage("certify", 20.0, load_s=20.0)
    run.stage("finish", 5.0)
    found = run.seconds.record(IN_ALL)
    assert [(one.stage, one.seconds, one.load, one.loading_models, one.waiting) for one in found.stages] == [
        ("prepare", 20.0, 0.0, 0.0, 20.0),
        ("search", 45.0, 32.0, 8.0, 5.0),
        ("profile", 10.0, 8.0, 0.0, 2.0),
        ("certify", 20.0, 20.0, 0.0, 0.0),
        ("finish", 5.0, 0.0, 0.0, 5.0),
    ]
    assert sum(one.seconds for one in found.stages) == run.now
    assert (found.total, found.load) == (IN_ALL.total, IN_ALL.load)


def test_what_a_bench_did_before_it_was_watched_belongs_to_no_stage() -> None:
    run = Run()
    run.bench.spent.load_s = 40.0
    run.stage("prepare", 1.0)
    with run.seconds.watching(run.entered()):
        run.stage("search", 2.0, load_s=2.0)
    assert [one.load for one in run.seconds.record(IN_ALL).stages] == [0.0, 2.0]


def test_steps_are_kept_in_order_and_every_event_is_passed_on() -> None:
    run = Run()
    run.seconds(StepEnded(step="export", seconds=51.0))
    run.seconds(StepEnded(step="engines", seconds=0.5, cached=True))
    found = run.seconds.record(IN_ALL).preparation
    assert [(one.step, one.seconds, one.cached) for one in found] == [
        ("export", 51.0, False),
        ("engines", 0.5, True),
    ]
    assert [event.step for event in run.passed_on] == ["export", "engines"]


def test_a_step_that_fails_is_not_reported() -> None:
    seen: list[Any] = []
    with timed_step(seen.append, "export") as step:
        step.cached = True
    assert seen[0] == StepStarted(step="export")  # so that a display can say what takes so long
    assert (seen[1].step, seen[1].cached) == ("export", True)
    with pytest.raises(OSError, match="full"), timed_step(seen.append, "engines"):
        raise OSError("full")
    assert seen[2:] == [StepStarted(step="engines")]
