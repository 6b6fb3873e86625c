"""What the simulator says of every configuration in the space, put right by what was measured of some."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from model_repo.config_pbtxt import executed_batch_sizes
from search.demand import Demand
from search.predict import REQUESTS, promise_of, rates_at_limit
from search.service_time import ServiceTimes
from search.simulator import ALIKE, SimulatedServer, padded, simulate
from search.space import knobs_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from model_repo.spec import ServingConfig
    from search.predict import Promise
    from search.records import Slo
    from search.service_time import ServiceCurve
    from search.space import Knobs, SearchSpace

SD_UNSEEN = 0.08
SD_SEEN = 0.03
SD_SIBLING = 0.01
"""How far off predictions are: of a kind of which nothing was measured under load, of one that was, and of a
configuration that differs from a measured one in nothing but its queue delay."""

RACE_SHARE = 0.75
"""An engine whose best prediction is below this share of the best of all is not profiled any further."""

GRAPH_RACE_SHARE = 0.9
"""The same for CUDA graphs, on or off, against the other at the same instance counts: what graphs save is saved at
all of them."""

STEEPEST = 2.0
"""By what power of the time that executions take the rate at the limit falls at the most, where it is no cliff."""

REQUESTS_FOR_LATENCY = 10_000

Kind = tuple[str, int, bool]
"""What has service times of its own: an engine, threads per instance, and whether CUDA graphs are on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The rate at the limit that a configuration should have, and the standard error of its logarithm."""

    knobs: Knobs
    rate_per_s: float
    sd: float
    simulated_per_s: float  # before it was put right

    @property
    def at_best(self) -> float:
        """The rate where the prediction is one standard error too low."""
        return self.rate_per_s * math.exp(self.sd)


@dataclass(slots=True, kw_only=True)
class Forecast:
    """Predictions for all points whose kind was profiled with as many instances.

    `learn` takes what was measured under load; from then on predictions of the same kind with as many instances
    are moved by as much as that one was off, and the other kinds' by the mean of all.
    """

    space: SearchSpace
    slo: Slo
    seed: int
    demand: Demand = field(default_factory=Demand)
    threads: int = 1
    curves: dict[Kind, dict[int, ServiceCurve]] = field(default_factory=lambda: defaultdict(dict))
    _raw: dict[tuple[int | str, ...], tuple[Knobs, float]] = field(default_factory=dict)
    _siblings: set[tuple[int | str, ...]] = field(default_factory=set)
    _errors: dict[tuple[Kind, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def promise(self) -> Promise:
        """The limit, in the simulator's terms."""
        return promise_of(self.slo)

    def kind_of(self, knobs: Mapping[str, int | str]) -> Kind:
        """0 threads are as many as there are cores."""
        threads = int(knobs["intra_op_threads"]) or self.space.limits.cores
        return str(knobs["engine"]), threads, bool(knobs.get("cuda_graphs", 0))

    def profiled(self, knobs: Mapping[str, int | str]) -> bool:
        """Whether its service times are known."""
        return int(knobs["instance_count"]) in self.curves.get(self.kind_of(knobs), {})

    def executed_sizes(self, config: ServingConfig) -> tuple[int, ...]:
        """The batch sizes, in requests, to which others are padded; () where none are."""
        rows = self.demand.rows_per_request
        return tuple(size // rows for size in executed_batch_sizes(config) if size >= rows)

    def server(self, config: ServingConfig) -> SimulatedServer:
        """The configuration as the simulator sees it; its kind must have been profiled."""
        kind, instances = self.kind_of(knobs_of(config)), config.instance_count
        known = [curve for busy, curve in sorted(self.curves[kind].items()) if busy <= instances]
        requests = max(config.max_batch_size // self.demand.rows_per_request, 1)
        batch = requests if config.dynamic_batching else 1
        times = [
            ServiceTimes(curves=curves) for curves in zip(*((one, *one.larger) for one in known), strict=True)
        ]
        tables = [padded(one.table(batch, instances), self.executed_sizes(config)) for one in times]
        shapes = self.demand.shapes
        overheads_s = [one.overhead_s for one in times]
        return SimulatedServer(
            service_s=tables[0] if shapes is None else shapes.tables(tables),
            turns=ALIKE if shapes is None else shapes.numbered(),
            overhead_s=overheads_s[0] if shapes is None else shapes.mean(overheads_s),
            noise=times[-1].noise,  # of the largest requests, which take most of the time
            max_queue_delay_s=config.max_queue_delay_us / 1e6,
            preferred_batch_sizes=config.preferred_batch_sizes,
            variable_shapes=any(-1 in spec.shape for spec in config.engine.inputs),
        )

    def simulate(self, points: Sequence[Knobs]) -> None:
        """Predict these, unless it was done before or their kind is not profiled."""
        new = [knobs for knobs in points if _key(knobs) not in self._raw and self.profiled(knobs)]
        if not new:
            return  # drawing the arrivals alone takes time
        servers = [self.server(self.space.config(knobs)) for knobs in new]
        rates = rates_at_limit(
            servers, self.promise, self.demand.unit(self.seed, requests=REQUESTS), threads=self.threads
        )
        for knobs, rate in zip(new, rates, strict=True):
            self._raw[_key(knobs)] = (knobs, rate)

    def learn(
        self, knobs: Mapping[str, int | str], rate_per_s: float, slowdown: float | None = None
    ) -> float | None:
        """Take a measured rate; returns ln(measured / what was first predicted), None where nothing was.

        `slowdown` of executions, where that explains the rate, bounds what is learnt of others.
        """
        raw = self._raw.get(_key(knobs))
        if raw is None or not raw[1] > 0 or not rate_per_s > 0:
            return None
        error = bounded(math.log(rate_per_s / raw[1]), slowdown)
        self._siblings.add(_key({**knobs, "max_queue_delay_us": 0}))
        self._errors[self.kind_of(knobs), int(knobs["instance_count"])].append(error)
        return error

    def slow_down(self, factor: float, *, but: Mapping[str, int | str]) -> None:
        """Predict for a machine whose executions take so many times as long as when they were profiled.

        What was predicted and learnt is forgotten. The curve of the kind `but` was measured since, and stays.
        """
        now = self.kind_of(but), int(but["instance_count"])
        for kind, curves in self.curves.items():
            for busy, curve in curves.items():
                if (kind, busy) != now:
                    curves[busy] = curve.slowed(factor)
        for known in (self._raw, self._siblings, self._errors):
            known.clear()

    def seen_before(self, knobs: Mapping[str, int | str]) -> bool:
        """Whether anything of its kind, with as many instances, was measured under load."""
        return bool(self._errors.get((self.kind_of(knobs), int(knobs["instance_count"]))))

    def predicted(self, knobs: Mapping[str, int | str]) -> Predicted | None:
        """The prediction, corrected; None where there is none."""
        raw = self._raw.get(_key(knobs))
        if raw is None:
            return None
        mine = self._errors.get((self.kind_of(knobs), int(knobs["instance_count"])), [])
        errors = mine or [error for errors in self._errors.values() for error in errors]
        correction = sum(errors) / len(errors) if errors else 0.0
        sibling = _key({**knobs, "max_queue_delay_us": 0}) in self._siblings
        # What was off elsewhere may not be off here: a large correction by others is as large a doubt.
        sd = SD_SIBLING if sibling else SD_SEEN if mine else math.hypot(SD_UNSEEN, correction)
        rate = raw[1] * math.exp(correction)
        return Predicted(knobs=raw[0], rate_per_s=rate, sd=sd, simulated_per_s=raw[1])

    def latency_ms(self, prediction: Predicted, rate_per_s: float) -> float:
        """The latency at the first limit's quantile while so many requests a second come, as simulated.

        The server is taken to be as much slower than profiled as the prediction was corrected downwards.
        """
        slower = self._raw[_key(prediction.knobs)][1] / prediction.rate_per_s
        server = self.server(self.space.config(prediction.knobs)).slowed(slower)
        arrivals_s = self.demand.unit(self.seed, requests=REQUESTS_FOR_LATENCY) / rate_per_s
        latency_s = simulate(server, arrivals_s).latency_s[REQUESTS_FOR_LATENCY // 20 :]
        return 1e3 * float(np.quantile(latency_s, self.slo.quantile))

    def outraced(self, knobs: Mapping[str, int | str]) -> bool:
        """Whether the best that is predicted of this engine, in any way, is far from the best of all, or that of
        this kind from that of the same engine with CUDA graphs, or without; or what the engine can do without a
        server, from what another can."""
        engine, kind = knobs["engine"], self.kind_of(knobs)
        if self._slow_alone(str(engine)):
            return True
        mine = [(other, rate) for other, rate in self._raw.values() if other["engine"] == engine]
        if not mine:
            return False
        if max(rate for _, rate in mine) < RACE_SHARE * max(rate for _, rate in self._raw.values()):
            return True
        counts = set(self.curves.get(kind, {}))
        alike = [(self.kind_of(other), rate) for other, rate in mine if int(other["instance_count"]) in counts]
        own = max((rate for other, rate in alike if other == kind), default=0.0)
        siblings = [rate for other, rate in alike if other[:2] == kind[:2] and other != kind]
        return own > 0 and bool(siblings) and own < GRAPH_RACE_SHARE * max(siblings)

    def _slow_alone(self, engine: str) -> bool:
        """Whether its bare throughput is far below another's. A server only takes from both."""
        rates = alone_per_s(self.space, limit_ms=self.slo.limit_ms)
        return engine in rates and rates[engine] < RACE_SHARE * max(rates.values())

    def best_first(self) -> list[Predicted]:
        """All predictions of rates above 0, the one that may be highest first."""
        found = [self.predicted(knobs) for knobs, rate in self._raw.values() if rate > 0]
        return sorted((one for one in found if one is not None), key=lambda one: -one.at_best)


def bounded(error: float, slowdown: float | None) -> float:
    """An error of a rate (logarithm) as far as executions that took so many times as long make others err, too.

    A configuration whose full batch takes about the limit itself keeps four times the rate where executions are a
    tenth faster; another one keeps a seventh more.
    """
    if slowdown is None:
        return error
    most = STEEPEST * abs(math.log(slowdown))
    return math.copysign(min(abs(error), most), error)


def alone_per_s(space: SearchSpace, *, limit_ms: float) -> dict[str, float]:
    """Rows a second that engines do without a server, at their best batch within the limit, as far as measured; 0
    where no batch is within it.
    """
    return {
        str(label): max((1e3 * batch / ms for batch, ms in engine.alone_ms if ms <= limit_ms), default=0.0)
        for label, engine in zip(space.axes()["engine"], space.engines, strict=True)
        if engine.alone_ms
    }


def kinds_to_profile(space: SearchSpace, *, limit_ms: float = math.inf) -> list[Knobs]:
    """The points at which to measure service times: every kind and instance count, with the largest batch.

    The engines take turns, so that each is known a little before any is known well, those first that are fastest
    without a server; of one engine, first the points that keep all cores busy without crowding them, and those
    with CUDA graphs. The one that is fastest without a server has two turns for one of the others, and all its
    instance counts with graphs come before those without: what a server makes of it is what they have to beat.
    """
    largest = space.max_batch_sizes[-1]
    cores = space.limits.cores

    def crowding(knobs: Knobs) -> tuple[float, int, int]:
        threads, instances = int(knobs["intra_op_threads"]) or cores, int(knobs["instance_count"])
        return abs(math.log(instances * threads / cores)), instances, -int(knobs.get("cuda_graphs", 0))

    points = [
        knobs
        for knobs in space.points()
        if knobs["max_batch_size"] == largest and int(knobs["max_queue_delay_us"]) == 0
    ]
    alone = alone_per_s(space, limit_ms=limit_ms)
    queues = [
        [one for one in sorted(points, key=crowding) if one["engine"] == engine]
        for engine in sorted(space.axes()["engine"], key=lambda engine: -alone.get(str(engine), 0.0))
    ]
    if alone and len(queues) > 1:
        fastest = sorted(queues[0], key=lambda knobs: -int(knobs.get("cuda_graphs", 0)))
        queues[:1] = [fastest[::2], fastest[1::2]]
    return [knobs for turn in zip_longest(*queues) for knobs in turn if knobs is not None]


def _key(knobs: Mapping[str, int | str]) -> tuple[int | str, ...]:
    return tuple(knobs[name] for name in sorted(knobs))
