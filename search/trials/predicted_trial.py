"""A trial with a prediction: short runs near the predicted capacity, replayed, instead of a capacity search."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace

from loadgen.measurement.request_log import none_if_not_finite
from loadgen.statistics.capacity import CAUTION, Capacity, bounds
from loadgen.statistics.probe import Probe, ProbeResult
from model_repo.spec import ServingConfig
from search.records.trial import LoadRunRecord, ReplayRecord
from search.simulator.replay import MIN_REPLAY_S, replay_run, seconds_for, sharpness_of
from search.simulator.server import Simulated
from search.simulator.surrogate import engine_alone_per_s
from search.trials.bench import BenchFailed, Spent
from search.trials.capacity_trial import run_capacity_trial, run_fixed_rate_trial
from search.trials.context import TrialContext, emit_probed, load_run_of, run_load
from search.trials.trial import Trial, trial_of

log = logging.getLogger("tritune.verification")

FIRST_RUN_FRACTION = 0.98
"""The first run uses 98 % of the predicted rate."""

MAX_DISTANCE = 0.12
"""If the capacity after a run is more than 12 % from the rate of the run, the next run is nearer to it."""

OF_A_FRONT_END = 1 / 3
"""If closed loops got less than a third of the predicted rate through, a front end or the client carries no more,
and the first run goes at that rate. Users who travel together leave instances idle, and get 0.4 of it through."""

PRECISE = 0.08
"""The capacity is known well if the standard error of its logarithm is at most this."""

MAX_RUNS = 4
"""A trial makes at most this many runs, each because it contradicts the one before."""

LATE_STEP = 0.5
"""If the client is late twice at one rate, half of it is tried, or what closed loops got through if that is less:
it or the front end cannot carry more. After `MAX_RUNS` such runs the cause is not the rate."""

MAX_LOAD_S = 12.0
"""A trial starts no further run after 12 s of load: on a machine with unstable speed each run contradicts the one
before, and more of them do not make the estimate better."""

CLEARLY_VIOLATED = 0.1
"""If more than a tenth of the requests failed or were late, no disturbance is to blame."""

BASELINE_CAPACITY_S = 10.0
"""The capacity search of a baseline without a valid prediction takes at most 10 s of load: the baseline is only
compared with, and certification finds its rate if nothing better is found."""

BASELINE_REQUESTS = 100
"""A baseline runs for the shortest time that a replay allows, or until it has 100 requests: the search hardly
depends on its result, and certification finds its rate again."""

EXPLAINED = 0.05
"""A replay's slowdown explains a measured rate if the rate that follows from it is within 5 %."""


def run_predicted_trial(
    context: TrialContext,
    server: Simulated,
    config: ServingConfig,
    number: int,
    predicted_per_s: float,
    *,
    once: bool = False,
) -> Trial | None:
    """Return the trial of a predicted configuration, near its predicted capacity or at the objective's rate.

    With `once` (for the baseline) it is not measured again if the prediction was far off.
    """
    rate = context.objective.rate_per_s
    if rate is not None:
        return run_fixed_rate_trial(context, config, number, rate_per_s=rate, server=server)
    return Verification(context=context, server=server, once=once).trial(config, number, predicted_per_s)


