"""Draw servers with known service times from five kinds: hardware, model and limit together.

Four are the kinds on which the method was first tried: a CNN under 20 ms, a transformer under 50 ms and a tight
limit of 8 ms on a GPU that runs executions of several instances at a time a little better than one after the
other, and a model under 150 ms on two cores. The fifth draws everything.

They differ from the search's model: an execution has the pace of the moment when it began, executions scatter and
one in 500 takes 1.5 times as long, and batches are padded to the sizes that our GPU runtime executes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from engines import plain_engine
from numpy.typing import NDArray

from model_repo.repository.config_pbtxt import executed_batch_sizes
from model_repo.spec import ServingConfig
from search.space import MachineLimits, SearchSpace, search_space

KINDS = ("cnn", "transformer", "tight", "cpu", "drawn")

_LIMIT_MS = {"cnn": 20.0, "transformer": 50.0, "tight": 8.0, "cpu": 150.0}
_FIXED_S = {"cnn": 1.6e-3, "transformer": 3e-3, "tight": 0.9e-3, "cpu": 4e-3}
_EACH_S = {"cnn": 0.9e-3, "transformer": 3e-3, "tight": 0.45e-3, "cpu": 18e-3}
"""Seconds of fp32, fixed and per request; values are drawn around these."""

_FASTER = {"fp32": 1.0, "fp16": 0.45, "int8": 0.3}
"""The time of a request on a GPU, as a share of that in fp32."""

_GRAPHS = 0.45  # the fixed part with CUDA graphs, as a share of that without
_NOISE_FACTORS = 4093  # a prime, so that no pattern repeats in step with another
_RARELY, _SLOW = 0.002, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnServer:
    """A server and its latency limit. `noise` are factors by which executions differ, mean near 1."""

    kind: str
    number: int
    limit_ms: float
    cores: int
    precisions: tuple[str, ...]
    service_s: Callable[[ServingConfig, int], float]
    contention: Callable[[ServingConfig, int], float]
    noise: NDArray[Any]

    def space(self, folder: Path) -> SearchSpace:
        """Return the search space; writes a model file of one byte."""
        file = folder / "model.onnx"
        file.write_bytes(b"x")
        device = "gpu" if self.kind in ("cnn", "transformer", "tight") else "cpu"
        engines = tuple(
            plain_engine(files=(("model.onnx", file),), precision=precision, device=device)
            for precision in self.precisions
        )
        limits = MachineLimits(cores=self.cores, memory_bytes=2**36)
        return search_space(engines, limits, limit_ms=self.limit_ms)


def drawn_server(kind: str, number: int) -> DrawnServer:
    """Return server `number` of a kind; the same numbers give the same server."""
    rng = np.random.default_rng((KINDS.index(kind), number))
    draw = {"cpu": _on_cores, "drawn": _anything}.get(kind, _on_gpu)
    return draw(kind, number, rng)


def _about(rng: np.random.Generator, middle: float, factor: float) -> float:
    return middle * math.exp(rng.uniform(-math.log(factor), math.log(factor)))


def _noise(rng: np.random.Generator) -> NDArray[Any]:
    factors = np.exp(rng.normal(0.0, rng.uniform(0.01, 0.06), _NOISE_FACTORS))
    factors[rng.random(_NOISE_FACTORS) < _RARELY] *= _SLOW
    return factors  # type: ignore[no-any-return]


def _on_gpu(kind: str, number: int, rng: np.random.Generator) -> DrawnServer:
    fixed_s, each_s = _about(rng, _FIXED_S[kind], 1.5), _about(rng, _EACH_S[kind], 1.5)
    full_at = rng.uniform(1.0, 6.0)  # requests in a batch that use the whole GPU
    crowding = rng.uniform(0.82, 0.98)

    def service_s(config: ServingConfig, size: int) -> float:
        executed = next(one for one in (*executed_batch_sizes(config), size) if one >= size)
        used = (executed**3 + full_at**3) ** (1 / 3)
        overhead_s = fixed_s * (_GRAPHS if config.cuda_graph_batch_sizes else 1.0)
        return overhead_s + each_s * _FASTER[config.engine.precision] * used  # type: ignore[no-any-return]

    return DrawnServer(
        kind=kind,
        number=number,
        limit_ms=_LIMIT_MS[kind],
        cores=16,
        precisions=tuple(_FASTER),
        service_s=service_s,
        contention=lambda config, busy: float(busy) ** crowding,
        noise=_noise(rng),
    )


def _on_cores(kind: str, number: int, rng: np.random.Generator) -> DrawnServer:
    return _cpu_server(
        kind,
        number,
        rng,
        fixed_s=_about(rng, _FIXED_S[kind], 2.0),
        each_s=_about(rng, _EACH_S[kind], 1.5),
        limit_ms=_LIMIT_MS[kind],
    )


def _anything(kind: str, number: int, rng: np.random.Generator) -> DrawnServer:
    """Draw any server, with a limit that is tight for some and loose for others."""
    fixed_s, each_s = _about(rng, 1.7e-3, 3.5), _about(rng, 0.8e-3, 4.0)
    limit_ms = 1e3 * (fixed_s + each_s) * _about(rng, 10.0, 2.5)
    return _cpu_server(kind, number, rng, fixed_s=fixed_s, each_s=each_s, limit_ms=limit_ms)


def _cpu_server(
    kind: str, number: int, rng: np.random.Generator, *, fixed_s: float, each_s: float, limit_ms: float
) -> DrawnServer:
    """Draw a CPU server, affine in the batch size; threads help, and crowding costs, by the drawn powers."""
    cores = 2
    speedup, crowding = rng.uniform(0.5, 0.95), rng.uniform(0.8, 1.3)

    def service_s(config: ServingConfig, size: int) -> float:
        return float(fixed_s + each_s * size / (config.intra_op_threads or cores) ** speedup)

    def contention(config: ServingConfig, busy: int) -> float:
        return float(max(1.0, busy * (config.intra_op_threads or cores) / cores) ** crowding)

    return DrawnServer(
        kind=kind,
        number=number,
        limit_ms=limit_ms,
        cores=cores,
        precisions=("fp32",),
        service_s=service_s,
        contention=contention,
        noise=_noise(rng),
    )
