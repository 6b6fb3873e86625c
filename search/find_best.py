"""The front door: search, certify and recommend, from one request to one result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadgen.errors import UserError
from loadgen.exit_codes import Status
from loadgen.measurement.cpu_contention import CpuContention, none_if_not_watched
from search.answer.advice import RUN_DIR
from search.answer.conclusion import Conclusion, RunEvidence, conclude
from search.answer.pauses import pauses_of
from search.answer.recommend import alternatives_to, cost_of, frontier_of, gain_over, reason_for
from search.certification.certify import CertifiedResult, certify_best
from search.cost.cost import PriceRecord
from search.records.confirmations import read_confirmations
from search.records.recommendation import (
    CostRecord,
    FrontierRecord,
    SecondsRecord,
    ServedRecord,
)
from search.records.run_files import shown_directory, write_predictions
from search.records.slo import Slo
from search.records.trial import TrialRecord
from search.space import SearchSpace
from search.study.acquisition import predictions
from search.study.pool import Workers, worker_pool
from search.study.run import run_search
from search.study.store import TrialStore, open_store
from search.study.trial_runner import SearchImpossible, TrialRunner
from search.trials import events
from search.trials.bench import ObservedBench, RunBench, observed
from search.trials.context import Budget
from search.trials.objective import COST, Objective
from search.trials.trial import Trial
from search.workload import Workload


class NothingFound(UserError):
    """The run recommends nothing: its conclusion says why. `contention`: of all load; None: not measured."""

    def __init__(
        self, what: str, fix: str, status: Status = "violated", contention: CpuContention | None = None
    ) -> None:
        super().__init__(what, fix)
        self.status, self.contention = status, contention


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """The parameters of a search, and the directory for its files.

    `price` is that of one replica. With a `rate_to_serve_per_s` the result counts replicas. `hardware` describes
    the machine that measures. `storage` is an Optuna storage URL, None for a file in `directory`; `study` is the
    name in it, None for one after the directory. With `despite_noise`, a search that measures nothing in its first
    minute goes on; with `ignore_slow_phases`, the certified rate need not hold in them.
    """

    space: SearchSpace
    directory: Path
    slo: Slo
    price: PriceRecord
    seed: int
    objective: Objective = COST
    workload: Workload = field(default_factory=Workload)
    rate_to_serve_per_s: float | None = None
    peak_rate_per_s: float | None = None
    hardware: str | None = None
    storage: str | None = None
    study: str | None = None
    despite_noise: bool = False
    ignore_slow_phases: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The recommended configuration with its certificate, and figures for comparison.

    `baseline` is Triton's default configuration, None if it was not tried; `gain` is the winner's estimated
    capacity over the baseline's. `start` is the configuration that the user started from. `frontier` holds the
    load runs that no other beats in rate and latency. `contention` is the CPU time that other processes took in
    all load, None if it could not be measured.
    """

    winner: Trial
    baseline: Trial | None
    gain: float | None
    start: Trial | None
    cost: CostRecord
    alternatives: tuple[TrialRecord, ...]
    frontier: tuple[FrontierRecord, ...]
    reason: str
    served: ServedRecord
    loading_s: float
    load_s: float
    contention: CpuContention | None
    conclusion: Conclusion

    def seconds(self, total_s: float) -> SecondsRecord:
        """Return how a run that took `total_s` in all divides into load, loading of models and the rest."""
        return SecondsRecord(
            total=total_s,
            load=self.load_s,
            loading_models=self.loading_s,
            other=max(0.0, total_s - self.load_s - self.loading_s),
        )


