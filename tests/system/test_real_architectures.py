"""The architectures that come with ONNX: opset 9, a batch fixed at 1, constants among the inputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from optimizer.batching.dynamic_batch import dynamic_batch
from optimizer.batching.rewrite import free_batch
from optimizer.model.files import load_proto
from optimizer.model.graph_shapes import ShapeView
from optimizer.model.onnx_model import read_model
from optimizer.model.ort_child import run_model
from optimizer.model.shapes import with_shapes

pytestmark = pytest.mark.long

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
ALL = sorted(path.stem for path in LIGHT.glob("light_*.onnx") if not path.stem.endswith("_output_0"))
HEAVY = {"light_vgg19", "light_bvlc_alexnet", "light_zfnet512"}  # up to half a gigabyte of weights when they run


@pytest.mark.parametrize("name", ALL)
def test_the_batch_reaches_the_output(name: str) -> None:
    proto = load_proto(LIGHT / f"{name}.onnx")
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    free_batch(proto, [value.name for value in inputs])
    view = ShapeView(proto, [value.name for value in inputs], 5)
    for node in proto.graph.node:
        view.see(node)
    assert [view.sizes(value.name)[0] for value in proto.graph.output] == [5]


@pytest.mark.parametrize("name", [name for name in ALL if name not in {*HEAVY, "light_resnet50"}])
def test_a_real_architecture_is_batched_and_proven(tmp_path: Path, name: object) -> None:
    done = dynamic_batch(with_shapes(read_model(LIGHT / f"{name}.onnx"), {}), tmp_path)
    assert done.action == "rewritten"
    assert done.model.inputs[0].shape == (3, 224, 224)
    assert "Constants that the file lists as inputs are constants now." in done.reason


def test_resnet50_is_proven_and_runs_in_other_batch_sizes(tmp_path: Path) -> None:
    source = read_model(LIGHT / "light_resnet50.onnx")
    done = dynamic_batch(with_shapes(source, {}), tmp_path)
    assert done.action == "rewritten"
    assert "(freed: 1 Reshape): batches of 2, 3, 4" in done.reason
    images = np.random.default_rng(0).standard_normal((3, 3, 224, 224)).astype(np.float32)
    (result,) = run_model(done.model.path, [{done.model.inputs[0].name: images}])
    (alone,) = run_model(source.path, [{source.inputs[0].name: images[:1]}])
    name = source.outputs[0].name
    assert result[name].shape == (3, 1000)
    np.testing.assert_allclose(result[name][:1], alone[name], rtol=1e-4)  # type: ignore[arg-type]
