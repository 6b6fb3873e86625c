"""The search loop: guided by the simulator where it can be, by the sampler where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from search import events
from search.attempts import Attempts, SearchImpossible
from search.guided import Guided, forecast_for
from search.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from search.bench import Bench
    from search.budget import Budget
    from search.ledger import Ledger
    from search.records import Slo

__all__ = ["Search", "SearchImpossible"]


@dataclass(frozen=True, slots=True)
class Search:
    """One search on one bench. `stop` is asked between trials and while load is running."""

    ledger: Ledger
    bench: Bench
    slo: Slo
    budget: Budget
    seed: int
    on_event: events.OnEvent = events.ignore
    stop: Callable[[], bool] = lambda: False

    def run(self) -> None:
        """Try configurations until nothing promising is left, the budget is used, or `stop` says so."""
        attempts = Attempts(
            ledger=self.ledger,
            bench=self.bench,
            slo=self.slo,
            budget=self.budget,
            seed=self.seed,
            on_event=self.on_event,
            stop=self.stop,
        )
        if not Guided(attempts, forecast_for(attempts)).run():
            Sampling(attempts).run()
