"""The instrument against servers whose latency is known: from their own clock, or from queueing theory."""

from typing import Any

import numpy as np
import pytest
from fake_triton import fake_triton

from loadgen.sending.generator import LoadGenerator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import Arrivals, ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target

pytestmark = [pytest.mark.system, pytest.mark.measure]


def run(
    generator: LoadGenerator,
    url: str,
    plan: LoadPlan | ClosedLoopPlan,
    **options: Any,
) -> LoadRun:
    return generator.run(Target(url=url, model_name="delay"), plan, **options)


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
