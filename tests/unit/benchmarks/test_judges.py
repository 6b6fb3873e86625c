"""The laws that load generators are compared with, the server that keeps them, and the table of the comparison."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from fake_triton import fake_triton

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from judges import errors_of, table
from lib.judges.laws import LAWS, discrete_sojourn_ms, exponential_sojourn_ms, sampled_ms


@pytest.mark.parametrize("rate_per_s", [150.0, 400.0])
@pytest.mark.parametrize("quantile", [0.5, 0.99])
def test_the_law_of_general_service_is_the_closed_form_of_exponential_service(
    rate_per_s: float, quantile: float
) -> None:
    edges_ms = np.arange(0.0, 30.0, 0.2)  # the exponential law of 2 ms, in cells
    times_ms, shares = edges_ms[:-1] + 0.1, -np.diff(np.exp(-edges_ms / 2.0))
    general = discrete_sojourn_ms(times_ms, shares, rate_per_s, quantile, step_ms=0.05)
    assert general == pytest.approx(exponential_sojourn_ms(2.0, rate_per_s, quantile), rel=0.01, abs=0.1)


def test_the_law_of_general_service_is_erlangs_for_equal_service_times() -> None:
    """M/D/1: P(wait <= t) = (1 - rho) exp(lambda t) for t up to one service time."""
    expected_ms = 2.0 + math.log(0.85 / (1 - 0.3)) / 0.15
    assert discrete_sojourn_ms(np.array([2.0]), np.array([1.0]), 150.0, 0.85) == pytest.approx(
        expected_ms, abs=0.02
    )


def test_no_law_is_known_above_the_capacity() -> None:
    with pytest.raises(ValueError, match=r"1\.20 of the capacity"):
        discrete_sojourn_ms(np.array([2.0]), np.array([1.0]), 600.0, 0.5)


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_long_samples_of_each_law_have_its_quantiles(law: Any) -> None:
    runs = sampled_ms(law, 300.0, 30_000, runs=20, seed=3)
    exact = [law.latency_ms(300.0, quantile) for quantile in (0.5, 0.99)]
    errors = np.std(runs, axis=1, ddof=1) / math.sqrt(20)
    assert (np.abs(runs.mean(axis=1) - exact) <= 4 * errors + 0.02).all()


@pytest.mark.system
def test_the_known_server_keeps_each_request_for_its_time_and_those_before_it(tmp_path: Path) -> None:
    file = tmp_path / "delays"
    file.write_bytes((np.array([30, 10, 20], np.int64) * 1_000_000).tobytes())
    body = b"\0" * 1024
    with fake_triton("--delays-ns", str(file), "--one-at-a-time") as server:
        url = f"{server.url}/v2/models/delay/infer"
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: requests.post(url, data=body, timeout=10), range(3)))
        kept_ns, arrived_ns = server.kept(3)
    assert all(answer.ok for answer in answers)
    assert (arrived_ns + kept_ns - arrived_ns[0] >= np.array([30, 40, 60]) * 1_000_000).all()


def test_the_table_shows_the_errors_of_each_tool_and_why_one_failed() -> None:
    cell = {"law": "fixed delay", "load": 0.3, "rate_per_s": 150.0}

    def line(p50_ms: float, p99_ms: float) -> dict[str, Any]:
        figures = {"p50_ms": p50_ms, "p99_ms": p99_ms, "server_p50_ms": 5.0, "server_p99_ms": 5.5, "requests": 100}
        errors = errors_of(figures, LAWS["fixed delay"], 150.0)
        return cell | {"tool": "ours", "sent_per_s": 147.0, "others_cores": 0.5} | figures | errors

    failed = cell | {"tool": "perf_analyzer", "failure": "exit code 1: no such model"}
    text = table([line(5.0, 6.0), line(5.05, 5.5), line(5.1, 6.5), failed])
    assert "| +0.05 (+0.00 to +0.10), +0.50 (+0.00 to +1.00) | 147 (147 to 147) | 0.50 (0.50 to 0.50) |" in text
    assert text.splitlines()[-1].endswith("| - | 1 of 1: exit code 1: no such model |")


def test_a_perfect_instrument_scatters_more_near_the_capacity() -> None:
    def width(rate_per_s: float) -> float:
        figures = dict.fromkeys(("p50_ms", "p99_ms", "server_p50_ms", "server_p99_ms"), 1.0)
        errors = errors_of(figures | {"requests": 2000}, LAWS["M/M/1"], rate_per_s)
        assert errors["p99_perfect_low"] < 0 < errors["p99_perfect_high"]
        return float(errors["p99_perfect_high"] - errors["p99_perfect_low"])

    assert width(150.0) < width(400.0)
