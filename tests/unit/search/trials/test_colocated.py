"""Unit: the loads of colocated models begin before a run and end with it, and are judged by their own limits."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_triton import fake_triton
from simulated_generator import SimulatedGenerator
from simulated_queues import log_of

from loadgen.errors import LoadError
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.limits import Colocated, LatencyLimit
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target
from loadgen.statistics.probe import Probe, evaluate_probe
from loadgen.statistics.slo_test import certify_each, certify_together, combined_answer
from search.records.slo import Slo
from search.trials.colocated import Beside, ColocatedLoad, ColocatedLoads
from search.trials.context import colocated_s, least_s

OTHER = LatencyLimit(limit_ms=20.0, colocated=Colocated(model="other", rate_per_s=50.0))
LIMITS = (LatencyLimit(limit_ms=50.0), OTHER)


def run_of(**changes: Any) -> LoadRun:
    plan = LoadPlan(rate_per_s=100.0, duration_s=10.0, seed=1)
    return replace(
        SimulatedGenerator(delay_ms=5.0).run(Target(url="http://127.0.0.1:8000", model_name="m"), plan), **changes
    )


def finished(run: LoadRun) -> Future[LoadRun]:
    future: Future[LoadRun] = Future()
    future.set_result(run)
    return future


def steady(latency_s: float, rate_per_s: float = 50.0, seconds: float = 60.0) -> Any:
    arrivals = np.cumsum(np.random.default_rng(3).exponential(1 / rate_per_s, int(rate_per_s * seconds)))
    return log_of(arrivals, arrivals + latency_s)


@pytest.mark.parametrize(("other_s", "answer"), [(0.010, "met"), (0.030, "violated")])
def test_each_limit_is_about_the_requests_to_its_model(other_s: float, answer: str) -> None:
    log = replace(steady(0.005), colocated={"other": steady(other_s)})
    verdicts = certify_each(log, LIMITS)
    assert [one.answer for one in verdicts] == ["met", answer]
    assert [round(one.latency_ms) for one in verdicts] == [5, round(1000 * other_s)]
    assert combined_answer(certify_together([log, log], LIMITS)) == answer


def test_a_probe_has_the_verdict_on_the_tightest_limit_and_the_median_of_its_own_model() -> None:
    log = replace(steady(0.005), colocated={"other": steady(0.030)})
    seen = evaluate_probe(Probe(log=log, overloaded=False, problems=()), 50.0, LIMITS)
    assert seen.verdict.limit == OTHER
    assert not seen.met
    assert seen.verdict.latency_ms == pytest.approx(30, rel=0.05)
    assert seen.median_ms == pytest.approx(5.0)


@pytest.mark.parametrize(("until_ns", "end_s"), [(20_000_000_000, 6.0), (5_000_000_000, 4.0)])
def test_a_run_has_the_colocated_requests_until_its_end(until_ns: int, end_s: float) -> None:
    """The colocated load began 2 s before the run, and went on after it: it counts from a second before."""
    other = run_of(began_ns=1_000_000_000)
    mine = run_of(began_ns=3_000_000_000)
    beside = Beside(runs={"other": finished(other)}, until_ns=until_ns)
    joined = beside.joined(mine, duration_s=4.0)
    due_ns = joined.log.colocated["other"].scheduled_ns
    expected = other.log.scheduled_ns
    expected = expected[(expected >= 1e9) & (expected < end_s * 1e9)] - 1_000_000_000
    np.testing.assert_array_equal(due_ns, expected)
    assert joined.stopped is None


def test_what_went_wrong_beside_a_run_is_the_runs() -> None:
    other = run_of(stopped="overloaded")
    other = replace(other, measurement=replace(other.measurement, problems=("it was late",), cold="new sizes"))
    joined = Beside(runs={"other": finished(other)}).joined(run_of(), 10.0)
    assert joined.stopped == "overloaded"
    assert joined.measurement.problems == ("other: it was late",)
    assert joined.measurement.cold == "new sizes"


def test_a_watch_sees_the_colocated_log_and_ends_when_that_load_ended() -> None:
    under_way: Future[LoadRun] = Future()
    beside, seen = Beside(runs={"other": under_way}, logs={"other": steady(0.010, seconds=7.0)}), []

    def watch(log: Any) -> bool:
        seen.append(log.colocated["other"])
        return False

    joint = beside.watching(watch)
    assert joint is not None
    assert not joint(steady(0.005))
    beside.logs["other"] = steady(0.010, seconds=9.0)  # the same seed, two seconds later
    assert not joint(steady(0.005))
    first, second = (log.scheduled_ns for log in seen)
    assert 0 <= first[0] < first[-1] <= 1_000_000_000  # what came before the run's client was ready does not count
    np.testing.assert_array_equal(second[: len(first)], first)
    assert second[-1] > 2_000_000_000
    under_way.set_result(run_of(stopped="overloaded"))
    assert joint(steady(0.005))
    assert Beside().watching(None) is None


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with fake_triton("--delay-ms", "1") as server:
        yield server.url


@pytest.mark.parametrize(
    "plan",
    [LoadPlan(rate_per_s=80.0, duration_s=1.5, seed=1), ClosedLoopPlan(concurrency=2, duration_s=1.0)],
    ids=["open loop", "closed loop"],
)
def test_a_colocated_model_gets_its_load_during_a_run(url: str, plan: Any) -> None:
    target = Target(url=url, model_name="delay")
    load = ColocatedLoad(model=Colocated(model="delay", rate_per_s=100.0), limit_ms=500.0, payload=Payload())
    with ColocatedLoads([load]) as loads, LoadGenerator() as generator:
        for _ in range(2):
            with loads.sent(target, plan) as beside:
                run = generator.run(target, plan, watch=beside.watching(None))
            (log,) = (beside.joined(run, plan.duration_s).log.colocated or {}).values()
            assert len(log) > 0
            assert not log.failed.any()


def test_a_colocated_model_that_is_not_there_ends_the_run(url: str) -> None:
    target, plan = Target(url=url, model_name="delay"), LoadPlan(rate_per_s=50.0, duration_s=60.0, seed=1)
    load = ColocatedLoad(model=Colocated(model="absent", rate_per_s=10.0), limit_ms=500.0, payload=Payload())

    def run() -> None:
        with ColocatedLoads([load]) as loads, LoadGenerator() as generator, loads.sent(target, plan) as beside:
            generator.run(target, plan, watch=beside.watching(None))

    with pytest.raises(LoadError, match="absent"):
        run()


def test_a_certificate_takes_as_long_as_the_slowest_model_needs() -> None:
    slo = Slo(limits=LIMITS[:1], colocated=(OTHER,))
    alone = Slo(limits=LIMITS[:1])
    assert least_s(1000.0, slo, 0.95) == colocated_s(slo, 0.95) > least_s(1000.0, alone, 0.95)
    assert least_s(5.0, slo, 0.95) > colocated_s(slo, 0.95)
    assert colocated_s(alone, 0.95) == 0
    assert slo.text == "p99 within 50 ms and p99 of other within 20 ms at 50/s"


def test_late_requests_of_a_colocated_load_are_a_problem_of_its_run(url: str) -> None:
    """What the run's own plan allows of send lag holds for the loads beside it, too."""
    target = Target(url=url, model_name="delay")
    load = ColocatedLoad(model=Colocated(model="delay", rate_per_s=100.0), limit_ms=500.0, payload=Payload())
    plan = LoadPlan(rate_per_s=20.0, duration_s=1.0, seed=1, most_send_lag_ms=1e-6)
    with ColocatedLoads([load]) as loads, LoadGenerator() as generator, loads.sent(target, plan) as beside:
        run = generator.run(target, plan, watch=beside.watching(None))
    assert any(problem.startswith("delay: ") for problem in beside.joined(run, 1.0).measurement.problems)


def test_loads_end_if_one_of_them_cannot_begin(url: str) -> None:
    target, plan = Target(url=url, model_name="delay"), LoadPlan(rate_per_s=50.0, duration_s=3600.0, seed=1)
    rates = (50.0, 2e6)  # the second is more than a plan takes
    names = [Colocated(model=f"m{number}", rate_per_s=rate) for number, rate in enumerate(rates)]
    all_loads = [ColocatedLoad(model=name, limit_ms=500.0, payload=Payload()) for name in names]

    def run() -> None:
        with ColocatedLoads(all_loads) as loads, loads.sent(target, plan):
            raise AssertionError

    with pytest.raises(LoadError):
        run()
