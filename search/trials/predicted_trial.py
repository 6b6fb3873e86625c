"""A trial with a prediction: short runs near the predicted capacity, replayed, instead of a capacity search."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace

from loadgen.measurement.request_log import none_if_not_finite
from loadgen.statistics.capacity import CAUTION, bounds
from loadgen.statistics.probe import Probe
from model_repo.spec import ServingConfig
from search.records.trial import LoadRunRecord, ReplayRecord
from search.simulator.replay import MIN_REPLAY_S, ReplayResult, replay_run, seconds_for, sharpness_of
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

MAX_RUNS = 4
"""A trial makes at most this many runs, each because it contradicts the one before."""

LATE_STEP, MAX_LATE = 0.5, 4
"""If the client is late twice at one rate, half of it is tried: it or the front end cannot carry more. After four
such runs the cause is not the rate."""

MAX_LOAD_S = 12.0
"""A trial starts no further run after 12 s of load: on a machine with unstable speed each run contradicts the one
before, and more of them do not make the estimate better."""

CLEARLY_VIOLATED = 0.1
"""A run with more than 10 % of its requests over the limit was above the capacity, even if a replay disagrees."""

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
    _client_problems: list[tuple[str, ...]] = field(default_factory=list)
    _late_per_s: float = math.inf
    """The lowest rate at which the client was late: at the first twice, as once may be a disturbance."""

    _replay: ReplayRecord | None = None

    def trial(self, config: ServingConfig, number: int, predicted_per_s: float) -> Trial | None:
        """Return the finished trial; None if it was stopped before it had a result.

        If the replay has no result (failures, executions unlike the profile), a capacity search follows. A client
        that is late at the lowest rate too fails the trial.
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
        if found is None or not found.rate_per_s > 0:
            most_s = BASELINE_CAPACITY_S if self.once else math.inf
            trial = run_capacity_trial(self.context, config, number, most_s=most_s, runs_before=len(self._runs))
            return None if trial is None else self._with_my_runs(trial, bench.spent.since(before))
        low_per_s, high_per_s = bounds(found.rate_per_s, found.error)
        return trial_of(
            number,
            config,
            "complete",
            f"{predicted_per_s:,.4g}/s were predicted; replayed with the run's arrivals, executions "
            f"took {found.slowdown:.3f} times as long as profiled",
            spent=bench.spent.since(before),
            load_runs=self._runs,
            rate_at_limit_per_s=found.rate_per_s * math.exp(-CAUTION * found.error),
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

    def _converge(self, number: int, predicted_per_s: float, alone_per_s: float) -> ReplayResult | None:
        """Run until a run is near the capacity that follows from it, and no earlier run contradicts that.

        The first is not above `alone_per_s`, what the engine does standalone; 0 if that is not known.
        """
        rate, let_through_per_s = FIRST_RUN_FRACTION * predicted_per_s, self.server.let_through_per_s
        rate = min(rate, alone_per_s or math.inf)
        if let_through_per_s < OF_A_FRONT_END * predicted_per_s:
            rate = let_through_per_s
        found = self._run_and_replay(number, rate)
        while self._late_per_s == rate and len(self._runs) < MAX_LATE and not self.context.stop():
            rate *= LATE_STEP
            found = self._run_and_replay(number, rate)
        if self.once:
            return found
        while found is not None and found.rate_per_s > 0 and self._may_run_again():
            near = abs(math.log(found.rate_per_s / rate)) <= MAX_DISTANCE
            # If all of two runs or more violated the SLO, the replay is below them, and was so before.
            met = not self._runs[1:] or not all(run.trusted and _clearly_violated(run) for run in self._runs)
            if near and met and found.rate_per_s < self._violated_per_s:
                break
            rate = min(self._between(FIRST_RUN_FRACTION * found.rate_per_s, rate), self._doubled_step_per_s())
            again = self._run_and_replay(number, rate)
            if again is None and self._hurt_others():
                return None
            if again is None:
                break
            found = again
        if found is None:
            return None
        violated_per_s = min(self._violated_per_s, self._missed_per_s(math.exp(-MAX_DISTANCE) * found.rate_per_s))
        if found.rate_per_s < violated_per_s:
            return found
        # A factor on execution times does not explain it: the capacity is only known to be lower.
        known_per_s = math.sqrt(self._met_per_s * violated_per_s) if self._met_per_s else 0.0
        error = math.log(violated_per_s / self._met_per_s) / 2 if self._met_per_s else math.inf
        return replace(found, rate_per_s=known_per_s, error=max(found.error, error))

    def _may_run_again(self) -> bool:
        in_time = [run for run, late in zip(self._runs, self._client_problems, strict=True) if not late]
        if self.context.budget.search_left_s() < MIN_REPLAY_S:
            return False
        return len(in_time) < MAX_RUNS and sum(run.seconds or 0.0 for run in in_time) < MAX_LOAD_S

    @property
    def _violated_per_s(self) -> float:
        """The lowest rate that clearly violated the SLO, above all that met it (a machine may stall once).

        Or at which the client was late: nobody knows whether such a rate is kept.
        """
        violated = [run.rate_per_s for run in self._runs if run.trusted and _clearly_violated(run)]
        return min((rate for rate in (*violated, self._late_per_s) if rate > self._met_per_s), default=math.inf)

    def _missed_per_s(self, below_per_s: float) -> float:
        """Return the lowest rate that did not meet the SLO, above all that did; inf if that is not below."""
        missed = [run.rate_per_s for run in self._runs if run.trusted and not run.met]
        return min((rate for rate in missed if self._met_per_s < rate < below_per_s), default=math.inf)

    @property
    def _met_per_s(self) -> float:
        """The highest rate that met the SLO; 0: none."""
        return max((run.rate_per_s for run in self._runs if run.trusted and run.met), default=0.0)

    def _between(self, wanted_per_s: float, last_per_s: float) -> float:
        """Return the wanted rate, but at most the middle between the last rate and the lowest violated one."""
        violated_per_s = self._violated_per_s
        if wanted_per_s < violated_per_s:
            return wanted_per_s
        return math.sqrt(min(last_per_s, FIRST_RUN_FRACTION * violated_per_s) * violated_per_s)

    def _doubled_step_per_s(self) -> float:
        """Return a rate twice as far below the last as that is below the one before, if both clearly violated.

        What the replay took for slow executions was something else then, such as a front end at its limit.
        """
        rates = [run.rate_per_s for run in self._runs[-2:] if run.trusted and _clearly_violated(run)]
        if len(rates) < 2 or rates[1] >= rates[0]:
            return math.inf
        return rates[1] * (rates[1] / rates[0]) ** 2

    def _run_and_replay(self, number: int, rate_per_s: float) -> ReplayResult | None:
        """Run load at this rate, again if the client is late for the first time; None if there is no result.

        A tenth of the requests failed: that was no disturbance.
        """
        limits, seed, workload = self.context.slo.limits, self.context.seed, self.context.workload
        binding, sharp = sharpness_of(self.server, limits, rate_per_s, seed, workload)
        seconds = min(
            seconds_for(sharp, rate_per_s, binding), max(MIN_REPLAY_S, self.context.budget.search_left_s())
        )
        if self.once:
            seconds = min(seconds, max(MIN_REPLAY_S, BASELINE_REQUESTS / rate_per_s))
        for _ in range(2 if self._late_per_s == math.inf else 1):
            probe = self._run_load(number, rate_per_s, seconds)
            if not probe.problems or self.context.stop() or probe.log.failed.mean() > CLEARLY_VIOLATED:
                break
        if probe.problems and not self.context.stop():
            self._late_per_s = min(self._late_per_s, rate_per_s)
        if probe.problems or self.context.stop() or self._hurt_others():
            return None
        found = replay_run(self.server, probe.log, limits, seed=seed, workload=workload)
        log.info("trial %d at %.4g/s for %.3g s: %s", number, rate_per_s, seconds, found)
        if found is not None:
            self._replay = ReplayRecord(
                slowdown=found.slowdown, rate_per_s=found.rate_per_s, error=none_if_not_finite(found.error)
            )
        return found

    def _hurt_others(self) -> bool:
        """True if the last run violated the limit of a colocated model: no replay knows what rate keeps it."""
        return self._runs[-1].model is not None and not self._runs[-1].met

    def _run_load(self, number: int, rate_per_s: float, seconds: float) -> Probe:
        probe, seen, seed = run_load(self.context, rate_per_s, seconds, number=number, repeat=len(self._runs))
        self._runs.append(load_run_of(seen, probe, self.context.slo.tested, seed=seed))
        self._client_problems.append(probe.problems)
        emit_probed(self.context.on_event, number, seen, met=seen.met)
        return probe


def _clearly_violated(run: LoadRunRecord) -> bool:
    return bool(run.overloaded) or (run.violations or 0) > CLEARLY_VIOLATED * (run.requests or math.inf)


def explanation(trial: Trial, rate_per_s: float) -> float | None:
    """Return the slowdown of executions if it explains the measured rate; None if it does not."""
    replay = trial.replay
    if replay is None or not replay.rate_per_s > 0 or not replay.slowdown > 0:
        return None
    return replay.slowdown if abs(math.log(rate_per_s / replay.rate_per_s)) < EXPLAINED else None
