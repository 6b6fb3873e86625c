"""An ONNX model as the rest of the tool sees it: its tensors, its batch dimension, its identity."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import TypeAdapter

from loadgen.files import sha256_of
from model_repo.repository.write import README_FILE
from model_repo.spec import DATATYPES, TensorSpec
from optimizer.errors import UnsupportedModel
from optimizer.model.checks import check_names, check_runs, check_valid
from optimizer.model.files import Graph, external_files, load_proto
from optimizer.model.graph_shapes import type_name
from optimizer.model.weights import opset_of

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto


Batch = Literal["dynamic", "fixed", "none"]
"""The leading dimension: `dynamic` seems to be a batch of any size, `fixed` one of the same size, `none` no batch.

The file only claims it, until `optimizer.batching.dynamic_batch.dynamic_batch` has proven it.
"""

Dim = int | str
"""A size, or the name of an axis whose size may vary; axes without a name in the file are called NAME_AXIS."""

OLDEST_RUNNABLE_OPSET = 7
"""ONNX Runtime has no implementations for older operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensor:
    """An input or output with all its dimensions, the batch included.

    `sample_dims` are the same with a size for each axis that may vary, once `with_shapes` has chosen them.
    """

    name: str
    datatype: str  # one of model_repo.spec.DATATYPES
    dims: tuple[Dim, ...]
    sample_dims: tuple[Dim, ...] | None = None

    @property
    def sized(self) -> tuple[Dim, ...]:
        """The dimensions with the sizes that are known."""
        return self.sample_dims or self.dims

    def spec(self, *, without_batch: bool) -> TensorSpec:
        """Return the tensor as a request carries it, with -1 for axes that may vary."""
        first = 1 if without_batch else 0
        chosen = tuple(dim for dim in self.sized[first:] if isinstance(dim, int))
        return TensorSpec(
            name=self.name,
            datatype=self.datatype,
            shape=tuple(dim if isinstance(dim, int) else -1 for dim in self.dims[first:]),
            sample_shape=chosen if len(chosen) == len(self.dims[first:]) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checked model file. `name` is a valid Triton model name; `sha256` covers external data too.

    `with_shapes` chooses sizes of open axes for the requests of the load; the served model leaves the axes open.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"arbitrary_types_allowed": True}

    name: str
    graph: Graph = field(repr=False, compare=False)
    external: tuple[tuple[str, Path], ...]  # location relative to the model -> file
    all_inputs: tuple[ModelTensor, ...]
    all_outputs: tuple[ModelTensor, ...]
    batch: Batch
    opset: int
    size_bytes: int
    sha256: str

    @property
    def path(self) -> Path:
        """The model's file."""
        return self.graph.path

    @property
    def batched(self) -> bool:
        """True if requests can be batched along a leading dimension that may vary."""
        return self.batch == "dynamic"

    @property
    def takes_texts(self) -> bool:
        """True if an input is a tensor of strings."""
        return any(tensor.datatype == "BYTES" for tensor in self.all_inputs)

    @property
    def has_texts(self) -> bool:
        """True if an input or output is a tensor of strings."""
        return self.takes_texts or any(tensor.datatype == "BYTES" for tensor in self.all_outputs)

    @property
    def fixed_rows(self) -> int:
        """The leading size that all inputs and outputs have in the file, if they look like one batch; else 1."""
        rows = self.all_inputs[0].dims[:1]
        fixed = claimed_batch(self.all_inputs, self.all_outputs) == "fixed"
        return rows[0] if fixed and isinstance(rows[0], int) else 1

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs as a request carries them: without the batch dimension, if there is one."""
        return tuple(tensor.spec(without_batch=self.batch != "none") for tensor in self.all_inputs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs as a request gets them: without the batch dimension, if there is one."""
        return tuple(tensor.spec(without_batch=self.batch != "none") for tensor in self.all_outputs)

    @property
    def open_axes(self) -> tuple[tuple[str, int, str], ...]:
        """(input, axis, name of the axis) for every dimension, except the batch, that needs a size."""
        first = 0 if self.batch == "none" else 1
        return tuple(
            (tensor.name, axis, dim)
            for tensor in self.all_inputs
            for axis, dim in enumerate(tensor.sized)
            if axis >= first and isinstance(dim, str)
        )

    @property
    def files(self) -> tuple[tuple[str, Path], ...]:
        """Each file's name in a version folder and its path, as `model_repo.spec.Engine.files` needs them."""
        return (("model.onnx", self.path), *self.external)


def in_files(model: Model, path: Path, proto: ModelProto, external: Mapping[str, Path], **changes: Any) -> Model:
    """Return the model as it lies in other files; `proto` is the graph in `path`, which may be another one."""
    return replace(
        model,
        graph=Graph(path.absolute(), proto),
        external=tuple((location, file.absolute()) for location, file in external.items()),
        size_bytes=path.stat().st_size + sum(file.stat().st_size for file in external.values()),
        sha256=sha256_of(path, external),
        **changes,
    )


def without_files(model: Model) -> dict[str, Any]:
    """Return a model without its files, as the cache keeps it in JSON."""
    return dict(TypeAdapter(Model).dump_python(model, mode="json", exclude={"graph", "external"}))


