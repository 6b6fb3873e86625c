"""Every option of `optimize` is applied to a run that goes on, or refused by its name: none is ignored."""

import pytest
import typer.main

from optimizer.arguments import given_options
from optimizer.cli import app, run_command
from optimizer.config import OptimizeConfig, save_config
from optimizer.resuming import FIELDS, OF_THIS_CALL, resumed_config

COMMAND = typer.main.get_command(app)
OPTIONS = {parameter.name: parameter for parameter in COMMAND.params}
REFUSED = sorted(OPTIONS.keys() - FIELDS.keys() - OF_THIS_CALL)

APPLIED = {
    "time_budget": ("90s", 90.0),
    "price_per_hour": ("1.5", 1.5),
    "price_file": ("prices.json", None),
    "price_term": ("spot", "spot"),
    "rate": ("50", 50.0),
    "peak_rate": ("80", 80.0),
    "pareto": (None, True),
    "workers": ("auto", "auto"),
    "cache_dir": ("cache", None),
    "server_port": ("8123", 8123),
    "server_url": ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
    "storage": ("sqlite:///other.db", "sqlite:///other.db"),
}
"""An argument for each, and what it is in the configuration; None: the path of that name."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITUNE_STORAGE", raising=False)
    monkeypatch.delenv("TRITUNE_SERVER_URL", raising=False)

    def make(**changes):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        config = OptimizeConfig(model=tmp_path / "m.onnx", limit_ms=50.0, output=folder, **changes)
        save_config(config, folder)
        return config

    return make


def resumed(config, *arguments):
    """What the command line makes of a run."""
    words = ["--resume", str(config.output), *arguments]
    with COMMAND.make_context("optimize", words, resilient_parsing=False) as context:
        storage, url = context.params["storage"], context.params["server_url"]
        found, _ = resumed_config(
            context.params["resume"], given=given_options(context), storage=storage, server_url=url
        )
    return found


def refused(capsys, *arguments):
    assert run_command([str(argument) for argument in arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    return lines


def test_every_option_is_applied_or_refused():
    assert APPLIED.keys() == FIELDS.keys()
    assert FIELDS.keys() | OF_THIS_CALL <= OPTIONS.keys()
    assert set(FIELDS.values()) <= OptimizeConfig.model_fields.keys()


def sample(parameter):
    """Arguments that parse: the option's default, given again, is not to be ignored either."""
    if getattr(parameter, "is_flag", False):
        return []
    return ["1" if parameter.default in (None, [], ()) else str(parameter.default)]


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_decided_what_was_measured_is_refused(capsys, run, name):
    parameter = OPTIONS[name]
    option = parameter.opts[0]
    what, fix = refused(capsys, "--resume", run().output, option, *sample(parameter))
    assert what.startswith(f"error: {option} cannot be given with --resume")
    assert option in fix


@pytest.mark.parametrize("name", APPLIED)
def test_an_option_that_measured_trials_do_not_depend_on_is_applied(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.json").write_text("{}")
    remote = {"server": "remote", "server_url": "http://127.0.0.1:8000", "server_repository": tmp_path}
    before = run(**(remote if name == "server_url" else {}))
    given, wanted = APPLIED[name]
    after = resumed(before, OPTIONS[name].opts[0], *([] if given is None else [given]))
    changed = {field for field in OptimizeConfig.model_fields if getattr(after, field) != getattr(before, field)}
    assert changed == {FIELDS[name]}
    assert getattr(after, FIELDS[name]) == (tmp_path / given if wanted is None else wanted)


def test_without_options_a_run_goes_on_as_it_was(run):
    config = run(seed=3, rate_to_serve_per_s=7.0, time_budget_s=60.0)
    assert resumed(config) == config


def test_values_of_a_run_that_goes_on_are_checked_together(capsys, run):
    folder = run(rate_to_serve_per_s=100.0).output
    assert "--peak-rate 50" in refused(capsys, "--resume", folder, "--peak-rate", "50")[0]
    assert "--time-budget" in refused(capsys, "--resume", folder, "--time-budget", "soon")[0]
    assert "--server-port" in refused(capsys, "--resume", folder, "--server-port", "0")[0]
    assert "--price-file" in refused(capsys, "--resume", folder, "--price-file", "none.json")[0]
    assert "--price-term" in refused(capsys, "--resume", folder, "--price-term", "never")[0]
    assert "--workers" in refused(capsys, "--resume", folder, "--workers", "no")[0]


def test_a_rate_that_decides_what_is_best_stays(capsys, run):
    folder = run(objective="latency", rate_to_serve_per_s=100.0).output
    assert "100/s" in refused(capsys, "--resume", folder, "--rate", "50")[0]


def test_an_address_is_for_a_remote_server(capsys, run):
    what, _ = refused(capsys, "--resume", run().output, "--server-url", "http://127.0.0.1:9000")
    assert "embedded" in what


def test_a_directory_with_a_link_in_it_is_not_gone_on_with(capsys, run, tmp_path):
    """Rewritten models replace what is in `model`: a link would lead that elsewhere."""
    folder = run().output
    (folder / "model").symlink_to(tmp_path)
    assert "is a link" in refused(capsys, "--resume", folder)[0]
