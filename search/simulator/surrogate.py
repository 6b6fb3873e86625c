"""Predict the capacity of every configuration in the space by simulation, corrected by measurements of some."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

import numpy as np

from loadgen.spec.limits import LatencyLimit
from model_repo.repository.config_pbtxt import executed_batch_sizes
from model_repo.spec import Engine, ServingConfig
from search.choices import LARGEST_BATCH
from search.knobs import KNOBS
from search.records.slo import Slo
from search.simulator.capacity import rates_at_limit
from search.simulator.server import ALIKE, Simulated, SimulatedServer, padded, simulate
from search.simulator.service_times import ServiceCurve, ServiceTimes
from search.space import MAX_SLOTS, Key, Knobs, SearchSpace, engine_label, key_of, knobs_of, without_delays
from search.workload import REQUESTS, Workload

SD_UNSEEN = 0.08
SD_SEEN = 0.03
SD_SIBLING = 0.01
"""Standard errors of ln(predicted rate): of a kind that was not measured under load, of one that was, and of a
configuration that differs from a measured one only in its queue delay."""

RACE_SHARE = 0.75
"""An engine whose best prediction is below 75 % of the best of all is not profiled any further."""

GRAPH_RACE_SHARE = 0.9
"""A kind is not profiled any further if its best prediction is below 90 % of that with another CUDA-graph
setting at the same instance counts: graphs save the same time at all of them."""

FALLING = 0.95
"""An instance count is not profiled if the predicted capacity falls towards it by more than 5 % from one profiled
count to the next. Smaller differences may come from the steps between batch sizes alone."""

OF_OTHERS = 0.5
"""Measured rates below their predictions lower those of other kinds by half of the mean error; rates above them
change nothing. In sixteen runs on real servers the rms error of the first prediction after the baseline was 0.17
then, compared with 0.20 without any correction and 0.72 with the whole error, and on simulated ones 0.01 compared
with 0.15: a baseline of small batches near its saturation has an error of its own."""

STEEPEST = 2.0
"""The capacity falls at most with the square of the execution time, unless a full batch takes about the limit."""

REQUESTS_FOR_LATENCY = 10_000

Kind = tuple[str | int, ...]
"""The key of service times: the engine, and the values of the knobs that are in the key, threads first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The predicted capacity of a configuration, and the standard error of its logarithm."""

    knobs: Knobs
    rate_per_s: float
    sd: float
    simulated_per_s: float  # before the correction by measurements

    @property
    def at_best(self) -> float:
        """The rate if the prediction is one standard error too low."""
        return self.rate_per_s * math.exp(self.sd)


@dataclass(slots=True, kw_only=True)
class Surrogate:
    """Predictions for all points whose kind was profiled with as many instances.

    `update` takes a rate that was measured under load. Predictions of the same kind and instance count are then
    corrected by the mean error of such measurements, all others by half the mean of all errors, downwards only.
    """

    space: SearchSpace
    slo: Slo
    seed: int
    workload: Workload = field(default_factory=Workload)
    threads: int = 1
    curves: dict[Kind, dict[int, ServiceCurve]] = field(default_factory=lambda: defaultdict(dict))
    profiles: Counter[tuple[Kind, int]] = field(default_factory=Counter)
    """How often each kind was profiled with so many instances."""

    _raw: dict[Key, tuple[Knobs, float]] = field(default_factory=dict)
    _siblings: set[Key] = field(default_factory=set)
    _errors: dict[tuple[Kind, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def limits(self) -> tuple[LatencyLimit, ...]:
        """The latency limits of the SLO."""
        return self.slo.limits

    def kind_of(self, knobs: Mapping[str, int | str]) -> Kind:
        """Return the kind of a point; 0 threads count as one per core."""
        known = {**knobs, "intra_op_threads": knobs["intra_op_threads"] or self.space.limits.cores}
        own = (int(known.get(name, 0)) for name, knob in KNOBS.items() if knob.in_profile_key)
        return str(knobs["engine"]), *own

    def profiled(self, knobs: Mapping[str, int | str]) -> bool:
        """True if the service times of the point are known."""
        return int(knobs["instance_count"]) in self.curves.get(self.kind_of(knobs), {})

    def executed_sizes(self, config: ServingConfig) -> tuple[int, ...]:
        """Return the batch sizes, in requests, to which others are padded; () if none are."""
        return self.in_requests(executed_batch_sizes(config))

    def in_requests(self, rows: Iterable[int]) -> tuple[int, ...]:
        """Return batch sizes in requests, ascending, from those in rows; none of less than one request."""
        each = self.workload.rows_per_request
        return tuple(sorted({size // each for size in rows if size >= each}))

    def server(self, config: ServingConfig) -> Simulated:
        """Return the simulated server of a configuration; its kind must have been profiled."""
        kind, instances = self.kind_of(knobs_of(config)), config.instance_count
        known = [curve for busy, curve in sorted(self.curves[kind].items()) if busy <= instances]
        requests = max(config.max_batch_size // self.workload.rows_per_request, 1)
        batch = requests if config.dynamic_batching else 1
        times = [
            ServiceTimes(curves=curves) for curves in zip(*((one, *one.larger) for one in known), strict=True)
        ]
        tables = [padded(one.table(batch, instances), self.executed_sizes(config)) for one in times]
        shapes = self.workload.shapes
        overheads_s = [one.overhead_s for one in times]
        measured = shapes is None and known[-1].busy == instances
        return SimulatedServer(
            service_s=tables[0] if shapes is None else shapes.tables(tables),
            turns=ALIKE if shapes is None else shapes.numbered(),
            overhead_s=overheads_s[0] if shapes is None else shapes.mean(overheads_s),
            let_through_per_s=known[-1].let_through_per_s if measured else math.inf,
            noise=times[-1].noise,  # of the largest requests, which take most of the time
            max_queue_delay_s=config.max_queue_delay_us / 1e6,
            preferred_batch_sizes=self.in_requests(config.preferred_batch_sizes),
            variable_shapes=any(-1 in spec.shape for spec in config.engine.inputs),
        )

    def learn(self, knobs: Knobs, curve: ServiceCurve) -> None:
        """Take the service times of a kind; of two profiles the shorter times count.

        A second profile makes all predictions and their corrections void.
        """
        curves = self.curves[self.kind_of(knobs)]
        self.profiles[self.kind_of(knobs), curve.busy] += 1
        known = curves.get(curve.busy)
        curves[curve.busy] = curve if known is None else known.fastest(curve)
        if known is not None:
            self._raw.clear()
            self.forget_rates()

    def forget_rates(self) -> None:
        """Forget the measured rates, and what was corrected by them."""
        self._errors.clear()
        self._siblings.clear()

    def simulate(self, points: Sequence[Knobs]) -> None:
        """Predict these points, except those that are predicted already or whose kind is not profiled."""
        new = [knobs for knobs in points if key_of(knobs) not in self._raw and self.profiled(knobs)]
        if not new:
            return  # drawing the arrivals alone takes time
        servers = [self.server(self.space.config(knobs)) for knobs in new]
        rates = rates_at_limit(
            servers, self.limits, self.workload.unit(self.seed, requests=REQUESTS), threads=self.threads
        )
        for knobs, rate in zip(new, rates, strict=True):
            self._raw[key_of(knobs)] = (knobs, rate)

    def update(
        self, knobs: Mapping[str, int | str], rate_per_s: float, slowdown: float | None = None
    ) -> float | None:
        """Take a measured rate; return the bounded ln(measured / simulated), None if it was not predicted.

        `slowdown` of executions, if that explains the rate, bounds the correction of others.
        """
        raw = self._raw.get(key_of(knobs))
        if raw is None or not raw[1] > 0 or not rate_per_s > 0:
            return None
        error = bounded(math.log(rate_per_s / raw[1]), slowdown)
        self._siblings.add(key_of(without_delays(knobs)))
        self._errors[self.kind_of(knobs), int(knobs["instance_count"])].append(error)
        return error

    def predicted(self, knobs: Mapping[str, int | str]) -> Predicted | None:
        """Return the corrected prediction of a point; None if there is none."""
        raw = self._raw.get(key_of(knobs))
        if raw is None:
            return None
        correction, sd = self.correction(knobs)
        return Predicted(knobs=raw[0], rate_per_s=raw[1] * math.exp(correction), sd=sd, simulated_per_s=raw[1])

    def correction(self, knobs: Mapping[str, int | str]) -> tuple[float, float]:
        """Return ln of the factor by which measurements correct a simulated rate, and its standard error."""
        mine = self._errors.get((self.kind_of(knobs), int(knobs["instance_count"])), [])
        errors = mine or [error for errors in self._errors.values() for error in errors]
        correction = sum(errors) / len(errors) if errors else 0.0
        if not mine:
            correction = OF_OTHERS * min(0.0, correction)
        sibling = key_of(without_delays(knobs)) in self._siblings
        # Errors of other kinds may not occur here: a correction by them adds as much uncertainty.
        sd = SD_SIBLING if sibling else SD_SEEN if mine else math.hypot(SD_UNSEEN, correction)
        return correction, sd

    def latency_ms(self, prediction: Predicted, rate_per_s: float) -> float:
        """Return the simulated latency at the first limit's quantile at this request rate.

        The server is assumed to be slower than profiled by the factor of the prediction's correction downwards.
        """
        slower = self._raw[key_of(prediction.knobs)][1] / prediction.rate_per_s
        server = self.server(self.space.config(prediction.knobs)).slowed(slower)
        arrivals_s = self.workload.unit(self.seed, requests=REQUESTS_FOR_LATENCY) / rate_per_s
        latency_s = simulate(server, arrivals_s)[REQUESTS_FOR_LATENCY // 20 :]
        return 1e3 * float(np.quantile(latency_s, self.slo.first.quantile))

    def is_dominated(self, knobs: Mapping[str, int | str]) -> bool:
        """True if this kind is not worth profiling with this instance count.

        Its engine's standalone throughput or best prediction is below 75 % of the best engine's; or its best
        prediction is below 90 % of that of the same engine with the other CUDA-graph setting; or its predictions
        fall towards this instance count. Predictions are compared at the same instance counts.
        """
        engine, kind = knobs["engine"], self.kind_of(knobs)
        rates = alone_per_s(self.space, limit_ms=self.slo.first.limit_ms)
        if engine in rates and rates[str(engine)] < RACE_SHARE * max(rates.values()):
            return True  # a server only takes from both
        mine = [(other, rate) for other, rate in self._raw.values() if other["engine"] == engine]
        if not mine:
            return False
        known = {other["instance_count"] for other, _ in mine}
        rivals = [rate for other, rate in self._raw.values() if other["instance_count"] in known]
        if max(rate for _, rate in mine) < RACE_SHARE * max(rivals) or self._falls_towards(knobs):
            return True
        counts = set(self.curves.get(kind, {}))
        alike = [(self.kind_of(other), rate) for other, rate in mine if int(other["instance_count"]) in counts]
        own = max((rate for other, rate in alike if other == kind), default=0.0)
        siblings = [rate for other, rate in alike if other[:2] == kind[:2] and other != kind]
        return own > 0 and bool(siblings) and own < GRAPH_RACE_SHARE * max(siblings)

    def _falls_towards(self, knobs: Mapping[str, int | str]) -> bool:
        """True if of two profiled instance counts on the same side of this one the nearer is predicted slower.

        With more instances the capacity rises until they share all there is, and then falls.
        """
        kind, count = self.kind_of(knobs), int(knobs["instance_count"])
        best: dict[int, float] = {}
        for other, rate in self._raw.values():
            if self.kind_of(other) == kind:
                busy = int(other["instance_count"])
                best[busy] = max(rate, best.get(busy, 0.0))
        below = [best[busy] for busy in sorted(best) if busy < count]
        above = [best[busy] for busy in sorted(best, reverse=True) if busy > count]
        return any(len(side) > 1 and side[-1] < FALLING * max(side) for side in (below, above))

    def all_predicted(self) -> list[Predicted]:
        """Return all predictions."""
        found = [self.predicted(knobs) for knobs, _ in self._raw.values()]
        return [one for one in found if one is not None]

    def best_first(self) -> list[Predicted]:
        """Return all predictions above 0, the highest optimistic rate first."""
        return sorted((one for one in self.all_predicted() if one.rate_per_s > 0), key=lambda one: -one.at_best)


def bounded(error: float, slowdown: float | None) -> float:
    """Return an error of ln(rate), bounded by the effect that this slowdown can have on other configurations.

    A configuration whose full batch takes about the limit itself has four times the capacity if executions are a
    tenth faster; another one has a seventh more.
    """
    if slowdown is None:
        return error
    most = STEEPEST * abs(math.log(slowdown))
    return math.copysign(min(abs(error), most), error)


FAR_BELOW = 0.4
"""A rate below 40 % of what its engine does without a server is said to be far below it."""


def engine_alone_per_s(engine: Engine, *, limit_ms: float, largest: int = LARGEST_BATCH) -> float:
    """Return the standalone batch items per second at the best batch within the limit; 0 if none is within it.

    Of batches up to `largest`; between two measured sizes the time is a straight line.
    """
    within = [1e3 * batch / ms for batch, ms in engine.alone_ms if batch <= largest and ms <= limit_ms]
    for (small, fast_ms), (large, slow_ms) in pairwise(engine.alone_ms):
        each_ms = (slow_ms - fast_ms) / (large - small)
        batch = min(float(largest), small + (limit_ms - fast_ms) / each_ms if each_ms > 0 else math.inf)
        if small < batch < large:
            within.append(1e3 * batch / (fast_ms + each_ms * (batch - small)))
    return max(within, default=0.0)


def alone_per_s(space: SearchSpace, *, limit_ms: float) -> dict[str, float]:
    """Return the standalone batch items per second of the measured engines, at their best batch within the limit.

    0 if no batch is within it.
    """
    return {
        str(label): engine_alone_per_s(engine, limit_ms=limit_ms)
        for label, engine in zip(space.axes()["engine"], space.engines, strict=True)
        if engine.alone_ms
    }


def kinds_to_profile(space: SearchSpace, *, limit_ms: float = math.inf) -> list[Knobs]:
    """Return the points to profile, in order: every kind and instance count, with the largest batch.

    The engines take turns, the fastest standalone first, so that each is known a little before any is known well.
    Points of one engine that keep all cores busy without crowding them come first, and those with CUDA graphs. On
    a GPU a single instance comes first and then the most, and slots of one process the other way round: a short
    time budget must not lead to few instances only because more were not profiled, and slots hinder each other
    little.
    The engine that is fastest standalone has two turns for one of the others, and all its instance counts with
    graphs come before those without: the others have to beat its capacity on a server.
    """
    largest, delay_us = space.values["max_batch_size"][-1], space.values["max_queue_delay_us"][0]
    cores = space.limits.cores

    # Nobody knows how many threads a user's own model has: from the fewest instances to the most as on a GPU.
    on_gpu = {engine_label(engine) for engine in space.engines if engine.device == "gpu" or engine.own}
    in_slots = {engine_label(engine) for engine in space.engines if engine.served_by("slots") == "slots"}

    def crowding(knobs: Knobs) -> tuple[float, int, int]:
        threads, instances = int(knobs["intra_op_threads"]) or cores, int(knobs["instance_count"])
        crowded = abs(math.log(instances * threads / cores))
        if knobs["engine"] in on_gpu and instances > 1:
            crowded = 1 / instances
        elif knobs["engine"] in in_slots:
            crowded = 1 / (MAX_SLOTS - 0.5)
        return crowded, instances, -int(knobs.get("cuda_graphs", 0))

    points = [
        without_delays(knobs)
        for knobs in space.points()
        if knobs["max_batch_size"] == largest and knobs["max_queue_delay_us"] == delay_us
    ]
    alone = alone_per_s(space, limit_ms=limit_ms)
    baseline, *others = space.axes()["engine"]
    engines = (*others, baseline)  # one kind of the baseline's engine is profiled before all others in any case
    queues = [
        [one for one in sorted(points, key=crowding) if one["engine"] == engine]
        for engine in sorted(engines, key=lambda engine: -alone.get(str(engine), 0.0))
    ]
    if alone and len(queues) > 1:
        fastest = sorted(queues[0], key=lambda knobs: -int(knobs.get("cuda_graphs", 0)))
        queues[:1] = [fastest[::2], fastest[1::2]]
    return [knobs for turn in zip_longest(*queues) for knobs in turn if knobs is not None]