def find_best(
    request: SearchRequest,
    bench: AbstractContextManager[RunBench],
    workers: Workers | None = None,
    *,
    budget: Budget,
    on_event: events.OnEvent = events.ignore,
    stop: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """Search until the budget is used or `stop` returns True, certify the best configuration, and recommend it.

    `bench` is entered when the trials of an earlier run in the directory have been read, and left before the
    result is made. `workers` are other processes that measure for the same search. Raises NothingFound if no
    rate is certified, BadInput and StorageFailed if the study cannot be used.
    """
    store = open_store(
        request.space,
        request.directory,
        storage=request.storage,
        seed=request.seed,
        study=request.study,
        hardware=request.hardware,
        objective=request.objective,
        on_event=on_event,
    )
    with closing(store.storage), bench as served:
        watched = observed(served)
        on_event(events.PhaseStarted(name="search", detail=f"{request.space.size()} configurations"))
        runner = TrialRunner(
            store=store,
            bench=watched,
            slo=request.slo,
            budget=budget,
            seed=request.seed,
            workload=request.workload,
            on_event=on_event,
            stop=stop,
            despite_noise=request.despite_noise,
            ignore_slow_phases=request.ignore_slow_phases,
        )
        search = None
        with worker_pool(store, workers) as pool, suppress(SearchImpossible):
            search = run_search(replace(runner, pool=pool))
        budget.begin_certification()
        on_event(events.PhaseStarted(name="certify"))
        certified = certify_best(runner, search)
        if search is not None:
            answers = () if certified is None else filter(None, (certified.winner, certified.baseline))
            write_predictions(request.directory, predictions(search.surrogate, (one.served for one in answers)))
    winner = None if certified is None else certified.winner
    evidence = _evidence(request, store, winner, watched, budget=budget, interrupted=stop())
    restarts = winner is None or served.replica_start_s(winner.served) is not None
    conclusion = conclude(replace(evidence, restarts=restarts))
    advice = conclusion.advice.replace(RUN_DIR, shown_directory(request.directory))
    conclusion = replace(conclusion, advice=advice)
    if certified is None:
        contention = none_if_not_watched(served.spent.contention)
        raise NothingFound(conclusion.reason, conclusion.advice, conclusion.status, contention)
    return _result(request, store, certified, served, conclusion)


def _evidence(
    request: SearchRequest,
    store: TrialStore,
    winner: Trial | None,
    bench: ObservedBench,
    *,
    budget: Budget,
    interrupted: bool,
) -> RunEvidence:
    first = request.slo.first
    lost = [
        (len(run.sent_s) / run.seconds, run.lost)
        for run in bench.runs
        if run.lost > (1 - first.quantile) * len(run.sent_s)
    ]
    return RunEvidence(
        slo=request.slo,
        trials=store.trials,
        confirmations=read_confirmations(request.directory),
        objective=request.objective.record,
        winner=winner,
        interrupted=interrupted,
        contention=none_if_not_watched(bench.spent.contention),
        budget_s=budget.total_s,
        prepared_s=budget.prepared_s,
        searched_s=budget.searched_s,
        pauses=pauses_of(bench.runs, limit_s=first.limit_s, quantile=first.quantile),
        lost=min(lost, default=None),
    )


def _result(
    request: SearchRequest,
    store: TrialStore,
    certified: CertifiedResult,
    bench: RunBench,
    conclusion: Conclusion,
) -> SearchResult:
    objective, spent = request.objective, bench.spent
    winner, baseline = certified.winner, certified.baseline
    rivals = [trial for trial in store.trials if trial.served not in request.space.only_compared]
    measured = [*store.trials, winner, *([baseline] if baseline else [])]
    gain = gain_over(winner, baseline)
    return SearchResult(
        winner=winner,
        baseline=baseline,
        gain=None if objective.rate_per_s is not None or gain is None else gain[1],
        start=certified.start,
        cost=cost_of(
            request.price,
            winner,
            baseline,
            rate_to_serve_per_s=request.rate_to_serve_per_s,
            peak_rate_per_s=request.peak_rate_per_s,
            rows_per_request=request.workload.rows_per_request,
        ),
        alternatives=tuple(trial.record for trial in alternatives_to(winner, rivals, objective)),
        frontier=frontier_of(measured),
        reason=reason_for(winner, rivals, objective),
        served=ServedRecord(
            replica_start_s=bench.replica_start_s(winner.served), memory_bytes=bench.memory_bytes(winner.served)
        ),
        loading_s=spent.loading_s,
        load_s=spent.load_s,
        contention=none_if_not_watched(spent.contention),
        conclusion=conclusion,
    )
