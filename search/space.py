"""The search space: the serving configurations that are worth trying on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from model_repo.repository.config_pbtxt import graph_batch_sizes
from model_repo.spec import SLOT_BACKENDS, Engine, ServingConfig
from search.choices import LARGEST_BATCH

Knobs = dict[str, int | str]
"""A point of the space by the names that Optuna and the trial records use."""

DELAY_SHARES = (0.0, 0.02, 0.05, 0.1)
"""Queue delays as shares of the latency limit. Under load a delay buys little (waiting batches grow while all
instances are busy), so few values are enough."""

MEMORY_SHARE = 0.5

MAX_SLOTS = 4
"""Instances that compute in turns: two keep a GPU busy, and four have their requests gathered in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """The cores and the memory that the server may use; the space depends on them."""

    cores: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """All legal combinations of the knobs for the given engines; `axes` lists each knob's values in order."""

    engines: tuple[Engine, ...]
    max_batch_sizes: tuple[int, ...]
    instance_counts: tuple[int, ...]
    intra_op_threads: tuple[int, ...]
    max_queue_delays_us: tuple[int, ...]
    limits: MachineLimits
    rows_per_request: int = 1

    def axes(self) -> dict[str, tuple[int | str, ...]]:
        """Return each knob's name and its values, in increasing order."""
        axes: dict[str, tuple[int | str, ...]] = {
            "engine": tuple(engine_label(engine) for engine in self.engines),
            "max_batch_size": self.max_batch_sizes,
            "instance_count": self.instance_counts,
            "intra_op_threads": self.intra_op_threads,
            "max_queue_delay_us": self.max_queue_delays_us,
        }
        return {**axes, "cuda_graphs": (0, 1)} if self.has_cuda_graphs else axes

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
        if instances > self.most_instances(str(knobs["engine"])):
            return False
        return int(knobs["max_batch_size"]) > self.rows_per_request or int(knobs["max_queue_delay_us"]) == 0

    def most_instances(self, engine: str) -> int:
        """Return the largest instance count of the engine with this label."""
        slots = engine.partition("-")[0] in SLOT_BACKENDS
        return min(MAX_SLOTS, self.instance_counts[-1]) if slots else self.instance_counts[-1]

    def baseline(self, engine: Engine | None = None) -> ServingConfig:
        """Return the baseline of this search: `default_config` of an engine, by default of the first.

        Requests that carry more rows than its largest batch would be refused, so it grows to one of them.
        """
        config = default_config(engine or self.engines[0])
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
        return sum(1 for _ in self.points())

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
                above = [number for number in numbers if number > value]
                below = [number for number in numbers if number < value]
                around = [*above[:1], *below[-1:]]
            for other in around:
                yield {**knobs, name: other}

    def _trades(self, knobs: Mapping[str, int | str]) -> Iterator[Knobs]:
        threads = max(int(knobs["intra_op_threads"]), 1)
        for instances, other in product(self.instance_counts, self.intra_op_threads):
            if instances * other == int(knobs["instance_count"]) * threads:
                yield {**knobs, "instance_count": instances, "intra_op_threads": other}

    def config(self, knobs: Mapping[str, int | str]) -> ServingConfig:
        """Return the serving configuration at a point, legal or not."""
        engine = next(engine for engine in self.engines if engine_label(engine) == knobs["engine"])
        max_batch_size = int(knobs["max_batch_size"]) if engine.batched else 0
        batching = max_batch_size > self.rows_per_request
        graphs = int(knobs.get("cuda_graphs", 0)) and engine.device == "gpu"
        return ServingConfig(
            engine=engine,
            max_batch_size=max_batch_size,
            instance_count=int(knobs["instance_count"]),
            dynamic_batching=batching,
            max_queue_delay_us=int(knobs["max_queue_delay_us"]) if batching else 0,
            intra_op_threads=int(knobs["intra_op_threads"]),
            cuda_graph_batch_sizes=graph_batch_sizes(max_batch_size) if graphs else (),
        )


def engine_label(engine: Engine) -> str:
    """Return the engine's name in the space, such as `onnxruntime-fp32`."""
    return f"{engine.backend}-{engine.precision}"


def takes_graphs(engine: Engine) -> bool:
    """True if CUDA graphs are a knob of this engine: it runs on a GPU in batches."""
    return engine.device == "gpu" and engine.batched


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
    return knobs


def default_config(engine: Engine) -> ServingConfig:
    """Return Triton's own configuration for the model and an empty `config.pbtxt`: the baseline of every search.

    From Triton's model-configuration auto-complete and its ONNX Runtime backend: maximum batch size 4 with
    dynamic batching and no delay, one instance on a GPU and two on a CPU, as many threads as there are cores.
    """
    max_batch_size = 4 if engine.batched else 0
    return ServingConfig(
        engine=engine,
        max_batch_size=max_batch_size,
        dynamic_batching=max_batch_size > 1,
        instance_count=1 if engine.device == "gpu" else 2,
    )


def search_space(
    engines: tuple[Engine, ...], limits: MachineLimits, *, limit_ms: float, rows_per_request: int = 1
) -> SearchSpace:
    """Return the space for these engines on this machine: powers of two up to its cores and memory.

    Batches are of whole requests: 1, 2, 4, ... of them, of `rows_per_request` each. Queue delays are shares of
    the latency limit.
    """
    batched = all(engine.batched for engine in engines)
    on_gpu = any(engine.device == "gpu" for engine in engines)
    model_bytes = max(sum(path.stat().st_size for _, path in engine.files) for engine in engines)
    # Each instance of the Python backend is a process with its own copy of the weights; twice for its arena.
    affordable = max(1, int(limits.memory_bytes * MEMORY_SHARE // max(2 * model_bytes, 1)))
    instances = _powers_of_two(min(max(limits.cores, 1), affordable, 8 if on_gpu else 64))
    baselines = {default_config(engine).instance_count for engine in engines}  # tried on any machine
    instances = tuple(sorted({*instances, *baselines}))
    threads = (0,) if on_gpu else (0, *_powers_of_two(max(limits.cores, 1)))
    sizes = tuple(
        rows_per_request * 2**exponent for exponent in range((LARGEST_BATCH // rows_per_request).bit_length())
    )
    delays_us = tuple(sorted({round(share * limit_ms * 1000) for share in DELAY_SHARES}))
    return SearchSpace(
        engines=engines,
        max_batch_sizes=sizes if batched else (1,),
        instance_counts=instances,
        intra_op_threads=threads,
        max_queue_delays_us=delays_us if batched else (0,),
        limits=limits,
        rows_per_request=rows_per_request,
    )


def _powers_of_two(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `largest`, and `largest` itself: (1, 2, 4, 6) for 6."""
    powers = {2**exponent for exponent in range(largest.bit_length()) if 2**exponent <= largest}
    return tuple(sorted(powers | {largest}))
