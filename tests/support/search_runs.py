"""Run a whole search on a drawn server in virtual time, and compare its answer with the truth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from drawn_servers import DrawnServer
from search_stages import AccountedBench, Stage, stages_of
from simulated_bench import BudgetOfLoad
from true_rates import best_rate, true_rate

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.certification.certify import certify_best
from search.records.confirmations import CONFIRMATIONS_FILE, read_confirmations
from search.records.slo import Slo
from search.space import SearchSpace, knobs_of
from search.study.run import run_search
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials.events import ConfirmationEnded, Event

BUDGET_S = 600.0
"""The defaults of `optimize`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """Rates in requests/s, `*_s` in seconds. `best` and `chosen` are true capacities, of the whole space and of
    the chosen configuration; `estimated` and `promised` are the search's rates for it, None if there are none.

    Seconds of load: until the best candidate was known, until the winner had its last certificate, and of all, the
    default configuration's certificate included. `stages` divides all of them.
    """

    kind: str
    number: int
    best: float
    chosen: float | None
    estimated: float | None
    promised: float | None
    confirmations: int
    caveat: str | None
    search_s: float
    winner_s: float
    total_s: float
    trials: int
    points: int
    knobs: dict[str, int | str] | None
    cpu_s: float
    stages: dict[str, Stage]


def search_run(
    server: DrawnServer,
    folder: Path,
    *,
    search: Callable[[TrialRunner], object] = run_search,
) -> SearchRun:
    """Run one certified search with the server's number as its seed, and compare it with the truth."""
    return searched(server, folder, search=search).certified()


def searched(
    server: DrawnServer,
    folder: Path,
    *,
    search: Callable[[TrialRunner], object] = run_search,
) -> FinishedSearch:
    """Run one search, without certification."""
    cpu_s = time.process_time()
    space = server.space(folder)
    bench = AccountedBench(
        service_s=server.service_s,
        contention=server.contention,
        noise=server.noise,
        limit_ms=server.limit_ms,
    )
    runner = TrialRunner(
        store=open_store(space, folder, storage="sqlite://", seed=server.number),
        bench=bench,
        slo=Slo(limits=(LatencyLimit(limit_ms=server.limit_ms),)),
        budget=BudgetOfLoad(total_s=BUDGET_S, spent=bench.spent),
        seed=server.number,
    )
    search(runner)
    return FinishedSearch(
        server=server, folder=folder, space=space, bench=bench, runner=runner, cpu_s=time.process_time() - cpu_s
    )


@dataclass(slots=True, kw_only=True)
class FinishedSearch:
    """A search whose best candidate is known; `certified` as often as one likes, each time from the same state."""

    server: DrawnServer
    folder: Path
    space: SearchSpace
    bench: AccountedBench
    runner: TrialRunner
    cpu_s: float
    _best_per_s: float | None = None
    _capacity_per_s: dict[str, float] = field(default_factory=dict)

    def certified(self) -> SearchRun:
        """Certify the best candidate in virtual time, and compare the answer with the truth."""
        cpu_s = time.process_time()
        bench, runner, server = replace(self.bench, spent=replace(self.bench.spent)), self.runner, self.server
        search_s = bench.spent.load_s
        (self.folder / CONFIRMATIONS_FILE).unlink(missing_ok=True)
        certified_at_s: dict[int, float] = {}

        def on_event(event: Event) -> None:
            if isinstance(event, ConfirmationEnded) and event.certificate is not None:
                certified_at_s[event.trial.number] = bench.spent.load_s

        certified = certify_best(
            runner.store,
            bench,
            slo=runner.slo,
            budget=BudgetOfLoad(total_s=runner.budget.total_s, spent=bench.spent),
            seed=runner.seed,
            on_event=on_event,
        )
        winner = None if certified is None else certified.winner
        certificate = None if winner is None else winner.certificate
        chosen = None if winner is None else self._capacity(winner.served)
        return SearchRun(
            kind=server.kind,
            number=server.number,
            best=self._best(),
            chosen=chosen,
            estimated=None if winner is None else winner.rate_at_limit_per_s,
            promised=None if certificate is None else certificate.rate_per_s,
            confirmations=0 if certificate is None else certificate.runs,
            caveat=None if certificate is None else certificate.caveat,
            search_s=search_s,
            winner_s=bench.spent.load_s if winner is None else certified_at_s[winner.number],
            total_s=bench.spent.load_s,
            trials=len(runner.store.trials),
            points=self.space.size(),
            knobs=None if winner is None else knobs_of(winner.served),
            cpu_s=self.cpu_s + time.process_time() - cpu_s,
            stages=stages_of(
                bench,
                runner.store.trials,
                read_confirmations(self.folder),
                winner=winner,
                capacity_per_s=chosen,
            ),
        )

    def _truth(self) -> dict[str, Any]:
        server = self.server
        return {
            "service_s": server.service_s,
            "contention": server.contention,
            "noise": server.noise,
            "limit_ms": server.limit_ms,
        }

    def _best(self) -> float:
        """Return the true capacity of the best configuration of the space, which takes a second to find."""
        if self._best_per_s is None:
            configs = [self.space.config(knobs) for knobs in self.space.points()]
            self._best_per_s = best_rate(configs, **self._truth())
        return self._best_per_s

    def _capacity(self, config: ServingConfig) -> float:
        if str(config) not in self._capacity_per_s:
            self._capacity_per_s[str(config)] = true_rate(config, **self._truth())
        return self._capacity_per_s[str(config)]
