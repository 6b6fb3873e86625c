"""Run a whole search on a drawn server in virtual time, and compare its answer with the truth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drawn_servers import DrawnServer
from search_stages import AccountedBench, Stage, stages_of
from simulated_bench import BudgetOfLoad
from true_rates import best_rate, true_rate

from loadgen.spec.limits import LatencyLimit
from search.certification.certify import certify_best
from search.records.confirmations import read_confirmations
from search.records.slo import Slo
from search.space import knobs_of
from search.study.guided_search import GuidedSearch
from search.study.run import run_search
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials.bench import ObservedBench
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
    servers: int
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
    cpu_s = time.process_time()
    space = server.space(folder)
    truth: dict[str, Any] = {
        "service_s": server.service_s,
        "contention": server.contention,
        "noise": server.noise,
        "limit_ms": server.limit_ms,
    }
    bench = AccountedBench(**truth)
    certified_at_s: dict[int, float] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, ConfirmationEnded) and event.certificate is not None:
            certified_at_s[event.trial.number] = bench.spent.load_s

    store = open_store(space, folder, storage="sqlite://", seed=server.number)
    common: dict[str, Any] = {
        "slo": Slo(limits=(LatencyLimit(limit_ms=server.limit_ms),)),
        "budget": BudgetOfLoad(total_s=BUDGET_S, spent=bench.spent),
        "seed": server.number,
        "on_event": on_event,
    }
    runner = TrialRunner(store=store, bench=ObservedBench(bench), **common)
    found = search(runner)
    search_s = bench.spent.load_s
    certified = certify_best(runner, found if isinstance(found, GuidedSearch) else None)
    winner = None if certified is None else certified.winner
    certificate = None if winner is None else winner.certificate
    chosen = None if winner is None else true_rate(winner.served, **truth)
    cpu_s = time.process_time() - cpu_s
    return SearchRun(
        kind=server.kind,
        number=server.number,
        best=best_rate([space.config(knobs) for knobs in space.points()], **truth),
        chosen=chosen,
        estimated=None if winner is None else winner.rate_at_limit_per_s,
        promised=None if certificate is None else certificate.rate_per_s,
        confirmations=0 if certificate is None else certificate.runs,
        servers=0 if certificate is None else certificate.servers,
        caveat=None if certificate is None else certificate.caveat,
        search_s=search_s,
        winner_s=bench.spent.load_s if winner is None else certified_at_s[winner.number],
        total_s=bench.spent.load_s,
        trials=len(store.trials),
        points=space.size(),
        knobs=None if winner is None else knobs_of(winner.served),
        cpu_s=cpu_s,
        stages=stages_of(bench, store.trials, read_confirmations(folder), winner=winner, capacity_per_s=chosen),
    )
