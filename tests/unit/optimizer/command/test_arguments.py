import pytest

from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from optimizer.command.arguments import config_from_options


def latency_limits(**given: str) -> tuple[tuple[LatencyLimit, ...], list[str]]:
    config, notes = config_from_options({"model": "m.onnx", "output": "runs/m", **given}, {})
    return config.limits, notes


def test_p99_comes_first_whatever_the_order() -> None:
    limits, notes = latency_limits(p50="10ms", p999="0.2s", p99="50")
    assert [(limit.quantile, limit.limit_ms) for limit in limits] == [(0.99, 50), (0.999, 200), (0.5, 10)]
    assert notes == ["--p99 50 has no unit: taken as 50 ms."]


def test_any_limit_may_be_the_only_one() -> None:
    for name, quantile in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p999", 0.999)):
        (limit,), _ = latency_limits(**{name: "20ms"})
        assert (limit.quantile, limit.limit_ms) == (quantile, 20)


def test_without_a_limit_there_is_nothing_to_search_for() -> None:
    with pytest.raises(BadInput, match="No latency limit"):
        latency_limits()


def test_a_limit_that_follows_from_another_is_refused_by_name() -> None:
    with pytest.raises(BadInput) as raised:
        latency_limits(p50="60ms", p99="50ms")
    assert raised.value.what == "--p50 60ms follows from --p99 50ms."
    assert "--p50" in raised.value.fix
