"""`optimize autoscale` on a run of a simulated server, and the bundle after it."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

import optimizer.cli


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def day(path: Path, *rates: float, minutes: int = 10) -> str:
    rows = [f"{60 * minute},{rates[minute // minutes]}" for minute in range(minutes * len(rates))]
    path.write_text("\n".join(["time,rate", *rows]))
    return str(path)


def autoscaler_of(run: Path) -> dict[str, object]:
    (manifest,) = run.glob("bundle/**/horizontal-pod-autoscaler.yaml")
    found: dict[str, object] = yaml.safe_load(manifest.read_text())["spec"]
    return found


def test_the_cheapest_settings_go_into_the_bundle(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traffic = day(run / "day.csv", 300.0, 1500.0, 300.0)
    arguments = ["autoscale", "run", "--traffic", traffic, "--replica-start", "30s"]
    assert optimizer.cli.run_command([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    chosen, (rule, fleet, foresight) = found["chosen"], found["others"]
    assert found == json.loads((run / "autoscale.json").read_text())
    assert (found["kept"], found["start_s"], found["peak_rate_per_s"]) == (True, 30.0, 1500.0)
    assert chosen["late_share"] <= found["allowed_share"] == pytest.approx(0.01)
    assert chosen["min_replicas"] >= 2
    hours = [one["replica_hours"] for one in (foresight, chosen, fleet)]
    assert hours == sorted(hours)
    assert rule["late_share"] > found["allowed_share"] or rule["usd"] >= chosen["usd"]
    assert optimizer.cli.run_command(["bundle", "run", "--force"]) == 0
    spec = autoscaler_of(run)
    assert (spec["minReplicas"], spec["maxReplicas"]) == (chosen["min_replicas"], chosen["max_replicas"])
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == chosen["down_window_s"]  # type: ignore[index]
    assert optimizer.cli.run_command(["bundle", "run", "--force", "--rate", "100"]) == 0  # the user's own go first
    assert autoscaler_of(run)["maxReplicas"] != chosen["max_replicas"]


def test_settings_that_keep_nothing_are_not_deployed(run: Path) -> None:
    assert optimizer.cli.run_command(["bundle", "run", "--force"]) == 0
    before = autoscaler_of(run)
    traffic = day(run / "day.csv", 10.0, 3000.0, 10.0)
    slow = ["autoscale", "run", "--traffic", traffic, "--replica-start", "9m", "--min-replicas", "1"]
    assert optimizer.cli.run_command(slow) == 0
    record = json.loads((run / "autoscale.json").read_text())
    assert not record["kept"]
    assert record["chosen"]["minutes_over"] > 0
    assert optimizer.cli.run_command(["bundle", "run", "--force"]) == 0
    assert autoscaler_of(run) == before


def test_counts_by_minute_of_several_functions(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    minutes = [str(minute) for minute in range(1, 1441)]
    rows = [["HashOwner", "HashFunction", *minutes], *([name, "f", *["1200"] * 1440] for name in "ab")]
    (run / "azure.csv").write_text("\n".join(map(",".join, rows)))
    given = ["--traffic", str(run / "azure.csv"), "--min-replicas", "2", "--json"]
    assert optimizer.cli.run_command(["autoscale", "run", *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["mean_rate_per_s"], found["peak_rate_per_s"], found["duration_s"]) == (40.0, 40.0, 86_400.0)


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("diurnal:x", []),
        ("diurnal:-5", []),
        ("nowhere.csv", []),
        ("0,1\n60,-2\n120,3", []),
        ("0,1\n60,2\n30,3", []),
        ("0\n60\n120", []),
        ("0,1\n1,2\n2,3", []),  # three seconds
        ("0,1\n60,1\n6000,1\n6060,1", []),  # a gap
        ("HashOwner," + ",".join(map(str, range(1, 1441))) + "\na,1,2", []),
        ("diurnal:5000", ["--max-replicas", "2"]),
    ],
)
def test_traffic_that_is_none(text: str, more: list[str], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "," in text or "\n" in text:
        (run / "day.csv").write_text(text)
        text = str(run / "day.csv")
    assert optimizer.cli.run_command(["autoscale", "run", "--traffic", text, *more]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) <= 3
    assert not (run / "autoscale.json").exists()


def test_a_run_without_service_times(run: Path) -> None:
    (run / "service_times.json").unlink()
    assert optimizer.cli.run_command(["autoscale", "run", "--traffic", "diurnal:500"]) == 2
