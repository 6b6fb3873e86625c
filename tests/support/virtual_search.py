"""A whole search on a simulated bench, in virtual time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulated_bench import BudgetOfLoad, default_service_s
from true_rates import true_rate

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.certification.certify import CertifiedResult, certify_best
from search.records.slo import Slo
from search.space import SearchSpace
from search.study.run import run_search
from search.study.store import TrialStore, open_store
from search.study.trial_runner import TrialRunner
from search.trials import events
from search.trials.bench import ObservedBench
from search.trials.objective import COST, Objective

SLO = Slo(limits=(LatencyLimit(limit_ms=50.0),))


def true_capacity(config: ServingConfig) -> float:
    return true_rate(config, default_service_s, limit_ms=SLO.first.limit_ms)


def search_on(
    bench: Any,
    space: SearchSpace,
    folder: Path,
    *,
    slo: Slo = SLO,
    objective: Objective = COST,
    seed: int = 3,
    storage: str = "sqlite://",
    budget_s: float = 240.0,
    stop: Callable[[], bool] = lambda: False,
    ignore_slow_phases: bool = False,
) -> tuple[TrialStore, CertifiedResult | None, list[events.Event]]:
    seen: list[events.Event] = []
    store = open_store(space, folder, storage=storage, seed=seed, objective=objective)
    budget = BudgetOfLoad(total_s=budget_s, spent=bench.spent)
    common: dict[str, Any] = {"slo": slo, "budget": budget, "seed": seed, "on_event": seen.append, "stop": stop}
    common["workload"] = bench.workload
    runner = TrialRunner(store=store, bench=ObservedBench(bench), ignore_slow_phases=ignore_slow_phases, **common)
    return store, certify_best(runner, run_search(runner)), seen
