"""How fast the machine is and for how long, as all load of a run shows it.

Every second of load says something about the machine: the replay of a run gives the factor on execution times in
each 5 ms. A run that meets a slow phase says much about the machine and little about its candidate, so the usual
factor of a kind is that of its windows which are not slow, and what is beyond that is the machine's.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from model_repo.spec import ServingConfig
from search.arrays import Floats
from search.records.run_files import SPEEDS_FILE, SpeedsRecord, append_line
from search.simulator.replay import GRAIN_S, PAUSED, SLOW, slowdowns_by_grain, usual_slowdown, without_noise
from search.simulator.surrogate import Kind, Surrogate
from search.space import knobs_of
from search.trials.bench import ObservedBench, ObservedRun
from search.trials.trial import Trial

UNLUCKY = 0.02
"""A kind that was always slower than profiled only met slow phases, unless that is less likely."""

PHASE_S = 0.45
"""A slow phase lasts for half a second; a pause is shorter."""

GRAINS_A_SECOND = round(1 / GRAIN_S)

BLOCK_S = 5.0
"""What is seen in 5 s hardly depends on what was seen before."""


@dataclass(slots=True, kw_only=True)
class MachineSpeed:
    """The speed of the machine, as the runs on `bench` show it."""

    surrogate: Surrogate
    bench: ObservedBench

    _replayed: list[tuple[Hashable, Floats | None]] = field(default_factory=list)  # by which server, ln of factors
    _looked: tuple[int, int] = 0, 0  # how many runs and profiles
    _usual: dict[tuple[Kind, int], float] = field(default_factory=dict)
    _slowdowns: Floats = field(default_factory=lambda: np.zeros(0))

    def look(self) -> tuple[int, int]:
        """Take in the runs since the last look; return how many runs and profiles have been taken in."""
        now = len(self.bench.runs), self.surrogate.profiles.total()
        if self._looked == now:
            return now
        self._looked = now
        before, self._replayed = self._replayed, []
        for number, run in enumerate(self.bench.runs):
            server = self.surrogate.server(run.config) if self.is_known(run.config) else None
            key = None if server is None else server.without_delay()
            if number < len(before) and before[number][0] == key:
                self._replayed.append(before[number])
                continue
            found = None
            if server is not None and not run.waited_outside(server.overhead_s):
                found = np.log(slowdowns_by_grain(server, run.sent_s, run.taken_s))
            self._replayed.append((key, found))
        by_kind: dict[tuple[Kind, int], list[Floats]] = {}
        for run, factors in self._known():
            by_kind.setdefault(self.profile_of(run.config), []).append(factors)
        known = {kind: np.concatenate(each) for kind, each in by_kind.items()}
        self._usual = {kind: usual_slowdown(factors) for kind, factors in known.items()}
        for kind, factors in known.items():
            if self._usual[kind] > math.log1p(SLOW):
                others = [seen - self._usual[other] for other, seen in known.items() if other != kind]
                slow = float(np.mean(np.concatenate(others) > math.log1p(SLOW))) if others else 0.0
                if slow ** max(1.0, GRAIN_S * len(factors) / BLOCK_S) > UNLUCKY:
                    self._usual[kind] = 0.0
        each = [factors - self._usual[self.profile_of(run.config)] for run, factors in self._known()]
        self._slowdowns = without_noise(np.concatenate(each)) if each else np.zeros(0)
        return now

    def _known(self) -> Iterator[tuple[ObservedRun, Floats]]:
        """Yield the runs that could be replayed, with ln of their factors on execution times."""
        for run, (_, factors) in zip(self.bench.runs, self._replayed, strict=True):
            if factors is not None:
                yield run, factors

    @property
    def slowdowns(self) -> Floats:
        """ln of the machine's slowdown in each 5 ms of all runs, in order; 0: as usual. Shape (grains,)."""
        self.look()
        return self._slowdowns

    @property
    def seen_s(self) -> float:
        """The seconds for which the machine's speed is known."""
        return GRAIN_S * len(self.slowdowns)

    def keep(self, directory: Path) -> None:
        """Append the speed in each second of each run to the file of a run's directory. Raises OSError."""
        self.look()
        ends = np.cumsum([len(factors) for _, factors in self._known()])
        for (run, _), slowdowns in zip(self._known(), np.split(self._slowdowns, ends), strict=False):
            if run.began_unix_s is not None:
                seconds = np.split(np.exp(-slowdowns), range(GRAINS_A_SECOND, len(slowdowns), GRAINS_A_SECOND))
                speeds = tuple(round(float(one.mean()), 3) for one in seconds)
                record = SpeedsRecord(began_unix_s=run.began_unix_s, speeds=speeds)
                append_line(directory / SPEEDS_FILE, record.model_dump_json())

    def slow_phases(self) -> int:
        """Return how many slow phases were seen."""
        slow = np.concatenate([[False], self.slowdowns > math.log1p(SLOW), [False]])
        begins, ends = np.flatnonzero(slow[1:] & ~slow[:-1]), np.flatnonzero(~slow[1:] & slow[:-1])
        return int(np.count_nonzero(GRAIN_S * (ends - begins) > PHASE_S))

    def slow_share(self) -> tuple[float, float]:
        """Return the share of the time that the machine is slow, and ln of the factor on executions in it."""
        slowdowns = self.slowdowns
        slow = slowdowns > math.log1p(SLOW)
        return (float(slow.mean()), float(slowdowns[slow].mean())) if slow.any() else (0.0, 0.0)

    def usual_slowdown(self, config: ServingConfig) -> float | None:
        """Return the factor on profiled execution times at the machine's usual speed; None if it is not known."""
        self.look()
        usual = self._usual.get(self.profile_of(config))
        return None if usual is None else math.exp(usual)

    def slowest(self, trial: Trial) -> float:
        """Return ln of the largest slowdown in the runs of a trial, but for pauses, beyond its usual speed."""
        self.look()
        usual = self._usual.get(self.profile_of(trial.served), 0.0)
        own = [
            float(factors[factors < math.log(0.99 * PAUSED)].max(initial=usual)) - usual
            for run, factors in self._known()
            if run.config == trial.served
        ][: trial.probes]
        return max([0.0, *own])

    def is_known(self, config: ServingConfig) -> bool:
        """True if the configuration can be simulated."""
        return self.surrogate.workload.predictable and self.surrogate.profiled(knobs_of(config))

    def profile_of(self, config: ServingConfig) -> tuple[Kind, int]:
        """Return what is profiled as one: the kind and the instance count."""
        return self.surrogate.kind_of(knobs_of(config)), config.instance_count
