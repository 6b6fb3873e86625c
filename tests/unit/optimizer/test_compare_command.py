"""Tests of `optimize compare`: its exit code, its output, and its refusals."""

import json
from pathlib import Path

import pytest
from recommendations import certificate, recommendation, trial

from optimizer.cli import run_command


def run(folder: Path, rate: float, **changes: object) -> str:
    winner = trial(
        rate_at_limit_per_s=rate,
        rate_low_per_s=rate * 0.98,
        rate_high_per_s=rate * 1.02,
        certificate=certificate(0.9 * rate),
    )
    folder.mkdir()
    found = recommendation(winner=winner, **changes)
    (folder / "recommendation.json").write_text(found.model_dump_json())
    return str(folder)


def test_the_exit_code_is_97_when_worse_and_0_when_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = run(tmp_path / "fast", 1000.0), run(tmp_path / "slow", 800.0)
    assert run_command(["compare", fast, slow]) == 97
    shown = capsys.readouterr().out
    assert shown.startswith("Worse")
    assert "-20.0 %" in shown
    assert run_command(["compare", slow, fast]) == 0
    assert capsys.readouterr().out.startswith("Better")
    assert run_command(["compare", fast, fast]) == 0
    assert run_command(["compare", fast, slow, "--tolerance", "0.3"]) == 0


def test_json_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, slow = run(tmp_path / "fast", 1000.0), run(tmp_path / "slow", 800.0)
    assert run_command(["compare", fast, slow, "--json"]) == 97
    found = json.loads(capsys.readouterr().out)
    assert (found["answer"], found["baseline"]) == ("worse", fast)
    assert run_command(["compare", fast, slow, "--markdown"]) == 97
    assert "| capacity | 1,000 requests/s | 800 requests/s | -20.0 %" in capsys.readouterr().out


@pytest.mark.parametrize("tolerance", ["-0.1", "1", "1.1", "100%", "nan"])
def test_a_tolerance_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], tolerance: str) -> None:
    one = run(tmp_path / "one", 1000.0)
    assert run_command(["compare", one, one, "--tolerance", tolerance]) == 2
    assert "--tolerance" in capsys.readouterr().err
