"""gRPC load against grpcio's server, whose HTTP/2 is not ours."""

import pytest
from fake_grpc import fake_grpc

from loadgen.errors import PayloadError, TargetRefused
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import LoadPlan, Payload
from loadgen.spec.target import Target

pytestmark = pytest.mark.system

PLAN = LoadPlan(rate_per_s=100, duration_s=0.6, seed=1, timeout_s=60.0)


def target(url: str, model: str = "delay") -> Target:
    return Target(url=url, model_name=model)


def test_every_request_is_answered_and_counted(generator: LoadGenerator) -> None:
    with fake_grpc("--delay-ms", "5") as url:
        run = generator.run(target(url), PLAN)
    assert not run.log.failed.any()
    assert len(run.log) > 30
    assert (run.log.service_ns > 5_000_000).all()
    assert run.measurement.server.requests == len(run.log)


def test_bodies_larger_than_every_window_and_frame(generator: LoadGenerator) -> None:
    plan = LoadPlan(rate_per_s=40, duration_s=0.5, seed=2)
    with fake_grpc("--size", "400000", "--answer-size", "300000") as url:
        run = generator.run(target(url), plan)
    assert not run.log.failed.any()
    assert run.measurement.client.bytes_sent > len(run.log) * 1_600_000
    assert run.measurement.client.bytes_received > len(run.log) * 1_200_000


def test_errors_carry_their_status_and_text(generator: LoadGenerator) -> None:
    with fake_grpc("--fault", "error", "--good-first", "1") as url:
        run = generator.run(target(url), PLAN)
    assert run.measurement.errors == {"grpc INTERNAL": len(run.log)}
    assert run.measurement.error_example == "grpc INTERNAL, the model broke: 100 % of it, für immer"
    assert run.measurement.p50_ms >= PLAN.timeout_s * 1e3


def test_calls_that_are_never_answered_time_out(generator: LoadGenerator) -> None:
    plan = LoadPlan(rate_per_s=20, duration_s=0.3, seed=3, timeout_s=0.4)
    with fake_grpc("--fault", "silent", "--good-first", "1") as url:
        run = generator.run(target(url), plan)
    assert run.measurement.errors == {"time-out": len(run.log)}
    assert len(run.log) > 0
    assert (run.log.latency_ns >= 400_000_000).all()


def test_more_connections_where_the_server_limits_calls(generator: LoadGenerator) -> None:
    plan = LoadPlan(rate_per_s=200, duration_s=0.5, seed=4)
    with fake_grpc("--delay-ms", "100", "--most-calls", "1") as url:
        run = generator.run(target(url), plan)
    assert not run.log.failed.any()
    assert run.measurement.client.connections_opened > 0


def test_connections_that_the_server_retires_are_replaced(generator: LoadGenerator) -> None:
    plan = LoadPlan(rate_per_s=100, duration_s=2.0, seed=5)
    with fake_grpc("--connection-age-ms", "500", "--delay-ms", "2") as url:
        run = generator.run(target(url), plan)
    assert run.log.failed.mean() < 0.05  # a call may cross the server's goodbye on the wire
    assert run.measurement.client.connections_opened > 0


def test_an_unknown_model_and_too_large_a_batch_are_errors_before_the_load(generator: LoadGenerator) -> None:
    with fake_grpc() as url:
        with pytest.raises(TargetRefused, match="NOT_FOUND, unknown model 'other'"):
            generator.run(target(url, "other"), PLAN)
        with pytest.raises(PayloadError, match="at most 64"):
            generator.run(target(url), PLAN, payload=Payload(batch_size=65))
