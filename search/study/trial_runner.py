"""Run trials one after the other: ask, measure, record, report; and decide when to stop."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from loadgen.errors import ClientFailed, UserError
from loadgen.measurement.cpu_contention import none_if_not_watched
from model_repo.spec import ServingConfig
from search.knobs import takes_graphs
from search.labels import knobs_text
from search.records.trial import WhyRecord
from search.simulator.service_times import ServiceCurve
from search.simulator.surrogate import Kind
from search.space import Knobs, at_least, engine_label, knobs_of
from search.study.pool import TaskRecord, WorkerPool
from search.study.store import TrialStore, forms_batches_of
from search.trials import events
from search.trials.context import TrialContext, keep_time_to_certify
from search.trials.objective import Objective
from search.trials.trial import Trial

FAILURES_OF_ONE_ENGINE = 4
"""An engine is not tried again after 4 failed trials without any other, or after 2 if there are other engines.
With and without CUDA graphs it counts as two engines: ONNX Runtime cannot record a graph if an operator is on the
CPU."""

_NO_MEMORY = re.compile(
    r"out.?of.?memory|bad_alloc|MemoryError|cannot allocate|failed to allocate memory|could not be allocated"
    r"|alloc_failed",
    re.IGNORECASE,
)
"""Out of memory in the words of the kernel, C++, Python, ONNX Runtime, TensorRT, CUDA and its libraries."""

Way = tuple[str, bool]


class SearchImpossible(UserError):
    """Every trial failed, in enough attempts; `reasons` are those of the trials."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__(
            f"{len(reasons)} trials in a row failed, the last one because: {reasons[-1].splitlines()[0]}",
            "See server.log in the run's directory. `optimize doctor` lists what this machine lacks; a server "
            "that died may have been ended by a request from elsewhere.",
        )
        self.reasons = reasons


JUDGED_AFTER_TRIALS, JUDGED_AFTER_S, DISTURBED_SHARE = 2, 20.0, 0.5
"""If two trials have sent load, 20 s in all, and none has a rate, the search ends if all their runs measured the
client, or if contention disturbed half of the time. On a CPU that is within a minute of load."""

MAX_TAKEN_SHARE = 0.75
"""If others took 75 % of all processors in 20 s of load, the search ends in any case: on two cores, of which they
took 1.8, a ResNet-18 seemed to carry 1 to 4/s, and nothing was certified in the whole time budget."""

WHAT_WOULD_HELP = "Stop what else runs here, or use a machine with more processors; --despite-noise goes on."


