"""Run certification alone, in virtual time: hand-made trials on a bench that records each of its runs."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recommendations import trial
from simulated_bench import BudgetOfLoad, SimulatedBench
from spaces import two_core_space

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity_fit import Probe
from model_repo.spec import Engine, ServingConfig
from search.certification.certify import CertifiedResult, certify_best
from search.records.slo import Slo
from search.space import default_config
from search.study.store import open_store
from search.trials import events
from search.trials.objective import COST, Objective
from search.trials.trial import Trial

SLO = Slo(limits=(LatencyLimit(limit_ms=50.0),))
DEFAULT = 4
"""The largest batch of the default configuration; the largest batch identifies every configuration here."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """`most_s` is its time limit; before it were `spent_s` of load and so many restarts."""

    batch: int
    rate_per_s: float
    most_s: float
    seed: int
    restarts: int
    spent_s: float


@dataclass
class NotedBench(SimulatedBench):
    """Executions take `service_s`, 5 ms by default; `late_runs` are those with a late client."""

    late_runs: Collection[int] = ()
    runs: list[Run] = field(default_factory=list)

    def measure(self, rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        run = Run(
            batch=self.loaded[-1].max_batch_size,
            rate_per_s=rate_per_s,
            most_s=duration_s,
            seed=seed,
            restarts=self.restarts,
            spent_s=self.spent.load_s,
        )
        self.late = lambda config: len(self.runs) in self.late_runs
        probe = super().measure(rate_per_s, duration_s, seed, watch)
        self.runs.append(run)
        return probe

    @property
    def batches(self) -> list[int]:
        """Return the loaded configurations, in order; a restart loads again."""
        return [config.max_batch_size for config in self.loaded]


def bench(**options: Any) -> NotedBench:
    return NotedBench(**{"service_s": lambda config, size: 0.005, **options})


def slower(**times: float) -> Any:
    """Return service times by the largest batch, as in `slower(b8=2.0)`; the others are not slower."""
    return lambda config, size: 0.005 * times.get(f"b{config.max_batch_size}", 1.0)


def tried(folder: Path, batch: int, number: int, rate_per_s: float | None = 1050.0, **changes: Any) -> Trial:
    """Return a trial of the search, with its estimate."""
    engine: Engine = two_core_space(folder).engines[0]
    config = ServingConfig(engine=engine, max_batch_size=batch, instance_count=1)
    config = default_config(engine) if batch == DEFAULT else config
    return trial(number, config=config, certificate=None, rate_at_limit_per_s=rate_per_s, **changes)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The result of certification, and its events."""

    certified: CertifiedResult | None
    seen: list[events.Event]
    budget: BudgetOfLoad

    @property
    def winner(self) -> Trial:
        assert self.certified is not None
        return self.certified.winner

    @property
    def baseline(self) -> Trial | None:
        assert self.certified is not None
        return self.certified.baseline

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.seen if isinstance(event, events.Note)]


def ended(
    folder: Path,
    given: Any,
    *trials: Trial,
    total_s: float = 300.0,
    objective: Objective = COST,
    slo: Slo = SLO,
    **options: Any,
) -> Ended:
    """Certify the best of these trials."""
    seen: list[events.Event] = []
    budget = BudgetOfLoad(total_s=total_s, spent=given.spent)
    store = open_store(two_core_space(folder), folder, storage="sqlite://", seed=3, objective=objective)
    store.trials.extend(trials)
    known: dict[str, Any] = {"slo": slo, "budget": budget, "seed": 1, "on_event": seen.append, **options}
    return Ended(certified=certify_best(store, given, **known), seen=seen, budget=budget)


def caveat_of(found: Ended) -> str | None:
    assert found.winner.certificate is not None
    return found.winner.certificate.caveat
