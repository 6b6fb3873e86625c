"""LoadGen's own log, and the schedule that we expect of it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import BadInput, ClientFailed, EnvironmentFailed
from loadgen.judges import mlperf
from loadgen.judges.mlperf import FILES, Settings, check_installed, loadgen_in, read_verdict
from loadgen.records.record import NOT_VERIFIED
from loadgen.spec.plan import Arrivals, LoadPlan
from loadgen.traffic.arrivals import loadgen_times_ns, schedule

SETTINGS = Settings(rate_per_s=4000.0, duration_s=0.25, limit_ms=50.0, quantile=0.99, seed=7, folder=".")

TEST = """
import sys
import mlperf_loadgen as library
rate, duration_ms, seed, folder = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
settings, logs = library.TestSettings(), library.LogSettings()
settings.scenario, settings.mode = library.TestScenario.Server, library.TestMode.PerformanceOnly
settings.server_target_qps, settings.min_duration_ms = rate, duration_ms
settings.min_query_count, settings.schedule_rng_seed = 1, seed
settings.server_target_latency_ns = 50_000_000
logs.log_output.outdir, logs.enable_trace = folder, False
complete = library.QuerySamplesComplete
issue = lambda ids, _: complete([library.QuerySampleResponse(name, 0, 0) for name in ids])
system = library.ConstructFastSUT(issue, lambda: None)
samples = library.ConstructQSL(1, 1, lambda _: None, lambda _: None)
library.StartTestWithLogSettings(system, samples, settings, logs, "/dev/null/audit.config")
"""
"""A test of LoadGen whose queries end at once."""


def plan(rate_per_s: float = 4000.0, duration_s: float = 0.25, seed: int = 7) -> LoadPlan:
    return LoadPlan(rate_per_s=rate_per_s, duration_s=duration_s, seed=seed, arrivals=Arrivals(kind="mlperf"))


def write_log(folder: Path, **changes: object) -> None:
    times_ns = loadgen_times_ns(plan())
    entries: dict[str, object] = {
        "loadgen_version": "6.0.17 @ 0123abc",
        "generated_query_count": len(times_ns) - 1,
        "generated_query_duration": int(times_ns[-1]),
        "result_validity": "VALID",
        "result_perf_constraints_met": True,
        "result_min_duration_met": True,
        "result_min_queries_met": True,
        "early_stopping_met": True,
        "early_stopping_result": " * Run successful.",
        "result_query_count": len(times_ns) - 1,
        "result_overlatency_query_count": 0,
        "result_99.00_percentile_latency_ns": 5_614_834,
    }
    lines = [
        ":::MLLOG " + json.dumps({"key": key, "value": value, "metadata": {"is_error": False}})
        for key, value in (entries | changes).items()
        if value is not None
    ]
    (folder / FILES[1]).write_text("\n".join(["no entry", ":::MLLOG {broken", *lines]) + "\n")


@pytest.mark.parametrize(
    ("rate", "duration_ms", "seed"), [(50_000.0, 40, 0), (3210.5, 300, 1), (90.0, 500, 2**31), (50.0, 100, 2**33)]
)
def test_the_schedule_is_the_one_that_loadgen_draws(
    rate: float, duration_ms: int, seed: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", TEST, str(rate), str(duration_ms), str(seed), str(tmp_path)]
    subprocess.run(command, check=True)
    wanted = plan(rate, duration_ms / 1e3, seed)
    settings = Settings(
        rate_per_s=rate, duration_s=duration_ms / 1e3, limit_ms=50, quantile=0.99, seed=seed, folder=str(tmp_path)
    )
    verdict = read_verdict(tmp_path, settings, wanted)
    assert verdict.queries == len(schedule(wanted))
    assert verdict.remark == NOT_VERIFIED
    assert all((tmp_path / name).exists() for name in FILES)
    with pytest.raises(ClientFailed, match="another schedule"):
        read_verdict(tmp_path, settings, plan(rate, duration_ms / 1e3, seed + 1))


def test_a_schedule_is_poisson_from_zero_to_the_first_query_after_the_duration() -> None:
    times_ns = schedule(plan(rate_per_s=20_000, duration_s=2.0))
    assert times_ns[0] == 0
    assert times_ns[-2] < 2_000_000_000 <= times_ns[-1]
    gaps = np.diff(times_ns)
    assert gaps.mean() == pytest.approx(50_000, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def test_a_verdict_holds_what_the_log_says(tmp_path: Path) -> None:
    write_log(
        tmp_path,
        result_validity="INVALID",
        early_stopping_met=False,
        early_stopping_result=" * Run unsuccessful.  * Processed 985 queries.",
    )
    verdict = read_verdict(tmp_path, SETTINGS, plan())
    assert (verdict.version, verdict.verdict, verdict.latency_ms) == ("6.0.17", "INVALID", 5.614834)
    assert verdict.performance_constraints_met
    assert not verdict.early_stopping_met
    assert verdict.early_stopping == "Run unsuccessful. Processed 985 queries."


@pytest.mark.parametrize("lost", ["result_validity", "loadgen_version", "result_99.00_percentile_latency_ns"])
def test_a_log_without_a_verdict_is_an_error_that_names_what_it_lacks(lost: str, tmp_path: Path) -> None:
    write_log(tmp_path, **{lost: None})
    with pytest.raises(ClientFailed, match=lost) as caught:
        read_verdict(tmp_path, SETTINGS, plan())
    assert "mlcommons-loadgen==6.0.17" in caught.value.fix


def test_no_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClientFailed, match="without a verdict"):
        read_verdict(tmp_path, SETTINGS, plan())


def test_settings_survive_the_command_line() -> None:
    assert Settings.from_json(SETTINGS.to_json()) == SETTINGS


def test_a_missing_library_is_two_lines_with_the_words_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlperf, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match="not installed") as caught:
        check_installed()
    assert caught.value.fix == "Install it: pip install 'tritune[mlperf]'"


def test_files_come_whole_or_not_at_all(tmp_path: Path) -> None:
    with loadgen_in(tmp_path) as scratch:
        for name in FILES:
            (scratch / name).write_text(name)
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)

    def broken() -> None:
        with loadgen_in(tmp_path) as scratch:
            (scratch / FILES[0]).write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert (tmp_path / FILES[0]).read_text() == FILES[0]
    with pytest.raises(EnvironmentFailed, match="cannot be written"), loadgen_in(tmp_path):
        pass  # LoadGen wrote nothing
