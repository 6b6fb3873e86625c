"""What exhaustive search is tried on: three models that sleep, or a real one on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from sleeping_model import Law, sleeping_engine

from loadgen.plan import Payload
from loadgen.runner import LoadGenerator
from model_repo.options import ServerOptions
from model_repo.server import serve
from optimizer.config import OptimizeConfig
from optimizer.demand import demand_of
from optimizer.onnx_model import Model
from optimizer.pipeline import request_timeout_s, serving_bench
from optimizer.prepare import prepare
from optimizer.samples import synthetic_samples
from search.records import Slo
from search.space import MachineLimits, SearchSpace
from search.triton_bench import TritonBench

DELAY_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2)  # of the limit
INSTANCES = (1, 2, 3, 4, 6)
BATCHES = (1, 2, 4, 8, 16, 32, 64)

SLEEPS = {
    "cnn": (Law(4e-3, 1.6e-3, full_at=4, crowding=0.88), 60.0),
    "transformer": (Law(3e-3, 2.7e-3, full_at=2, crowding=0.93), 90.0),
    "tight": (Law(4e-3, 1.75e-3, full_at=5, crowding=0.85), 40.0),
}
"""The law and the limit in ms, shaped like the kinds of tests/support/drawn_servers.py on a GPU, and so slow that
rates stay below 1,000/s: two cores have to carry client and server besides."""

_PACE_S = 0.5

Pace = Callable[[], float]
Serving = Callable[[Path], AbstractContextManager[TritonBench]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, its limit and its space. `serving` starts a server whose files go to a folder, which must exist.

    `pace_s` is what one execution takes this machine now; 1.0 at any time for a sleep. `steady`: it is a sleep.
    """

    name: str
    slo: Slo
    space: SearchSpace
    serving: Serving
    pace_s: Pace
    steady: bool


def sleeping_subject(name: str, folder: Path) -> Subject:
    """One of `SLEEPS`, with its files in `folder`."""
    law, limit_ms = SLEEPS[name]
    slo = Slo(limit_ms=limit_ms)
    space = SearchSpace(
        engines=(sleeping_engine(folder / "model", law),),
        max_batch_sizes=BATCHES,
        instance_counts=INSTANCES,
        intra_op_threads=(0,),
        max_queue_delays_us=delays_us(limit_ms),
        limits=MachineLimits(cores=8, memory_bytes=2**36),
    )

    @contextmanager
    def serving(run_dir: Path) -> Iterator[TritonBench]:
        with serve(ServerOptions(run_dir=run_dir)) as server, LoadGenerator() as generator:
            yield TritonBench(
                server, generator, payload=Payload(), limit_ms=limit_ms, timeout_s=request_timeout_s(slo)
            )

    return Subject(name=name, slo=slo, space=space, serving=serving, pace_s=steady_pace_s, steady=True)


def model_subject(config: OptimizeConfig, grid: Mapping[str, tuple[int, ...]]) -> Subject:
    """A real model as `optimize` serves it, in its own space with more instance counts and delays, or in `grid`.

    On a GPU it counts as steady: what its engines take depends on nobody else.
    """
    prepared = prepare(config, work_dir=config.output)
    usual = {
        "instance_counts": tuple(sorted({*prepared.space.instance_counts, 1, 2, 3, 4})),
        "max_queue_delays_us": delays_us(config.limit_ms),
    }
    space = replace(prepared.space, **{**usual, **grid})
    on_gpu = any(engine.device == "gpu" for engine in prepared.engines)
    demand = demand_of(config, batched=prepared.engines[0].batched)

    def serving(run_dir: Path) -> AbstractContextManager[TritonBench]:
        return serving_bench(config.model_copy(update={"output": run_dir}), prepared, demand)

    return Subject(
        name=prepared.model.name,
        slo=config.slo,
        space=space,
        serving=serving,
        pace_s=steady_pace_s if on_gpu else pace_of(prepared.model),
        steady=on_gpu,
    )


def steady_pace_s() -> float:
    """Of what takes the same time whenever it runs."""
    return 1.0


def delays_us(limit_ms: float) -> tuple[int, ...]:
    """The queue delays of the space."""
    return tuple(round(share * limit_ms * 1000) for share in DELAY_SHARES)


def pace_of(model: Model) -> Pace:
    """Median seconds of one execution on one thread of this process, over half a second, whenever it is asked."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
    (feed,) = synthetic_samples(model, 1, seed=0).feeds(1)

    def pace_s() -> float:
        taken_s: list[float] = []
        until_s = time.monotonic() + _PACE_S
        while time.monotonic() < until_s or len(taken_s) < 3:
            started = time.perf_counter()
            session.run(None, feed)
            taken_s.append(time.perf_counter() - started)
        return median(taken_s)

    return pace_s