class CannotMeasure(ClientFailed):
    """The client or the machine could not measure any server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRunner(TrialContext):
    """Runs, records and reports the trials of a search, in this process and by workers.

    With `ignore_slow_phases`, rates are certified that need not hold while the machine is slowed down.
    """

    store: TrialStore
    pool: WorkerPool | None = None
    despite_noise: bool = False
    ignore_slow_phases: bool = False

    @property
    def objective(self) -> Objective:
        """The objective by which trials are compared."""
        return self.store.objective

    def best_per_s(self) -> float | None:
        """Return the capacity of the best trial so far, which a new one has to beat; None if there is none."""
        best = self.store.best()
        return None if best is None else best.rate_at_limit_per_s

    def may_go_on(self) -> bool:
        """True if there is time for one more trial, and no request to stop."""
        if self.stop():
            return False
        if not self.store.trials:
            return True  # the baseline is always tried
        loading_s = sum(trial.loading_s for trial in self.store.trials) / len(self.store.trials)
        return self.budget.trial_s() >= loading_s + 2.0  # and a moment of load

    def promising(self, knobs: Knobs) -> bool:
        """False if the engine does not work, if a trial that needs less memory has already taken too much, or if
        such batches mix rows.
        """

        def took_too_much(trial: Trial) -> bool:
            too_much = trial.over_memory(self.slo.max_memory_bytes)
            if trial.state == "failed":
                too_much = ran_out_of_memory(trial.reason)
            return too_much and at_least(knobs, knobs_of(trial.served), "instance_count")

        return way_of(knobs) not in self._broken() and not any(
            forms_batches_of(trial, knobs) and (trial.mixes_rows or took_too_much(trial))
            for trial in self.store.trials
        )

    def run_trial(
        self, knobs: Knobs, measured: Callable[[ServingConfig, int], Trial | None], why: WhyRecord
    ) -> Trial | None:
        """Run and record a trial of the asked point; None if it was stopped before it had a result.

        `measured` serves and measures the configuration. `why` is kept with the trial. Raises SearchImpossible if
        no engine works, BadInput if the objective needs a power that is not measured.
        """
        number = self.store.next_number()
        config = self.store.space.config(knobs)
        why = self.store.as_of_now(why, knobs)
        self.on_event(events.TrialStarted(number=number, knobs=knobs_text(config)))
        try:
            trial = self.observe(lambda: measured(config, number), why)
        finally:
            self.store.abandon()
        return None if trial is None else self._publish(self.store.record(trial))

    def collect_finished(self) -> list[Trial]:
        """Record and return the trials that workers have finished. Raises SearchImpossible if no engine works."""
        found = [] if self.pool is None else self.pool.gather()
        return [self._publish(self.store.record(trial)) for trial in found]

    def share(self, curves: Mapping[Kind, Mapping[int, ServiceCurve]]) -> None:
        """Share the service times with the workers, if there are any."""
        if self.pool is not None:
            self.pool.share(curves)

    def wait_for_workers(self) -> bool:
        """Wait for a moment, or take a queued point back; False if no points are out."""
        return self.pool is not None and self.pool.wait()

    def hand_out(self, points: Iterable[tuple[Knobs, WhyRecord]]) -> None:
        """Queue the first untried points for the workers, as many as they have room for."""
        if self.pool is None:
            return
        room, start = self.pool.room(), self.store.space.start
        for knobs, why in points:
            if room <= 0:
                return
            if not self.store.untried(knobs) or not self.promising(knobs):
                continue
            if start is not None and knobs == knobs_of(start):
                continue  # workers do not know the start, which has more than these knobs
            room -= 1
            task = TaskRecord(
                why=self.store.as_of_now(why, knobs),
                best_per_s=self.best_per_s(),
                elapsed_s=self.budget.elapsed_s(),
                budget_s=self.budget.total_s,
            )
            self.pool.offer(knobs, task)

    def _publish(self, trial: Trial) -> Trial:
        self.on_event(
            events.TrialEnded(
                trial=trial,
                best=self.store.best(),
                elapsed_s=self.budget.elapsed_s(),
                budget_s=self.budget.total_s,
            )
        )
        self._give_up_when_not_measurable()
        if self._broken() == self._ways():
            raise SearchImpossible([trial.reason for trial in self.store.trials if trial.state == "failed"])
        if not self.budget.searched_s:
            self._keep_time_to_certify()
        self.store.objective.check(trial)
        return trial

    def _keep_time_to_certify(self) -> None:
        best = self.store.best()
        rate_per_s = None if best is None else self.objective.rate_per_s or best.rate_at_limit_per_s
        note = keep_time_to_certify(self.budget, rate_per_s, self.slo) if rate_per_s else None
        if note is not None:
            self.on_event(events.Note(text=note, code="time_to_certify"))

    def _give_up_when_not_measurable(self) -> None:
        """Raise CannotMeasure if the client was late in all runs, or if others took too much of the machine."""
        load_s, tried = self.bench.spent.load_s, [trial for trial in self.store.trials if trial.load_runs]
        if self.despite_noise or load_s < JUDGED_AFTER_S or self.budget.searched_s:
            return  # certification judges its own runs
        seen = none_if_not_watched(self.bench.spent.contention)
        taken_s = 0.0 if seen is None else seen.others_cpu_s + seen.stolen_cpu_s
        if seen is not None and taken_s >= MAX_TAKEN_SHARE * self.store.space.limits.cores * seen.watched_s:
            raise CannotMeasure(f"Too little of this machine was left to measure: {seen.text}.", WHAT_WOULD_HELP)
        if len(tried) < JUDGED_AFTER_TRIALS or any(trial.state == "complete" for trial in tried):
            return
        runs = [run for trial in tried for run in trial.load_runs]
        if not any(run.trusted for run in runs):
            what = f"No run of {load_s:.0f} s of load measured the server: {runs[-1].problems[0]}."
            raise CannotMeasure(what, WHAT_WOULD_HELP)
        if seen is not None and seen.disturbed_s >= DISTURBED_SHARE * seen.watched_s:
            raise CannotMeasure(f"No rate met {self.slo.text} while {seen.text}.", WHAT_WOULD_HELP)

    def _broken(self) -> set[Way]:
        """Return the engines with enough trials of which all failed."""
        ways = self._ways()
        enough = FAILURES_OF_ONE_ENGINE if len(ways) == 1 else FAILURES_OF_ONE_ENGINE // 2
        states: dict[Way, list[str]] = {way: [] for way in ways}
        for trial in self.store.trials:
            if not trial.mixes_rows:
                states.setdefault(way_of(knobs_of(trial.served)), []).append(trial.state)
        return {way for way, seen in states.items() if len(seen) >= enough and set(seen) == {"failed"}}

    def _ways(self) -> set[Way]:
        engines = self.store.space.engines
        with_graphs = {(engine_label(engine), True) for engine in engines if takes_graphs(engine)}
        return {(engine_label(engine), False) for engine in engines} | with_graphs


def way_of(knobs: Mapping[str, int | str]) -> Way:
    """Return the engine of a point, and True if it has CUDA graphs: with and without, it fails independently."""
    return str(knobs["engine"]), bool(knobs.get("cuda_graphs", 0))


def ran_out_of_memory(reason: str) -> bool:
    """True if the reason of a failure is a lack of memory, of the machine or of its GPU."""
    return _NO_MEMORY.search(reason) is not None
