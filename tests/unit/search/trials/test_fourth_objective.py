"""An objective that tritune does not have, in one file: the least memory of the server."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from simulated_bench import BudgetOfLoad, SimulatedBench
from spaces import two_core_space
from virtual_search import SLO

from search.cost.cost import PriceRecord
from search.find_best import SearchRequest, find_best
from search.simulator.surrogate import Predicted
from search.study.run import SEARCH_FILE
from search.trials.objective import OBJECTIVES, Objective, Prospects
from search.trials.trial import Trial

pytestmark = pytest.mark.slow

MIB = 2**20


class Memory(Objective):
    name, metric, best_by = "memory", "negative_memory_bytes", "took the least memory"

    def rank(self, known: Prospects) -> Iterator[Predicted]:
        smallest = sorted(
            known.surrogate.best_first(),
            key=lambda one: (one.knobs["instance_count"], one.knobs["max_batch_size"]),
        )
        return iter(smallest[:1])

    def worth(self, trial: Trial) -> float | None:
        return None if trial.state != "complete" or trial.memory_bytes is None else -float(trial.memory_bytes)


def test_a_search_asks_a_new_objective_and_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OBJECTIVES, Memory.name, Memory)
    bench = SimulatedBench(memory=lambda config: config.instance_count * (100 + config.max_batch_size) * MIB)
    request = SearchRequest(
        space=two_core_space(tmp_path),
        directory=tmp_path,
        slo=SLO,
        price=PriceRecord(usd_per_hour=1.0, source="test", as_of="", describes="a replica"),
        seed=3,
        storage="sqlite://",
        objective=OBJECTIVES["memory"](),
    )
    found = find_best(request, nullcontext(bench), budget=BudgetOfLoad(total_s=200.0, spent=bench.spent))
    winner, others = found.winner, found.alternatives
    assert (winner.served.instance_count, winner.served.max_batch_size) == (1, 1)
    assert winner.certificate is not None
    assert winner.certificate.servers == 2
    assert all((winner.memory_bytes or 0) <= (other.memory_bytes or 0) for other in others)
    assert max(other.rate_at_limit_per_s or 0.0 for other in others) > (winner.rate_at_limit_per_s or 0.0)
    assert Memory.best_by in found.reason
    assert json.loads((tmp_path / SEARCH_FILE).read_bytes())["objective"]["name"] == "memory"
