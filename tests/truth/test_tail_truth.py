"""The client adds no tail of its own: every latency and every p99, against the server's own clock in that run."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import fake_grpc
import numpy as np
import pytest
from disturbance import Watch
from fake_triton import fake_triton
from numpy.typing import NDArray
from tails import ServersView, Taken, assert_no_tail_of_its_own, lindley_ns, of_a_log

from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target
from loadgen.traffic.arrivals import schedule

pytestmark = [pytest.mark.system, pytest.mark.measure]

Kept = Callable[[int], tuple[NDArray[np.int64], NDArray[np.int64]]]
OPEN = LoadPlan(rate_per_s=400, duration_s=3.0, seed=21, timeout_s=2.0)
CLOSED = ClosedLoopPlan(concurrency=3, duration_s=3.0)
QUEUE_MS = 100.0
"""What a stall leaves in a queue is served so long after it."""


@contextmanager
def five_ms(scheme: str) -> Iterator[tuple[Target, Kept]]:
    """A server that keeps each request for five milliseconds, and how it is asked what it really kept."""
    options = ["--delay-ms", "5", *(["--tls"] if scheme.endswith("s") else [])]
    if scheme.startswith("grpc"):
        with fake_grpc.fake_grpc(*options) as url:
            target = Target(url=url, model_name="delay", insecure=True)
            yield target, lambda count: fake_grpc.kept(url, count)
    else:
        with fake_triton(*options, scheme=scheme) as server:
            yield Target(url=server.url, model_name="delay", insecure=True), server.kept


@pytest.mark.parametrize("scheme", ["http", "https", "grpc", "grpcs"])
@pytest.mark.parametrize("plan", [OPEN, CLOSED], ids=["open", "closed"])
def test_the_client_adds_no_tail_of_its_own(
    generator: LoadGenerator, plan: LoadPlan | ClosedLoopPlan, scheme: str
) -> None:
    def take() -> Taken:
        with Watch() as watch, five_ms(scheme) as (target, kept):
            run = generator.run(target, plan)
            times_ns = kept(len(run.log))
        if isinstance(plan, LoadPlan):
            assert run.log.scheduled_ns.tolist() == schedule(plan).tolist()
        view = ServersView(run.log.scheduled_ns, *times_ns, watch.seen)
        return of_a_log(run.log, view, run.measurement.p99_ms)

    assert_no_tail_of_its_own(take)


def test_every_request_of_a_queue_waits_as_long_as_the_queue_says(generator: LoadGenerator) -> None:
    """M/M/1: the same service times and the server's own arrival times, put through Lindley's recursion."""
    mean_ms, seed = 4.0, 11
    plan = LoadPlan(rate_per_s=150, duration_s=6.0, seed=6)  # 60 % busy
    options = ("--delay-ms", str(mean_ms), "--one-at-a-time", "--exponential-seed", str(seed))

    def take() -> Taken:
        with Watch() as watch, fake_triton(*options) as server:
            run = generator.run(Target(url=server.url, model_name="delay"), plan)
            _, arrived_ns = server.kept(len(run.log))
        draws = random.Random(seed)
        _trial, *service_ns = (draws.expovariate(1 / (mean_ms * 1e6)) for _ in range(1 + len(run.log)))
        expected_ns = lindley_ns(arrived_ns, service_ns)
        assert (run.log.service_ns - expected_ns).min() > -100_000  # nothing is faster than it can have been
        view = ServersView(run.log.scheduled_ns, expected_ns, arrived_ns, watch.seen, after_ms=QUEUE_MS)
        return of_a_log(run.log, view, run.measurement.p99_ms)

    assert_no_tail_of_its_own(take)


def test_a_closed_loop_asks_again_as_soon_as_it_has_its_answer(generator: LoadGenerator) -> None:
    plan = ClosedLoopPlan(concurrency=1, duration_s=3.0)

    def take() -> Taken:
        with Watch() as watch, fake_triton("--delay-ms", "1") as server:
            run = generator.run(Target(url=server.url, model_name="delay"), plan)
            kept_ns, arrived_ns = server.kept(len(run.log))
        gaps_ns = np.diff(arrived_ns) - kept_ns[:-1]  # by the server's clock, from its answer to the next request
        assert 0 < np.median(gaps_ns) < 1e6
        view = ServersView(run.log.scheduled_ns, kept_ns, arrived_ns, watch.seen)
        taken = of_a_log(run.log, view, run.measurement.p99_ms)
        return replace(taken, off={**taken.off, "were followed after over 5 ms": np.append(gaps_ns, 0) > 5e6})

    assert_no_tail_of_its_own(take)