def with_files(kept: Mapping[str, Any], graph: Graph, external: tuple[tuple[str, Path], ...] = ()) -> Model:
    """Return the model that was kept, in these files."""
    return TypeAdapter(Model).validate_python({**kept, "graph": graph, "external": external})


def read_model(path: Path, graph: Graph | None = None) -> Model:
    """Return the model in an ONNX file, checked by ONNX and loadable by ONNX Runtime.

    `graph` None: the file is parsed here. Raises ModelError, UnsafeModel or UnsupportedModel, in two lines that
    name the cause. Models older than opset 7 are not loaded here: `dynamic_batch` converts them first.
    """
    graph = graph or Graph(path.absolute(), load_proto(path))
    proto = graph.proto
    check_names(path, proto)
    external = external_files(proto, path.parent)
    opset = opset_of(proto)
    check_valid(path, proto)
    inputs, outputs = _interface(path, graph.outline)
    if opset == 0 or opset >= OLDEST_RUNNABLE_OPSET:
        check_runs(path, proto)
    return Model(
        name=triton_name(path.stem),
        graph=graph,
        external=tuple((location, file.absolute()) for location, file in external.items()),
        all_inputs=inputs,
        all_outputs=outputs,
        batch=claimed_batch(inputs, outputs),
        opset=opset,
        size_bytes=path.stat().st_size + sum(file.stat().st_size for file in external.values()),
        sha256=sha256_of(path, external),
    )


def triton_name(stem: str) -> str:
    """Return a name close to `stem` that Triton, a URL and a file system accept, and that no file of ours has."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", stem).strip("._-") or "model"
    return f"{name}_model" if name == README_FILE else name


def claimed_batch(inputs: Iterable[ModelTensor], outputs: Iterable[ModelTensor]) -> Batch:
    """Return the batch that the leading dimensions suggest: all may vary, all are one size, or anything else.

    An output may be declared with a 1 that no longer holds: the proof decides.
    """
    leading = [tensor.dims[0] if tensor.dims else None for tensor in inputs]
    results = [tensor.dims[0] if tensor.dims else None for tensor in outputs]
    if all(isinstance(dim, str) for dim in leading):
        claim: Batch = "dynamic"
    elif leading[0] is not None and len(set(leading)) == 1:
        claim = "fixed"
    else:
        return "none"
    rows = 1 if claim == "dynamic" else leading[0]
    return claim if all(dim == rows or isinstance(dim, str) for dim in results) else "none"


def _interface(path: Path, proto: ModelProto) -> tuple[tuple[ModelTensor, ...], tuple[ModelTensor, ...]]:
    """Return inputs and outputs, without initializers that old files list among their inputs.

    Raises UnsupportedModel.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    constants |= {tensor.values.name for tensor in proto.graph.sparse_initializer}
    inputs = [value for value in proto.graph.input if value.name not in constants]
    if not inputs or not proto.graph.output:
        kind = "inputs" if not inputs else "outputs"
        raise UnsupportedModel(f"{path} has no {kind}, so no request can be made.", "Export it with its inputs.")
    read = tuple(_tensor(path, value, "input") for value in inputs)
    return read, tuple(_tensor(path, value, "output") for value in inferred_outputs(proto))


def inferred_outputs(proto: ModelProto) -> list[ValueInfoProto]:
    """Return the graph's outputs, with shapes filled in by ONNX's own inference if possible."""
    import onnx

    try:
        return list(onnx.shape_inference.infer_shapes(proto, data_prop=True).graph.output)
    except (onnx.shape_inference.InferenceError, ValueError):  # ValueError: beyond 2 GiB
        return list(proto.graph.output)


def _tensor(path: Path, value: ValueInfoProto, kind: str) -> ModelTensor:
    form = value.type.WhichOneof("value")
    element = value.type.tensor_type.elem_type
    name = type_name(element) if form == "tensor_type" else str(form).removesuffix("_type")
    datatype = _DATATYPES.get(name, name)
    if datatype not in DATATYPES:
        raise UnsupportedModel(
            f"The {kind} {value.name!r} of {path} is a {name.lower()}, which Triton's protocol cannot carry.",
            "Export the model with plain tensors (scikit-learn: zipmap=False).",
        )
    shape = value.type.tensor_type
    if shape.HasField("shape") and not shape.shape.dim:
        raise UnsupportedModel(
            f"The {kind} {value.name!r} of {path} is a scalar, and Triton serves tensors with an axis only.",
            "Export the model with a value per batch item, or keep an axis of size 1 (keepdims).",
        )
    return ModelTensor(name=value.name, datatype=datatype, dims=tensor_dims(value))


def tensor_dims(value: ValueInfoProto) -> tuple[Dim, ...]:
    """Return the dimensions of an input or output; an axis without a size or a name is called NAME_AXIS."""
    return tuple(
        dim.dim_value if dim.dim_value > 0 else dim.dim_param or f"{value.name}_{axis}"
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
    )


_DATATYPES = {"FLOAT": "FP32", "DOUBLE": "FP64", "FLOAT16": "FP16", "BFLOAT16": "BF16", "STRING": "BYTES"}
"""ONNX's names of types that Triton calls otherwise."""
