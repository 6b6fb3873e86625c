"""What load runs say of rates at the limit, by the service times that the search has profiled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.forecast import Forecast
from search.profile_file import read_curves
from search.space import knobs_of
from search.verify import verified

if TYPE_CHECKING:
    from loadgen.measurement import RequestLog
    from model_repo.spec import ServingConfig
    from search.demand import Demand
    from search.ledger import Ledger
    from search.records import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """Replays the arrivals of runs in the simulator, for configurations whose kind was profiled."""

    forecast: Forecast

    @classmethod
    def of_run(cls, ledger: Ledger, *, slo: Slo, seed: int, demand: Demand) -> Replays:
        """With what the run's directory holds of service times."""
        forecast = Forecast(space=ledger.space, slo=slo, seed=seed, demand=demand)
        forecast.curves.update(read_curves(ledger.path.parent))
        return cls(forecast=forecast)

    def rate_at_limit(self, config: ServingConfig, log: RequestLog) -> float:
        """Requests/s that the configuration keeps at the speed it had in this run; inf where nothing follows."""
        forecast = self.forecast
        if not forecast.demand.predictable or not forecast.profiled(knobs_of(config)):
            return math.inf
        server = forecast.server(config)
        found = verified(server, log, forecast.promise, seed=forecast.seed, demand=forecast.demand)
        return math.inf if found is None else found.rate_per_s
