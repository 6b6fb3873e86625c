"""Tests of layer times and the work of layers, with hand-written traces."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from optimizer.engines.builder import Layer
from optimizer.profiling.layers import (
    LayerTime,
    bound_of,
    flops_of,
    layers_from_trace,
    shares,
    with_work,
    with_work_of_nodes,
)


def kernel(
    name: str, ts: int, dur: int, operator: str = "Relu", inputs: Any = (), outputs: list[Any] | tuple[()] = ()
) -> dict[Any, Any]:
    described = {"input_type_shape": [*inputs], "output_type_shape": [*outputs], "op_name": operator}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur, "args": described}


def run(ts: int, dur: int) -> dict[Any, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": dur, "args": {}}


def test_times_are_means_over_the_last_runs() -> None:
    trace = [
        {"cat": "Session", "name": "session_initialization", "ts": 0, "dur": 5, "args": {}},
        kernel("a", 12, 90_000), run(10, 95_000),  # the first run, cold
        kernel("a", 100_100, 1000), kernel("b", 101_200, 500), run(100_000, 1800),
        kernel("a", 102_100, 3000), kernel("b", 105_200, 500), run(102_000, 3800),
    ]  # fmt: skip
    layers = layers_from_trace(trace, executions=2)
    assert [(layer.name, layer.ms) for layer in layers] == [("a", 2.0), ("b", 0.5)]


def test_a_node_that_runs_others_counts_without_them() -> None:
    trace = [run(0, 100), kernel("loop", 1, 90, "Loop"), kernel("inner", 10, 50), kernel("after", 95, 5)]
    layers = {layer.name: layer.ms for layer in layers_from_trace(trace, executions=1)}
    assert layers == pytest.approx({"loop": 0.04, "inner": 0.05, "after": 0.005})


def test_a_trace_without_runs_has_no_layers() -> None:
    assert layers_from_trace([kernel("a", 1, 2)], executions=3) == ()


def test_bytes_and_arithmetic_come_from_the_shapes() -> None:
    inputs = [{"float": [2, 8]}, {"float": [8, 4]}]
    trace = [run(0, 100), kernel("dense", 1, 10, "MatMul", inputs, [{"float": [2, 4]}])]
    (layer,) = layers_from_trace(trace, executions=1)
    assert layer.bytes_moved == 4 * (16 + 32 + 8)
    assert layer.flops == 2 * 2 * 8 * 4


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "flops"),
    [
        ("Conv", [(1, 3, 8, 8), (16, 3, 3, 3), (16,)], [(1, 16, 8, 8)], 2 * 16 * 64 * 27),
        ("FusedConv", [(1, 16, 8, 8), (16, 1, 3, 3)], [(1, 16, 8, 8)], 2 * 16 * 64 * 9),  # depthwise
        ("QLinearConv", [(1, 3, 8, 8), (), (), (16, 3, 3, 3), (16,)], [(1, 16, 8, 8)], 2 * 16 * 64 * 27),
        ("ConvTranspose", [(1, 4, 8, 8), (4, 2, 3, 3)], [(1, 2, 17, 17)], 2 * 4 * 64 * 18),
        ("Gemm", [(5, 7), (7, 3), (3,)], [(5, 3)], 2 * 5 * 7 * 3),
        ("Gemm", [(7, 5), (7, 3)], [(5, 3)], 2 * 5 * 7 * 3),  # transA
        ("FusedMatMul", [(2, 12, 9, 4), (2, 12, 9, 4)], [(2, 12, 9, 9)], 2 * 2 * 12 * 9 * 9 * 4),
        ("MatMulIntegerToFloat", [(5, 7), (7, 3), (), ()], [(5, 3)], 2 * 5 * 7 * 3),
        ("Relu", [(5, 7)], [(5, 7)], 0),
        ("Expand", [(5, 1), (2,)], [(5, 7)], 0),
        ("Softmax", [(5, 7)], [(5, 7)], None),
        ("LayerNormalization", [(5, 7), (7,)], [(5, 7)], None),
        ("Attention", [(5, 7), (7, 21)], [(5, 7)], None),
        ("MatMul", [], [], None),
        ("Conv", [(1, 3, 8)], [(1, 16, 8)], None),
    ],
)
def test_arithmetic_of_operators(
    operator: str, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]], flops: int | None
) -> None:
    assert flops_of(operator, inputs, outputs) == flops


def test_tensorrts_layers_have_the_work_of_their_nodes() -> None:
    """One of two convolutions was split: its second part moves only its own tensors."""
    tensors = (("fp16", (-1, 8)), ("fp16", (-1, 4)))
    described = [
        Layer(
            name="one", kind="correlation", precisions=frozenset({"fp16"}), nodes=("a", "relu"), tensors=tensors
        ),
        Layer(name="two", kind="kgen", precisions=frozenset({"fp16"}), nodes=("a",), tensors=tensors),
    ]
    nodes = {
        "a": LayerTime(name="a", operator="Conv", ms=1.0, flops=100.0, weight_bytes=40.0),
        "relu": LayerTime(name="relu", operator="Relu", ms=1.0, flops=0.0),
    }
    timed = [LayerTime(name=name, operator="?", ms=1.0) for name in ("one", "two", "three")]
    one, two, three = with_work_of_nodes(timed, described, nodes, batch_size=3)
    assert (one.operator, one.flops, one.bytes_moved) == ("correlation", 300.0, 2 * 3 * 12 + 20.0)
    assert (two.operator, two.flops, two.bytes_moved) == ("kgen", 0.0, 2 * 3 * 12)
    assert three == timed[2]


def test_a_node_counts_in_the_layer_that_is_named_after_it() -> None:
    nodes = {"qk/MatMul": LayerTime(name="qk/MatMul", operator="MatMul", ms=1.0, flops=7.0)}
    described = [
        Layer(name="__myl_Move_0", kind="kgen", precisions=frozenset(), nodes=("qk/MatMul",)),
        Layer(name="qk/MatMul_myl0_1", kind="gemm", precisions=frozenset(), nodes=("qk/MatMul", "qk/MatMul")),
    ]
    timed = [LayerTime(name=layer.name, operator="?", ms=1.0) for layer in described]
    found = with_work_of_nodes(timed, described, nodes, batch_size=1)
    assert [layer.flops for layer in found] == [0.0, 7.0]


def test_times_and_work_of_two_traces_meet_by_name() -> None:
    times = [LayerTime(name="a", operator="MatMul", ms=2.0), LayerTime(name="b", operator="Relu", ms=1.0)]
    works = [LayerTime(name="a", operator="MatMul", ms=9.0, flops=5.0, bytes_moved=6.0)]
    a, b = with_work(times, works)
    assert (a.ms, a.flops, a.bytes_moved) == (2.0, 5.0, 6.0)
    assert b == times[1]


def test_a_node_that_is_not_understood_leaves_its_layer_unknown() -> None:
    layer = Layer(name="one", kind="k", precisions=frozenset(), nodes=("a",))
    node = LayerTime(name="a", operator="Attention", ms=1.0)
    timed = [LayerTime(name="one", operator="?", ms=1.0)]
    assert with_work_of_nodes(timed, [layer], {"a": node}, batch_size=1)[0].flops is None


@pytest.mark.parametrize(
    ("flops", "bytes_moved", "bound"),
    [
        (5e5, 1e3, "arithmetic"),  # half a millisecond at 1 Gflop per second
        (1e3, 5e5, "bytes"),
        (1e5, 1e5, "overhead"),  # a tenth of its time each
        (None, 5e5, "unknown"),
        (math.nan, math.nan, "overhead"),
    ],
)
def test_what_holds_a_layer_up(flops: float | None, bytes_moved: float | None, bound: str) -> None:
    layer = LayerTime(name="l", operator="o", ms=1.0, flops=flops, bytes_moved=bytes_moved)
    assert bound_of(layer, flops_per_s=1e9, bytes_per_s=1e9) == bound
    assert bound_of(layer, flops_per_s=None, bytes_per_s=1e9) == "unknown"


def test_shares_are_of_the_whole_with_the_largest_first() -> None:
    assert list(shares([("a", 1.0), ("b", 2.0), ("a", 5.0)]).items()) == [("a", 0.75), ("b", 0.25)]
    assert shares([("a", 0.0)]) == {}
