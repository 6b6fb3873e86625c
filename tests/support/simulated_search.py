"""A whole search on a simulated bench, in virtual time."""

from collections.abc import Callable
from pathlib import Path

from simulated_bench import BudgetOfLoad, SimulatedBench, default_service_s
from true_rates import true_rate

from model_repo.spec import ServingConfig
from search import events
from search.certification import Certified, certify_best
from search.ledger import Ledger, open_ledger
from search.records import Slo
from search.space import SearchSpace
from search.study import Search

SLO = Slo(limit_ms=50.0)


def true_capacity(config: ServingConfig) -> float:
    return true_rate(config, default_service_s, limit_ms=SLO.limit_ms)


def search_on(
    bench: SimulatedBench,
    space: SearchSpace,
    folder: Path,
    *,
    slo: Slo = SLO,
    seed: int = 3,
    storage: str = "sqlite://",
    stop: Callable[[], bool] = lambda: False,
) -> tuple[Ledger, Certified | None, list[events.Event]]:
    seen: list[events.Event] = []
    ledger = open_ledger(space, folder, storage=storage, seed=seed)
    budget = BudgetOfLoad(total_s=600.0, spent=bench.spent)
    common = {"slo": slo, "budget": budget, "seed": seed, "on_event": seen.append, "stop": stop}
    common["demand"] = bench.demand
    Search(ledger=ledger, bench=bench, **common).run()
    return ledger, certify_best(ledger, bench, **common), seen
