"""Load processes against a fake Triton: what goes right, and every way in which it may go wrong."""

from collections.abc import Iterator

import pytest
from fake_triton import fake_triton

from loadgen.errors import TargetRefused, TargetUnreachable
from loadgen.plan import ClosedLoopPlan, LoadPlan, Target
from loadgen.runner import LoadGenerator

pytestmark = pytest.mark.system

PLAN = LoadPlan(rate_per_s=200, duration_s=1.0, seed=1, timeout_s=2.0)


@pytest.fixture(scope="module")
def generator() -> Iterator[LoadGenerator]:
    with LoadGenerator() as generator:
        yield generator


def target(url: str, model: str = "delay") -> Target:
    return Target(url=url, model_name=model)


def test_every_request_of_the_plan_is_in_the_log(generator: LoadGenerator) -> None:
    with fake_triton("--delay-ms", "5") as server:
        run = generator.run(target(server.url), PLAN, limit_ms=50.0)
    assert run.stopped is None
    assert len(run.log) == run.measurement.n > 100
    assert not run.log.failed.any()
    assert (run.log.send_lag_ns >= 0).all()
    assert (run.log.service_ns >= 5_000_000).all()
    assert run.measurement.server is not None
    assert run.measurement.server.requests == run.measurement.n


def test_a_model_that_is_not_loaded_is_an_error_before_the_load(generator: LoadGenerator) -> None:
    with fake_triton() as server, pytest.raises(TargetRefused, match="unknown /v2/models/other"):
        generator.run(target(server.url, "other"), PLAN)


def test_a_dead_port_is_an_error_before_the_load(generator: LoadGenerator) -> None:
    with pytest.raises(TargetUnreachable, match="refused"):
        generator.run(target("http://127.0.0.1:1"), PLAN)


def test_closed_loop_keeps_so_many_in_flight(generator: LoadGenerator) -> None:
    plan = ClosedLoopPlan(concurrency=4, duration_s=0.5)
    with fake_triton("--delay-ms", "5") as server:
        run = generator.run(target(server.url), plan)
    log = run.log
    assert run.measurement.closed_loop
    assert run.measurement.n > 40
    in_flight = [int(((log.sent_ns <= at) & (log.done_ns > at)).sum()) for at in log.sent_ns[4:-4]]
    assert max(in_flight) == 4
    assert (log.scheduled_ns < 500_000_000).all()
