"""The search space: the serving configurations that are worth trying on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from model_repo.repository.config_pbtxt import graph_batch_sizes
from model_repo.spec import SLOT_BACKENDS, Engine, ServingConfig
from search.choices import LARGEST_BATCH

Knobs = dict[str, int | str]
"""A point of the space by the names that Optuna and the trial records use."""

Key = tuple[int | str, ...]
"""A point as a key: see `key_of`."""

DELAY_SHARES = (0.0, 0.02, 0.05, 0.1)
"""Queue delays as shares of the latency limit. Under load a delay buys little (waiting batches grow while all
instances are busy), so few values are enough."""

MEMORY_SHARE = 0.5

MORE_INSTANCES = 4
"""A model of the user's own is tried with up to four times its configured instances, also if cores are fewer."""
MEMBER_KNOBS = ("max_batch_size", "instance_count", "max_queue_delay_us")
"""What is varied of a model that another one calls, as `MODEL.max_batch_size`."""

MAX_SLOTS = 4
"""Instances that compute in turns: two keep a GPU busy, and four have their requests gathered in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """The cores and the memory that the server may use; the space depends on them."""

    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """All legal combinations of the knobs for the given engines; `axes` lists each knob's values in order.

    `members` are the spaces of the engines' members, in their order. `start` is the configuration that the user
    starts from. Those in `only_compared` are measured, but the user does not want them as the answer.
    """

    engines: tuple[Engine, ...]
    max_batch_sizes: tuple[int, ...]
    instance_counts: tuple[int, ...]
    intra_op_threads: tuple[int, ...]
    max_queue_delays_us: tuple[int, ...]
    limits: MachineLimits
    rows_per_request: int = 1
    members: tuple[SearchSpace, ...] = ()
    cuda_graphs: tuple[int, ...] = (0, 1)
    start: ServingConfig | None = None
    only_compared: tuple[ServingConfig, ...] = ()

    def axes(self) -> dict[str, tuple[int | str, ...]]:
        """Return each knob's name and its values, in increasing order."""
        axes: dict[str, tuple[int | str, ...]] = {
            "engine": tuple(engine_label(engine) for engine in self.engines),
            "max_batch_size": self.max_batch_sizes,
            "instance_count": self.instance_counts,
            "intra_op_threads": self.intra_op_threads,
            "max_queue_delay_us": self.max_queue_delays_us,
        }
        if self.has_cuda_graphs:
            axes["cuda_graphs"] = self.cuda_graphs
        for member in self.members:
            theirs = member.axes()
            axes |= {f"{member.name}.{knob}": theirs[knob] for knob in MEMBER_KNOBS}
        return axes

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.engines[0].model_name

    def of_member(self, knobs: Mapping[str, int | str], member: SearchSpace) -> Knobs:
        """Return the point of a member's space at a point of this one."""
        (engine,), threads = member.axes()["engine"], member.intra_op_threads[0]
        own = {knob: knobs[f"{member.name}.{knob}"] for knob in MEMBER_KNOBS}
        return {"engine": engine, "intra_op_threads": threads, **own}

    def spread(self, sizes: float, counts: float | None) -> Knobs:
        """Return the point without delays at these shares, 0 to 1, of all axes of batch sizes and instance counts.

        Those of the members, too. None: as many instances as the baseline has.
        """
        knobs = knobs_of(self.baseline())
        for name, values in self.axes().items():
            if name.endswith("max_batch_size"):
                knobs[name] = values[round(sizes * (len(values) - 1))]
            elif name.endswith("instance_count") and counts is not None:
                knobs[name] = values[round(counts * (len(values) - 1))]
            elif name.endswith("max_queue_delay_us") or knobs[name] not in values:
                knobs[name] = values[0]
        return knobs

    @property
    def has_cuda_graphs(self) -> bool:
        """True if CUDA graphs are a knob, on (1) or off (0)."""
        return any(takes_graphs(engine) for engine in self.engines)

    def has(self, knobs: Mapping[str, Any]) -> bool:
        """True if this is a legal point: it has a value of the axis for each knob, and nothing else."""
        axes = self.axes()
        on_axes = knobs.keys() == axes.keys() and all(value in axes[name] for name, value in knobs.items())
        return on_axes and self.is_legal(knobs)

    def is_legal(self, knobs: Mapping[str, int | str]) -> bool:
        """True if the combination makes sense: enough cores, slots and rows."""
        instances, threads = int(knobs["instance_count"]), int(knobs["intra_op_threads"])
        if threads > 1 and instances * threads > self.limits.cores:
            return False
        # 0 gives every instance all cores: two may overlap well, one is on the axis already, more only compete.
        if threads == 0 and len(self.intra_op_threads) > 1 and instances != 2:
            return False
        if instances > self.most_instances(str(knobs["engine"])) or not all(
            member.allows(self.of_member(knobs, member)) for member in self.members
        ):
            return False
        return int(knobs["max_batch_size"]) > self.rows_per_request or int(knobs["max_queue_delay_us"]) == 0

    def allows(self, knobs: Mapping[str, int | str]) -> bool:
        """True if the point is legal, or that of the baseline."""
        return knobs_of(self.baseline()) == knobs or self.is_legal(knobs)

    def most_instances(self, engine: str) -> int:
        """Return the largest instance count of the engine with this label."""
        most = MAX_SLOTS if engine.partition("-")[0] in SLOT_BACKENDS else math.inf
        return max((count for count in self.instance_counts if count <= most), default=0)

    def baseline(self, engine: Engine | None = None) -> ServingConfig:
        """Return the baseline of this search: `default_config` of an engine, by default of the first.

        Requests that carry more rows than its largest batch would be refused, so it grows to one of them.
        """
        config = default_config(engine or self.engines[0])
        config = replace(config, members=tuple(member.baseline() for member in self.members))
        if not config.engine.batched or config.max_batch_size >= self.rows_per_request:
            return config
        return replace(config, max_batch_size=self.rows_per_request)

    def points(self) -> Iterator[Knobs]:
        """Yield every legal combination."""
        axes = self.axes()
        for values in product(*axes.values()):
            knobs = dict(zip(axes, values, strict=True))
            if self.is_legal(knobs):
                yield knobs

    def size(self) -> int:
        """Return the number of legal combinations."""
        own = replace(self, members=())
        return sum(1 for _ in own.points()) * math.prod(member.size() for member in self.members)

    def adjacent(self, knobs: Mapping[str, int | str]) -> Iterator[Knobs]:
        """Yield the legal points one step away along one axis, and those that trade instances for threads.

        A value that is not on its axis (the baseline's, for example) lies between the next lower and higher ones.
        """
        seen: set[tuple[int | str, ...]] = set()
        for candidate in (*self._steps(knobs), *self._trades(knobs)):
            key = tuple(candidate.values())
            if key not in seen and candidate != dict(knobs) and self.is_legal(candidate):
                seen.add(key)
                yield candidate

    def _steps(self, knobs: Mapping[str, int | str]) -> Iterator[Knobs]:
        for name, values in self.axes().items():
            value = knobs[name]
            if isinstance(value, str):
                around: list[int | str] = [other for other in values if other != value]
            else:
                numbers = [int(other) for other in values]
                above, below = ([one for one in numbers if one > value], [one for one in numbers if one < value])
                around = [*above[:1], *below[-1:]]
            for other in around:
                yield {**knobs, name: other}

    def _trades(self, knobs: Mapping[str, int | str]) -> Iterator[Knobs]:
        threads = max(int(knobs["intra_op_threads"]), 1)
        for instances, other in product(self.instance_counts, self.intra_op_threads):
            if instances * other == int(knobs["instance_count"]) * threads:
                yield {**knobs, "instance_count": instances, "intra_op_threads": other}

    def config(self, knobs: Mapping[str, int | str]) -> ServingConfig:
        """Return the serving configuration at a point, legal or not; of a user's own model's, that as it is."""
        engine = next(engine for engine in self.engines if engine_label(engine) == knobs["engine"])
        members = tuple(member.config(self.of_member(knobs, member)) for member in self.members)
        given = self.start if engine.own is None else replace(self.baseline(engine), members=members)
        if given is not None and knobs_of(given) == knobs:
            return given
        max_batch_size = int(knobs["max_batch_size"]) if engine.batched else 0
        batching = max_batch_size > self.rows_per_request
        preferred = engine.own.preferred_batch_sizes if engine.own is not None and batching else ()
        graphs = int(knobs.get("cuda_graphs", 0)) and engine.device == "gpu"
        return ServingConfig(
            engine=engine,
            max_batch_size=max_batch_size,
            instance_count=int(knobs["instance_count"]),
            dynamic_batching=batching,
            max_queue_delay_us=int(knobs["max_queue_delay_us"]) if batching else 0,
            preferred_batch_sizes=tuple(size for size in preferred if size <= max_batch_size),
            intra_op_threads=int(knobs["intra_op_threads"]),
            cuda_graph_batch_sizes=graph_batch_sizes(max_batch_size) if graphs else (),
            members=members,
        )


