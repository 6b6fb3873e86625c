"""The knobs of a serving configuration that the search varies: one table, over which everything else iterates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from model_repo.repository.config_pbtxt import graph_batch_sizes
from model_repo.spec import Engine, OwnModel, ServingConfig

DELAY_SHARES = (0.0, 0.02, 0.05, 0.1)
"""Queue delays as shares of the latency limit. Under load a delay buys little (waiting batches grow while all
instances are busy), so few values are enough."""

MEMORY_SHARE = 0.5

MORE_INSTANCES = 4
"""A model of the user's own is tried with up to four times its configured instances, also if cores are fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the values of a knob depend on: engines (each by its `given` configuration), machine and requests.

    `owned` are the models of the user's own.
    """

    given: tuple[ServingConfig, ...]
    owned: tuple[OwnModel, ...]
    batched: bool
    on_gpu: bool
    cores: int
    memory_bytes: int
    limit_ms: float
    rows_per_request: int
    largest_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A setting of a serving configuration with whole numbers as its values.

    `values` returns those to try, in increasing order. `render` sets one in a configuration that has its batches,
    and `read` returns that of a configuration. Service times are profiled for each value if it is
    `in_profile_key`. Reports show `label` and `text`, which is None if there is no effect; `said` is the part of a
    configuration's name. `option` takes the values, each as `written`. Only engines that it `applies` to have it.
    """

    name: str
    label: str
    values: Callable[[Conditions], tuple[int, ...]]
    render: Callable[[ServingConfig, int], ServingConfig]
    read: Callable[[Any], int]
    in_profile_key: bool
    text: Callable[[Any], str | None]
    said: Callable[[Any], str]
    option: str = ""
    written: Callable[[int], str] = str
    applies: Callable[[Engine], bool] = lambda _: True

    def listed(self, values: Iterable[int]) -> str:
        """Return values as the option takes them."""
        return ",".join(map(self.written, values))


def takes_graphs(engine: Engine) -> bool:
    """True if CUDA graphs are a knob of this engine: it is ours, and runs on a GPU in batches."""
    return engine.device == "gpu" and engine.batched and engine.own is None


def _batch_sizes(of: Conditions) -> tuple[int, ...]:
    """Return batches of 1, 2, 4, ... whole requests, and those of a model of the user's own."""
    rows, largest = of.rows_per_request, max(of.largest_batch // of.rows_per_request, 1)
    if not of.batched:
        return (1,)
    if not of.owned:
        return tuple(rows * 2**exponent for exponent in range(largest.bit_length()))
    # A larger one than asked for is that of the baseline alone, and on no axis.
    theirs = {one.max_batch_size for one in of.given if one.max_batch_size <= max(of.largest_batch, rows)}
    return tuple(sorted({*(rows * count for count in _powers_of_two(largest)), *theirs}))


def _instance_counts(of: Conditions) -> tuple[int, ...]:
    """Return powers of two up to the cores and to what the memory holds, and the counts of the baselines."""
    model_bytes = max(config.engine.size_bytes for config in of.given)
    # Each instance of the Python backend is a process with its own copy of the weights; twice for its arena.
    affordable = max(1, int(of.memory_bytes * MEMORY_SHARE // max(2 * model_bytes, 1)))
    # A user's own model may wait instead of computing, so its number of instances is no sign of the cores' number.
    useful = max([of.cores, 1, *(MORE_INSTANCES * sum(own.counts) for own in of.owned)])
    least = max((len(own.counts) for own in of.owned), default=1)
    counts = _powers_of_two(min(useful, affordable, 8 if of.on_gpu else 64))
    baselines = {config.instance_count for config in of.given}  # tried on any machine
    return tuple(sorted({*(count for count in counts if count >= least), *baselines}))


def _threads(of: Conditions) -> tuple[int, ...]:
    """Return 0, for one thread per core, and on a CPU powers of two, but for a model of the user's own."""
    return (0,) if of.on_gpu or of.owned else (0, *_powers_of_two(max(of.cores, 1)))


def _delays_us(of: Conditions) -> tuple[int, ...]:
    """Return shares of the latency limit, and the delays of a model of the user's own."""
    if not of.batched:
        return (0,)
    theirs = {config.max_queue_delay_us for config in of.given if of.owned}
    return tuple(sorted({*(round(share * of.limit_ms * 1000) for share in DELAY_SHARES), *theirs}))


def _powers_of_two(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `largest`, and `largest` itself: (1, 2, 4, 6) for 6."""
    powers = {2**exponent for exponent in range(largest.bit_length()) if 2**exponent <= largest}
    return tuple(sorted(powers | {largest}))


def _several(count: int, one: str, none: str = "") -> str:
    return f"{count} {one}{'s' if count > 1 else ''}" if count else none


KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(
            name="max_batch_size",
            label="maximum batch size",
            values=_batch_sizes,
            render=lambda config, _: config,  # whether there are batches depends on it, so it is set before
            read=lambda config: max(config.max_batch_size, 1),
            in_profile_key=False,
            text=lambda config: str(config.max_batch_size) if config.dynamic_batching else "no batching",
            said=lambda config: f"batch {config.max_batch_size}" if config.max_batch_size > 1 else "no batching",
            option="--max-batch-size",
        ),
        Knob(
            name="instance_count",
            label="instances",
            values=_instance_counts,
            render=lambda config, count: replace(config, instance_count=count),
            read=attrgetter("instance_count"),
            in_profile_key=False,  # curves are kept by it
            text=lambda config: str(config.instance_count),
            said=lambda config: _several(config.instance_count, "instance"),
            option="--instances",
        ),
        Knob(
            name="intra_op_threads",
            label="threads each",
            values=_threads,
            render=lambda config, count: replace(config, intra_op_threads=count),
            read=attrgetter("intra_op_threads"),
            in_profile_key=True,
            text=lambda config: str(config.intra_op_threads or "all cores"),
            said=lambda config: _several(config.intra_op_threads, "thread", none="all cores"),
            option="--threads",
        ),
        Knob(
            name="max_queue_delay_us",
            label="queue delay",
            values=_delays_us,
            render=lambda config, delay_us: replace(
                config, max_queue_delay_us=delay_us if config.dynamic_batching else 0
            ),
            read=attrgetter("max_queue_delay_us"),
            in_profile_key=False,
            text=lambda config: f"{config.max_queue_delay_us / 1000:g} ms" if config.dynamic_batching else None,
            said=lambda config: (
                f"delay {config.max_queue_delay_us / 1000:g} ms" if config.max_queue_delay_us else ""
            ),
            option="--queue-delay",
            written=lambda delay_us: f"{delay_us / 1000:g}ms" if delay_us else "0",
        ),
        Knob(
            name="cuda_graphs",
            label="CUDA graphs",
            values=lambda _: (0, 1),
            render=lambda config, on: replace(
                config, cuda_graph_batch_sizes=graph_batch_sizes(config.max_batch_size) if on else ()
            ),
            read=lambda config: int(bool(config.cuda_graph_batch_sizes)),
            in_profile_key=True,
            text=lambda config: "on" if config.cuda_graph_batch_sizes else None,
            said=lambda config: "CUDA graphs" if config.cuda_graph_batch_sizes else "",
            applies=takes_graphs,
        ),
    )
}
"""The knobs by their names. `engine` is one more: its values are the labels of the engines."""

MEMBER_KNOBS = ("max_batch_size", "instance_count", "max_queue_delay_us")
"""What is varied of a model that another one calls, as `MODEL.max_batch_size`."""
