"""The search loop: guided by the simulator where it can be, by the sampler where it cannot."""

from __future__ import annotations

from dataclasses import dataclass

from search.attempts import Attempts, SearchImpossible
from search.guided import Guided, forecast_for
from search.sampling import Sampling
from search.search_file import write_search

__all__ = ["Search", "SearchImpossible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(Attempts):
    """One search on one bench."""

    def run(self) -> None:
        """Try configurations until nothing promising is left, the budget is used, or `stop` says so."""
        write_search(self.ledger.path.parent, self)
        if not Guided(self, forecast_for(self)).run():
            Sampling(self).run()
        self.gathered()
