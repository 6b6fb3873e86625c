"""Tests that a resumed run applies each option of `optimize` or refuses it by name: none is ignored."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer.main
from two_lines import refused

from loadgen.options.command import read_options
from loadgen.spec.limits import LatencyLimit
from optimizer.call_options import OF_THIS_CALL
from optimizer.call_options import OPTIONS as DECLARED
from optimizer.cli import app, run_command
from optimizer.command.arguments import FIELDS, resumed_config
from optimizer.config import OptimizeConfig
from optimizer.run_file import save_config

COMMAND = typer.main.get_command(app)
OPTIONS = {parameter.name: parameter for parameter in COMMAND.params}
REFUSED = sorted(OPTIONS.keys() - FIELDS.keys() - OF_THIS_CALL.keys() - {"help_all"})

APPLIED = {
    "time_budget": ("90s", 90.0),
    "price_per_hour": ("1.5", 1.5),
    "price_file": ("prices.json", None),
    "price_term": ("spot", "spot"),
    "rate": ("50", 50.0),
    "peak_rate": ("80", 80.0),
    "pareto": (None, True),
    "despite_noise": (None, True),
    "ignore_slow_phases": (None, True),
    "workers": ("auto", "auto"),
    "cache_dir": ("cache", None),
    "server_port": ("8123", 8123),
    "server_url": ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
    "wait_ready": ("90s", 90.0),
    "yes": (None, True),
    "header_env": ("Authorization=TOKEN", ("Authorization=TOKEN",)),
    "storage": ("sqlite:///other.db", "sqlite:///other.db"),
}
"""Option -> an argument for it, and its value in the configuration; None: the path of that name."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., OptimizeConfig]:
    monkeypatch.delenv("TRITUNE_STORAGE", raising=False)
    monkeypatch.delenv("TRITUNE_SERVER_URL", raising=False)

    def make(**changes: Any) -> OptimizeConfig:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        config = OptimizeConfig(
            limits=(LatencyLimit(limit_ms=50.0),), model=tmp_path / "m.onnx", output=folder, **changes
        )
        save_config(config, folder)
        return config

    return make


def resumed(config: Any, *arguments: str) -> OptimizeConfig:
    """Return the configuration of a run resumed with these arguments."""
    words = ["--resume", str(config.output), *arguments]
    with COMMAND.make_context("optimize", words, resilient_parsing=False) as context:
        found, _ = resumed_config(*read_options("optimize", DECLARED, context, {}))  # type: ignore[arg-type]
    return found


def test_every_option_is_applied_or_refused() -> None:
    assert APPLIED.keys() == FIELDS.keys()
    assert FIELDS.keys() | OF_THIS_CALL.keys() <= OPTIONS.keys()
    assert set(FIELDS.values()) <= {one.name for one in fields(OptimizeConfig)}


def sample(parameter: Any) -> list[Any]:
    """Return arguments that parse. A repeated default must not be ignored either."""
    if getattr(parameter, "is_flag", False):
        return []
    return ["1" if parameter.default in (None, [], ()) else str(parameter.default)]


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_decided_what_was_measured_is_refused(
    capsys: pytest.CaptureFixture[str], run: Any, name: str
) -> None:
    parameter = OPTIONS[name]
    option = parameter.opts[0]
    what, fix = refused(capsys, run_command, "--resume", run().output, option, *sample(parameter))
    assert what.startswith(f"{option} cannot be given with --resume")
    assert option in fix


@pytest.mark.parametrize("name", APPLIED)
def test_an_option_that_measured_trials_do_not_depend_on_is_applied(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.json").write_text("{}")
    remote = {"server": "remote", "server_url": "http://127.0.0.1:8000", "server_repository": tmp_path}
    before = run(**(remote if name in ("server_url", "wait_ready") else {}))
    given, wanted = APPLIED[name]
    after = resumed(before, OPTIONS[name].opts[0], *([] if given is None else [given]))
    changed = {one.name for one in fields(before) if getattr(after, one.name) != getattr(before, one.name)}
    assert changed == {FIELDS[name], "origins"}
    assert after.origins == {**before.origins, name: OPTIONS[name].opts[0]}
    assert getattr(after, FIELDS[name]) == (tmp_path / given if wanted is None else wanted)


def test_without_options_a_run_goes_on_as_it_was(run: Any) -> None:
    config = run(seed=3, rate_to_serve_per_s=7.0, time_budget_s=60.0)
    assert resumed(config) == config


def test_values_of_a_run_that_goes_on_are_checked_together(capsys: pytest.CaptureFixture[str], run: Any) -> None:
    folder = run(rate_to_serve_per_s=100.0).output
    assert "--peak-rate 50" in refused(capsys, run_command, "--resume", folder, "--peak-rate", "50")[0]
    assert "--time-budget" in refused(capsys, run_command, "--resume", folder, "--time-budget", "soon")[0]
    assert "--server-port" in refused(capsys, run_command, "--resume", folder, "--server-port", "0")[0]
    assert "--price-file" in refused(capsys, run_command, "--resume", folder, "--price-file", "none.json")[0]
    assert "--price-term" in refused(capsys, run_command, "--resume", folder, "--price-term", "never")[0]
    assert "--workers" in refused(capsys, run_command, "--resume", folder, "--workers", "no")[0]


def test_a_rate_that_decides_what_is_best_stays(capsys: pytest.CaptureFixture[str], run: Any) -> None:
    folder = run(objective="latency", rate_to_serve_per_s=100.0).output
    assert "100/s" in refused(capsys, run_command, "--resume", folder, "--rate", "50")[0]


def test_an_address_is_for_a_remote_server(capsys: pytest.CaptureFixture[str], run: Any) -> None:
    what, _ = refused(capsys, run_command, "--resume", run().output, "--server-url", "http://127.0.0.1:9000")
    assert "embedded" in what
