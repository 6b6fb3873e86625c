"""A predicted configuration under load: one short run near its predicted rate instead of a search for its edge."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loadgen.knee import Knee
from loadgen.measurement import known
from search.at_rate import tried_at_rate
from search.bench import BenchFailed
from search.evaluate import load_run_of
from search.predict import promise_of
from search.records import ReplayRecord
from search.short_run import short_run, tell
from search.trial import Trial, failed_trial
from search.verify import binding_of, seconds_for, sharpness_of, verified

if TYPE_CHECKING:
    from loadgen.capacity import Probe
    from model_repo.spec import ServingConfig
    from search.attempts import Attempts
    from search.bench import Spent
    from search.forecast import Predicted
    from search.records import LoadRunRecord
    from search.simulator import SimulatedServer
    from search.verify import Verified

log = logging.getLogger("tritune.verification")

SHARE = 0.98
"""Of the predicted rate, where it is put to the test."""

AGAIN = 0.12
"""When the rate at the limit turns out to be so far from the one that was sent, it is measured nearer to it."""

MOST_RUNS = 4
"""Of a trial, where each refutes what follows from the one before."""

MOST_LOAD_S = 12.0
"""Of load in a trial's runs, after which no further one begins: on a machine whose speed goes up and down each run
refutes the one before, and the trial is no better known for it."""

CLEARLY_BROKEN = 0.1
"""Of a run's requests over the limit: its rate is above the one at the limit, whatever a replay says."""

BASELINE_EDGE_S = 10.0
"""Of load for the edge of the baseline, where it could not be predicted: it is there to compare with, and where
nothing better is found, its certification finds what it keeps."""

CAUTION = 0.5
"""Standard errors by which the reported rate is below the middle of what was found, as in `loadgen.capacity`."""


def predicted_trial(
    attempts: Attempts,
    server: SimulatedServer,
    config: ServingConfig,
    number: int,
    prediction: Predicted,
    *,
    once: bool = False,
) -> Trial | None:
    """A predicted configuration's trial: near its predicted rate, or at the rate that is asked for.

    `once`: it is the baseline, and not measured again where the prediction was far off.
    """
    rate = attempts.ledger.objective.rate_per_s
    if rate is not None:
        return tried_at_rate(attempts, config, number, rate_per_s=rate, server=server)
    return Verification(attempts=attempts, server=server, once=once).trial(config, number, prediction)


