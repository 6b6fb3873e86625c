"""The search that predicts nothing: baseline, landmarks, the sampler's choices and the best one's neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.space import knobs_of
from search.why import WhyRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    import optuna

    from search.attempts import Attempts
    from search.space import Knobs

SAMPLED_TRIALS = 6
"""Trials that the sampler chooses before the neighbours of the best are tried; it chooses again after them only
while they keep improving."""


@dataclass(slots=True)
class Sampling:
    """Every trial finds its own edge, or that it cannot beat the best."""

    attempts: Attempts
    _sampled: int = 0

    def run(self) -> None:
        """Try configurations until nothing promising is left, the budget is used, or `stop` says so."""
        while self.attempts.may_go_on():
            self.attempts.gathered()
            asked, why = self._next()
            if asked is not None:
                landmarks = ((knobs, WhyRecord(cause="landmark")) for knobs in self._landmarks())
                self.attempts.offer(landmarks)
                self.attempts.make(asked, self.attempts.evaluated, why)
            elif not self.attempts.crew.wait():
                return

    def _next(self) -> tuple[optuna.trial.Trial | None, WhyRecord]:
        ledger, wanted = self.attempts.ledger, self.attempts.promising
        space = ledger.space
        baseline = [knobs_of(space.baseline())]
        if (asked := ledger.ask_for(baseline, wanted=wanted)) is not None:
            return asked, WhyRecord(cause="baseline")
        if (asked := ledger.ask_for(self._landmarks(), wanted=wanted)) is not None:
            return asked, WhyRecord(cause="landmark")
        if self._sampled < SAMPLED_TRIALS:
            self._sampled += 1
            if (asked := ledger.ask_sampler(wanted=wanted)) is not None:
                return asked, WhyRecord(cause="sampler")
        best = ledger.best()
        around = space.neighbours(knobs_of(best.config)) if best is not None else ()
        return ledger.ask_for(around, wanted=wanted), WhyRecord(cause="neighbour")

    def _landmarks(self) -> Iterator[Knobs]:
        """A few points that span the space: one request at a time, small and large batches, narrow and wide."""
        space = self.attempts.ledger.space
        widest = space.instance_counts[-1]
        most_threads = space.intra_op_threads[-1]
        sizes = space.max_batch_sizes
        for engine in space.axes()["engine"]:
            for size in dict.fromkeys((sizes[len(sizes) // 2], sizes[0], sizes[-1])):
                for instances, threads in dict.fromkeys(((widest, min(1, most_threads)), (1, most_threads))):
                    knobs: Knobs = {
                        "engine": engine,
                        "max_batch_size": size,
                        "instance_count": instances,
                        "intra_op_threads": threads,
                        "max_queue_delay_us": 0,
                    }
                    if space.has_cuda_graphs:
                        knobs["cuda_graphs"] = 1
                    if space.is_legal(knobs):
                        yield knobs
