"""The search space: the serving configurations that are worth trying on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from model_repo.spec import SLOT_BACKENDS, Engine, ServingConfig
from search.choices import LARGEST_BATCH
from search.knobs import KNOBS, MEMBER_KNOBS, Conditions

Knobs = dict[str, int | str]
"""A point of the space by the names that Optuna and the trial records use."""

Key = tuple[int | str, ...]
"""A point as a key: see `key_of`."""

MAX_SLOTS = 4
"""Instances that compute in turns: two keep a GPU busy, and four have their requests gathered in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """The cores and the memory that the server may use; the space depends on them."""

    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """All legal combinations of the knobs for the given engines; `values` has those of each knob in order.

    `members` are the spaces of the engines' members, in their order. `start` is the configuration that the user
    starts from. Those in `only_compared` are measured, but the user does not want them as the answer.
    """

    engines: tuple[Engine, ...]
    values: Mapping[str, tuple[int, ...]]
    limits: MachineLimits
    rows_per_request: int = 1
    members: tuple[SearchSpace, ...] = ()
    start: ServingConfig | None = None
    only_compared: tuple[ServingConfig, ...] = ()

    def axes(self) -> dict[str, tuple[int | str, ...]]:
        """Return the name and the values, in increasing order, of each knob that an engine has."""
        axes: dict[str, tuple[int | str, ...]] = {"engine": tuple(map(engine_label, self.engines))}
        axes |= {name: self.values[name] for name, knob in KNOBS.items() if any(map(knob.applies, self.engines))}
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
        return {name: knobs.get(f"{member.name}.{name}", values[0]) for name, values in member.axes().items()}

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
        if threads == 0 and len(self.values["intra_op_threads"]) > 1 and instances != 2:
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
        return max((count for count in self.values["instance_count"] if count <= most), default=0)

    def baseline(self, engine: Engine | None = None) -> ServingConfig:
        """Return the baseline of this search: `default_config` of an engine, by default of the first.

        Requests that carry more rows than its largest batch would be refused, so it grows to one of them.
        """
        config = default_config(engine or self.engines[0])
        config = replace(config, members=tuple(member.baseline() for member in self.members))
        return _with_room(config, self.rows_per_request)

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
        for instances, other in product(self.values["instance_count"], self.values["intra_op_threads"]):
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
        config = ServingConfig(
            engine=engine,
            max_batch_size=max_batch_size,
            dynamic_batching=batching,
            preferred_batch_sizes=tuple(size for size in preferred if size <= max_batch_size),
            members=members,
        )
        for name, knob in KNOBS.items():
            if name in knobs and knob.applies(engine) and knob.read(config) != knobs[name]:
                config = knob.render(config, int(knobs[name]))
        return config


def engine_label(engine: Engine) -> str:
    """Return the engine's name in the space, such as `onnxruntime-fp32`."""
    return f"{engine.backend}-{engine.precision}"


def knobs_of(config: ServingConfig) -> Knobs:
    """Return the point of the space at which a configuration is."""
    knobs: Knobs = {"engine": engine_label(config.engine)}
    knobs |= {name: knob.read(config) for name, knob in KNOBS.items() if knob.applies(config.engine)}
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


def _with_room(config: ServingConfig, rows: int) -> ServingConfig:
    """Return the configuration with batches of one request at least, if it has batches."""
    return replace(config, max_batch_size=max(config.max_batch_size, rows)) if config.engine.batched else config


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
    """Return the space for these engines on this machine, with the values that each knob has for them.

    Requests have `rows_per_request` each, batches up to `largest_batch` rows. With `as_it_is` nothing is varied,
    like of an ensemble, which has nothing to vary but its `members`.
    """
    given = tuple(_with_room(default_config(engine), rows_per_request) for engine in engines)
    of = Conditions(
        given=given,
        owned=tuple(engine.own for engine in engines if engine.own is not None),
        batched=all(engine.batched for engine in engines),
        on_gpu=any(engine.device == "gpu" for engine in engines),
        cores=limits.cores,
        memory_bytes=limits.memory_bytes,
        limit_ms=limit_ms,
        rows_per_request=rows_per_request,
        largest_batch=largest_batch,
    )
    fixed = as_it_is or engines[0].is_ensemble
    return SearchSpace(
        engines=engines,
        values={name: (knob.read(given[0]),) if fixed else knob.values(of) for name, knob in KNOBS.items()},
        limits=limits,
        rows_per_request=rows_per_request,
        members=members,
    )
