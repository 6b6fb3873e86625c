"""What a run knows of its candidates: the capacity of each, and how a test at a rate is likely to end.

A candidate is simulated under the speeds of the machine in the whole run (see `search.study.machine_speed`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog
from loadgen.statistics.slo_test import certify_together, combined_answer
from model_repo.spec import ServingConfig
from search.arrays import Floats
from search.simulator.capacity import COARSE_REQUESTS, rate_at_limit, stand_in
from search.simulator.replay import GRAIN_S, MIN_ERROR, SLOW, Pace
from search.simulator.server import Simulated
from search.simulator.surrogate import Surrogate
from search.study.machine_speed import BLOCK_S, GRAINS_A_SECOND, MachineSpeed
from search.trials.bench import ObservedBench
from search.trials.trial import Trial
from search.workload import REQUESTS

_SLOWED, _LEAST_EXPLAINED = 5, 0.9
RESAMPLINGS, RESAMPLED_S = 100, 120.0
SURELY = 0.95
"""A rate is covered if the configuration keeps the limits at it in 95 % of a hundred resamplings of the speeds
seen, in blocks of 5 s: of as many seconds, but two minutes at most, as a limit is to be kept in minutes, too."""

SLOWER, BY = 1 / 6, 0.126
"""ln(slowdown) of a slow phase is known to 12 %, at 95 %: by machines simulated with phases of 0.5 and 0.64 of
their speed, certified from the load at other rates and batch sizes. So a sixth of the resamplings is of a machine
with slow phases that are slower by 12.6 %, the others of one as it was seen: Gauss-Hermite quadrature with three
points, of which the fastest counts as the middle one."""

_LOWER_STEP, _LOWER_STEPS = 0.8, 15
"""If not even a 28th of the capacity is covered, no rate is: single requests are too slow in slow phases."""

LOOKS_S = (3.0, 5.0, 9.0, 16.0, 28.0, 50.0, 90.0, 160.0, 300.0)
_NORMAL = (0.0, 0.7, -0.7, 1.4, -1.4, 0.35)
DRAWS = len(_NORMAL)
"""A test is simulated six times. These deviates of the errors are the same for every rate, so that rates are
compared under like luck."""

MIN_SIMULATED, MAX_SIMULATED_S = 100_000, 2000.0
"""What was seen of the machine is repeated until so many requests arrive in it, or for so long. At 60/s the luck
of one minute's arrivals decided, and 85 % of the capacity of steady servers seemed to be covered."""

MAX_SIMULATED = 600_000
"""A test that needs more than 600,000 requests is too close to the capacity to be tried. With 150,000, no rate of
an engine that carries 40,000/s seemed to pass: bursts of 1,000 requests need 290,000."""

MAX_COVERED = 1_000_000
"""If more requests arrive in what was seen, ten seconds or more without a slow phase stand for all."""

MIN_ALIKE = 10
"""In fewer usual seconds, drifts that last for a second would be chance."""


@dataclass(slots=True)
class _Candidate:
    """What is kept of a configuration while nothing new is observed."""

    server: Simulated
    usual_per_s: float
    late: dict[tuple[float, float], NDArray[np.int64]] = field(default_factory=dict)


BESIDE_OTHERS = 0.85
"""If the limit of a colocated model binds, at most 85 % of the estimated rate is tried: how likely the others pass
is not simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How a test is likely to end: the share of simulated tests that are met, and their mean seconds."""

    share: float
    seconds: float


