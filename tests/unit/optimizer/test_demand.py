"""The options about traffic: what they mean, what of them is refused, and what of them is kept with the run."""

import json
from pathlib import Path

import pytest

from optimizer.config import OptimizeConfig
from optimizer.demand import TRACE_FILE, demand_fields, demand_of, keep_input_data, keep_trace
from optimizer.errors import BadInput


def config(folder: Path, **changes: object) -> OptimizeConfig:
    return OptimizeConfig.model_validate(
        {"model": folder / "m.onnx", "limit_ms": 50.0, "output": folder, **changes}
    )


def trace_in(folder: Path, text: str = "0.0\n0.5\n2.0\n") -> Path:
    path = folder / "day.txt"
    path.write_text(text)
    return path


def test_poisson_arrivals_of_single_rows_unless_told_otherwise(tmp_path: Path) -> None:
    assert demand_fields(None, None, 1) == {
        "arrivals": "poisson", "trace": None, "client_batch": 1, "protocol": "http",
    }  # fmt: skip
    demand = demand_of(config(tmp_path), batched=True)
    assert (demand.arrivals.kind, demand.rows_per_request, demand.predictable) == ("poisson", 1, True)


def test_bursts_and_batches_are_taken(tmp_path: Path) -> None:
    fields = demand_fields("gamma:cv=2", None, 4)
    demand = demand_of(config(tmp_path, **fields), batched=True)
    assert (demand.arrivals.cv, demand.rows_per_request) == (2.0, 4)
    assert demand.record.text == "gamma:cv=2 arrivals, 4 rows a request"


def test_the_protocol_is_part_of_what_is_promised(tmp_path: Path) -> None:
    demand = demand_of(config(tmp_path, **demand_fields(None, None, 1, "grpc")), batched=True)
    assert demand.record.text == "requests over gRPC"
    with pytest.raises(BadInput, match="--protocol carrier-pigeon") as caught:
        demand_fields(None, None, 1, "carrier-pigeon")
    assert caught.value.fix == "Give http or grpc."


def test_a_trace_is_kept_with_the_run_and_read_from_there(tmp_path: Path) -> None:
    trace = trace_in(tmp_path)
    (tmp_path / "run").mkdir()
    its = config(tmp_path, output=tmp_path / "run", **demand_fields(None, trace, 1))
    keep_trace(its)
    trace.unlink()
    keep_trace(its)
    demand = demand_of(its, batched=True)
    assert demand.arrivals.times_s == (0.0, 0.5, 2.0)
    assert demand.record.trace == TRACE_FILE
    assert demand.record.trace_requests == 3
    assert demand.record.recorded_rate_per_s == pytest.approx(1.0)


def test_input_data_is_kept_with_the_run_and_read_from_there(tmp_path: Path) -> None:
    lengths, run = tmp_path / "logged.txt", tmp_path / "run"
    lengths.write_text("8\n64\n")
    run.mkdir()
    its = config(tmp_path, output=run, input_data=lengths)
    demand = demand_of(keep_input_data(its), batched=True)
    assert demand.record.input_data == "input-data.txt"
    lengths.unlink()
    again = keep_input_data(its)
    assert again.input_data == run / "input-data.txt"
    assert demand_of(again, batched=True).shapes == demand.shapes


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
        demand_fields(arrivals, trace and trace_in(tmp_path, trace), batch)
    assert caught.value.fix


def test_batches_need_a_model_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--client-batch 4 needs a model with a batch"):
        demand_of(config(tmp_path, client_batch=4), batched=False)


def test_lengths_are_taken_from_a_file_in_its_order(tmp_path: Path) -> None:
    data = tmp_path / "input-data.txt"
    data.write_text("12\n5\n12\n")
    demand = demand_of(config(tmp_path, input_data=data), batched=True)
    assert demand.shapes is not None
    assert (demand.shapes.turns, demand.shapes.sizes) == ((1, 0, 1), (5, 12))


def test_images_of_many_sizes_are_sent_though_nothing_predicts_them(tmp_path: Path) -> None:
    data = tmp_path / "input-data.json"
    data.write_text(json.dumps([{"x": [[0.0] * width] * height} for height in (1, 2, 3) for width in (1, 2)]))
    demand = demand_of(config(tmp_path, input_data=data), batched=True)
    assert (demand.shapes, demand.predictable) == (None, False)


def test_samples_of_several_lengths_are_sent_but_make_no_batch(tmp_path: Path) -> None:
    data = tmp_path / "input-data.json"
    data.write_text(json.dumps({"data": [{"ids": [1, 2, 3]}, {"ids": [1, 2]}]}))
    demand = demand_of(config(tmp_path, input_data=data), batched=True)
    assert demand.shapes is not None
    assert demand.shapes.turns == (1, 0)
    assert demand.predictable
    assert demand.record.text == "samples of several shapes"
    with pytest.raises(BadInput, match="differ in shape, so 2 of them make no request"):
        demand_of(config(tmp_path, input_data=data, client_batch=2), batched=True)
