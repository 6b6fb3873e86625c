"""Tests of standalone engine profiles on this CPU; adding up TensorRT's report needs no GPU."""

from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn, token_classifier

from optimizer.engines.builder import find_tensorrt
from optimizer.engines.candidates import onnxruntime_engine
from optimizer.errors import RunFailed
from optimizer.model.onnx_model import Model, read_model
from optimizer.model.shapes import with_shapes
from optimizer.profiling.breakdown import Execution, _nodes, profile_engine, profile_record
from optimizer.profiling.layers import LayerTime
from optimizer.profiling.profile_child import layer_profiler, seconds_each
from search.records.recommendation import CeilingsRecord


def execution(model: Model, **changes: Any) -> Execution:
    known: dict[str, Any] = {
        "engine": onnxruntime_engine(model),
        "model": model,
        "batch_size": 2,
        "threads": 1,
        "graphs": False,
    }
    return Execution(**{**known, **changes})


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return read_model(small_cnn(tmp_path_factory.mktemp("models") / "cnn.onnx"))


def test_onnx_runtimes_profile_on_this_cpu(cnn: Model) -> None:
    record = profile_engine(execution(cnn))
    assert (record.engine, record.batch_size, record.profiler) == ("onnxruntime-fp32", 2, "onnxruntime")
    assert record.execution_ms > 0
    assert "Conv" in {layer.operator for layer in record.layers}
    assert [layer.mean_ms for layer in record.layers] == sorted(
        (layer.mean_ms for layer in record.layers), reverse=True
    )
    assert sum(layer.share for layer in record.layers) == pytest.approx(1.0)
    assert sum(record.bound_shares.values()) == pytest.approx(1.0)
    assert sum(record.operator_shares.values()) == pytest.approx(1.0)
    assert record.ceilings.flops_per_s > 0
    assert record.ceilings.bytes_per_s > 0
    assert record.other_graph_ms is None


def test_an_engine_that_does_not_run(cnn: Model, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nonsense")
    model = read_model(small_cnn(tmp_path / "cnn.onnx"))
    broken = onnxruntime_engine(model)
    dict(broken.files)["model.onnx"].write_bytes(b"nonsense")
    with pytest.raises(RunFailed):
        profile_engine(execution(cnn, engine=broken))


def test_inputs_fit_the_engine(tmp_path: Path) -> None:
    model = with_shapes(read_model(token_classifier(tmp_path / "t.onnx")), {"ids": (6,), "mask": (6,)})
    feed = execution(model, batch_size=3).feed()
    assert {name: (array.shape, array.dtype.name) for name, array in feed.items()} == {
        "ids": ((3, 6), "int64"),
        "mask": ((3, 6), "int64"),
    }
    assert 0 <= feed["ids"].min() <= feed["ids"].max() < 100  # rows of the table


def test_the_ten_slowest_layers_and_the_shares_of_all(cnn: Model) -> None:
    layers = [
        LayerTime(name=f"n{i}", operator="Conv" if i else "Relu", ms=float(i + 1), flops=0.0, bytes_moved=0.0)
        for i in range(12)
    ]
    ceilings = CeilingsRecord(flops_per_s=1.0, bytes_per_s=1.0)
    record = profile_record(execution(cnn), {"execution_ms": 80.0, "other_graph_ms": 90.0}, layers, ceilings)
    assert [layer.name for layer in record.layers] == [f"n{i}" for i in range(11, 1, -1)]
    assert record.layer_count == 12
    assert record.operator_shares == pytest.approx({"Conv": 77 / 78, "Relu": 1 / 78})
    assert record.bound_shares == {"overhead": 1.0}
    assert record.other_graph_ms == 90.0


def test_no_layers_are_no_error(cnn: Model) -> None:
    ceilings = CeilingsRecord(flops_per_s=None, bytes_per_s=None)
    record = profile_record(execution(cnn), {"execution_ms": 1.0}, [], ceilings)
    assert (record.layers, record.layer_count, record.bound_shares) == ((), 0, {})


def test_tensorrt_reports_into_means_by_layer() -> None:
    library = find_tensorrt("tensorrt_rtx")
    if library is None:
        pytest.skip("tensorrt-rtx is not installed")
    profiler = layer_profiler(library.module)
    for name, ms in (("conv", 1.0), ("gemm", 0.5), ("conv", 3.0), ("gemm", 0.5)):
        profiler.report_layer_time(name, ms)
    assert profiler.layers() == (
        LayerTime(name="conv", operator="?", ms=2.0),
        LayerTime(name="gemm", operator="?", ms=0.5),
    )


def test_the_work_of_nodes_is_known_by_the_names_in_the_file(cnn: Model) -> None:
    nodes = _nodes(execution(cnn, batch_size=4))
    by_operator = {node.operator: node for node in nodes.values()}
    assert by_operator["Conv"].flops == 2 * (8 * 32 * 32) * 27  # batch 1, for any served batch size
    assert by_operator["Conv"].weight_bytes == 4 * 8 * 27
    assert by_operator["MatMul"].weight_bytes == 4 * 8 * 10  # although ONNX Runtime packs it
    assert by_operator["MatMul"].bytes_moved == 4 * (8 + 8 * 10 + 10)


def test_rounds_count_their_executions() -> None:
    calls: list[Any] = []
    _, executions = seconds_each(lambda: calls.append(None), most=9)
    assert executions == 9
    assert len(calls) == 3 + executions
