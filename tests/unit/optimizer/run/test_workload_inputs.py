"""Tests of the traffic options: their meaning, their refusals, and their record in the run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main
import virtual_gpu
from engines import plain_engine

from loadgen.errors import BadInput
from loadgen.options.command import read_options
from loadgen.spec.limits import LatencyLimit
from optimizer.call_options import OPTIONS
from optimizer.cli import app
from optimizer.command.arguments import config_from_options
from optimizer.config import OptimizeConfig
from optimizer.machine.hardware import Gpu, hardware
from optimizer.run import spaces
from optimizer.run.spaces import space_of
from optimizer.run.workload_inputs import TRACE_FILE, keep_files, keep_input_data, workload_of
from search.trials.events import Event, Note, ignore

COMMAND = typer.main.get_command(app)


def config(folder: Path, **changes: object) -> OptimizeConfig:
    known = {"model": folder / "m.onnx", "limits": (LatencyLimit(limit_ms=50.0),), "output": folder}
    return OptimizeConfig(**{**known, **changes})  # type: ignore[arg-type]


def given(folder: Path, *words: str) -> OptimizeConfig:
    """Return the configuration that a command line makes."""
    start = ["--model", str(folder / "m.onnx"), "--p99", "50ms", "--output", str(folder)]
    with COMMAND.make_context("optimize", [*start, *words]) as context:
        return config_from_options(*read_options("optimize", OPTIONS, context, {}))[0]  # type: ignore[arg-type]


def trace_in(folder: Path, text: str = "0.0\n0.5\n2.0\n") -> Path:
    path = folder / "day.txt"
    path.write_text(text)
    return path


def test_bursts_and_batches_are_taken(tmp_path: Path) -> None:
    workload = workload_of(given(tmp_path, "--arrivals", "gamma:cv=2", "--client-batch", "4"), batched=True)
    assert (workload.arrivals.cv, workload.rows_per_request) == (2.0, 4)
    assert workload.record.text == "gamma:cv=2 arrivals, 4 rows a request"


def test_the_protocol_is_part_of_what_is_promised(tmp_path: Path) -> None:
    workload = workload_of(given(tmp_path, "--protocol", "grpc"), batched=True)
    assert workload.record.text == "requests over gRPC"
    with pytest.raises(BadInput, match="--protocol carrier-pigeon") as caught:
        given(tmp_path, "--protocol", "carrier-pigeon")
    assert caught.value.fix == "Choose one of auto, http, grpc."


def test_a_trace_is_kept_with_the_run_and_read_from_there(tmp_path: Path) -> None:
    trace = trace_in(tmp_path)
    (tmp_path / "run").mkdir()
    its = given(tmp_path, "--output", str(tmp_path / "run"), "--trace", str(trace))
    keep_files(its)
    trace.unlink()
    keep_files(its)
    workload = workload_of(its, batched=True)
    assert workload.arrivals.times_s == (0.0, 0.5, 2.0)
    assert workload.record.trace == TRACE_FILE
    assert workload.record.trace_requests == 3
    assert workload.record.recorded_rate_per_s == pytest.approx(1.0)


def test_the_start_is_kept_with_the_run_and_read_from_there(tmp_path: Path) -> None:
    model, start = tmp_path / "model.onnx", tmp_path / "config.pbtxt"
    model.write_bytes(b"x")
    start.write_text("max_batch_size: 8 instance_group { count: 3 }")
    (tmp_path / "run").mkdir()
    its = config(tmp_path, output=tmp_path / "run", start_from=start)
    engines = (plain_engine(files=(("model.onnx", model),)),)
    machine = replace(hardware(), logical_cores=4)
    before = space_of(its, machine, engines, 64, on_event=ignore)
    assert before.start is not None
    keep_files(its)
    start.unlink()
    keep_files(its)
    assert space_of(its, machine, engines, 64, on_event=ignore).start == before.start


@pytest.mark.parametrize(("text", "but"), [("", False), ("dynamic_batching { preferred_batch_size: 2 }", True)])
def test_a_start_at_the_point_of_the_default_says_what_it_is(text: str, but: bool, tmp_path: Path) -> None:
    model, start = tmp_path / "model.onnx", tmp_path / "config.pbtxt"
    model.write_bytes(b"x")
    start.write_text(text)
    notes: list[str] = []

    def listen(event: Event) -> None:
        assert isinstance(event, Note)
        notes.append(event.text)

    engines = (plain_engine(files=(("model.onnx", model),)),)
    space = space_of(config(tmp_path / "run", start_from=start), hardware(), engines, 64, on_event=listen)
    assert space.start is None
    assert ["preferred_batch_size 2" in note for note in notes] == [but]


@pytest.mark.parametrize(
    ("excluded", "looked", "noted"), [("", 0, 0), ("tensorrt_rtx-fp32", 1, 0), ("openvino-fp32", 1, 1)]
)
def test_tensorrt_is_looked_for_only_if_what_is_excluded_is_not_there(
    excluded: str, looked: int, noted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    notes: list[Event] = []

    def installed() -> tuple[object, ...]:
        found.append(virtual_gpu.library())
        return tuple(found)

    monkeypatch.setattr(spaces, "installed_tensorrt", installed)
    gpu = Gpu(name="NVIDIA L4", memory_bytes=2**34, driver=None, compute_capability="8.9", uuid=None)
    its = config(tmp_path, excluded=(("engine", excluded),) if excluded else ())
    (tmp_path / "model.onnx").write_bytes(b"x")
    engines = (plain_engine(files=(("model.onnx", tmp_path / "model.onnx"),)),)
    space_of(its, replace(hardware(), gpus=(gpu,)), engines, 64, on_event=notes.append)
    assert (len(found), len(notes)) == (looked, noted)


def test_input_data_is_kept_with_the_run_and_read_from_there(tmp_path: Path) -> None:
    lengths, run = tmp_path / "logged.txt", tmp_path / "run"
    lengths.write_text("8\n64\n")
    run.mkdir()
    its = config(tmp_path, output=run, input_data=lengths)
    workload = workload_of(keep_input_data(its), batched=True)
    assert workload.record.input_data == "input-data.txt"
    lengths.unlink()
    again = keep_input_data(its)
    assert again.input_data == run / "input-data.txt"
    assert workload_of(again, batched=True).shapes == workload.shapes


@pytest.mark.parametrize(
    ("arrivals", "trace", "batch", "named"),
    [
        ("ramp:from=0.5,to=2", None, 1, "ramp"),
        ("spike:level=3", None, 1, "spike"),
        ("gamma:cv=99", None, 1, "gamma:cv=99"),
        ("sometimes", None, 1, "sometimes"),
        (None, None, 0, "--client-batch 0"),
        (None, None, 65, "--client-batch 65"),
        ("poisson", "0\n1\n", 1, "--trace brings"),
        (None, "0,10\n60,20\n", 1, "rates over time"),
        (None, "0\nnoon\n", 1, "line 2"),
        (None, "1\n0\n", 1, "decrease"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    arrivals: str | None, trace: str | None, batch: int, named: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=named) as caught:
        given(
            tmp_path,
            *(["--arrivals", arrivals] if arrivals else []),
            *(["--trace", str(trace_in(tmp_path, trace))] if trace else []),
            *["--client-batch", str(batch)],
        )
    assert caught.value.fix


def test_batches_need_a_model_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--client-batch 4 needs a model with a batch"):
        workload_of(config(tmp_path, client_batch=4), batched=False)


def test_images_of_many_sizes_are_sent_though_nothing_predicts_them(tmp_path: Path) -> None:
    data = tmp_path / "input-data.json"
    data.write_text(json.dumps([{"x": [[0.0] * width] * height} for height in (1, 2, 3) for width in (1, 2)]))
    workload = workload_of(config(tmp_path, input_data=data), batched=True)
    assert (workload.shapes, workload.predictable) == (None, False)


def test_samples_of_several_lengths_are_sent_but_make_no_batch(tmp_path: Path) -> None:
    data = tmp_path / "input-data.json"
    data.write_text(json.dumps({"data": [{"ids": [1, 2, 3]}, {"ids": [1, 2]}]}))
    workload = workload_of(config(tmp_path, input_data=data), batched=True)
    assert workload.shapes.turns == (1, 0)
    assert workload.predictable
    assert workload.record.text == "samples of several shapes"
    with pytest.raises(BadInput, match="differ in shape, so 2 of them make no request"):
        workload_of(config(tmp_path, input_data=data, client_batch=2), batched=True)