def engine_label(engine: Engine) -> str:
    """Return the engine's name in the space, such as `onnxruntime-fp32`."""
    return f"{engine.backend}-{engine.precision}"


def takes_graphs(engine: Engine) -> bool:
    """True if CUDA graphs are a knob of this engine: it is ours, and runs on a GPU in batches."""
    return engine.device == "gpu" and engine.batched and engine.own is None


def knobs_of(config: ServingConfig) -> Knobs:
    """Return the point of the space at which a configuration is."""
    knobs: Knobs = {
        "engine": engine_label(config.engine),
        "max_batch_size": max(config.max_batch_size, 1),
        "instance_count": config.instance_count,
        "intra_op_threads": config.intra_op_threads,
        "max_queue_delay_us": config.max_queue_delay_us,
    }
    if takes_graphs(config.engine):
        knobs["cuda_graphs"] = int(bool(config.cuda_graph_batch_sizes))
    for member in config.members:
        theirs = knobs_of(member)
        knobs |= {f"{member.engine.model_name}.{knob}": theirs[knob] for knob in MEMBER_KNOBS}
    return knobs


def key_of(knobs: Mapping[str, int | str]) -> Key:
    """Return a key of a point that does not depend on the order of its knobs."""
    return tuple(knobs[name] for name in sorted(knobs))


