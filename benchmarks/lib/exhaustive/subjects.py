"""Define the subjects of exhaustive search: three models that sleep, or a real one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from lib.sleeping_model import Law, sleeping_engine
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.limits import LatencyLimit
from loadgen.spec.plan import Payload
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from optimizer.config import OptimizeConfig
from optimizer.model.onnx_model import Model
from optimizer.model.samples import synthetic_samples
from optimizer.run.prepare import prepare, read_inputs
from optimizer.run.serving import request_timeout_s, serving_bench
from optimizer.run.workload_inputs import workload_of
from optimizer.run_file import slo_of
from search.records.slo import Slo
from search.space import MachineLimits, SearchSpace
from search.trials.triton_bench import TritonBench

DELAY_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2)  # of the limit
INSTANCES = (1, 2, 3, 4, 6)
BATCHES = (1, 2, 4, 8, 16, 32, 64)

SLEEPS = {
    "cnn": (Law(4e-3, 1.6e-3, full_at=4, crowding=0.88), 60.0),
    "transformer": (Law(3e-3, 2.7e-3, full_at=2, crowding=0.93), 90.0),
    "tight": (Law(4e-3, 1.75e-3, full_at=5, crowding=0.85), 40.0),
}
"""The law and the limit in ms, shaped like the kinds of tests/support/drawn_servers.py on a GPU, but so slow that
rates stay below 1,000/s: client and server share two cores."""

_PACE_S = 0.5

Pace = Callable[[], float]
Serving = Callable[[Path], AbstractContextManager[TritonBench]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, its limit and its space. `serving` starts a server whose files go to a folder, which must exist.

    `pace_s` returns the seconds of one execution on this machine now; always 1.0 for a sleep. `steady`: its speed
    does not drift.
    """

    name: str
    slo: Slo
    space: SearchSpace
    serving: Serving
    pace_s: Pace
    steady: bool


def sleeping_subject(name: str, folder: Path) -> Subject:
    """Return one of `SLEEPS`, with its files in `folder`."""
    law, limit_ms = SLEEPS[name]
    slo = Slo(limits=(LatencyLimit(limit_ms=limit_ms),))
    space = SearchSpace(
        engines=(sleeping_engine(folder / "model", law),),
        values={
            "max_batch_size": BATCHES,
            "instance_count": INSTANCES,
            "intra_op_threads": (0,),
            "max_queue_delay_us": delays_us(limit_ms),
        },
        limits=MachineLimits(cores=8, memory_bytes=2**36),
    )

    @contextmanager
    def serving(run_dir: Path) -> Iterator[TritonBench]:
        with serve(ServerOptions(run_dir=run_dir)) as server, LoadGenerator() as generator:
            yield TritonBench(
                server, generator, payload=Payload(), limit_ms=limit_ms, timeout_s=request_timeout_s(slo)
            )

    return Subject(name=name, slo=slo, space=space, serving=serving, pace_s=steady_pace_s, steady=True)


def model_subject(config: OptimizeConfig, grid: dict[str, Any]) -> Subject:
    """Return a real model as `optimize` serves it, in its own space with more instances and delays, or in `grid`.

    On a GPU it counts as steady: its execution times do not depend on other processes.
    """
    prepared = prepare(config, read_inputs(config, work_dir=config.output))
    usual: dict[str, Any] = {
        "instance_count": tuple(sorted({*prepared.space.values["instance_count"], 1, 2, 3, 4})),
        "max_queue_delay_us": delays_us(config.limits[0].limit_ms),
    }
    space = replace(prepared.space, values={**prepared.space.values, **usual, **grid})
    on_gpu = any(engine.device == "gpu" for engine in prepared.engines)
    assert prepared.model is not None
    workload = workload_of(config, batched=prepared.engines[0].batched)

    def serving(run_dir: Path) -> AbstractContextManager[TritonBench]:
        return serving_bench(replace(config, output=run_dir), prepared, workload)

    return Subject(
        name=prepared.record.name,
        slo=slo_of(config),
        space=space,
        serving=serving,
        pace_s=steady_pace_s if on_gpu else pace_of(prepared.model),
        steady=on_gpu,
    )


def steady_pace_s() -> float:
    """Return the pace of a subject whose execution times never change."""
    return 1.0


def delays_us(limit_ms: float) -> tuple[int, ...]:
    """Return the queue delays of the space."""
    return tuple(round(share * limit_ms * 1000) for share in DELAY_SHARES)


def pace_of(model: Model) -> Pace:
    """Return a function that measures the median seconds of an execution on one thread, over half a second."""
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
