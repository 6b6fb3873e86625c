from pathlib import Path

import pytest

from loadgen.command.arguments import order_from_options, worker_from_options
from loadgen.errors import BadInput, PlanError
from loadgen.options.declare import made_of
from loadgen.options.load_test import LoadTestOptions
from loadgen.spec.limits import LatencyLimit
from loadgen.spec.load_test import LoadTest, Note
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target, WorkerRights

GOOD = {"url": "http://127.0.0.1:8000", "model": "m", "rate": 100.0}


def order(**changes: object) -> tuple[LoadTest, list[Note]]:
    assumed: list[str] = []
    options = made_of(LoadTestOptions, {**GOOD, **changes}, assumed.append)
    found, notes = order_from_options(options, {"TOKEN": "s3cret"})
    return found, [Note(text=text) for text in assumed] + notes


def test_the_least_is_an_address_a_model_and_a_rate() -> None:
    found, notes = order()
    assert found.plan == LoadPlan(rate_per_s=100.0, duration_s=30.0, seed=0)
    assert found.effective_warmup_s == 1.0
    assert not found.limits
    assert notes == []


def test_limits_are_read_and_a_missing_unit_is_said() -> None:
    found, notes = order(p50="10ms", p999="0.5", max_errors="0.1%")
    assert found.limits.latency == (
        LatencyLimit(quantile=0.5, limit_ms=10.0),
        LatencyLimit(quantile=0.999, limit_ms=0.5),
    )
    assert found.limits.max_error_ratio == pytest.approx(0.001)
    assert found.limits.strictest_ms == 0.5
    assert "0.5 ms" in notes[0].text


def test_the_warmup_covers_three_limits_unless_it_is_given() -> None:
    assert order(p99="2s")[0].effective_warmup_s == pytest.approx(6.0)
    assert order(p99="2s", warmup="0s")[0].effective_warmup_s == 0.0
    assert order(warmup="250ms")[0].effective_warmup_s == pytest.approx(0.25)


def test_the_time_out_is_above_the_limits_unless_it_is_given() -> None:
    assert order()[0].plan.timeout_s == 10.0
    assert order(p99="11s", p50="2s")[0].plan.timeout_s == 22.0
    assert order(p99="50ms", timeout="3s")[0].plan.timeout_s == 3.0


def test_a_closed_loop_is_said_loudly() -> None:
    found, notes = order(rate=None, concurrency=4)
    assert isinstance(found.plan, ClosedLoopPlan)
    assert "CLOSED LOOP" in notes[0].text


def test_a_trace_is_replayed_as_recorded_or_at_another_speed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("".join(f"{0.1 * number:.1f}\n" for number in range(101)))
    recorded, notes = order(rate=None, trace=trace)
    assert recorded.plan.duration_s == pytest.approx(10.1)
    assert isinstance(recorded.plan, LoadPlan)
    assert recorded.plan.rate_per_s == pytest.approx(10.0)
    assert "10" in notes[0].text
    assert order(rate=20.0, trace=trace)[0].plan.duration_s == pytest.approx(5.05)


def test_a_search_needs_no_rate_but_a_limit() -> None:
    found, _ = order(rate=None, find_max=True, p99="50ms")
    assert not found.first_rate_known
    assert found.plan.duration_s == 120.0
    with pytest.raises(BadInput, match="--p99 50ms"):
        order(rate=None, find_max=True)


def test_secrets_come_from_the_environment_and_show_nowhere() -> None:
    found, _ = order(header_env=("Authorization=TOKEN",))
    assert found.target.headers == (("Authorization", "s3cret"),)
    assert "s3cret" not in repr(found)


def test_an_unchecked_certificate_is_said_loudly() -> None:
    assert "NOT checked" in order(url="https://127.0.0.1", insecure=True)[1][0].text


def test_another_machine_is_loaded_only_with_consent() -> None:
    with pytest.raises(BadInput, match="--yes"):
        order(url="http://192.0.2.1:8000")
    assert order(url="http://192.0.2.1:8000", yes=True)[0].target.host == "192.0.2.1"


def test_a_worker_uses_its_certificate_for_the_server_of_the_test_only() -> None:
    cert = Path(__file__).parents[3] / "support" / "tls" / "localhost.pem"

    def rights(**options: object) -> WorkerRights:
        given = made_of(LoadTestOptions, {"worker": "127.0.0.1", "client_cert": cert, **options}, str)
        return worker_from_options(given, {"TRITUNE_CLUSTER_SECRET": "0123456789abcdef"})

    assert rights(url="https://a:1").server == Target(url="https://a:1", model_name="any", client_cert=cert)
    with pytest.raises(BadInput, match="no server"):
        rights()
    with pytest.raises(PlanError, match="--client-key"):
        rights(url="https://a:1", client_key=Path(__file__))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"url": None}, "address"),
        ({"model": None}, "--model"),
        ({"rate": None}, "--rate"),
        ({"url": "127.0.0.1:8000"}, "http://"),
        ({"url": "ftp://127.0.0.1"}, "http://"),
        ({"url": "http://user:pass@127.0.0.1"}, "header"),
        ({"url": "http://127.0.0.1:8000/?a=b c"}, "query"),
        ({"url": "http://127.0.0.1:8000/?a=1@b"}, "query"),
        ({"url": "http://127.0.0.1:8000/#a"}, "address"),
        ({"url": "grpc://127.0.0.1:8000?a=1"}, "address"),
        ({"rate": 0.0}, "rate of 0"),
        ({"duration": "0s"}, "--duration"),
        ({"timeout": "0s"}, "--timeout"),
        ({"timeout": "10s", "p99": "11s"}, "--timeout 10s"),
        ({"warmup": "-1s"}, "--warmup"),
        ({"processes": 0}, "--processes"),
        ({"confidence": 1.0}, "--confidence"),
        ({"arrivals": "bursts"}, "bursts"),
        ({"trace": Path(__file__), "arrivals": "poisson"}, "--arrivals"),
        ({"trace": Path("/nowhere")}, "/nowhere"),
        ({"input_data": Path("/nowhere")}, "--input-data"),
        ({"ca_cert": Path("/nowhere"), "url": "https://127.0.0.1"}, "--ca-cert"),
        ({"client_cert": Path("/nowhere"), "url": "https://127.0.0.1"}, "--client-cert"),
        ({"client_cert": Path(__file__), "url": "https://127.0.0.1"}, "--client-cert"),
        ({"compare": Path("/nowhere")}, "--compare"),
        ({"insecure": True}, "not encrypted"),
        ({"url": "grpc://127.0.0.1", "format": "json"}, "--format json"),
        ({"format": "xml"}, "--format"),
        ({"concurrency": 4}, "--rate"),
        ({"rate": None, "concurrency": 4, "max_in_flight": 2}, "--max-in-flight"),
        ({"rate": None, "concurrency": 4, "refuse_above": 2}, "--refuse-above"),
        ({"max_in_flight": 4, "refuse_above": 4}, "refuse_above"),
        ({"find_max": True, "p99": "50ms", "arrivals": "ramp:from=0.5,to=2"}, "stays the same"),
        ({"find_max": True, "p99": "50ms", "accept_observed": True}, "--accept-observed"),
    ],
)
def test_what_cannot_be_used_is_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises((BadInput, PlanError)) as caught:
        order(**changes)
    assert named in str(caught.value)
    assert str(caught.value).count("\n") == 1
