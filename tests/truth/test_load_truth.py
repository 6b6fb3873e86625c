"""The instrument against servers whose latency is known: from their own clock, or from queueing theory."""

from typing import Any

import numpy as np
import pytest
from fake_triton import fake_triton

from loadgen.sending.generator import LoadGenerator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import Arrivals, ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target
from loadgen.traffic.arrivals import schedule

pytestmark = [pytest.mark.system, pytest.mark.measure]


def run(
    generator: LoadGenerator,
    url: str,
    plan: LoadPlan | ClosedLoopPlan,
    **options: Any,
) -> LoadRun:
    return generator.run(Target(url=url, model_name="delay"), plan, **options)


@pytest.mark.parametrize("delay_ms", [2.0, 20.0])
def test_a_fixed_delay_is_measured_to_half_a_millisecond(generator: LoadGenerator, delay_ms: float) -> None:
    plan = LoadPlan(rate_per_s=200, duration_s=2.0, seed=1)
    with fake_triton("--delay-ms", str(delay_ms)) as server:
        measured = run(generator, server.url, plan)
        kept_ms = np.array(server.document("/kept")["kept_ns"][1:]) / 1e6  # the first one was the trial request
    assert len(kept_ms) == measured.measurement.n
    service_ms = np.sort(measured.log.service_ns / 1e6)
    # The server's clock says how long it really kept each request; the network on one machine adds little. The
    # tail is left to p99 >= delay: on a busy machine it is the processor's queue that it shows.
    for quantile in (0.1, 0.5):
        assert 0 < np.quantile(service_ms, quantile) - np.quantile(kept_ms, quantile) < 0.5
    # A slow machine keeps them longer than it was told, and sends them later: both are known.
    assert kept_ms.min() >= delay_ms
    seen = measured.measurement
    assert seen.p50_ms == pytest.approx(np.median(kept_ms) + seen.send_lag_p50_ms, abs=0.5)
    assert seen.p99_ms >= delay_ms


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_answers_that_stay_in_the_kernel_count_from_when_they_came(generator: LoadGenerator, scheme: str) -> None:
    """At 400/s each answer is there 1.5 ms before the next send, when it is taken: it took 1 ms, not 2.5."""
    plan = LoadPlan(rate_per_s=400, duration_s=2.0, seed=12, arrivals=Arrivals(kind="constant"))
    options = ["--tls"] if scheme == "https" else []
    with fake_triton("--delay-ms", "1", *options, scheme=scheme) as server:
        target = Target(url=server.url, model_name="delay", insecure=scheme == "https")
        service_ms = generator.run(target, plan).log.service_ns / 1e6
    assert service_ms.min() >= 1.0
    assert np.median(service_ms) < 2.2


def test_large_answers_are_taken_at_once(generator: LoadGenerator) -> None:
    """They would fill the socket's buffer and hold the server up until the next send.

    One caller who waits for each answer says how long it takes; the next send is 20 ms away.
    """
    plan = LoadPlan(rate_per_s=50, duration_s=2.0, seed=13, arrivals=Arrivals(kind="constant"))
    with fake_triton("--delay-ms", "1", "--output-numbers", "100000") as server:
        alone = run(generator, server.url, ClosedLoopPlan(concurrency=1, duration_s=1.0))
        measured = run(generator, server.url, plan)
    assert measured.measurement.errors == {}
    assert np.median(measured.log.service_ns) < np.median(alone.log.service_ns) + 8e6


def test_a_server_that_stalls_is_seen_by_the_open_loop_and_hidden_from_the_closed(
    generator: LoadGenerator,
) -> None:
    stalling = ("--delay-ms", "1", "--stall-at-s", "1.0", "--stall-after", "300")
    with fake_triton(*stalling) as server:
        opened = run(generator, server.url, LoadPlan(rate_per_s=300, duration_s=3.0, seed=4))
    with fake_triton(*stalling) as server:
        closed = run(generator, server.url, ClosedLoopPlan(concurrency=1, duration_s=3.0))
    assert opened.measurement.p99_ms > 800
    assert closed.measurement.n > 300
    assert closed.measurement.max_ms > 900  # it met the stall, once
    assert closed.measurement.p99_ms < 500


@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_sends_follow_the_schedule_without_drift(generator: LoadGenerator, kind: Any) -> None:
    plan = LoadPlan(rate_per_s=500, duration_s=2.0, seed=5, arrivals=Arrivals(kind=kind))
    with fake_triton() as server:
        measured = run(generator, server.url, plan)
        arrived_ns = np.array(server.document("/kept")["arrived_ns"][1:])
    assert len(arrived_ns) == len(schedule(plan))
    # By the server's clock: the time from the first arrival to each other one is that of the schedule.
    due_ns = measured.log.scheduled_ns
    drift_ns = (arrived_ns - arrived_ns[0]) - (due_ns - due_ns[0])
    first, second = (np.quantile(half, 0.1) for half in np.array_split(drift_ns, 2))  # what nothing held up
    assert abs(first - second) < 1_000_000
    # A machine that stands still at the end sends the last of them half a second later.
    assert 0.75 * len(due_ns) / 2.0 < measured.measurement.achieved_rate_per_s < 1.003 * len(due_ns) / 2.0


def test_the_servers_own_figures_are_those_of_the_window(generator: LoadGenerator) -> None:
    with fake_triton("--delay-ms", "5") as server:
        run(generator, server.url, LoadPlan(rate_per_s=100, duration_s=0.5, seed=7))
        measured = run(generator, server.url, LoadPlan(rate_per_s=100, duration_s=0.5, seed=8)).measurement
        kept_ms = np.array(server.document("/kept")["kept_ns"][-measured.n :]) / 1e6
    assert measured.server is not None
    assert measured.server.total_ms == pytest.approx(kept_ms.mean(), rel=0.02)
    assert measured.mean_ms > measured.server.total_ms
