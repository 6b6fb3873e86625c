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
