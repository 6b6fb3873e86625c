"""Commands on a run whose files were damaged: by a crash, a full disk, or a copy that was not complete."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import recommendations
from bundles import on_disk

from loadgen.spec.limits import LatencyLimit
from model_repo.repository.write import write_repository
from optimizer.cli import run_command
from optimizer.config import OptimizeConfig
from optimizer.run_file import save_config
from search.records.confirmations import ConfirmationRecord
from search.records.run_files import SPEEDS_FILE, PredictedRecord, SpeedsRecord, append_line, write_predictions

FILES = {  # file -> the commands that need it
    "recommendation.json": ("bundle", "report", "compare", "fleet", "explain"),
    "trials.jsonl": ("report", "explain"),
    "confirmations.jsonl": ("report", "explain"),
    "machine_speed.jsonl": ("report",),
    "predictions.jsonl": ("report",),
    "run.json": ("report", "--resume"),
    "model_repository/cnn/config.pbtxt": ("bundle",),
}
OPTIONS = {"explain": ["3"], "fleet": ["--rate", "100"], "compare": ["."]}


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"\n"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size) + b"\n"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\n"),
    "another value": lambda path: path.write_bytes(b"[]\n"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    found, config = on_disk(tmp_path)
    write_repository(folder / "model_repository", config, copy=True)
    (folder / "recommendation.json").write_text(found.model_dump_json() + "\n")
    trials = [recommendations.trial(number) for number in range(4)]
    (folder / "trials.jsonl").write_text("".join(f"{trial.model_dump_json()}\n" for trial in trials))
    confirmation = ConfirmationRecord(
        trial=3, again=False, rate_per_s=10.0, met=True, answer="met", reason="", overloaded=False, seconds=1.0,
        requests=10, violations=0, latency_ms=1.0, problems=(),
    )  # fmt: skip
    (folder / "confirmations.jsonl").write_text(confirmation.model_dump_json() + "\n")
    write_predictions(folder, [PredictedRecord(config=trials[3].config, rate_per_s=10.0)])
    append_line(folder / SPEEDS_FILE, SpeedsRecord(began_unix_s=1e9, speeds=(1.0,)).model_dump_json())
    save_config(OptimizeConfig(limits=(LatencyLimit(limit_ms=50.0),), model=Path("m.onnx"), output=folder), folder)
    return folder


@pytest.mark.parametrize("name", [*FILES, "optimize.log", ".lock", "models/new"])
def test_a_fifo_is_named_and_never_waited_for(
    run: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    (run / name).unlink(missing_ok=True)
    (run / name).parent.mkdir(exist_ok=True)
    os.mkfifo(run / name)
    for command in ("bundle", "report", "compare", "fleet", "explain", "--resume"):
        code = run_command([command, ".", *OPTIONS.get(command, [])])
        lines = capsys.readouterr().err.splitlines()
        assert (code, len(lines)) == (2, 2), (command, lines)
        assert name in lines[0]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_in_two_lines(
    run: Path, name: str, damage: Callable[[Path], Any], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(run)
    damage(run / name)
    for command in FILES[name]:
        code = run_command([command, ".", *OPTIONS.get(command, [])])
        lines = capsys.readouterr().err.splitlines()
        assert (code, len(lines)) == (2, 2), (command, lines)
        assert Path(name).name in lines[0] or "model repository" in lines[0]


def test_a_folder_without_a_run_is_not_looked_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent").mkdir()
    os.mkfifo(tmp_path / "agent" / "pipe")
    monkeypatch.chdir(tmp_path)
    assert run_command(["report", "."]) == 2
    assert "pipe" not in capsys.readouterr().err
