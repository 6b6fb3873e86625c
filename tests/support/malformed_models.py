"""A corpus of models and command lines that are broken, hostile or odd, each made by code in a folder.

`CASES` gives a function per name; it writes its files into a folder and returns the words of a command line,
`--model` first. Every one has to be refused in two lines, or to work.
"""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from bad_models import (
    hidden_external_data,
    nested_functions,
    weights_for,
    with_external_data,
)
from batch_models import draw, ints, node, write
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper

Case = Callable[[Path], list[str]]
Edit = Callable[[ModelProto], None]

CASES: dict[str, Case] = {}


def plain(path: Path) -> Path:
    """x (N, 4) times a matrix."""
    return write(path, [node("MatMul", "x w", "y")], {"x": ["N", 4]}, {"y": ["N", 4]}, {"w": draw(4, 4)})


def model_of(*words: str) -> ModelProto:
    """A graph of nodes such as `MatMul x w y`: one input x (N, 4), the last node's output, w (4, 4)."""
    nodes = [node(kind, " ".join(names[:-1]), names[-1]) for kind, *names in (word.split() for word in words)]
    return onnx.load_model_from_string(_bytes_of(nodes))


def _bytes_of(nodes: list[onnx.NodeProto]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, ["N", 4])],
        [onnx.numpy_helper.from_array(draw(4, 4), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _add(name: str, case: Case) -> None:
    assert name not in CASES, name
    CASES[name] = case


def _file(name: str, make: Callable[[Path], object], file: str = "model.onnx") -> None:
    """A case of one file, which `make` writes."""

    def case(folder: Path) -> list[str]:
        make(folder / file)
        return ["--model", str(folder / file)]

    _add(name, case)


def _bytes(name: str, content: bytes, file: str = "model.onnx") -> None:
    _file(name, lambda path: path.write_bytes(content), file)


def _edited(name: str, edit: Edit, *words: str) -> None:
    """A sound model after an edit; the node `MatMul x w y` unless other ones are named."""

    def make(path: Path) -> None:
        model = model_of(*(words or ["MatMul x w y"]))
        edit(model)
        path.write_bytes(model.SerializeToString())

    _file(name, make)


def _arguments(name: str, *further: str, make: Callable[[Path], object] = plain) -> None:
    """A sound model with arguments that do not fit."""

    def case(folder: Path) -> list[str]:
        make(folder / "model.onnx")
        return ["--model", str(folder / "model.onnx"), *(word.replace("FOLDER", str(folder)) for word in further)]

    _add(name, case)


def _renamed(name: str, tensor: str) -> None:
    """The input has another name throughout."""

    def edit(model: ModelProto) -> None:
        model.graph.input[0].name = tensor
        model.graph.node[0].input[0] = tensor

    _edited(f"an input called {name}", edit)


def _rename_input(model: ModelProto, name: str) -> None:
    model.graph.input[0].name = model.graph.node[0].input[0] = name


def _rename_output(model: ModelProto, name: str) -> None:
    model.graph.output[0].name = model.graph.node[0].output[0] = name


PLACES: dict[str, Callable[[ModelProto, str], object]] = {
    "input": _rename_input,
    "output": _rename_output,
    "operator": lambda model, name: setattr(model.graph.node[0], "op_type", name),
    "node": lambda model, name: setattr(model.graph.node[0], "name", name),
    "documentation": lambda model, name: setattr(model, "doc_string", name),
}
"""Some named parts of a model, each with a function that renames it."""


def _bytes_renamed(name: str, letters: bytes, *, where: str) -> None:
    """Replace the letters of a name in the file itself, as protobuf refuses to write them."""
    held = "Q" * len(letters)

    def make(path: Path) -> None:
        model = model_of("MatMul x w y")
        PLACES[where](model, held)
        path.write_bytes(model.SerializeToString().replace(held.encode(), letters))

    _file(f"{name} in the name of the {where}", make)


# Files that are no models

_bytes("nested JSON", b"[" * 200_000 + b"]" * 200_000)
_bytes("nested protobuf", b"\x3a\xff\xff\xff\x07" * 50_000)
_bytes("an absurd length", b"\x08\x08\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
_bytes("a varint without end", b"\x08" + b"\x80" * 5000)
_bytes("a file of the TensorFlow kind", b"\x0a\x04\x08\x01\x12\x00" * 50, "saved_model.pb")
_file("a link to nothing", lambda path: path.symlink_to("nowhere"))
_file("a link to itself", lambda path: path.symlink_to(path.name))
_file("a link to a device", lambda path: path.symlink_to("/dev/zero"))
_file("a link to a model", lambda path: path.symlink_to(plain(path.with_name("real.onnx")).name))
_file("a name with an escape", plain, "mo\x1b[31mdel.onnx")
_file("a name with a line break", plain, "mo\ndel.onnx")
_file("a name with markup", plain, "[red]model[nope].onnx")
_bytes("a name that is no UTF-8", model_of("MatMul x w y").SerializeToString(), os.fsdecode(b"mo\xffdel.onnx"))
_file("a long name", plain, "m" * 240 + ".onnx")
_add("a path of 300 letters", lambda folder: ["--model", str(folder / ("m" * 300 + ".onnx"))])
_add("a path of 6,000 letters", lambda folder: ["--model", "/".join(["m" * 100] * 60)])
_add("a path below a file", lambda folder: ["--model", str(plain(folder / "model.onnx") / "model.onnx")])
_add("a path with a NUL", lambda folder: ["--model", f"{folder}/mo\0del.onnx"])
_add("an empty path", lambda folder: ["--model", ""])
_add("a file of the kernel", lambda folder: ["--model", "/proc/self/mem"])
_add("a model that is not there", lambda folder: ["--model", str(folder / "absent.onnx")])
_add("a factory that is not there", lambda folder: ["--model", "absent.package:model"])


def _deep_path(folder: Path) -> list[str]:
    """A sound model below folders of nearly 4,096 letters in all."""
    below = folder / "/".join(["d" * 200] * 15)
    below.mkdir(parents=True)
    return ["--model", str(plain(below / "model.onnx"))]


_add("a deep path", _deep_path)


# .pt2 files


def _zip(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


_bytes("a .pt2 of noise", b"noise" * 99, "model.pt2")
_file("a .pt2 that is an empty zip", lambda path: _zip(path, {}), "model.pt2")
_file("a .pt2 with a file outside", lambda path: _zip(path, {"../../out": b"out"}), "model.pt2")
_file("a .pt2 with zeros", lambda path: _zip(path, {"m/models/model.json": b"\0" * 50_000_000}), "model.pt2")
_file(
    "a .pt2 of nested JSON",
    lambda path: _zip(path, {"m/models/model.json": b"[" * 200_000, "m/archive_format": b"pt2"}),
    "model.pt2",
)


# Names

_renamed("markup", "[/nope]")
_renamed("an escape", "\x1b]0;owned\x07\x1b[2J")
_renamed("a NUL", "a\0b")
_renamed("a change of direction", "a\u202eb")
_renamed("a path", "../../etc/passwd")
_renamed("a long name", "n" * 100_000)
for _where in PLACES:
    _bytes_renamed("no UTF-8", b"\xff\xfe\xfd", where=_where)
_bytes_renamed("a lone surrogate", b"\xed\xa0\x80", where="input")


_edited("an output called as markup", lambda model: _rename_output(model, "[/nope]"))
_edited("an input without a name", lambda model: setattr(model.graph.input[0], "name", ""))
_edited("an output without a name", lambda model: _rename_output(model, ""))


# Dimensions


def _input_dims(*dims: int | str | None) -> Edit:
    def edit(model: ModelProto) -> None:
        for value in (model.graph.input[0], model.graph.output[0]):
            value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, dims))

    return edit


_DIMS: dict[str, tuple[int | str | None, ...]] = {
    "a size of 1e12": ("N", 10**12),
    "sizes whose product passes 2**64": ("N", 2**31, 2**31, 2**31),
    "a fixed batch of 1e12": (10**12, 4),
    "rank 1,000": ("N", *[1] * 999),
    "names with markup": ("[/a]", "[/b]"),
    "no names": (None, None),
}
for _name, _dims in _DIMS.items():
    _edited(_name, _input_dims(*_dims), "Relu x y")


def _constant_dims(*dims: int) -> Edit:
    def edit(model: ModelProto) -> None:
        tensor = model.graph.initializer[0]
        del tensor.dims[:]
        tensor.dims.extend(dims)

    return edit


_edited("a constant of 1e12 elements", _constant_dims(10**6, 10**6))
_edited("a constant with too few bytes", _constant_dims(5, 5))
_edited("a constant of sizes that overflow", _constant_dims(2**32, 2**32))


def _computed(name: str, nodes: list[onnx.NodeProto], constants: dict[str, NDArray[Any]]) -> None:
    """x (1, 4) and something computed from constants."""
    _file(name, lambda path: write(path, nodes, {"x": [1, 4]}, {"y": [1, 4]}, constants))


_huge = {"shape": ints(10**6, 10**6)}
_computed("ConstantOfShape of 1e12", [node("ConstantOfShape", "shape", "c"), node("Add", "x c", "y")], _huge)
_computed(
    "Range to 1e12",
    [
        node("Range", "from to by", "c"),
        node("Cast", "c", "d", to=TensorProto.FLOAT),
        node("Add", "x d", "y"),
    ],
    {"from": np.array(0), "to": np.array(10**12), "by": np.array(1)},
)
_computed("Reshape to two unknowns", [node("Reshape", "x shape", "y")], {"shape": ints(-1, -1)})
_computed(
    "constants that multiply when they meet",
    [
        node("Add", "a b", "ab"),
        node("Add", "ab c", "abc"),
        node("Cast", "abc", "d", to=TensorProto.FLOAT),
        node("ReduceMax", "d", "e", keepdims=0),
        node("Add", "x e", "y"),
    ],
    {
        "a": np.ones((300, 1, 1), np.int64),
        "b": np.ones((1, 300, 1), np.int64),
        "c": np.ones((1, 1, 300), np.int64),
    },
)


# Graphs


def _raw_attribute(model: ModelProto) -> None:
    model.graph.node[0].attribute.append(AttributeProto.FromString(b"\x0a\x01a\xa0\x01\x63"))


_edited("a cycle", lambda model: None, "Add x z a", "Relu a z", "Relu z y")
_edited("a node that reads itself", lambda model: None, "Add x y y")
_edited("no graph", lambda model: model.ClearField("graph"))
_edited("nothing in the graph", lambda model: model.graph.Clear())
_edited("an input without a type", lambda model: model.graph.input[0].ClearField("type"))
_edited("a node with too many inputs", lambda model: model.graph.node[0].input.extend(["w"] * 1000))
_edited("an attribute of an unknown type", _raw_attribute)
_edited("sparse initializers", lambda model: model.graph.sparse_initializer.add())
_edited("quantization annotations", lambda model: model.graph.quantization_annotation.add(tensor_name="absent"))


def _nested(levels: int) -> Callable[[Path], None]:
    """If in If in If: subgraphs `levels` deep."""

    def make(path: Path) -> None:
        inner = helper.make_graph([node("Relu", "x", "r0")], "b0", [], [_float_value("r0")])
        for level in range(1, levels):
            inner = helper.make_graph([_branch(inner, f"r{level}")], f"b{level}", [], [_float_value(f"r{level}")])
        model = model_of("Relu x y")
        model.graph.initializer.append(helper.make_tensor("yes", TensorProto.BOOL, [], [True]))
        model.graph.node[0].CopyFrom(_branch(inner, "y"))
        path.write_bytes(model.SerializeToString())

    return make


def _branch(inner: GraphProto, output: str) -> onnx.NodeProto:
    """Only one branch is deep, or the file would double with each level."""
    other = helper.make_graph([node("Relu", "x", f"{output}_o")], "o", [], [_float_value(f"{output}_o")])
    return helper.make_node("If", ["yes"], [output], then_branch=inner, else_branch=other)


def _float_value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4])


