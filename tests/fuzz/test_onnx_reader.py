"""Whatever a model file holds, reading it ends within its memory, with a model or an error of two lines."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from fuzzing import fuzz
from hypothesis import strategies as st
from malformed_models import model_of
from model_reader import ModelReader
from onnx import ModelProto, TensorProto, helper

pytestmark = pytest.mark.long

HANGS_S = 60.0
"""These files have a few hundred bytes; reading one takes well below a second."""

SEEDS = tuple(
    model_of(*words)
    for words in (
        ["MatMul x w y"],
        ["Relu x a", "Add a x y"],
        ["Shape x s", "Reshape x s y"],
        ["Softmax x a", "Concat a x y"],
        ["Gather w x y"],
        ["If x y"],
    )
)

NAMES = st.one_of(
    st.sampled_from(["x", "w", "y", "a", "b", ""]),
    st.text(max_size=8),
    st.sampled_from(["[/x]", "\x1b[2J", "a\0b"]),
)
INTEGERS = st.one_of(
    st.integers(-3, 5),
    st.sampled_from([2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 10**12]),
    st.integers(-(2**63), 2**63 - 1),
)
OPERATORS = st.sampled_from(sorted({schema.name for schema in onnx.defs.get_all_schemas()} | {"f", "g", "Nope"}))
TYPES = st.one_of(st.integers(0, 30), st.integers(-5, 2**31 - 1))


@pytest.fixture(scope="module")
def reader() -> Iterator[ModelReader]:
    with ModelReader() as found:
        yield found


def ends_well(reader: ModelReader, content: bytes) -> None:
    """The property. A crash of native code is one of `call_limited`'s two lines."""
    with tempfile.TemporaryDirectory(prefix="tritune-fuzz-") as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(content)
        outcome = reader.read(path, deadline_s=HANGS_S)
    assert outcome.told or outcome.kind == "crashed", f"{outcome.kind}\n{outcome.text}"


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """A sound model with bytes replaced, left out, put in, or doubled."""
    data = bytearray(draw(st.sampled_from(SEEDS)).SerializeToString())
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.one_of(st.binary(max_size=4), st.just(bytes(data[at : at + 20]))))
        data[at : at + draw(st.sampled_from([0, len(piece), 1, 10]))] = piece
    return bytes(data)


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    tensor = TensorProto(name=draw(NAMES), data_type=draw(TYPES), dims=draw(st.lists(INTEGERS, max_size=3)))
    if draw(st.booleans()):
        tensor.raw_data = draw(st.binary(max_size=40))
    else:
        tensor.int64_data.extend(draw(st.lists(INTEGERS, max_size=4)))
    if draw(st.integers(0, 4)) == 0:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=draw(NAMES))
    return tensor


@st.composite
def values(draw: st.DrawFn) -> onnx.ValueInfoProto:
    dims = draw(st.lists(st.one_of(INTEGERS, NAMES, st.none()), max_size=5))
    value = helper.make_tensor_value_info(draw(NAMES), 1, dims)
    if draw(st.integers(0, 3)) == 0:
        value.type.tensor_type.elem_type = draw(TYPES)
    return value


def graphs(depth: int) -> st.SearchStrategy[onnx.GraphProto]:
    """Graphs whose nodes may hold graphs, `depth` levels deep."""

    @st.composite
    def attributes(draw: st.DrawFn) -> onnx.AttributeProto:
        names = st.sampled_from(["axis", "to", "then_branch", "else_branch", "body", "value", "perm"])
        attribute = onnx.AttributeProto(name=draw(names), type=draw(st.integers(0, 14)))  # type: ignore[arg-type]
        attribute.i = draw(INTEGERS)
        attribute.ints.extend(draw(st.lists(INTEGERS, max_size=3)))
        if depth and draw(st.booleans()):
            attribute.g.CopyFrom(draw(graphs(depth - 1)))
        if draw(st.booleans()):
            attribute.t.CopyFrom(draw(tensors()))
        return attribute

    @st.composite
    def nodes(draw: st.DrawFn) -> onnx.NodeProto:
        node = helper.make_node(
            draw(OPERATORS), draw(st.lists(NAMES, max_size=4)), draw(st.lists(NAMES, max_size=2)), name=draw(NAMES)
        )
        node.attribute.extend(draw(st.lists(attributes(), max_size=2)))
        return node

    return st.builds(
        helper.make_graph,
        st.lists(nodes(), min_size=1, max_size=4),
        NAMES,
        st.lists(values(), max_size=3),
        st.lists(values(), max_size=2),
        st.lists(tensors(), max_size=3),
    )


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    """Models that parse, and that hardly anything else can be said of."""
    opset = draw(st.one_of(st.integers(1, 23), INTEGERS))
    model = helper.make_model(draw(graphs(2)), opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = draw(st.one_of(st.integers(3, 10), INTEGERS))
    for number in range(draw(st.integers(0, 2))):
        body = draw(graphs(0))
        model.functions.append(
            helper.make_function("", "fg"[number], ["x"], ["y"], body.node, [helper.make_opsetid("", 17)])
        )
    return model


@st.composite
def changed_models(draw: st.DrawFn) -> ModelProto:
    """Sound models with one or two things changed: most of these get past ONNX's checker."""
    model = ModelProto.FromString(draw(st.sampled_from(SEEDS)).SerializeToString())
    graph = model.graph
    changes = {
        "tensor": lambda: graph.initializer.append(draw(tensors())),
        "constant": lambda: graph.initializer[0].CopyFrom(draw(tensors())),
        "operator": lambda: setattr(graph.node[0], "op_type", draw(OPERATORS)),
        "input": lambda: graph.input.append(draw(values())),
        "output": lambda: graph.output.append(draw(values())),
        "sizes": lambda: _set_sizes(graph, draw(st.lists(st.one_of(INTEGERS, NAMES), max_size=4))),
        "type": lambda: _set_type(graph, draw(TYPES)),
        "axis": lambda: graph.node[-1].attribute.append(helper.make_attribute("axis", draw(INTEGERS))),
        "opset": lambda: setattr(model.opset_import[0], "version", draw(st.integers(1, 25))),
        "order": graph.node.reverse,
    }
    for change in draw(st.lists(st.sampled_from(sorted(changes)), min_size=1, max_size=2)):
        changes[change]()
    return model


def _set_sizes(graph: onnx.GraphProto, dims: list[int | str]) -> None:
    for value in (graph.input[0], graph.output[0]):
        value.CopyFrom(helper.make_tensor_value_info(value.name, 1, dims))


def _set_type(graph: onnx.GraphProto, kind: int) -> None:
    for value in (graph.input[0], graph.output[0]):
        value.type.tensor_type.elem_type = kind


def test_damaged_files(reader: ModelReader) -> None:
    fuzz(lambda content: ends_well(reader, content), damaged_files())


def test_models_of_anything(reader: ModelReader) -> None:
    fuzz(lambda model: ends_well(reader, model.SerializeToString()), models())


def test_sound_models_with_changes(reader: ModelReader) -> None:
    fuzz(lambda model: ends_well(reader, model.SerializeToString()), changed_models(), examples=10)
