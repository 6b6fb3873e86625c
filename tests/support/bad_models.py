"""Write model files that must not be served: damaged, dangerous, or unusable with random load."""

from pathlib import Path

import numpy as np
import onnx
from batch_models import draw, node, write
from onnx import TensorProto, helper


def truncated(path: Path) -> Path:
    whole = write(path, [node("MatMul", "x w", "y")], {"x": ["N", 64]}, {"y": ["N", 64]}, {"w": draw(64, 64)})
    path.write_bytes(whole.read_bytes()[:5000])
    return path


def with_external_data(path: Path, location: str = "weights.bin", *, size: int = 64) -> Path:
    """x (N, size) times a matrix whose values are declared to lie at `location`; that file is not written."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [size, size], np.zeros(size * size, np.float32))
    weights.ClearField("float_data")
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(4 * size * size))):
        weights.external_data.add(key=key, value=value)
    write(path, [node("MatMul", "x w", "y")], {"x": ["N", size]}, {"y": ["N", size]})
    model = onnx.load_model(path, load_external_data=False)
    model.graph.initializer.append(weights)
    path.write_bytes(model.SerializeToString())
    return path


def weights_for(folder: Path, *, name: str = "weights.bin", size: int = 64) -> Path:
    """Return the values that `with_external_data` lacks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(draw(size, size).tobytes())
    return folder / name


def hidden_external_data(path: Path, location: str) -> Path:
    """The same in the branch of an If: a check of the main graph alone would not find it."""
    with_external_data(path, location)
    model = onnx.load_model(path, load_external_data=False)
    tensor = model.graph.initializer.pop()
    branch = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["b"])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [64, 64])],
        [tensor],
    )
    condition = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    del model.graph.node[:]
    model.graph.initializer.append(condition)
    model.graph.node.extend(
        [
            helper.make_node("If", ["yes"], ["w"], then_branch=branch, else_branch=branch),
            node("MatMul", "x w", "y"),
        ]
    )
    path.write_bytes(model.SerializeToString())
    return path


def unknown_operator(path: Path, *, domain: str = "") -> Path:
    """In the default domain onnx.checker rejects it, in another one only the runtime does."""
    made = helper.make_node("Frobnicate", ["x"], ["y"], name="the_culprit", domain=domain)
    write(path, [made], {"x": ["N", 4]}, {"y": ["N", 4]})
    if domain:
        model = onnx.load_model(path)
        model.opset_import.append(helper.make_opsetid(domain, 1))
        path.write_bytes(model.SerializeToString())
    return path


def unsupported_type(path: Path) -> Path:
    """A standard operator on a type that ONNX Runtime's CPU provider has no kernel for."""
    write(path, [node("Erf", "x", "y")], {"x": ["N", 4]}, {"y": ["N", 4]})
    model = onnx.load_model(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    path.write_bytes(model.SerializeToString())
    return path


def string_input(path: Path) -> Path:
    write(path, [node("Identity", "x", "y")], {"x": ["N", 4]}, {"y": ["N", 4]})
    model = onnx.load_model(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.STRING
    path.write_bytes(model.SerializeToString())
    return path


def sequence_input(path: Path) -> Path:
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [4])
    graph = helper.make_graph(
        [node("ConcatFromSequence", "x", "y", axis=0)],
        "sequence",
        [sequence],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def without_inputs(path: Path) -> Path:
    return write(path, [node("Identity", "w", "y")], {}, {"y": [4]}, {"w": draw(4)})


def without_rank(path: Path) -> Path:
    write(path, [node("Identity", "x", "y")], {"x": ["N"]}, {"y": None})
    model = onnx.load_model(path)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path.write_bytes(model.SerializeToString())
    return path


def nested_functions(path: Path, *, depth: int) -> Path:
    """Local functions of which each calls the one before twice: 2 ** depth nodes once they are inlined."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    bodies = [[node("Relu", "x", "y")]]
    for inner in range(depth - 1):
        called = [helper.make_node(f"f{inner}", [a], [b], domain="f") for a, b in (("x", "t"), ("t", "y"))]
        bodies.append(called)
    functions = [
        helper.make_function("f", f"f{number}", ["x"], ["y"], body, opsets) for number, body in enumerate(bodies)
    ]
    graph = helper.make_graph(
        [helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="f")],
        "nested",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
    )
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path