for _levels in (2, 15, 30):
    _file(f"subgraphs {_levels} deep", _nested(_levels))


def _loop(path: Path) -> None:
    """A loop that runs 2**62 times."""
    body = helper.make_graph(
        [node("Identity", "go", "go_on"), node("Relu", "a", "b")],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            _float_value("a"),
        ],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), _float_value("b")],
    )
    model = model_of("Relu x y")
    model.graph.initializer.append(helper.make_tensor("turns", TensorProto.INT64, [], [2000]))
    model.graph.node[0].CopyFrom(helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body))
    path.write_bytes(model.SerializeToString())


_file("a loop", _loop)
_file("functions 3 deep", lambda path: nested_functions(path, depth=3))


def _functions(edit: Callable[[ModelProto], None]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        nested_functions(path, depth=3)
        model = onnx.load_model(path)
        edit(model)
        path.write_bytes(model.SerializeToString())

    return make


def _calls_itself(model: ModelProto) -> None:
    model.functions[0].node[0].CopyFrom(helper.make_node("f0", ["x"], ["y"], domain="f"))


def _call_each_other(model: ModelProto) -> None:
    model.functions[0].node[0].CopyFrom(helper.make_node("f2", ["x"], ["y"], domain="f"))


_file("a function that calls itself", _functions(_calls_itself))
_file("functions that call each other", _functions(_call_each_other))


# Weights in other files


def _external(name: str, location: str, *, prepare: Callable[[Path], object] = weights_for) -> None:
    def make(path: Path) -> None:
        prepare(path.parent)
        with_external_data(path, location.replace("FOLDER", str(path.parent)))

    _file(f"weights {name}", make)


def _extent(name: str, **entries: str) -> None:
    def make(path: Path) -> None:
        weights_for(path.parent)
        with_external_data(path)
        model = onnx.load_model(path, load_external_data=False)
        for entry in model.graph.initializer[0].external_data:
            entry.value = entries.get(entry.key, entry.value)
        for key in entries.keys() - {"offset", "length", "location"}:
            model.graph.initializer[0].external_data.add(key=key, value=entries[key])
        path.write_bytes(model.SerializeToString())

    _file(f"weights with {name}", make)


_external("next to the model", "weights.bin")
_external("outside the folder", "../weights.bin")
_external("with a NUL in their location", "weights.bin\0")
_external("with a long location", "w" * 300)
_external("in a device", "/dev/zero")
_external("in the model file itself", "model.onnx")
_external("in the folder", ".")
_external("behind a link", "link.bin", prepare=lambda folder: (folder / "link.bin").symlink_to("/etc/passwd"))
_external("in a FIFO", "fifo.bin", prepare=lambda folder: os.mkfifo(folder / "fifo.bin"))
_external("with an escape in their location", "\x1b[2Jweights.bin")
_extent("an offset beyond the end", offset="99999999")
_extent("an offset that is no number", offset="eight")
_extent("an offset of 5,000 digits", offset="9" * 5000)
_extent("a length of other digits", length="٤٠٩٦")
_extent("an unknown key", colour="red")
_file("weights of an If outside", lambda path: hidden_external_data(path, "../../etc/passwd"))


# Arguments

_arguments("a shape of 1e30", "--shape", f"x:{10**30}")
_arguments("a shape of 5,000 digits", "--shape", "x:" + "9" * 5000)
_arguments("a shape of 1,000 sizes", "--shape", "x:" + ",".join(["4"] * 1000))
_arguments("inputs that are a model", "--input-data", "FOLDER/model.onnx")
_arguments("inputs that are a folder", "--input-data", "FOLDER")


def _inputs(name: str, file: str, content: Any, option: str = "--input-data") -> None:
    """A sound model with a file of inputs."""

    def make(path: Path) -> None:
        plain(path)
        if isinstance(content, bytes):
            path.with_name(file).write_bytes(content)
        else:
            content(path.with_name(file))

    _arguments(name, option, f"FOLDER/{file}", make=make)


def _npz(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


def _header(text: str) -> bytes:
    """A .npy file that is nothing but its header."""
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


_HUGE = _header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4), }")
_PICKLE = _header("{'descr': '|O', 'fortran_order': False, 'shape': (1, 4), }") + b"cposix\nsystem\n(S'id'\ntR."

