"""Run certification alone, in virtual time: profiled trials on a bench that records each of its runs."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recommendations import trial
from simulated_bench import BudgetOfLoad, SimulatedBench
from spaces import two_core_space

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.probe import Probe
from model_repo.spec import Engine, ServingConfig
from search.certification.certify import CertifiedResult, Decide, certify_best
from search.certification.planner import next_step
from search.certification.policy import POLICY, Policy
from search.records.certificate import CertificateRecord
from search.records.confirmations import read_confirmations
from search.records.slo import Slo
from search.simulator.service_times import ServiceCurve
from search.simulator.service_times_file import write_curves
from search.simulator.surrogate import Surrogate
from search.space import default_config, knobs_of
from search.study.belief import Belief
from search.study.guided_search import GuidedSearch, surrogate_for
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials import events
from search.trials.bench import ObservedBench
from search.trials.objective import COST, Objective
from search.trials.trial import Trial

SLO = Slo(limits=(LatencyLimit(limit_ms=50.0),))
DEFAULT = 4
"""The largest batch of the default configuration; the largest batch identifies every configuration here."""

EXECUTION_S = 0.01
PER_S = {16: 1500.0, 12: 1110.0, 8: 735.0, DEFAULT: 735.0}
"""The capacity of each configuration, within 5 %; the default has two instances."""

LOADING_S = 1.0
"""The seconds of a load on this bench."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """`most_s` is its time limit, `load_s` what it took; before it were so many loads, restarts and seconds."""

    batch: int
    rate_per_s: float
    most_s: float
    load_s: float
    seed: int
    loads: int
    restarts: int
    elapsed_s: float


@dataclass
class NotedBench(SimulatedBench):
    """Executions take `service_s`, 10 ms by default. The client is late in `late_runs`, and above a rate."""

    late_runs: Collection[int] = ()
    client_per_s: float = math.inf
    runs: list[Run] = field(default_factory=list)

    def measure(self, rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        before_s = self.spent.load_s
        self.late = lambda config: len(self.runs) in self.late_runs or rate_per_s > self.client_per_s
        probe = super().measure(rate_per_s, duration_s, seed, watch)
        run = Run(
            batch=self.loaded[-1].max_batch_size,
            rate_per_s=rate_per_s,
            most_s=duration_s,
            load_s=self.spent.load_s - before_s,
            seed=seed,
            loads=len(self.loaded),
            restarts=self.restarts,
            elapsed_s=before_s + self.spent.loading_s,
        )
        self.runs.append(run)
        return probe

    @property
    def batches(self) -> list[int]:
        """Return the loaded configurations, in order; a restart loads again."""
        return [config.max_batch_size for config in self.loaded]


def bench(**options: Any) -> NotedBench:
    return NotedBench(**{"service_s": lambda config, size: EXECUTION_S, **options})


def slower(**times: float) -> Any:
    """Return service times by the largest batch, as in `slower(b8=2.0)`; the others are not slower."""
    return lambda config, size: EXECUTION_S * times.get(f"b{config.max_batch_size}", 1.0)


def profile(folder: Path, *trials: Trial, slo: Slo = SLO) -> Surrogate:
    """Return a surrogate with the execution times of these trials."""
    surrogate = Surrogate(space=two_core_space(folder), slo=slo, seed=1)
    for one in trials:
        surrogate.curves[surrogate.kind_of(knobs_of(one.served))][one.served.instance_count] = ServiceCurve(
            busy=one.served.instance_count,
            sizes=(1.0, 64.0),
            seconds=(EXECUTION_S, EXECUTION_S),
            handover_s=0.0,
            overhead_s=0.0,
            noise=(1.0,),
        )
    return surrogate


def belief(folder: Path, given: SimulatedBench, *profiled: Trial) -> Belief:
    """Return the belief about these trials after no run on this bench."""
    return Belief(surrogate=profile(folder, *profiled), bench=ObservedBench(given))


def tried(folder: Path, batch: int, number: int, rate_per_s: float | None = -1.0, **changes: Any) -> Trial:
    """Return a trial of the search, with its capacity as the estimate unless another one is given."""
    rate_per_s = PER_S[batch] if rate_per_s == -1.0 else rate_per_s
    engine: Engine = two_core_space(folder).engines[0]
    config = ServingConfig(engine=engine, max_batch_size=batch, instance_count=1)
    config = default_config(engine) if batch == DEFAULT else config
    return trial(number, config=config, certificate=None, rate_at_limit_per_s=rate_per_s, **changes)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The result of certification on a bench, and its events."""

    certified: CertifiedResult | None
    seen: list[events.Event]
    budget: BudgetOfLoad
    bench: NotedBench
    folder: Path

    @property
    def winner(self) -> Trial:
        assert self.certified is not None
        return self.certified.winner

    @property
    def baseline(self) -> Trial | None:
        assert self.certified is not None
        return self.certified.baseline

    @property
    def certificate(self) -> CertificateRecord:
        assert self.winner.certificate is not None
        return self.winner.certificate

    @property
    def notes(self) -> list[events.Note]:
        return [event for event in self.seen if isinstance(event, events.Note)]

    @property
    def codes(self) -> list[tuple[events.NoteCode | None, int | None]]:
        """Return the code of each note and the number of its trial, without runs that were not trusted."""
        return [(note.code, note.trial) for note in self.notes if note.code not in ("run_not_trusted", "not_met")]

    def all_left_s(self, run: Run) -> float:
        """Return the seconds of the budget that were left when this run began."""
        return self.budget.total_s - run.elapsed_s

    def assert_within_budget(self) -> None:
        """Assert that no run may take longer than the budget lasts, nor all together.

        A load may come on top, and what a run takes after its last response.
        """
        slack_s = LOADING_S + 0.5
        assert all(run.most_s <= self.all_left_s(run) + slack_s for run in self.bench.runs)
        assert self.budget.elapsed_s() <= self.budget.total_s + slack_s

    def assert_confirmed_twice(self, *, confidence: float = SLO.confidence) -> None:
        """Assert that the certificate is that of runs on two servers, which met the rate or a higher one."""
        # Between confirmations the machine is watched, in runs that confirm nothing.
        runs = (run for run in self.bench.runs if run.most_s != POLICY.watch_s)
        attempts = zip(runs, read_confirmations(self.folder), strict=True)
        found = self.certificate
        met = [
            (run, line)
            for run, line in attempts
            if line.trial == self.winner.number and line.met and line.rate_per_s >= found.rate_per_s
        ]
        assert len({run.restarts for run, _ in met}) > 1
        assert met[-1][1].again
        assert (found.servers, found.confirmed_again, found.caveat) == (2, True, None)
        assert found.confidence == confidence
        assert 2 <= found.runs <= len(self.bench.runs)


