"""Limits on p99, on the median and on memory, searched and certified together on a simulated server."""

from pathlib import Path

import numpy as np
import pytest
from recommendations import trial
from simulated_bench import SimulatedBench, default_service_s
from spaces import two_core_space
from true_rates import true_rate

from model_repo.spec import ServingConfig
from search import events
from search.budget import Budget
from search.certification import Certified, certify_best
from search.confirmable import least_s
from search.ledger import Ledger, open_ledger
from search.predict import Promise, binding_limit, promise_of, rate_at_limit, unit_arrivals
from search.records import LimitRecord, RecommendationRecord, Slo, TrialRecord
from search.simulator import SimulatedServer
from search.study import Search

pytestmark = pytest.mark.slow

MEDIAN = LimitRecord(quantile=0.5, limit_ms=9.0)
BOTH = Slo(limit_ms=50.0, also=(MEDIAN,))
GIB = 2**30


def searched(bench: SimulatedBench, folder: Path, slo: Slo) -> tuple[Ledger, Certified | None, list[events.Event]]:
    seen: list[events.Event] = []
    ledger = open_ledger(two_core_space(folder), folder, storage="sqlite://", seed=3)
    common = {"slo": slo, "budget": Budget(total_s=600.0), "seed": 3, "on_event": seen.append}
    Search(ledger=ledger, bench=bench, **common).run()
    return ledger, certify_best(ledger, bench, **common), seen


def test_both_limits_are_kept_at_nearly_the_best_rate(tmp_path: Path) -> None:
    _, certified, _ = searched(SimulatedBench(), tmp_path, BOTH)
    assert certified is not None
    winner, space = certified.winner, two_core_space(tmp_path)

    def truth(config: ServingConfig) -> float:
        return true_rate(config, default_service_s, limit_ms=50.0, further=BOTH.further)

    assert winner.certificate.rate_per_s <= 1.02 * truth(winner.config)
    few = [space.config(knobs) for knobs in space.points() if knobs["max_queue_delay_us"] == 0]
    assert winner.certificate.rate_per_s >= 0.85 * max(map(truth, few))
    assert winner.certificate.p99_high_ms <= 50.0
    (median,) = winner.certificate.also
    assert median.latency_low_ms <= median.latency_ms <= median.latency_high_ms <= MEDIAN.limit_ms
    assert winner.certificate.confidence == BOTH.confidence


def test_a_configuration_over_the_memory_is_not_chosen_and_larger_ones_are_not_tried(tmp_path: Path) -> None:
    def memory(config: ServingConfig) -> int:
        return GIB * config.instance_count

    slo = Slo(limit_ms=50.0, max_memory_bytes=int(1.5 * GIB))
    ledger, certified, _ = searched(SimulatedBench(memory=memory), tmp_path, slo)
    assert certified is not None
    assert certified.winner.config.instance_count == 1
    assert certified.winner.memory_bytes == GIB
    over = [trial for trial in ledger.trials if trial.config.instance_count > 1]
    assert over
    for one in over:
        assert one.state == "infeasible"
        assert "took 2 GiB, over the limit of 1.5 GiB" in one.reason
    asked = [(one.config.max_batch_size, one.config.instance_count) for one in over]
    assert not any(
        later[0] >= first[0] and later[1] >= first[1] for n, first in enumerate(asked) for later in asked[n + 1 :]
    )


def test_memory_that_grows_while_it_is_certified_costs_the_configuration_its_place(tmp_path: Path) -> None:
    """On the restarted server, the winner turns out to take more than it may."""
    bench, slo = SimulatedBench(), Slo(limit_ms=50.0, max_memory_bytes=2 * GIB)
    first: list[ServingConfig] = []

    def memory(config: ServingConfig) -> int:
        if bench.restarts and not first:
            first.append(bench.loaded[-1])
        return 3 * GIB if config in first else GIB

    bench.memory = memory
    _, certified, seen = searched(bench, tmp_path, slo)
    assert certified is not None
    assert certified.winner.config not in first
    notes = [event.text for event in seen if isinstance(event, events.Note)]
    assert any("is not chosen: the server took 3 GiB" in note for note in notes)


def test_predictions_stop_at_the_limit_that_breaks_first() -> None:
    times = [[1.0] * 2] + [[0.004 + 0.001 * size] * 2 for size in range(1, 9)]
    server, unit = SimulatedServer(service_s=np.array(times)), unit_arrivals(1, requests=20_000)
    p99, median = Promise(limit_s=0.05), Promise(limit_s=0.009, quantile=0.5)
    alone = [rate_at_limit(server, one, unit) for one in (p99, median)]
    both = promise_of(Slo(limit_ms=50, also=(LimitRecord(quantile=0.5, limit_ms=9),)))
    assert both.each == (p99, median)
    assert rate_at_limit(server, both, unit) == pytest.approx(min(alone), rel=0.01)
    assert alone[1] < 0.9 * alone[0]
    assert binding_limit(server, both, alone[1], unit) == median


def test_every_limit_needs_its_seconds() -> None:
    assert least_s(100.0, BOTH, 0.95) > least_s(100.0, Slo(limit_ms=50.0), 0.95)
    assert least_s(100.0, BOTH, 0.8) < least_s(100.0, BOTH, 0.95)


def test_what_earlier_versions_wrote_is_read() -> None:
    slo = Slo.model_validate_json('{"limit_ms": 50.0, "quantile": 0.99, "confidence": 0.95}')
    assert slo.text == "p99 within 50 ms"
    assert slo.limits[0].option == "--p99=50ms"
    assert BOTH.text == "p99 within 50 ms and p50 within 9 ms"
    assert "also" not in RecommendationRecord.model_json_schema()["$defs"]["Slo"].get("required", [])
    assert TrialRecord.model_fields["memory_bytes"].default is None
    assert trial().memory_bytes is None
