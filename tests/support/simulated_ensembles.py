"""A bench that serves ensembles in virtual time, and the spaces of ensembles of sleeping models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simulated_bench import PAUSE_S, SimulatedBench
from simulated_queues import log_of
from tandem_queues import PlainStep, Served, Tandem, completions

from loadgen.measurement.server_stats import BatchTimings
from model_repo.spec import Engine, EnsembleStep, OwnModel, ServingConfig, TensorSpec
from search.simulator.service_times import ClosedLoop
from search.space import MachineLimits, SearchSpace, search_space

Law = Callable[[int], float]
"""Seconds of an execution, by its batch size."""

LIMIT_MS = 50.0
TENSORS = (TensorSpec(name="x", datatype="FP32", shape=(4,)),)


@dataclass(frozen=True)
class Ensemble:
    """Members with the laws of their times, and the members that each follows.

    With more instances than `cores` all executions take longer in proportion.
    """

    laws: dict[str, Law]
    after: dict[str, tuple[str, ...]] = field(default_factory=dict)
    max_batch_size: int = 4
    cores: float = np.inf

    @property
    def steps(self) -> tuple[EnsembleStep, ...]:
        names = list(self.laws)
        return tuple(
            EnsembleStep(model=name, after=tuple(map(names.index, self.after.get(name, ())))) for name in names
        )

    def plain(self, config: ServingConfig, slowed: float = 1.0) -> list[PlainStep]:
        served = {member.engine.model_name: member for member in config.members}
        slowed *= max(1.0, sum(member.instance_count for member in config.members) / self.cores)
        found = []
        for step in self.steps:
            member = served[step.model]
            largest = member.max_batch_size if member.dynamic_batching else 1
            service_s = np.array([1.0, *(slowed * self.laws[step.model](size) for size in range(1, largest + 1))])
            found.append(PlainStep(service_s, member.instance_count, step.after))
        return found

    def delays_s(self, config: ServingConfig) -> list[float]:
        served = {member.engine.model_name: member.max_queue_delay_us / 1e6 for member in config.members}
        return [served[step.model] for step in self.steps]

    def capacity(self, config: ServingConfig, *, requests: int = 100_000, limit_ms: float = LIMIT_MS) -> float:
        return self.served(config).capacity(limit_s=limit_ms / 1e3, requests=requests)

    def served(self, config: ServingConfig) -> Served:
        return Served(self.plain(config), self.delays_s(config))

    def best(self, space: SearchSpace, *, requests: int = 10_000) -> float:
        """Return the capacity of the best of all points: only those above all before are looked at closely."""
        best, config = 0.0, space.baseline()
        for knobs in space.points():
            served = self.served(space.config(knobs))
            if served.keeps(1.003 * best or 1.0, limit_s=LIMIT_MS / 1e3, requests=requests):
                best, config = served.capacity(limit_s=LIMIT_MS / 1e3, requests=requests), space.config(knobs)
        return self.capacity(config)

    def engine(self) -> Engine:
        def own(name: str, **given: Any) -> Engine:
            members = given.pop("members", ())
            return Engine(
                model_name=name,
                backend="repository",
                precision=name,
                model_file="model.py",
                files=(),
                inputs=TENSORS,
                outputs=TENSORS,
                batched=True,
                own=OwnModel(folder=Path(name), text="", max_batch_size=self.max_batch_size, **given),
                members=members,
            )

        members = tuple(own(name, dynamic_batching=True) for name in self.laws)
        return own("whole", steps=self.steps, members=members)

    def space(self, *, largest_batch: int = 4, delays_us: tuple[int, ...] = (0,)) -> SearchSpace:
        engine, limits = self.engine(), MachineLimits(cores=2, memory_bytes=2**34)
        given: dict[str, Any] = {"limit_ms": LIMIT_MS, "largest_batch": largest_batch}
        spaces = (search_space((member,), limits, **given) for member in engine.members)
        delays = {"max_queue_delay_us": delays_us}
        members = tuple(replace(space, values={**space.values, **delays}) for space in spaces)
        return search_space((engine,), limits, members=members, **given)


@dataclass
class EnsembleBench(SimulatedBench):
    """Serves `ensemble`; with `mute` without the tables of its members. Requests take `overhead_s` more."""

    ensemble: Ensemble = field(default_factory=lambda: Ensemble({}))
    mute: bool = False
    overhead_s: float = 0.0003

    def _done(self, config: ServingConfig, arrivals: NDArray[Any], noise: NDArray[Any]) -> NDArray[Any]:
        plain = self.ensemble.plain(config, float(noise[0]))
        return completions(plain, arrivals, self.ensemble.delays_s(config)) + self.overhead_s

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        config, rng = self.loaded[-1], np.random.default_rng(seed)

        def again(done_s: float) -> float | None:
            next_s = done_s + self.overhead_s + rng.uniform(*PAUSE_S)
            return next_s if next_s < duration_s else None

        begins_s = sorted(rng.uniform(*PAUSE_S, concurrency).tolist())
        plain = self.ensemble.plain(config, self.slowness(self.spent.load_s))
        tandem = Tandem(plain, begins_s, again).run()
        sent, done = np.array(tandem.sent), np.array([tandem.done[request] for request in range(len(tandem.sent))])
        self._spend(float(done.max()))
        order = np.argsort(sent, kind="stable")
        log = log_of(sent[order], done[order] + self.overhead_s)
        names = [] if self.mute else [step.model for step in self.ensemble.steps]
        members = {name: _table(batches) for name, batches in zip(names, tandem.executed, strict=False)}
        return ClosedLoop(concurrency=concurrency, log=log, batches=(), members=members)


def _table(executed: list[tuple[int, float]]) -> tuple[BatchTimings, ...]:
    taken: dict[int, list[float]] = {}
    for size, seconds in executed:
        taken.setdefault(size, []).append(seconds)
    each = {size: 1e3 * sum(seconds) / len(seconds) for size, seconds in sorted(taken.items())}
    return tuple(
        BatchTimings(batch_size=size, executions=len(taken[size]), input_ms=0.0, infer_ms=ms, output_ms=0.0)
        for size, ms in each.items()
    )