def at_least(knobs: Mapping[str, int | str], other: Mapping[str, int | str], *names: str) -> bool:
    """True if these knobs, of the model and of its members, have no lower values than at another point."""
    return all(int(knobs[name]) >= int(other[name]) for name in other if name.rpartition(".")[2] in names)


def without_delays(knobs: Mapping[str, int | str]) -> Knobs:
    """Return the same point without the queue delays of the model and of its members."""
    return {name: 0 if name.endswith("max_queue_delay_us") else value for name, value in knobs.items()}


def default_config(engine: Engine) -> ServingConfig:
    """Return Triton's own configuration for the model and an empty `config.pbtxt`: the baseline of every search.

    A model of the user's own repository is as its configuration says. Without dynamic batching the largest batch
    is that of one request, whatever `max_batch_size` there is.

    From Triton's model-configuration auto-complete and its ONNX Runtime backend: maximum batch size 4 with
    dynamic batching and no delay, one instance on a GPU and two on a CPU, as many threads as there are cores.
    """
    own = engine.own
    if own is not None:
        return ServingConfig(
            engine=engine,
            max_batch_size=own.max_batch_size if own.dynamic_batching else int(engine.batched),
            instance_count=sum(own.counts),
            dynamic_batching=own.dynamic_batching,
            max_queue_delay_us=own.max_queue_delay_us if own.dynamic_batching else 0,
            preferred_batch_sizes=own.preferred_batch_sizes if own.dynamic_batching else (),
            members=tuple(map(default_config, engine.members)),
        )
    max_batch_size = 4 if engine.batched else 0
    return ServingConfig(
        engine=engine,
        max_batch_size=max_batch_size,
        dynamic_batching=max_batch_size > 1,
        instance_count=1 if engine.device == "gpu" else 2,
    )


