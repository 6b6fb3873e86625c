"""Compare answers under load with those to the same requests sent alone, which shows if batches mix their rows.

The same server gives both, so that precision does not matter. Nothing else is judged meanwhile.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import LoadError
from loadgen.traffic.payloads import Tensors
from search.records.trial import AnswersRecord

LOAD_S = 2.0
"""The load lasts 2 s. Before it, requests are sent alone for about as long at most."""

MAX_USERS, MIN_USERS = 32, 8
"""At most 32 requests are in flight, fewer if those would take longer than the load, and at least 8: batches of up
to 4 rows were proven before. The answers of half of them are compared, of 8 at most."""

MAX_REQUESTS, MAX_VALUES = 16, 1 << 14
"""Answers to 16 different requests are compared, and of each output at most about 16,000 values."""

MIN_COMPARED = 4
"""Fewer answers show nothing."""

TOLERANCE = 0.1
"""A float differs if it is off by a tenth of the output's largest value, and so does a quantized number, of one
byte: half precision, and other kernels for other batch sizes, stay far below that. Of other types a tenth of the
values of an answer may differ in any order, as maps of classes and the best ids of a list have near ties."""

MIN_REPEATS, MAX_REPEATS = 8, 64
"""A request whose answer differed is sent alone again as often as it was compared, 8 to 64 times: a model whose
answers vary by themselves does not mix rows."""

MIN_BATCH_SIZE = 1.1
"""Batches of fewer requests on average show nothing."""

MIXED_SHARE = 0.25
"""Rows are mixed if answers to a quarter of the requests differ. A near tie, of an argmax or in the order of
detections, concerns few requests, and always the same ones; mixed rows concern all that share a batch."""

Ask = Callable[[Tensors], Tensors]
"""Sends one request and returns its outputs. Raises LoadError."""

Load = Callable[[int, float], float | None]
"""Sends a closed loop of so many users for so many seconds; returns the mean batch size if it is known."""

_Output = tuple[tuple[int, ...], NDArray[Any]]
"""Shape and values."""


def at_levels(requests: Sequence[Tensors]) -> list[Tensors]:
    """Return random requests, their floats with another level and spread in each, lest all answers be alike.

    They stay within a factor of two: a model that is quantized scales a whole batch by its largest value.
    """
    levels = np.linspace(0.0, 1.0, len(requests))
    return [
        {
            name: (values * (1 + level) / 2 + level / 2).astype(values.dtype)
            if values.dtype.kind == "f"
            else values
            for name, values in request.items()
        }
        for request, level in zip(requests, levels, strict=True)
    ]


@dataclass(slots=True)
class ComparedAnswers:
    """A comparison of the answers to some of `requests`; `ask` sends one of them, from any thread."""

    requests: Sequence[Tensors]
    ask: Ask
    rows_per_request: int = 1
    clock: Callable[[], float] = time.monotonic
    _alone: list[tuple[Tensors, dict[str, _Output]]] = field(default_factory=list)
    _largest: dict[str, float] = field(default_factory=dict)
    _compared: Counter[int] = field(default_factory=Counter)  # by request
    _differing: Counter[int] = field(default_factory=Counter)
    _failed: int = 0
    _error: str = ""
    _lock: Lock = field(default_factory=Lock)
    _until_s: float = 0.0
    _refused_again: bool = False

    def under(self, load: Load, most_s: float) -> AnswersRecord:
        """Ask alone, then under load, and compare. Nothing is sent under load if that would take over `most_s`."""
        if most_s < 2 * LOAD_S:
            return AnswersRecord(unseen="the time budget was used up")
        began_s = self.clock()
        self._until_s = began_s + most_s
        lone_s = self._ask_alone()
        users = max(MIN_USERS, min(MAX_USERS, int(LOAD_S / max(lone_s, 1e-6))))
        if len(self._alone) < 2:
            return AnswersRecord(unseen=self._error or "there is one request only")
        if self.clock() - began_s + LOAD_S + users * lone_s > most_s:
            return AnswersRecord(unseen="the time budget was too short for it")
        comparing = min(MIN_USERS, users // 2)
        ended = Event()
        with ThreadPoolExecutor(comparing) as threads:
            try:
                sent = [threads.submit(self._ask_until, ended, user / comparing) for user in range(comparing)]
                mean_batch_size = load(users - comparing, LOAD_S)
            finally:
                ended.set()
        for one in sent:
            one.result()
        return self._seen(mean_batch_size)

    def _ask_alone(self) -> float:
        """Ask for the answers to compare with, one at a time; returns the mean seconds of a request."""
        began_s, asked = self.clock(), 0
        for request in self.requests[:: -(-len(self.requests) // MAX_REQUESTS)]:
            if self.clock() - began_s > LOAD_S and asked >= 2:
                break
            asked += 1
            try:
                self._alone.append((request, self._parts(self.ask(request))))
            except LoadError as error:
                self._error = str(error).splitlines()[0].rstrip(".")
        for _, outputs in self._alone:
            for name, (_, values) in outputs.items():
                if _is_number(values):
                    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
                    self._largest[name] = max(self._largest.get(name, 0.0), float(finite.max(initial=0.0)))
        return (self.clock() - began_s) / max(1, asked)

    def _ask_until(self, ended: Event, place: float) -> None:
        """Send request after request until the load has ended, beginning at a place of their cycle (0 to 1)."""
        number = int(place * len(self._alone))
        while True:
            request, alone = self._alone[number]
            try:
                differs = self._differs(alone, self._parts(self.ask(request)))
            except LoadError as error:
                with self._lock:
                    self._failed += 1
                    self._error = str(error).splitlines()[0].rstrip(".")
            else:
                with self._lock:
                    self._compared[number] += 1
                    self._differing[number] += differs
            if ended.is_set():
                return
            number = (number + 1) % len(self._alone)

    def _seen(self, mean_batch_size: float | None) -> AnswersRecord:
        compared, differing = self._compared.total(), self._differing.total()
        wrong = {number for number, count in self._differing.items() if count}
        steady = {number: self._is_steady(number) for number in sorted(wrong)}
        unsteady = {number for number, is_steady in steady.items() if is_steady is False}
        unknown = {number for number, is_steady in steady.items() if is_steady is None}
        enough = MIXED_SHARE * len(self._compared)
        first, *others = (alone for _, alone in self._alone)
        telling = sum(self._differs(first, other) for other in others)
        unseen = ""
        if compared < MIN_COMPARED:
            unseen = f"{compared} answers could be compared ({self._error or 'they took too long'})"
        elif mean_batch_size is not None and mean_batch_size < MIN_BATCH_SIZE * self.rows_per_request:
            unseen = f"its batches had {mean_batch_size:.2g} rows on average"
        elif len(unsteady) >= enough:
            unseen = "the model does not give the same answer to the same request sent alone again"
        elif len(wrong - unsteady) >= enough > len(wrong - unsteady - unknown):
            unseen = f"answers differed, and the requests could not be sent again ({self._error or 'no time'})"
        mixed = not unseen and len(wrong - unsteady) >= enough
        if not (unseen or mixed or telling >= enough):
            unseen = f"the {len(self._alone)} requests have nearly the same answer (real inputs: --input-data)"
        return AnswersRecord(
            compared=compared,
            differing=differing,
            failed=self._failed,
            mean_batch_size=mean_batch_size,
            mixed=mixed,
            unseen=unseen,
        )

    def _is_steady(self, number: int) -> bool | None:
        """True if a request sent alone gets the same answer again; None if that cannot be said."""
        request, alone = self._alone[number]
        for _ in range(min(MAX_REPEATS, max(MIN_REPEATS, self._compared[number]))):
            if self.clock() > self._until_s or self._refused_again:
                return None
            try:
                if self._differs(alone, self._parts(self.ask(request))):
                    return False
            except LoadError as error:
                self._refused_again, self._error = True, str(error).splitlines()[0].rstrip(".")
                return None
        return True

    def _differs(self, one: dict[str, _Output], other: dict[str, _Output]) -> bool:
        return one.keys() != other.keys() or any(
            one[name][0] != other[name][0] or _differ(one[name][1], other[name][1], self._largest.get(name, 0.0))
            for name in one
        )

    @staticmethod
    def _parts(outputs: Tensors) -> dict[str, _Output]:
        """Return each output's shape, and its values or as many of them, evenly spaced, as are compared."""
        return {
            name: (values.shape, values.ravel()[:: -(-values.size // MAX_VALUES) or 1].copy())
            for name, values in outputs.items()
        }


def _is_number(values: NDArray[Any]) -> bool:
    """True for floats and for quantized numbers, of one byte: they are compared by their distance."""
    return values.dtype.kind == "f" or (values.dtype.kind in "iu" and values.dtype.itemsize == 1)


def _differ(one: NDArray[Any], other: NDArray[Any], largest: float) -> bool:
    if _is_number(one):
        with np.errstate(invalid="ignore"):
            close = np.abs(one.astype(np.float64) - other) <= TOLERANCE * largest
        return not np.all(close | (one == other) | (np.isnan(one) & np.isnan(other)))
    if one.dtype.kind in "iu":
        one, other = np.sort(one), np.sort(other)
    return bool(np.mean(one != other) > TOLERANCE) if one.size else False
