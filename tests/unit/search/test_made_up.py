"""A short run beside a neighbour gets longer once, tells so, and gets no longer than that."""

from pathlib import Path

import pytest
from simulated_bench import BudgetOfLoad, SimulatedBench
from simulated_search import SLO
from spaces import two_core_space

from search import events
from search.budget import MADE_UP_AT_MOST
from search.certification import certify_best
from search.ledger import open_ledger
from search.study import Search

TOTAL_S = 24.0


def short_run(folder: Path, *, cores: float) -> tuple[BudgetOfLoad, list[events.BudgetExtended], SimulatedBench]:
    bench = SimulatedBench(taken_cores=lambda load_s: cores)
    budget = BudgetOfLoad(total_s=TOTAL_S, spent=bench.spent)
    seen: list[events.Event] = []
    ledger = open_ledger(two_core_space(folder), folder, storage="sqlite://", seed=3)
    common = {"slo": SLO, "budget": budget, "seed": 3, "on_event": seen.append}
    Search(ledger=ledger, bench=bench, **common).run()
    certify_best(ledger, bench, **common)
    return budget, [event for event in seen if isinstance(event, events.BudgetExtended)], bench


def test_what_a_neighbour_took_is_made_up_for_once(tmp_path: Path) -> None:
    budget, [extended], bench = short_run(tmp_path, cores=0.9)
    assert 0 < extended.by_s <= MADE_UP_AT_MOST * TOTAL_S
    assert extended.total_s == budget.total_s == pytest.approx(TOTAL_S + extended.by_s)
    assert budget.elapsed_s() > TOTAL_S  # the time is used
    assert bench.spent.load_s < budget.total_s + 5.0


def test_a_quiet_run_keeps_to_its_budget(tmp_path: Path) -> None:
    budget, extended, _ = short_run(tmp_path, cores=0.0)
    assert extended == []
    assert budget.total_s == TOTAL_S
