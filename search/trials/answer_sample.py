"""Compare answers that were served under load with those to the same requests alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import LoadError
from loadgen.measurement.request_log import RequestLog
from loadgen.spec.plan import Payload
from loadgen.spec.target import Target
from loadgen.statistics.capacity import Watch
from loadgen.traffic.model_info import ModelInfo
from loadgen.traffic.payloads import Tensors, request_tensors, settled
from loadgen.wire.questions import infer, read_model_info

SAMPLED, PATIENCE_S = 32, 1.0
"""Of a configuration 32 answers are compared, one at each look at its runs; not one that takes over a second."""

LOAD_PER_SAMPLE = 100
"""They add one request per 100 at most: the rate stays that of the load."""

TOLERANCE = 0.1
"""A tenth of the largest value is tolerated. Mixed rows differ by as much as rows do; those of an engine in low
precision by a few percent, as it has other kernels for other batch sizes."""

Difference = Callable[[NDArray[Any], NDArray[Any], float], str]
"""Returns how two results differ beyond a tolerance, in words; "" if they do not."""


@dataclass(slots=True)
class AnswerSample:
    """Answers of a configuration to requests of the load's pool, sent during the load: they share its batches."""

    payload: Payload
    difference: Difference
    _new: list[tuple[ModelInfo, Tensors, Tensors]] = field(default_factory=list)  # requests of this run, answers
    _alone: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    _served: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    _taken: int = 0

    def taken_at(self, watch: Watch, target: Target) -> Watch:
        """Return the watch, which sends a request at each look until there are enough."""
        info: ModelInfo | None = None
        pool: list[Tensors] = []

        def look(log: RequestLog) -> bool:
            nonlocal info, pool
            if self._taken < SAMPLED and len(log) >= LOAD_PER_SAMPLE * (1 + len(self._new)):
                with suppress(LoadError):
                    if info is None:
                        info, _ = settled(read_model_info(target), self.payload)
                        pool = request_tensors(info, self.payload)
                    request = pool[self._taken % len(pool)]
                    self._new.append((info, request, infer(target, info, request, PATIENCE_S)))
                    self._taken += 1
            return watch(log)

        return look

    def compared(self, target: Target) -> str:
        """Return how an output differs over all answers; "" if none does. To be called after the load.

        All together, as the values of one answer may be close to zero.
        """
        with suppress(LoadError):
            while self._new:
                info, request, served = self._new.pop()
                alone = infer(target, info, request, PATIENCE_S)
                for name in alone.keys() & served.keys():
                    self._alone.setdefault(name, []).append(alone[name].ravel())
                    self._served.setdefault(name, []).append(served[name].ravel())
        for name, values in self._alone.items():
            if text := self.difference(np.concatenate(values), np.concatenate(self._served[name]), TOLERANCE):
                return f"output {name} {text}"
        return ""
