"""`--find-max` against a simulated queue whose highest rate is known."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from simulated_generator import SimulatedGenerator
from virtual_load_test import carried_out, order_of

from loadgen.errors import BadInput, TargetUnreachable
from loadgen.measurement.request_log import concatenate
from loadgen.records.formats import format_rate
from loadgen.records.record import LoadTestRecord
from loadgen.sending.plan_run import LoadRun
from loadgen.wire.in_front import LIMIT

SEARCH = {
    "url": "http://127.0.0.1:9", "model": "m", "find_max": True, "p99": "50ms", "duration": "300s", "warmup": "1s",
}  # fmt: skip


def found(generator: SimulatedGenerator, *, stop_after: int | None = None, **changes: object) -> LoadTestRecord:
    return carried_out(order_of(**{**SEARCH, **changes}), generator, stop_after=stop_after)


def p99_of_m_d_1_ms(rate_per_s: float, service_ms: float) -> float:
    """By simulation of its own: Lindley's recursion over a million Poisson arrivals."""

    gaps = np.random.default_rng(99).exponential(1e3 / rate_per_s, 1_000_000)
    steps = service_ms - gaps[1:]
    sums = np.concatenate(([0.0], np.cumsum(steps)))
    waits = sums - np.minimum.accumulate(sums)
    return float(np.quantile(waits + service_ms, 0.99))


def test_the_confirmed_rate_keeps_the_limit_and_is_not_far_below_what_could() -> None:
    record = found(SimulatedGenerator(service_ms=5.0))
    assert (record.outcome, record.exit_code) == ("met", 0)
    rate = record.capacity.certified_rate_per_s
    assert p99_of_m_d_1_ms(rate, 5.0) <= 50.0
    assert p99_of_m_d_1_ms(1.2 * rate, 5.0) > 50.0
    assert [check.answer for check in record.checks] == ["met"]
    assert record.capacity.seconds <= 305.0
    assert record.load.rate_per_s is None


def test_a_probe_that_met_first_executions_is_sent_again() -> None:
    warm, cold = SimulatedGenerator(service_ms=5.0), SimulatedGenerator(service_ms=5.0, cold_runs=1)
    assert found(cold).capacity == found(warm).capacity
    assert len(cold.plans) == len(warm.plans) + 1


def test_a_guess_is_tried_first() -> None:
    generator = SimulatedGenerator(service_ms=5.0)
    record = found(generator, rate=120.0)
    assert record.capacity.probes[0].rate_per_s == 120.0


def test_a_server_that_is_too_slow_for_any_rate_is_violated() -> None:
    record = found(SimulatedGenerator(delay_ms=80.0))
    assert (record.outcome, record.exit_code) == ("violated", 99)
    assert "p99 <= 50 ms" in record.reasons[0]


def test_too_little_load_to_confirm_is_not_a_promise() -> None:
    record = found(SimulatedGenerator(service_ms=5.0), duration="6s")
    assert (record.outcome, record.exit_code) == ("inconclusive", 96)
    assert record.capacity.certified_rate_per_s is None


def test_a_client_that_is_always_late_finds_nothing() -> None:
    assert found(SimulatedGenerator(send_lag_ms=5.0)).exit_code == 98


def test_failures_have_their_own_limit_at_the_highest_rate() -> None:
    generator = SimulatedGenerator(service_ms=20.0, failing=0.01)
    record = found(generator, max_errors="0%", p99=None, p95="400ms", rate=40.0)
    assert record.outcome == "violated"
    assert record.checks[1].answer == "violated"


def test_the_failures_of_probes_are_counted_by_their_kind() -> None:
    record = found(SimulatedGenerator(service_ms=20.0, failing=0.5))
    assert record.capacity.probes[0].errors.keys() == {"http 503"}
    assert " http 503" in record.reasons[0]
    assert "limit in front" not in record.reasons[0]


def test_a_server_that_is_slower_when_idle_is_certified_and_the_lower_rate_is_named() -> None:
    record = found(SimulatedGenerator(service_ms=1.0, idle_ms=60.0))
    assert record.outcome == "met"
    assert "but it is slower when less busy: p99 6" in record.reasons[0]


