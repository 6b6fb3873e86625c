"""Compare answers that were served under load with those to the same requests alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from loadgen.errors import LoadError
from loadgen.measurement.request_log import RequestLog
from loadgen.spec.plan import Payload
from loadgen.spec.target import Target
from loadgen.statistics.capacity import Watch
from loadgen.traffic.payloads import Tensors, request_tensors, settled
from loadgen.wire.questions import infer, read_model_info

SAMPLED, PATIENCE_S = 32, 1.0
"""At most 32 answers of a run are compared, one at each look. One that takes over a second is left out."""

Difference = Callable[[NDArray[Any], NDArray[Any]], str]
"""Returns how two results differ, in words; "" if they do not."""


class AnswerSample:
    """Answers to requests of a load's pool, each sent during the load, so that they share batches with others."""

    def __init__(self, target: Target, payload: Payload) -> None:
        self._target, self._payload = target, payload
        self._served: list[tuple[Tensors, Tensors]] = []

    def taken_at(self, watch: Watch) -> Watch:
        """Return the watch, which sends a request at each look."""

        def look(log: RequestLog) -> bool:
            with suppress(LoadError):
                if not self._served:
                    self._info, _ = settled(read_model_info(self._target), self._payload)
                    self._pool = request_tensors(self._info, self._payload)
                if len(self._served) < SAMPLED:
                    request = self._pool[len(self._served) % len(self._pool)]
                    self._served.append((request, infer(self._target, self._info, request, PATIENCE_S)))
            return watch(log)

        return look

    def compared(self, difference: Difference) -> str:
        """Return the first difference, "" if there is none or no answer; call it when the load has ended."""
        with suppress(LoadError):
            for request, served in self._served:
                alone = infer(self._target, self._info, request, PATIENCE_S)
                for name in alone.keys() & served.keys():
                    if text := difference(alone[name], served[name]):
                        return f"output {name} {text}"
        return ""
