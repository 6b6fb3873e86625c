"""Certification alone, in virtual time: hand-made trials on a bench that notes each of its runs."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recommendations import trial
from simulated_bench import BudgetOfLoad, SimulatedBench
from spaces import two_core_space

from loadgen.capacity import Probe
from model_repo.spec import Engine, ServingConfig
from search import events
from search.certification import Certified, certify_best
from search.ledger import open_ledger
from search.objective import COST, Objective
from search.records import Slo
from search.space import default_config
from search.trial import Trial

SLO = Slo(limit_ms=50.0)
DEFAULT = 4
"""The largest batch of the default configuration; every configuration here is told by its largest batch."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """`most_s` is what it was given; before it were `spent_s` of load and so many restarts."""

    batch: int
    rate_per_s: float
    most_s: float
    seed: int
    restarts: int
    spent_s: float


@dataclass
class NotedBench(SimulatedBench):
    """Executions take `service_s`, 5 ms where nothing else is said; `late_runs` are those with a late client."""

    late_runs: Collection[int] = ()
    runs: list[Run] = field(default_factory=list)

    def measure(self, rate_per_s, duration_s, seed, watch=None) -> Probe:
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
        """What was loaded, in order; a restart loads again."""
        return [config.max_batch_size for config in self.loaded]


def bench(**options: Any) -> NotedBench:
    return NotedBench(**{"service_s": lambda config, size: 0.005, **options})


def slower(**times: float) -> Any:
    """Service times by the largest batch, as in `slower(b8=2.0)`; the others are not slower."""
    return lambda config, size: 0.005 * times.get(f"b{config.max_batch_size}", 1.0)


def tried(folder: Path, batch: int, number: int, rate_per_s: float | None = 1050.0, **changes: Any) -> Trial:
    """A trial of the search, with its estimate."""
    engine: Engine = two_core_space(folder).engines[0]
    config = ServingConfig(engine=engine, max_batch_size=batch, instance_count=1)
    config = default_config(engine) if batch == DEFAULT else config
    return trial(number, config=config, certificate=None, rate_at_limit_per_s=rate_per_s, **changes)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What certification came to, and what was told meanwhile."""

    certified: Certified | None
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
    given: SimulatedBench,
    *trials: Trial,
    total_s: float = 300.0,
    objective: Objective = COST,
    slo: Slo = SLO,
    **options: Any,
) -> Ended:
    """Certifies the best of these trials."""
    seen: list[events.Event] = []
    budget = BudgetOfLoad(total_s=total_s, spent=given.spent)
    ledger = open_ledger(two_core_space(folder), folder, storage="sqlite://", seed=3, objective=objective)
    ledger.trials.extend(trials)
    known: dict[str, Any] = {"slo": slo, "budget": budget, "seed": 1, "on_event": seen.append, **options}
    return Ended(certified=certify_best(ledger, given, **known), seen=seen, budget=budget)


def caveat_of(found: Ended) -> str | None:
    assert found.winner.certificate is not None
    return found.winner.certificate.caveat