def test_the_limit_of_a_gateway_is_not_the_capacity() -> None:
    generator = SimulatedGenerator(service_ms=1.0, failing=0.5, in_front=("9 requests failed at " + LIMIT,))
    record = found(generator)
    assert "at a limit in front of the server, whose own capacity may be higher" in record.reasons[0]
    assert record.reasons[-1] == generator.in_front[0]


@pytest.mark.parametrize("first", [4, 16])
def test_a_server_that_answers_no_more_keeps_what_was_found(first: int) -> None:
    """After the fourth run in the search, or in the confirmation."""
    generator = SimulatedGenerator(service_ms=5.0, unanswered=range(first, 100))
    record = found(generator, header=("X-Key: of-the-test",))
    assert "of-the-test" not in record.model_dump_json()
    assert (record.outcome, record.exit_code) == ("inconclusive", 96)
    assert "no whole answer within 10 s" in record.reasons[0]
    assert [probe.requests == 0 for probe in record.capacity.probes] == [False] * (first - 2) + [True] * 2
    assert sum(record.measurement.errors.values()) == 0 if record.measurement else False


def test_a_probe_whose_questions_get_no_answer_once_is_sent_again() -> None:
    record = found(SimulatedGenerator(service_ms=5.0, unanswered=range(4, 5)))
    assert (record.outcome, record.exit_code) == ("met", 0)
    assert [probe.answer for probe in record.capacity.probes].count("no answer") == 1


def test_a_server_that_never_answers_a_question_is_an_error() -> None:
    with pytest.raises(TargetUnreachable):
        found(SimulatedGenerator(unanswered=range(2, 100)))


@pytest.mark.parametrize("stop_after", [0, 3, 40])
def test_an_interrupted_search_keeps_its_probes(stop_after: int) -> None:
    record = found(SimulatedGenerator(service_ms=5.0), stop_after=stop_after)
    assert record.exit_code == 130
    assert record.capacity is not None
    assert stop_after < 40 or record.capacity.probes


def test_several_limits_are_refused() -> None:
    with pytest.raises(BadInput, match="one limit"):
        found(SimulatedGenerator(), p50="10ms", p99="50ms")


@dataclass
class SlowerLater(SimulatedGenerator):
    """It takes 2.5 times as long per request from the sixth run on, when the search has made up its mind."""

    def run(self, *args: Any, **options: Any) -> LoadRun:
        if len(self.plans) == 5:
            self.service_ms *= 2.5
        return super().run(*args, **options)


def test_a_rate_above_one_that_was_violated_is_not_predicted_to_meet_the_limit() -> None:
    record = found(SlowerLater(service_ms=5.0), duration="40s")
    capacity = record.capacity
    assert (record.outcome, capacity.certified_rate_per_s) == ("inconclusive", None)
    violated = min(
        one.rate_per_s for one in capacity.probes if one.confirms and one.answer in ("violated", "overloaded")
    )
    assert violated < capacity.estimate_per_s
    assert format_rate(capacity.estimate_per_s) not in record.reasons[0]
    assert format_rate(violated) in record.reasons[0]


class LateAfterTheStop(SimulatedGenerator):
    """A tenth of the requests are late that were sent after the watch had seen enough."""

    def run(self, *args: Any, **options: Any) -> LoadRun:
        run = super().run(*args, **options)
        if run.stopped is None or options.get("limit_ms") is None:
            return run
        more = run.log.shifted(int(run.log.scheduled_ns[-1]) + 1).rows(0, len(run.log) // 10)
        late = replace(more, done_ns=more.done_ns + 1_000_000_000)
        return replace(run, log=concatenate([run.log, late]))


def test_what_arrives_after_the_confirmation_has_ended_undoes_it_no_more() -> None:
    record = found(LateAfterTheStop(service_ms=5.0))
    assert record.capacity.certified_rate_per_s is not None
    assert (record.outcome, [check.answer for check in record.checks]) == ("met", ["met"])
