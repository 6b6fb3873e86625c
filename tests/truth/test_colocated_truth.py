"""Two models on one server, in virtual time: certified rates, and the highest at which both keep their limits."""

from pathlib import Path

import pytest
from simulated_colocated import OTHER, ColocatedBench
from spaces import two_core_space
from virtual_search import SLO, search_on

from search.answer.advice import late_others
from search.records.slo import ObjectiveRecord

BOTH = SLO.model_copy(update={"colocated": (OTHER,)})


@pytest.mark.slow
@pytest.mark.parametrize("doubled_at_per_s", [1e9, 500.0, 200.0], ids=["alone", "slowed", "slowed much"])
def test_a_certified_rate_keeps_the_limits_of_both(tmp_path: Path, doubled_at_per_s: float) -> None:
    bench = ColocatedBench(doubled_at_per_s=doubled_at_per_s)
    _, found, _ = search_on(bench, two_core_space(tmp_path), tmp_path, slo=BOTH, budget_s=300.0)
    assert found is not None
    certificate = found.winner.certificate
    assert certificate is not None
    assert certificate.confirmed_again
    assert [(one.quantile, one.model) for one in certificate.latencies] == [(0.99, None), (0.99, "other")]
    capacity = bench.capacity(found.winner.served, SLO.first.limit_ms)
    assert 0.6 * capacity <= certificate.rate_per_s <= 1.02 * capacity


def test_a_model_that_is_late_by_itself_is_named(tmp_path: Path) -> None:
    other = OTHER.__class__(limit_ms=3.0, colocated=OTHER.colocated)  # it takes 4 ms alone
    slo = SLO.model_copy(update={"colocated": (other,)})
    store, found, _ = search_on(ColocatedBench(other=other), two_core_space(tmp_path), tmp_path, slo=slo)
    assert found is None
    assert any("other" in (late_others(trial, ObjectiveRecord()) or "") for trial in store.trials)
