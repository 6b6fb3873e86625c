from typing import Any

import pytest

from loadgen.errors import PlanError
from loadgen.spec.plan import Arrivals, ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target, http_head


def plan(**changes: Any) -> LoadPlan:
    return LoadPlan(**{"rate_per_s": 10.0, "duration_s": 1.0, "seed": 0, **changes})


@pytest.mark.parametrize(
    ("make", "changes", "says"),
    [
        (plan, {"rate_per_s": 0}, "rate of 0"),
        (plan, {"rate_per_s": -1}, "rate of -1"),
        (plan, {"rate_per_s": 1e9}, "rate of 1000000000.0"),
        (plan, {"rate_per_s": float("nan")}, "rate of nan"),
        (plan, {"duration_s": 0}, "load of 0 s"),
        (plan, {"duration_s": float("inf")}, "load of inf s"),
        (plan, {"timeout_s": 0}, "time-out of 0"),
        (plan, {"seed": -1}, "seed -1"),
        (plan, {"max_in_flight": 0}, "max_in_flight 0"),
        (plan, {"refuse_above": 0}, "refuse_above 0"),
        (ClosedLoopPlan, {"concurrency": 0, "duration_s": 1}, "concurrency 0"),
        (ClosedLoopPlan, {"concurrency": 1, "duration_s": 0}, "load of 0 s"),
        (Arrivals, {"kind": "uniform"}, "'uniform'"),
        (Arrivals, {"kind": "gamma", "cv": 0}, "cv=0"),
        (Arrivals, {"kind": "ramp", "levels": (1.0,)}, "1 levels"),
        (Arrivals, {"kind": "steps"}, "0 levels"),
        (Arrivals, {"kind": "steps", "levels": (0.0, 0.0)}, "not all 0"),
        (Arrivals, {"kind": "steps", "levels": (1.0, -1.0)}, "not negative"),
        (Arrivals, {"kind": "spike", "levels": (2.0,), "start": 0.5, "end": 0.5}, "0.5 to 0.5"),
        (Arrivals, {"kind": "trace", "times_s": (0.0, 2.0, 1.0)}, "entry 3: 1.0 after 2.0"),
        (Arrivals, {"kind": "trace", "times_s": (1.0,)}, "holds 1 times"),
        (Arrivals, {"kind": "trace", "times_s": (1.0, 1.0)}, "all times of the trace are 1.0"),
        (Arrivals, {"kind": "trace", "times_s": (0.0, float("nan"))}, "not a finite number"),
        (Arrivals, {"kind": "rates", "times_s": (0.0, 1.0), "levels": (1.0,)}, "2 times and 1 rates"),
        (Payload, {"batch_size": 0}, "batch_size 0"),
        (Payload, {"shapes": {"x": (0,)}}, "shape (0,) of x"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value_and_a_way_out(make: Any, changes: Any, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        make(**changes)
    what, fix = str(caught.value).split("\n")
    assert says in str(caught.value)
    assert what.endswith(".")
    assert fix.endswith(".")


def test_a_header_with_a_line_break_is_refused_without_showing_it() -> None:
    with pytest.raises(PlanError) as caught:
        Target(url="http://h", model_name="m", headers=(("X-Key", "secret\r\nHost: other"),))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "header", "authority"),
    [
        ("http://h:8000", (), "h:8000"),
        ("http://h:80", (), "h"),
        ("http://h", (), "h"),
        ("http://h:443", (), "h:443"),
        ("https://h:443", (), "h"),
        ("https://h", (), "h"),
        ("grpcs://h:443", (), "h"),
        ("grpc://[::1]:8001", (), "[::1]:8001"),
        ("http://10.0.0.1:31380", (("host", "m.ns.example.com"),), "m.ns.example.com"),
    ],
)
def test_requests_name_the_server_once_and_without_a_usual_port(
    url: str, header: tuple[tuple[str, str], ...], authority: str
) -> None:
    target = Target(url=url, model_name="m", headers=(*header, ("X-Key", "value")))
    assert target.authority == authority
    lines = http_head(target, "GET /v2", []).decode().split("\r\n")
    assert [line for line in lines if line.lower().startswith("host:")] == [f"Host: {authority}"]
    assert "X-Key: value" in lines


def test_two_hosts_are_refused() -> None:
    with pytest.raises(PlanError, match="Host"):
        Target(url="http://h", model_name="m", headers=(("Host", "a"), ("host", "b")))


@pytest.mark.parametrize(
    ("url", "host", "port", "is_http", "is_tls"),
    [
        ("HTTP://h", "h", 80, True, False),
        ("GRPCS://h:1", "h", 1, False, True),
        ("http://h", "h", 80, True, False),
        ("https://h/a/b/", "h", 443, True, True),
        ("http://[::1]:8000", "::1", 8000, True, False),
        ("grpc://h", "h", 8001, False, False),
        ("grpcs://h:443", "h", 443, False, True),
    ],
)
def test_parts_of_an_address(url: str, host: str, port: int, is_http: bool, is_tls: bool) -> None:
    target = Target(url=url, model_name="m")
    assert (target.host, target.port, target.is_http, target.is_tls) == (host, port, is_http, is_tls)


def test_the_path_of_a_model_behind_a_gateway() -> None:
    target = Target(url="https://h/team/a/", model_name="my model", model_version="3")
    assert target.model_path == "/team/a/v2/models/my%20model/versions/3"


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://[::1", "not an address"),
        ("http://h:99999", "not an address"),
        ("http://h:many", "not an address"),
        ("http://\udcff", "UTF-8"),
    ],
)
def test_an_address_that_cannot_be_read_is_told(url: str, named: str) -> None:
    with pytest.raises(PlanError, match=named):
        Target(url=url, model_name="m")


@pytest.mark.parametrize(
    "given", [{"model_name": "\udcff"}, {"model_version": "\udcff"}, {"headers": (("A", "\udcff"),)}]
)
def test_names_that_are_no_utf_8_are_told(given: Any) -> None:
    with pytest.raises(PlanError, match="UTF-8"):
        Target(**({"url": "http://h", "model_name": "m"} | given))