for _option, _named in (("--input-data", "inputs that"), ("--calibration-data", "calibration inputs that")):
    for _name, _content in {
        "are a zip of other files": lambda path: _zip(path, {"x.txt": b"1"}),
        "are a pickle in a zip": lambda path: _zip(path, {"x.npy": _PICKLE}),
        "claim 1e12 rows": lambda path: _zip(path, {"x.npy": _HUGE}),
        "have a header that is no header": lambda path: _zip(path, {"x.npy": _header("{" * 100)}),
        "are complex numbers": _npz(x=np.zeros((2, 4), np.complex64)),
        "are a directory": lambda path: path.mkdir(),
        "are a FIFO": os.mkfifo,
        "are a link to themselves": lambda path: path.symlink_to(path.name),
    }.items():
        _inputs(f"{_named} {_name}", "inputs.npz", _content, _option)
    _arguments(f"{_named} are in a path of 300 letters", _option, "FOLDER/" + "i" * 300 + ".npz")

for _name, _text in {
    "nested JSON": "[" * 200_000 + "]" * 200_000,
    "JSON of a huge number": '{"data": [{"x": [1e999, 1, 1, 1]}]}',
    "JSON of NaN": '{"data": [{"x": [NaN, 1, 1, 1]}]}',
    "JSON of 5,000 digits": '{"data": [{"x": [' + "9" * 5000 + ", 1, 1, 1]}]}",
    "JSON of a huge shape": '{"data": [{"x": {"content": [1], "shape": [1000000000000]}}]}',
}.items():
    _inputs(f"inputs that are {_name}", "inputs.json", _text.encode())
_inputs("inputs that are JSON in UTF-16", "inputs.json", '{"data": []}'.encode("utf-16"))
for _name, _text in {
    "lengths of 1e12": "1000000000000\n",
    "lengths of 5,000 digits": "9" * 5000,
    "lengths for a model without an open axis": "5\n6\n",
}.items():
    _inputs(f"inputs that are {_name}", "inputs.txt", _text.encode())


def _open_axes(path: Path) -> Path:
    return write(path, [node("Relu", "x", "y")], {"x": ["N", "length"]}, {"y": ["N", "length"]})


_arguments("an open axis of 1e12", "--shape", f"x:{10**12}", make=_open_axes)
_arguments("an open axis of 1e30", "--shape", f"x:{10**30}", make=_open_axes)
_arguments("an open axis without a size", make=_open_axes)