@dataclass(slots=True, kw_only=True)
class Belief:
    """The machine and the candidates, as the runs on `bench` show them.

    With `ignore_slow_phases`, every rate up to the capacity at the machine's usual speed counts as covered.
    """

    surrogate: Surrogate
    bench: ObservedBench
    max_covered: int = MAX_COVERED
    ignore_slow_phases: bool = False

    speed: MachineSpeed = field(init=False)
    _seen: tuple[int, int] = 0, 0  # the runs and profiles by which these candidates are simulated
    _candidates: dict[ServingConfig, _Candidate] = field(default_factory=dict)
    _units: dict[int, Floats] = field(default_factory=dict)
    _steps: dict[ServingConfig, int] = field(default_factory=dict)  # down to what was covered the last time

    def __post_init__(self) -> None:
        self.speed = MachineSpeed(surrogate=self.surrogate, bench=self.bench)

    def usual_per_s(self, trial: Trial) -> float:
        """Return the expected capacity of a trial at the machine's usual speed; the trial must have a capacity."""
        return self._candidate(trial).usual_per_s

    def error(self, trial: Trial) -> float:
        """Return the standard error of ln(capacity).

        That of the trial's replay, less with each look at it, and that of a usual speed that was never seen, since
        all looks met slow phases.
        """
        low, high = trial.rate_low_per_s, trial.rate_high_per_s
        first = math.log(high / low) / 2 if low and high else 0.1
        own_s = sum(run.seconds for run in self.bench.runs if run.config == trial.served)
        looks = max(1.0, own_s / BLOCK_S)
        unlucky = self.speed.slow_share()[0] ** looks
        never = unlucky * float(np.std(self.speed.slowdowns)) if unlucky else 0.0
        return math.hypot(MIN_ERROR, first / math.sqrt(looks), never)

    def covers(self, trial: Trial, rate_per_s: float) -> bool:
        """True if the trial keeps the limits at this rate under the speeds of the whole run, if these count."""
        return self.ignore_slow_phases or self.covered_share(trial, rate_per_s) >= SURELY

    def covered_share(self, trial: Trial, rate_per_s: float) -> float:
        """Return the share of resamplings of the machine's speeds under which the trial keeps the limits."""
        candidate, machine = self._candidate(trial), self.speed.slowdowns
        if rate_per_s > candidate.usual_per_s:
            return 0.0
        if len(machine) < 2 * BLOCK_S / GRAIN_S:
            return 1.0
        slower = self._kept_share(candidate, machine, rate_per_s, by=BY)
        # What is kept on a slower machine is kept on this one, too.
        if slower >= SURELY or 1 - SLOWER * (1 - slower) < SURELY:
            return slower
        return SLOWER * slower + (1 - SLOWER) * self._kept_share(candidate, machine, rate_per_s)

    def _kept_share(self, candidate: _Candidate, machine: Floats, rate_per_s: float, *, by: float = 0.0) -> float:
        """Return the same if slow phases are slower than they seemed, by this share of ln(slowdown)."""
        late = candidate.late.get((rate_per_s, by))
        if late is None:
            late = candidate.late[rate_per_s, by] = self._late(candidate, machine, rate_per_s, by)
        blocks = late.shape[1]
        size = RESAMPLINGS, min(blocks, round(RESAMPLED_S / BLOCK_S))
        picked = np.random.default_rng(0).integers(blocks, size=size)
        sums = late[:, picked].sum(axis=2)  # (1 + limits, resamplings)
        allowed = np.array([limit.allowed for limit in self.surrogate.limits])
        return float(np.mean((sums[1:] <= allowed[:, None] * sums[0]).all(axis=0)))

    def highest_covered(self, trial: Trial) -> float:
        """Return the highest rate, within 1 %, that the trial keeps under the speeds of the whole run.

        If there is none, the slow phases count as unseen: the capacity at the usual speed.
        """
        most = self.usual_per_s(trial)
        rates = list(accumulate(range(_LOWER_STEPS), lambda rate, _: _LOWER_STEP * rate, initial=most))
        # Most often it is between the same two as before; each rate takes a simulation of all that was seen.
        step: int | None = self._steps.get(trial.served, 0)
        if not step or self.covers(trial, rates[step - 1]) or not self.covers(trial, rates[step]):
            step = next((number for number, rate in enumerate(rates) if self.covers(trial, rate)), None)
        if step is None:
            return most
        self._steps[trial.served] = step
        high, low = rates[max(0, step - 1)], rates[step]
        while high / low > 1.01:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.covers(trial, middle) else (low, middle)
        return low

    def outlook(
        self,
        trial: Trial,
        rate_per_s: float,
        *,
        left_s: float,
        confidence: float,
        before: Sequence[RequestLog] = (),
        least_share: float = 0.0,
    ) -> Outlook:
        """Return how a test at this rate is likely to end within `left_s`, by the test itself on simulated runs.

        `before` are the logs of earlier runs at this rate, which count. The share is 0 if it is below the least.
        """
        candidate, machine, error = self._candidate(trial), self.speed.slowdowns, self.error(trial)
        left_s = min(left_s, MAX_SIMULATED / rate_per_s)
        starts = np.random.default_rng(1).integers(max(1, len(machine)), size=DRAWS)

        def seconds_to_pass(draw: int) -> float | None:
            factor = math.exp(error * _NORMAL[draw])
            return self._seconds_to_pass(
                partial(self._simulated, candidate, rate_per_s, factor, np.roll(machine, -starts[draw]), draw),
                left_s=left_s,
                answer=lambda log: combined_answer(
                    certify_together([*before, log], self.surrogate.limits, confidence=confidence)
                ),
            )

        passed: list[float] = []
        # One thread per core: simulator and numpy let others run, and more would draw what is not needed.
        with ThreadPoolExecutor(min(DRAWS, len(os.sched_getaffinity(0)))) as threads:
            draws = [threads.submit(seconds_to_pass, draw) for draw in range(DRAWS)]
            for left, drawn in zip(reversed(range(DRAWS)), draws, strict=True):
                if (seconds := drawn.result()) is not None:
                    passed.append(seconds)
                if (len(passed) + left) / DRAWS < least_share:
                    threads.shutdown(wait=False, cancel_futures=True)
                    return Outlook(share=0.0, seconds=left_s)
        return Outlook(share=len(passed) / DRAWS, seconds=float(np.mean(passed)) if passed else left_s)

    @staticmethod
    def _seconds_to_pass(
        simulated: Callable[[float], RequestLog], *, left_s: float, answer: Callable[[RequestLog], str]
    ) -> float | None:
        log, known_s = None, 0.0
        for look_s in (*(one for one in LOOKS_S if one < left_s), left_s):
            if log is None or look_s > known_s:
                known_s = min(left_s, 2 * look_s)
                log = simulated(known_s)
            found = answer(log.between(0.0, look_s))
            if found != "inconclusive":
                return look_s if found == "met" else None
        return None

    def _simulated(
        self, candidate: _Candidate, rate_per_s: float, factor: float, machine: Floats, draw: int, seconds: float
    ) -> RequestLog:
        arrivals_s = self._arrivals_s(draw + 1, rate_per_s, seconds)
        windows = max(1, math.ceil(seconds / GRAIN_S) + 1)
        slowdowns = factor * np.exp(np.resize(machine if len(machine) else np.zeros(1), windows))
        pace = Pace(starts_s=GRAIN_S * np.arange(windows), slowdowns=slowdowns)
        latency_s = pace.latency_s(candidate.server, arrivals_s)
        scheduled = (arrivals_s * 1e9).astype(np.int64)
        return RequestLog(
            scheduled_ns=scheduled,
            sent_ns=scheduled,
            done_ns=scheduled + (latency_s * 1e9).astype(np.int64),
            outcome=np.zeros(len(scheduled), np.uint8),
        )

    def _late(self, candidate: _Candidate, machine: Floats, rate_per_s: float, by: float) -> NDArray[np.int64]:
        """Return the requests in each block of the speeds, and those late by each limit, (1 + limits, blocks)."""
        seconds, at_least_per_s = GRAIN_S * len(machine), max(rate_per_s, MIN_SIMULATED / MAX_SIMULATED_S)
        times = max(1, math.ceil(MIN_SIMULATED / at_least_per_s / seconds))
        alike, simulated = alike_seconds(machine, most_s=self.max_covered / at_least_per_s)
        grains = np.tile(np.flatnonzero(simulated), times)
        arrivals_s = self._arrivals_s(0, rate_per_s, GRAIN_S * len(grains))
        slower = np.exp(np.where(machine > 0, (1 + by) * machine, machine))[grains]
        pace = Pace(starts_s=GRAIN_S * np.arange(len(grains)), slowdowns=slower)
        latency_s = pace.latency_s(candidate.server, arrivals_s)
        blocks = max(1, round(seconds / BLOCK_S))
        # What is alike counts as one more block, of which each block has its share.
        block = np.arange(len(machine)) * blocks // len(machine)
        of_request = np.where(alike, blocks, block)[grains[(arrivals_s / GRAIN_S).astype(np.int64) % len(grains)]]
        late = [latency_s > one.limit_s for one in self.surrogate.limits]
        counted = np.stack([np.bincount(of_request, weights, blocks + 1) for weights in (None, *late)])
        shares = np.bincount(block[alike], minlength=blocks) / max(1, np.count_nonzero(alike & simulated))
        counts: NDArray[np.int64] = np.rint(counted[:, :blocks] + counted[:, blocks:] * shares).astype(np.int64)
        return counts

    def _candidate(self, trial: Trial) -> _Candidate:
        seen = self.speed.look()
        if self._seen != seen:
            self._seen = seen
            self._candidates.clear()
        if trial.served not in self._candidates:
            self._candidates[trial.served] = self._new_candidate(trial)
        return self._candidates[trial.served]

    def _new_candidate(self, trial: Trial) -> _Candidate:
        """Return the trial at the usual speed; or as its rate alone if slower executions do not explain it."""
        # Slow windows explain no more of its rate than their factor.
        limits, unit = self.surrogate.limits, self._unit(0, REQUESTS)[:REQUESTS]
        measured_per_s = trial.rate_at_limit_per_s or 0.0
        usual = self.speed.usual_slowdown(trial.served)
        if usual is not None and self.speed.is_known(trial.served):
            server = self.surrogate.server(trial.served).slowed(usual)
            rate_per_s = rate_at_limit(server, limits, unit, guess_per_s=measured_per_s or None)
            if measured_per_s and any(run.model and not run.met for run in trial.load_runs):
                # A colocated model was late: that says nothing about the executions of this one.
                return _Candidate(server, min(rate_per_s, BESIDE_OTHERS * measured_per_s))
            most_per_s = trial.rate_high_per_s or measured_per_s or rate_per_s
            most_per_s *= math.exp(self.speed.slowest(trial))
            least_per_s = min(rate_per_s, _LEAST_EXPLAINED * (measured_per_s or rate_per_s))
            for _ in range(_SLOWED):
                if rate_per_s <= 1.01 * most_per_s:
                    break
                server = server.slowed(rate_per_s / most_per_s)
                rate_per_s = rate_at_limit(server, limits, unit, guess_per_s=most_per_s)
            if rate_per_s >= least_per_s > 0:
                return _Candidate(server, rate_per_s)
        return _Candidate(stand_in(measured_per_s, limits, unit[:COARSE_REQUESTS]), measured_per_s)

    def _arrivals_s(self, seed: int, rate_per_s: float, seconds: float) -> Floats:
        unit = self._unit(seed, math.ceil(rate_per_s * seconds))
        return np.asarray(unit[: np.searchsorted(unit, rate_per_s * seconds)] / rate_per_s)

    def _unit(self, seed: int, requests: int) -> Floats:
        size = 1 << max(15, math.ceil(math.log2(max(1, 1.1 * requests + 100))))
        key = seed * 64 + size.bit_length()
        if key not in self._units:
            self._units[key] = self.surrogate.workload.unit(self.surrogate.seed + 7919 * seed, requests=size)
        return self._units[key]


def alike_seconds(machine: Floats, *, most_s: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the grains in which the machine is as usual, and those to simulate, about `most_s` of them.

    Each is of a whole second. All slow ones and those after them are simulated; of the others, some in equal
    distances. If all are simulated, none counts as usual.
    """
    slow = machine > math.log1p(SLOW)
    seconds = np.arange(len(machine)) // GRAINS_A_SECOND
    of_second = np.bincount(seconds, slow) > 0
    usual = np.flatnonzero(~(of_second | np.append(False, of_second[:-1])))
    some = max(MIN_ALIKE, round(most_s) - (len(of_second) - len(usual)))
    if some >= len(usual):
        return np.zeros(len(machine), np.bool_), np.ones(len(machine), np.bool_)
    left_out = np.setdiff1d(usual, usual[np.arange(some) * len(usual) // some])
    return np.isin(seconds, usual), ~np.isin(seconds, left_out)
