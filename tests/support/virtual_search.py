"""A whole search on a simulated bench, in virtual time."""

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


def runner_on(
    bench: Any,
    space: SearchSpace,
    folder: Path,
    *,
    slo: Slo = SLO,
    objective: Objective = COST,
    seed: int = 3,
    storage: str | None = "sqlite://",
    budget_s: float = 600.0,
    **options: Any,
) -> TrialRunner:
    """Return what runs trials on this bench, with a store of its own and a budget in its time."""
    store = open_store(space, folder, storage=storage, seed=seed, objective=objective)
    budget = BudgetOfLoad(total_s=budget_s, spent=bench.spent)
    given: dict[str, Any] = {"slo": slo, "budget": budget, "seed": seed, "workload": bench.workload, **options}
    return TrialRunner(store=store, bench=ObservedBench(bench), **given)


def search_on(
    bench: Any, space: SearchSpace, folder: Path, *, budget_s: float = 240.0, **options: Any
) -> tuple[TrialStore, CertifiedResult | None, list[events.Event]]:
    seen: list[events.Event] = []
    runner = runner_on(bench, space, folder, budget_s=budget_s, on_event=seen.append, **options)
    return runner.store, certify_best(runner, run_search(runner)), seen
