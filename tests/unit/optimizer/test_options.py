"""Tests that each option of `optimize` is declared once, and that its results agree."""

import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest
import typer.main
from own_repositories import python_model, written

from loadgen.options.command import read_options
from loadgen.spec.limits import QUANTILES
from optimizer.call_options import OPTIONS
from optimizer.cli import app
from optimizer.command.arguments import config_from_options
from optimizer.config import KEPT, OptimizeConfig
from optimizer.reports.report import _arguments
from optimizer.run.own_model import ONLY_FOR_OWN

COMMAND = typer.main.get_command(app)

REPEATED = {
    "model": "models.small:net",
    "repository": "FOLDER",
    "follow_links": None,
    "model_config_name": "h100",
    "max_batch_size": "1,8,32",
    "instances": "1:4",
    "threads": "0,2",
    "queue_delay": "0,2.5ms",
    "start_from": "FILE",
    "exclude": ["engine=onnxruntime-fp16", "instance_count=3"],
    "vary": ["parameters.a=1,2", "parameters.b=x", "optimization.graph.level=0,1"],
    "calls": "a,b",
    "tune": "b",
    "with_model": ["other:p99=20ms,p50=5ms,rate=900", "third:p95=1500ms,rate=0.5"],
    "shape": ["x:3,4", "ids:128"],
    "input_type": ["x:uint8:0.25,-1", "ids:fp16"],
    "input_data": "FILE",
    "arrivals": "gamma:cv=2",
    "trace": "FILE",
    "client_batch": "4",
    "protocol": "grpc",
    "shared_memory": "system",
    "precisions": "fp32,int8",
    "calibration_data": "FILE",
    "calibration_method": "entropy",
    "accuracy": "standard,sqnr_db=28",
    "io_precision": "fp16",
    "max_memory": "1.5GiB",
    "confidence": "0.9",
    "objective": "energy",
    "pareto": None,
    "despite_noise": None,
    "ignore_slow_phases": None,
    "server": "local",
    "server_url": "http://127.0.0.1:9000",
    "server_repository": "FILE",
    "docker_image": "triton:1",
    "price_per_hour": "1.25",
    "price_file": "FILE",
    "price_term": "spot",
    "rate": "50",
    "peak_rate": "80",
    "time_budget": "90s",
    "max_send_lag": "2ms",
    "seed": "7",
}
"""Option -> a value other than its default, for each option that identifies a run."""


def config_of(words: list[str]) -> OptimizeConfig:
    with COMMAND.make_context("optimize", words, resilient_parsing=False) as context:
        return config_from_options(*read_options("optimize", OPTIONS, context, {}))[0]  # type: ignore[arg-type]


def test_every_field_of_the_configuration_has_its_options() -> None:
    assert {one.field for one in KEPT.values()} == {one.name for one in fields(OptimizeConfig)} - {"origins"}
    assert {name for name, one in KEPT.items() if one.field == "limits"} == QUANTILES.keys()
    assert REPEATED.keys() == {name for name, one in KEPT.items() if one.show is not None}


@pytest.mark.parametrize("name", REPEATED)
def test_the_command_that_repeats_a_run_has_every_option_that_decides_it(name: str, tmp_path: Path) -> None:
    data = tmp_path / "a file.txt"
    data.write_text("0\n1\n2\n3\n")
    value = REPEATED[name]
    values = value if isinstance(value, list) else [value]
    model = ["--model", "models.small:net"]
    if name in ("repository", *ONLY_FOR_OWN):
        folder = python_model(tmp_path / "my models", "net")
        written(folder, "configs", None, {"h100.pbtxt": ""})
        model = ["--model", "net", "--repository", str(tmp_path / "my models")]
        values = [] if name == "repository" else values
    words = [*model, "--p99", "50ms", "--p50", "10ms", "--output", str(tmp_path / "run")]
    for one in values:
        words += [OPTIONS[name].flag, *([] if one is None else [str(data) if one == "FILE" else one])]  # type: ignore[list-item]
    config = config_of(words)
    field = KEPT[name].field
    plain = config_of(["--model", "m.onnx", "--p99", "50ms", "--output", str(tmp_path / "run")])
    assert getattr(config, field) != getattr(plain, field)
    again = config_of([*shlex.split(" ".join(_arguments(config))), "--output", str(tmp_path / "run")])
    assert replace(again, origins=config.origins) == config