def search_space(
    engines: tuple[Engine, ...],
    limits: MachineLimits,
    *,
    limit_ms: float,
    rows_per_request: int = 1,
    largest_batch: int = LARGEST_BATCH,
    members: tuple[SearchSpace, ...] = (),
    as_it_is: bool = False,
) -> SearchSpace:
    """Return the space for these engines on this machine: powers of two up to its cores and memory.

    Batches are of whole requests: 1, 2, 4, ... of them, of `rows_per_request` each, up to `largest_batch` rows.
    Queue delays are shares of the latency limit. A model of the user's own keeps its number of threads, and its
    own values are tried; with `as_it_is` nothing else, also of an ensemble, which has nothing to vary but its
    `members`.
    """
    batched = all(engine.batched for engine in engines)
    on_gpu = any(engine.device == "gpu" for engine in engines)
    model_bytes = max(engine.size_bytes for engine in engines)
    given = [default_config(engine) for engine in engines]
    owned = [engine.own for engine in engines if engine.own is not None]
    # Each instance of the Python backend is a process with its own copy of the weights; twice for its arena.
    affordable = max(1, int(limits.memory_bytes * MEMORY_SHARE // max(2 * model_bytes, 1)))
    # A user's own model may wait instead of computing, so its number of instances is no sign of the cores' number.
    useful = max([limits.cores, 1, *(MORE_INSTANCES * sum(own.counts) for own in owned)])
    instances = _powers_of_two(min(useful, affordable, 8 if on_gpu else 64))
    baselines = {config.instance_count for config in given}  # tried on any machine
    least = max((len(own.counts) for own in owned), default=1)
    instances = tuple(sorted({*(count for count in instances if count >= least), *baselines}))
    threads = (0,) if on_gpu or owned else (0, *_powers_of_two(max(limits.cores, 1)))
    largest = max(largest_batch // rows_per_request, 1)
    sizes = tuple(rows_per_request * 2**exponent for exponent in range(largest.bit_length()))
    delays_us = tuple(sorted({round(share * limit_ms * 1000) for share in DELAY_SHARES}))
    if owned:
        sizes = tuple(rows_per_request * count for count in _powers_of_two(largest))
        # A larger one than asked for is that of the baseline alone, and on no axis.
        theirs = {max(one.max_batch_size, rows_per_request) for one in given}
        sizes = tuple(sorted({*sizes, *(size for size in theirs if size <= max(largest_batch, rows_per_request))}))
        delays_us = tuple(sorted({*delays_us, *(config.max_queue_delay_us for config in given)}))
    if as_it_is or engines[0].is_ensemble:
        sizes, delays_us = (max(given[0].max_batch_size, rows_per_request),), (given[0].max_queue_delay_us,)
        instances = (given[0].instance_count,)
    return SearchSpace(
        engines=engines,
        max_batch_sizes=sizes if batched else (1,),
        instance_counts=instances,
        intra_op_threads=threads,
        max_queue_delays_us=delays_us if batched else (0,),
        limits=limits,
        rows_per_request=rows_per_request,
        members=members,
    )


def _powers_of_two(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `largest`, and `largest` itself: (1, 2, 4, 6) for 6."""
    powers = {2**exponent for exponent in range(largest.bit_length()) if 2**exponent <= largest}
    return tuple(sorted(powers | {largest}))
