"""A whole search on a drawn server in virtual time, and what its answer is worth in truth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drawn_servers import DrawnServer
from simulated_bench import BudgetOfLoad, SimulatedBench
from true_rates import best_rate, true_rate

from search.attempts import Attempts
from search.certification import certify_best
from search.events import Certified, Event
from search.ledger import open_ledger
from search.records import Slo
from search.space import knobs_of
from search.study import Search

BUDGET_S = 600.0
"""What `optimize` takes where nothing else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """Rates in requests/s, `*_s` in seconds. `best` and `chosen` are true capacities, of the whole space and of
    the configuration that was chosen; `estimated` and `promised` are what was said of it, None where nothing was.

    Seconds of load: until the best candidate was known, until the winner had its last certificate, and of all, the
    default configuration's certificate included.
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


def search_run(
    server: DrawnServer,
    folder: Path,
    *,
    search: Callable[[Attempts], object] = lambda attempts: Search(**_fields(attempts)).run(),
) -> SearchRun:
    """One search with the seed of the server's number, certified, and measured against the truth."""
    cpu_s = time.process_time()
    space = server.space(folder)
    bench = SimulatedBench(
        service_s=server.service_s,
        contention=server.contention,
        noise=server.noise,
        limit_ms=server.limit_ms,
    )
    ledger = open_ledger(space, folder, storage="sqlite://", seed=server.number)
    certified_at_s: dict[int, float] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, Certified) and event.certificate is not None:
            certified_at_s[event.trial.number] = bench.spent.load_s

    attempts = Attempts(
        ledger=ledger,
        bench=bench,
        slo=Slo(limit_ms=server.limit_ms),
        budget=BudgetOfLoad(total_s=BUDGET_S, spent=bench.spent),
        seed=server.number,
        on_event=on_event,
    )
    search(attempts)
    search_s = bench.spent.load_s
    certified = certify_best(
        ledger, bench, slo=attempts.slo, budget=attempts.budget, seed=attempts.seed, on_event=on_event
    )
    truth = {
        "service_s": server.service_s,
        "contention": server.contention,
        "noise": server.noise,
        "limit_ms": server.limit_ms,
    }
    winner = None if certified is None else certified.winner
    certificate = None if winner is None else winner.certificate
    return SearchRun(
        kind=server.kind,
        number=server.number,
        best=best_rate([space.config(knobs) for knobs in space.points()], **truth),
        chosen=None if winner is None else true_rate(winner.config, **truth),
        estimated=None if winner is None else winner.rate_at_limit_per_s,
        promised=None if certificate is None else certificate.rate_per_s,
        confirmations=0 if certificate is None else certificate.runs,
        caveat=None if certificate is None else certificate.caveat,
        search_s=search_s,
        winner_s=bench.spent.load_s if winner is None else certified_at_s[winner.number],
        total_s=bench.spent.load_s,
        trials=len(ledger.trials),
        points=space.size(),
        knobs=None if winner is None else knobs_of(winner.config),
        cpu_s=time.process_time() - cpu_s,
    )


def _fields(attempts: Attempts) -> dict[str, object]:
    return {name: getattr(attempts, name) for name in Attempts.__dataclass_fields__}