@dataclass(slots=True, kw_only=True)
class Verification:
    """Verifies the prediction of one configuration, which is simulated as `server`."""

    context: TrialContext
    server: Simulated
    once: bool = False
    _runs: list[LoadRunRecord] = field(default_factory=list)
    _seen: list[ProbeResult] = field(default_factory=list)
    _client_problems: list[tuple[str, ...]] = field(default_factory=list)
    _late_per_s: float = math.inf
    """The lowest rate at which the client was late: at the first twice, as once may be a disturbance."""

    _replay: ReplayRecord | None = None

    def trial(self, config: ServingConfig, number: int, predicted_per_s: float) -> Trial | None:
        """Return the finished trial; None if it was stopped before it had a result.

        If the replay has no result (failures, executions unlike the profile), a capacity search goes on from what
        the runs showed. A client that is late at the lowest rate too fails the trial.
        """
        bench = self.context.bench
        before = replace(bench.spent)
        try:
            bench.load(config)
            alone_per_s = engine_alone_per_s(config.engine, limit_ms=self.context.slo.first.limit_ms)
            alone_per_s /= self.context.workload.rows_per_request
            found = self._converge(number, predicted_per_s, alone_per_s)
        except BenchFailed as failure:
            log.warning("trial %d failed: %s", number, failure.reason)
            return self._failed(number, config, failure.reason, bench.spent.since(before))
        if self.context.stop():
            return None
        if self._runs and all(self._client_problems):  # a run too short for a verdict is replayed nevertheless
            return self._failed(number, config, self._client_problems[-1][0], bench.spent.since(before))
        if found is None or self._replay is None:
            most_s = BASELINE_CAPACITY_S if self.once else math.inf
            trial = run_capacity_trial(self.context, config, number, most_s=most_s, before=self._seen)
            return None if trial is None else self._with_my_runs(trial, bench.spent.since(before))
        rate_per_s, error = found.quantile(0.5), found.error
        low_per_s, high_per_s = bounds(rate_per_s, error)
        return trial_of(
            number,
            config,
            "complete",
            f"{predicted_per_s:,.4g}/s were predicted; replayed with the run's arrivals, executions "
            f"took {self._replay.slowdown:.3f} times as long as profiled",
            spent=bench.spent.since(before),
            load_runs=self._runs,
            rate_at_limit_per_s=rate_per_s * math.exp(-CAUTION * error),
            rate_low_per_s=low_per_s,
            rate_high_per_s=high_per_s,
            measurement=bench.last_measurement(),
            replay=self._replay,
        )

    def _failed(self, number: int, config: ServingConfig, reason: str, spent: Spent) -> Trial:
        return trial_of(number, config, "failed", reason, spent=spent, load_runs=self._runs)

    def _with_my_runs(self, trial: Trial, spent: Spent) -> Trial:
        """Return the trial of the capacity search with the runs that came before it."""
        runs = (*self._runs, *trial.load_runs)
        return trial.changed(
            probes=len(runs),
            load_runs=runs,
            loading_s=spent.loading_s,
            load_s=spent.load_s,
            replay=self._replay,
        )

    def _converge(self, number: int, predicted_per_s: float, alone_per_s: float) -> Capacity | None:
        """Run until the capacity is known well, and a run was near it; None if a replay has no result.

        The first is not above `alone_per_s`, what the engine does standalone; 0 if that is not known.
        """
        rate, let_through_per_s = FIRST_RUN_FRACTION * predicted_per_s, self.server.let_through_per_s
        rate = min(rate, alone_per_s or math.inf)
        if let_through_per_s < OF_A_FRONT_END * predicted_per_s:
            rate = let_through_per_s
        known = Capacity.guessed(predicted_per_s, self.context.slo.first.limit_s)
        found = self._run_and_replay(number, rate, known)
        while self._late_per_s == rate and len(self._runs) < MAX_RUNS and not self.context.stop():
            known, rate = known.bounded(rate), min(rate * LATE_STEP, let_through_per_s)
            found = self._run_and_replay(number, rate, known)
        while found is not None and not self.once:
            known, median_per_s = found, found.quantile(0.5)
            near = abs(math.log(median_per_s / rate)) <= MAX_DISTANCE and known.error <= PRECISE
            if near and (len(self._runs) == 1 or self._met()):
                break
            if not self._may_run_again():
                return known if self._met() else None
            rate = FIRST_RUN_FRACTION * median_per_s
            found = self._run_and_replay(number, rate, known)
            if found is None and not self._hurt_others():
                if self._late_per_s > rate:
                    return known
                found = known.bounded(rate)
        return found

    def _met(self) -> bool:
        return any(run.trusted and run.met for run in self._runs)

    def _may_run_again(self) -> bool:
        in_time = [run for run, late in zip(self._seen, self._client_problems, strict=True) if not late]
        if self.context.budget.search_left_s() < MIN_REPLAY_S or self.context.stop():
            return False
        spent_s = sum(run.load_s for run in in_time)
        return len(in_time) < MAX_RUNS and len(self._runs) < 2 * MAX_RUNS and spent_s < MAX_LOAD_S

    def _run_and_replay(self, number: int, rate_per_s: float, known: Capacity) -> Capacity | None:
        """Return what is known after load at this rate, again if the client is late for the first time.

        None if there is no result. A tenth of the requests failed: that was no disturbance.
        """
        limits, seed, workload = self.context.slo.limits, self.context.seed, self.context.workload
        binding, sharp = sharpness_of(self.server, limits, rate_per_s, seed, workload)
        seconds = min(
            seconds_for(sharp, rate_per_s, binding), max(MIN_REPLAY_S, self.context.budget.search_left_s())
        )
        if self.once:
            seconds = min(seconds, max(MIN_REPLAY_S, BASELINE_REQUESTS / rate_per_s))
        for _ in range(2 if self._late_per_s == math.inf else 1):
            probe, seen = self._run_load(number, rate_per_s, seconds)
            late = bool(self._client_problems[-1])
            if not late or self.context.stop() or probe.log.failed.mean() > CLEARLY_VIOLATED:
                break
        if late and not self.context.stop():
            self._late_per_s = min(self._late_per_s, rate_per_s)
        if late or self.context.stop() or self._hurt_others():
            return None
        found = replay_run(self.server, probe.log, limits, seed=seed, workload=workload)
        log.info("trial %d at %.4g/s for %.3g s: %s", number, rate_per_s, seconds, found)
        if found is None or not found.rate_per_s > 0:
            return None
        self._replay = ReplayRecord(
            slowdown=found.slowdown, rate_per_s=found.rate_per_s, error=none_if_not_finite(found.error)
        )
        known = known.updated(seen).estimated(found.rate_per_s, found.error)
        log.info("trial %d: %.4g/s, error %.3g", number, known.quantile(0.5), known.error)
        return known

    def _hurt_others(self) -> bool:
        """True if the last run violated the limit of a colocated model: no replay knows what rate keeps it."""
        return self._runs[-1].model is not None and not self._runs[-1].met

    def _run_load(self, number: int, rate_per_s: float, seconds: float) -> tuple[Probe, ProbeResult]:
        probe, seen, seed = run_load(self.context, rate_per_s, seconds, number=number, repeat=len(self._runs))
        self._runs.append(load_run_of(seen, probe, self.context.slo.tested, seed=seed))
        self._seen.append(seen)
        self._client_problems.append(() if probe.only_slower else probe.problems)
        emit_probed(self.context.on_event, number, seen, met=seen.met)
        return probe, seen


def explanation(trial: Trial, rate_per_s: float) -> float | None:
    """Return the slowdown of executions if it explains the measured rate; None if it does not."""
    replay = trial.replay
    if replay is None or not replay.rate_per_s > 0 or not replay.slowdown > 0:
        return None
    return replay.slowdown if abs(math.log(rate_per_s / replay.rate_per_s)) < EXPLAINED else None
