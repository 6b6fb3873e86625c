"""Record where a run's wall time goes: the steps of its preparation, and load and loading of each stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from search.records.recommendation import SecondsRecord, StageRecord, StepRecord
from search.trials import events
from search.trials.bench import RunBench, Spent
from search.trials.events import OnEvent


@dataclass(slots=True)
class _Stage:
    seconds: float = 0.0
    load_s: float = 0.0
    loading_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class SecondsOfRun:
    """An event handler that adds up wall time, and passes every event on.

    A stage lasts from its `PhaseStarted` to that of another one; stages may alternate. `clock` returns seconds.
    """

    on_event: OnEvent
    clock: Callable[[], float] = time.monotonic
    _bench: RunBench | None = field(default=None, init=False)
    _steps: list[StepRecord] = field(default_factory=list, init=False)
    _stages: dict[str, _Stage] = field(default_factory=dict, init=False)
    _now: str | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)
    _before: Spent = field(default_factory=Spent, init=False)

    def __call__(self, event: events.Event) -> None:
        """Take note of the event, and pass it on."""
        match event:
            case events.PhaseStarted() if event.name != self._now:
                self._begin(event.name)
            case events.StepEnded():
                self._steps.append(StepRecord(step=event.step, seconds=event.seconds, cached=event.cached))
        self.on_event(event)

    @contextmanager
    def watching(self, bench: AbstractContextManager[RunBench]) -> Iterator[RunBench]:
        """Enter `bench`, whose load and loading are added to the stages from now on."""
        with bench as entered:
            self._bench, self._before = entered, self._spent(entered)
            yield entered

    def record(self, seconds: SecondsRecord) -> SecondsRecord:
        """Return `seconds` with the steps and stages until now."""
        self._begin(self._now)
        stages = (
            StageRecord(stage=name, seconds=stage.seconds, load=stage.load_s, loading_models=stage.loading_s)
            for name, stage in self._stages.items()
        )
        return seconds.changed(preparation=tuple(self._steps), stages=tuple(stages))

    def _begin(self, name: str | None) -> None:
        """End the stage that is under way, and begin the next one."""
        now = self.clock()
        if self._now is not None:
            stage = self._stages.setdefault(self._now, _Stage())
            stage.seconds += max(0.0, now - self._since)
            if self._bench is not None:
                spent = self._bench.spent.since(self._before)
                stage.load_s += spent.load_s
                stage.loading_s += spent.loading_s
        if self._bench is not None:
            self._before = self._spent(self._bench)
        self._now, self._since = name, now
        if name is not None:
            self._stages.setdefault(name, _Stage())

    @staticmethod
    def _spent(bench: RunBench) -> Spent:
        spent = bench.spent
        return Spent(loading_s=spent.loading_s, load_s=spent.load_s, contention=spent.contention)