@dataclass(slots=True, kw_only=True)
class Verification:
    """Verifies one configuration, which the simulator sees as `server`."""

    attempts: Attempts
    server: SimulatedServer
    once: bool = False
    _runs: list[LoadRunRecord] = field(default_factory=list)
    _client_problems: list[tuple[str, ...]] = field(default_factory=list)
    _replay: ReplayRecord | None = None

    def trial(self, config: ServingConfig, number: int, prediction: Predicted) -> Trial | None:
        """The finished trial; None when it was stopped before anything was learnt.

        Where the replay says nothing (failures, executions unlike the profile), the edge is searched for instead.
        A client that is late twice at one rate fails the trial: whatever keeps the processors from it would go on.
        """
        bench = self.attempts.bench
        before = replace(bench.spent)
        try:
            bench.load(config)
            found = self._found(number, prediction.rate_per_s)
        except BenchFailed as failure:
            log.warning("trial %d failed: %s", number, failure.reason)
            return failed_trial(number, config, failure.reason, bench.spent.since(before), load_runs=self._runs)
        if self.attempts.stop():
            return None
        late = self._late()
        if late is not None:
            return failed_trial(number, config, late, bench.spent.since(before), load_runs=self._runs)
        if found is None or not found.rate_per_s > 0:
            most_s = BASELINE_EDGE_S if self.once else math.inf
            trial = self.attempts.evaluated(config, number, most_s=most_s)
            return None if trial is None else self._with_my_runs(trial, bench.spent.since(before))
        bounds, spent = Knee.around(found.rate_per_s, found.error), bench.spent.since(before)
        return Trial(
            number=number,
            config=config,
            state="complete",
            reason=(
                f"{prediction.rate_per_s:,.4g}/s were predicted; replayed with the run's arrivals, executions "
                f"took {found.slowdown:.3f} times as long as profiled"
            ),
            rate_at_limit_per_s=found.rate_per_s * math.exp(-CAUTION * found.error),
            rate_low_per_s=bounds.lower_per_s,
            rate_high_per_s=bounds.upper_per_s,
            measurement=bench.last_measurement(),
            probes=len(self._runs),
            loading_s=spent.loading_s,
            load_s=spent.load_s,
            load_runs=tuple(self._runs),
            replay=self._replay,
        )

    def _late(self) -> str | None:
        """What kept the client from sending, where nothing but runs of that kind was made.

        A run that is too short for a verdict is replayed all the same.
        """
        return self._client_problems[-1][0] if self._runs and all(self._client_problems) else None

    def _with_my_runs(self, trial: Trial, spent: Spent) -> Trial:
        """A trial that was measured otherwise in the end, with the runs that were made before."""
        runs = (*self._runs, *trial.load_runs)
        probes = len(self._runs) + trial.probes
        return replace(trial, probes=probes, load_runs=runs, load_s=spent.load_s, replay=self._replay)

    def _found(self, number: int, predicted_per_s: float) -> Verified | None:
        """Runs until one is near the rate that follows from it, and that is not refuted by an earlier one."""
        rate = SHARE * predicted_per_s
        found = self._replayed(number, rate)
        if self.once:
            return found
        while found is not None and found.rate_per_s > 0 and self._may_run_again():
            if abs(math.log(found.rate_per_s / rate)) <= AGAIN and found.rate_per_s < self._broken_per_s:
                return found
            rate = self._between(SHARE * found.rate_per_s, rate)
            again = self._replayed(number, rate)
            if again is None:
                break
            found = again
        if found is None or found.rate_per_s < self._broken_per_s:
            return found
        # Not explained by a factor on execution times. What is known is that it lies below what broke.
        known_per_s = math.sqrt(self._kept_per_s * self._broken_per_s) if self._kept_per_s else 0.0
        error = math.log(self._broken_per_s / self._kept_per_s) / 2 if self._kept_per_s else math.inf
        return replace(found, rate_per_s=known_per_s, error=max(found.error, error))

    def _may_run_again(self) -> bool:
        return len(self._runs) < MOST_RUNS and sum(run.seconds or 0.0 for run in self._runs) < MOST_LOAD_S

    @property
    def _broken_per_s(self) -> float:
        """The lowest rate that was clearly too much, above all that were kept: a machine stands still at times."""
        broken = (run.rate_per_s for run in self._runs if run.trusted and _clearly_broken(run))
        return min((rate for rate in broken if rate > self._kept_per_s), default=math.inf)

    @property
    def _kept_per_s(self) -> float:
        """The highest rate that was kept; 0: none."""
        return max((run.rate_per_s for run in self._runs if run.trusted and run.kept), default=0.0)

    def _between(self, wanted_per_s: float, last_per_s: float) -> float:
        """The wanted rate, or the middle between the last one and what broke where it is beyond that."""
        broken_per_s = self._broken_per_s
        if wanted_per_s < broken_per_s:
            return wanted_per_s
        return math.sqrt(min(last_per_s, SHARE * broken_per_s) * broken_per_s)

    def _replayed(self, number: int, rate_per_s: float) -> Verified | None:
        """One run at this rate, or two where the client was late; None: nothing follows from them."""
        promise, seed, demand = promise_of(self.attempts.slo), self.attempts.seed, self.attempts.demand
        binding = binding_of(self.server, promise, rate_per_s, seed, demand)
        sharp = sharpness_of(self.server, binding, rate_per_s, seed, demand)
        seconds = min(seconds_for(sharp, rate_per_s, binding), max(1.0, self.attempts.budget.search_left_s()))
        for _ in range(2):
            probe = self._run(number, rate_per_s, seconds)
            if not probe.problems or self.attempts.stop():
                break
        if probe.problems or self.attempts.stop():
            return None
        found = verified(self.server, probe.log, promise, seed=seed, demand=demand)
        log.info("trial %d at %.4g/s for %.3g s: %s", number, rate_per_s, seconds, found)
        if found is not None:
            self._replay = ReplayRecord(
                slowdown=found.slowdown, rate_per_s=found.rate_per_s, error=known(found.error)
            )
        return found

    def _run(self, number: int, rate_per_s: float, seconds: float) -> Probe:
        probe, seen, seed = short_run(self.attempts, rate_per_s, seconds, number=number, repeat=len(self._runs))
        self._runs.append(load_run_of(seen, seed=seed))
        self._client_problems.append(probe.problems)
        tell(self.attempts.on_event, number, seen, kept=seen.reading.kept)
        return probe


def _clearly_broken(run: LoadRunRecord) -> bool:
    return bool(run.overloaded) or (run.violations or 0) > CLEARLY_BROKEN * (run.requests or math.inf)