def ended(
    folder: Path,
    given: Any,
    *trials: Trial,
    total_s: float = 300.0,
    objective: Objective = COST,
    slo: Slo = SLO,
    profiled: bool = True,
    goes_on: bool = False,
    policy: Policy = POLICY,
    decide: Decide = next_step,
    **options: Any,
) -> Ended:
    """Certify the best of these trials, or what else is worth a trial if the search goes on."""
    seen: list[events.Event] = []
    folder.mkdir(exist_ok=True)
    budget = BudgetOfLoad(total_s=total_s, spent=given.spent)
    store = open_store(two_core_space(folder), folder, storage="sqlite://", seed=3, objective=objective)
    store.trials.extend(trials)
    if profiled:
        write_curves(folder, profile(folder, *trials, slo=slo).curves)
    known: dict[str, Any] = {"slo": slo, "budget": budget, "seed": 1, "on_event": seen.append, **options}
    runner = TrialRunner(store=store, bench=ObservedBench(given) if goes_on else given, **known)
    search = GuidedSearch.of(runner, surrogate_for(runner)) if goes_on else None
    if search is not None:
        search.surrogate.simulate(list(store.space.points()))
    certified = certify_best(runner, search, policy=policy, decide=decide)
    return Ended(certified=certified, seen=seen, budget=budget, bench=given, folder=folder)
