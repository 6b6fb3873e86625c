"""Predict the capacity of ensembles: what is profiled is their members, all at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from model_repo.spec import EnsembleStep, ServingConfig
from search.records.slo import Slo
from search.simulator.capacity import keeps
from search.simulator.pooling import execution_s, never_falling, pooled
from search.simulator.server import NO_NOISE, SimulatedEnsemble, SimulatedServer, SimulatedStep, longest_way_s
from search.simulator.service_times import (
    ClosedLoop,
    NotMeasured,
    ServiceCurve,
    ServiceTimes,
    answered_per_s,
    lone_latency_s,
)
from search.simulator.surrogate import Kind, Surrogate
from search.space import Key, Knobs, SearchSpace, key_of, knobs_of
from search.workload import REQUESTS, Workload


def member_curves(
    loops: Sequence[ClosedLoop],
    counts: Mapping[str, int],
    way_s: Callable[[Mapping[str, float]], float],
) -> dict[str, ServiceCurve]:
    """Return the curve of each member of an ensemble, by its name, from runs of which the first is of one user.

    `counts` are their instances. Those of all together are the key: nobody knows how many are busy, and the times
    are those of the crowd. `way_s` returns the seconds along the longest way from those of each member. All have
    the overhead of the whole. Raises NotMeasured.
    """
    for name in counts:
        seen = loops[0].members.get(name, ())
        # Several load processes warm the server up at once, which makes a few batches.
        if sum(row.executions for row in seen if row.batch_size > 1) > 0.5 * sum(row.executions for row in seen):
            raise NotMeasured(f"a request brings {name} several rows")
    lone_s = {name: max(map(execution_s, loops[0].members.get(name, ())), default=0.0) for name in counts}
    overhead_s = max(0.0, lone_latency_s(loops[0]) - way_s(lone_s))
    curves, let_through_per_s = {}, max(answered_per_s(loop.log) for loop in loops[1:]) or math.inf
    for name in counts:
        rows = pooled([row for loop in loops[1:] for row in loop.members.get(name, ())], ())
        if not rows or not lone_s[name] > 0:
            raise NotMeasured(f"the server has no table of the batch sizes that {name} executes")
        sizes, executions, seconds = (np.array(column) for column in zip(*rows, strict=True))
        knots, means = never_falling(sizes, executions, seconds)
        curves[name] = ServiceCurve(
            busy=sum(counts.values()),
            sizes=knots,
            seconds=means,
            handover_s=None,
            overhead_s=overhead_s,
            noise=NO_NOISE,
            let_through_per_s=let_through_per_s,
        )
    return curves


@dataclass(slots=True, kw_only=True)
class EnsembleSurrogate(Surrogate):
    """Predictions for all points of an ensemble, once its members were profiled at any instance counts.

    The curves of each member are kept by its name and by the instances of all members together, who share the
    cores: between the sums that were profiled its times are interpolated. A kind, whose measurements correct it,
    is the points with the same counts of all members.
    """

    _too_high: dict[Key, float] = field(default_factory=dict)
    """Simulated rates that points are known not to keep."""

    @property
    def steps(self) -> tuple[EnsembleStep, ...]:
        """The steps of the ensemble."""
        return self.space.engines[0].steps

    @property
    def predictable(self) -> bool:
        """True if it can be simulated: a model per step, none of which calls others, and requests look alike."""
        models, members = [step.model for step in self.steps], self.space.engines[0].members
        simple = {member.model_name for member in members if not member.members}
        return self.workload.shapes is None and len(set(models)) == len(models) and set(models) == simple

    def kind_of(self, knobs: Mapping[str, int | str]) -> Kind:
        """Return the kind of a point: the instance counts of all members."""
        counts = (str(knobs[f"{member.name}.instance_count"]) for member in self.space.members)
        return (f"{knobs['engine']} {' '.join(counts)}",)

    def profiled(self, knobs: Mapping[str, int | str]) -> bool:  # noqa: ARG002 - times are of members
        """True if the service times of all members are known."""
        return self.predictable and all(self.curves.get(kind_of_member(step.model)) for step in self.steps)

    def profiled_at(self, knobs: Mapping[str, int | str]) -> bool:
        """True if they were measured with as many instances of all members together."""
        together = _instances(self.space.config(knobs))
        return all(together in self.curves.get(kind_of_member(step.model), {}) for step in self.steps)

    def learn_members(self, config: ServingConfig, loops: Sequence[ClosedLoop]) -> None:
        """Take the closed loops on a configuration, the first of one user. Raises NotMeasured."""

        def way_s(lone_s: Mapping[str, float]) -> float:
            return longest_way_s((lone_s[step.model], step.after) for step in self.steps)

        counts = {member.engine.model_name: member.instance_count for member in config.members}
        found = member_curves(loops, {step.model: counts[step.model] for step in self.steps}, way_s)
        self.profiles[self.kind_of(knobs_of(config)), config.instance_count] += 1
        for name, curve in found.items():
            self.curves[kind_of_member(name)][curve.busy] = curve

    def server(self, config: ServingConfig) -> SimulatedEnsemble:
        """Return the simulated ensemble of a configuration; its members must have been profiled."""
        members = {member.engine.model_name: member for member in config.members}
        together = _instances(config)
        steps = tuple(
            SimulatedStep(server=self._member(members[one.model], together), after=one.after) for one in self.steps
        )
        every = [curve for curves in self.curves.values() for curve in curves.values()]
        return SimulatedEnsemble(
            steps=steps,
            overhead_s=min(curve.overhead_s for curve in every),
            let_through_per_s=self._shared_per_s(),
        )

    def _shared_per_s(self) -> float:
        """Return the most that closed loops got through, if the most instances carried hardly more than fewer.

        Then something is shared, such as the cores, with each other, the front end and clients. Else infinite.
        """
        of_one = self.curves[kind_of_member(self.steps[0].model)]
        per_s = {together: curve.let_through_per_s for together, curve in of_one.items()}
        most = sum(member.values["instance_count"][-1] for member in self.space.members)
        fewer = max((together for together in per_s if together < most), default=0)
        if most not in per_s or (fewer and per_s[most] > per_s[fewer] * math.sqrt(most / fewer)):
            return math.inf
        return max(per_s.values())

    def _member(self, config: ServingConfig, together: int) -> SimulatedServer:
        curves = self.curves[kind_of_member(config.engine.model_name)]
        times = ServiceTimes(curves=tuple(curve for _, curve in sorted(curves.items())))
        requests = max(config.max_batch_size // self.workload.rows_per_request, 1)
        service_s = times.table(requests if config.dynamic_batching else 1, together)[:, together]
        return SimulatedServer(
            service_s=np.repeat(service_s[:, None], config.instance_count + 1, axis=1),
            max_queue_delay_s=config.max_queue_delay_us / 1e6,
            preferred_batch_sizes=self.in_requests(config.preferred_batch_sizes),
            variable_shapes=any(-1 in spec.shape for spec in config.engine.inputs),
            name=config.engine.model_name,
        )

    def above(self, points: Iterable[Knobs], at_best_per_s: float) -> list[Knobs]:
        """Return those of the points whose predictions are above this optimistic rate, most by one simulation."""
        untold = [
            knobs for knobs in points if not self._known_below(knobs, self._needed_per_s(knobs, at_best_per_s))
        ]
        unit = self.workload.unit(self.seed, requests=REQUESTS)

        def keeps_it(knobs: Knobs) -> bool:
            needed_per_s = self._needed_per_s(knobs, at_best_per_s)
            if key_of(knobs) in self._raw:
                return True
            kept = keeps(self.server(self.space.config(knobs)), self.limits, unit, needed_per_s)
            if not kept:
                self._too_high[key_of(knobs)] = needed_per_s
            return kept

        with ThreadPoolExecutor(self.threads) as pool:
            found = list(pool.map(keeps_it, untold))
        return [knobs for knobs, kept in zip(untold, found, strict=True) if kept]

    def _needed_per_s(self, knobs: Knobs, at_best_per_s: float) -> float:
        """Return the simulated rate of a point whose optimistic prediction is this."""
        correction, sd = self.correction(knobs)
        return at_best_per_s * math.exp(-correction - sd)

    def _known_below(self, knobs: Knobs, rate_per_s: float) -> bool:
        key = key_of(knobs)
        if key in self._raw:
            return self._raw[key][1] <= rate_per_s
        return self._too_high.get(key, math.inf) <= rate_per_s


def _instances(config: ServingConfig) -> int:
    return sum(member.instance_count for member in config.members)


def kind_of_member(name: str) -> Kind:
    """Return the key of a member's service times."""
    return (name,)


def new_surrogate(space: SearchSpace, *, slo: Slo, seed: int, workload: Workload, threads: int = 1) -> Surrogate:
    """Return a surrogate without service times, for a single model or for an ensemble."""
    made: Callable[..., Surrogate] = EnsembleSurrogate if space.engines[0].is_ensemble else Surrogate
    return made(space=space, slo=slo, seed=seed, workload=workload, threads=threads)
