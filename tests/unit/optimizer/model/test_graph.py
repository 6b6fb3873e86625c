"""Tests that a process parses a model file once, and without weights if only the structure is needed."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import onnx
import pytest
from batch_models import draw, node, write
from onnx_models import small_cnn

from optimizer.accuracy.check import classifying_outputs
from optimizer.batching.kept import settled
from optimizer.model.files import Graph, load_proto
from optimizer.model.graph_shapes import tensor_types, without_weights
from optimizer.model.onnx_model import read_model
from optimizer.model.samples import synthetic_samples
from optimizer.precision.names import Precision
from optimizer.precision.variants import VariantOptions, variant_from_model

T = TypeVar("T")

LARGE = 64  # a weight of 64 x 64 has more elements than a shape


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of times each file was parsed in this process."""
    counts: Counter[str] = Counter()
    load = onnx.load_model

    def counting(file: Path, *arguments: Any, **options: Any) -> Any:
        counts[Path(file).name] += 1
        return load(file, *arguments, **options)

    monkeypatch.setattr(onnx, "load_model", counting)
    return counts


def dense(path: Path, batch: int | str = "N", *, external: bool = False) -> Path:
    """Write x (batch, 64) -> y (batch, 64), a product with a large weight."""
    weights = {"w": draw(LARGE, LARGE), "scale": np.ones(1, np.float32)}
    nodes = [node("MatMul", "x w", "inner"), node("Mul", "inner scale", "y")]
    write(path, nodes, {"x": [batch, LARGE]}, {"y": [batch, LARGE]}, weights)
    if external:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=64)
    return path


def arrived(sent: T) -> T:
    """Return the copy that another process receives."""
    return cast(T, pickle.loads(pickle.dumps(sent)))  # noqa: S301 - our own


@pytest.mark.parametrize(("batch", "options"), [("N", {}), (1, {"external": True})])
def test_preparing_a_model_parses_it_once(
    tmp_path: Path, parsed: Counter[str], batch: int | str, options: dict[str, Any]
) -> None:
    path = dense(tmp_path / "m.onnx", batch, **options)
    parsed.clear()
    batching = settled(path, {}, tmp_path / "work").batching
    assert batching.model.batch == "dynamic"
    assert parsed == {"m.onnx": 1}


def test_a_model_from_another_process_brings_its_structure(tmp_path: Path, parsed: Counter[str]) -> None:
    model = settled(dense(tmp_path / "m.onnx"), {}, tmp_path / "work").batching.model
    assert len(pickle.dumps(model)) < 4 * LARGE * LARGE
    parsed.clear()
    copy = arrived(model)
    assert copy == model
    assert synthetic_samples(copy, 2, seed=0).count == 2
    assert classifying_outputs(copy) == classifying_outputs(model)
    assert not parsed


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_making_a_variant_parses_the_model_once(
    tmp_path: Path, parsed: Counter[str], precision: Precision
) -> None:
    model = arrived(settled(dense(tmp_path / "m.onnx"), {}, tmp_path / "work").batching.model)
    parsed.clear()
    made = variant_from_model(model, precision, VariantOptions(work_dir=tmp_path / "work"))
    assert parsed == {"m.onnx": 1}
    outline, saved = made.model.graph.outline, load_proto(made.model.path)
    assert [each.name for each in outline.graph.node] == [each.name for each in saved.graph.node]


def test_what_is_changed_is_a_copy(tmp_path: Path) -> None:
    graph = read_model(dense(tmp_path / "m.onnx")).graph
    own = graph.own()
    del own.graph.node[:]
    assert len(graph.proto.graph.node) == len(graph.outline.graph.node) == 2


@pytest.mark.parametrize("as_constant", [False, True])
def test_without_weights_a_model_has_the_same_types_and_shapes(tmp_path: Path, as_constant: bool) -> None:
    proto = load_proto(dense(tmp_path / "m.onnx"))
    if as_constant:
        large = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
        constant = onnx.helper.make_node("Constant", [], ["w"], name="constant", value=large)
        proto.graph.node.insert(0, constant)
        proto.graph.initializer.remove(large)
    before = proto.SerializeToString()
    outline = without_weights(proto)
    assert proto.SerializeToString() == before
    assert outline.ByteSize() < 1000 < 4 * LARGE * LARGE < proto.ByteSize()
    whole, light = (onnx.shape_inference.infer_shapes(each, data_prop=True) for each in (proto, outline))
    assert [*light.graph.value_info, *light.graph.output] == [*whole.graph.value_info, *whole.graph.output]
    assert tensor_types(proto) == dict.fromkeys(("x", "w", "scale", "inner", "y"), onnx.TensorProto.FLOAT)


def test_a_graph_that_nobody_has_read_travels_as_a_path(tmp_path: Path) -> None:
    graph = arrived(Graph(small_cnn(tmp_path / "cnn.onnx")))
    assert graph.path == tmp_path / "cnn.onnx"
    assert graph.proto.graph.node
