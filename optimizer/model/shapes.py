"""Choose sizes for the axes that a model leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from math import prod

from optimizer.errors import ShapeError
from optimizer.model.onnx_model import Model, ModelTensor, inferred_outputs, tensor_dims

MAX_DIMENSIONS = 32
"""Inputs with more than 32 dimensions are refused: numpy's limit before 2.0, and more than any model needs."""

MAX_ELEMENTS = 2**31
"""Inputs with more than 2^31 elements are refused: Triton's gRPC carries 2 GiB per request."""

SEQUENCE_LENGTH = 128
IMAGE_SIDE = 224
COLOURS = 3


def with_shapes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """Return the model with sizes for its open axes, and with the sizes of its outputs that follow from them.

    A shape has all dimensions of the input or all but the batch; a size for the batch only counts if the leading
    dimension turns out not to be a batch. Axes with the same name share the size given for one of them. Raises
    ShapeError for an unknown input, a shape that does not fit, and for axes left open: then the message has the
    flags to add.
    """
    names = [tensor.name for tensor in model.all_inputs]
    if unknown := [name for name in shapes if name not in names]:
        raise ShapeError(
            f"--shape {unknown[0]}: the model has no such input.", f"Its inputs are {', '.join(names)}."
        )
    sizes: dict[str, int] = {}
    for tensor in model.all_inputs:
        if tensor.name in shapes:
            _assign(sizes, tensor, shapes[tensor.name], batched=model.batch != "none")
    inputs = tuple(_sized(tensor, sizes) for tensor in model.all_inputs)
    outputs = _outputs_for(model, inputs) if sizes else model.all_outputs
    resolved = replace(model, all_inputs=inputs, all_outputs=outputs)
    require_shapes(resolved)
    for tensor in inputs:
        _check_size(tensor)
    return resolved


def _check_size(tensor: ModelTensor) -> None:
    """Check that a request can carry the input, with a batch that may vary counted as 1. Raises ShapeError."""
    if len(tensor.dims) > MAX_DIMENSIONS:
        raise ShapeError(
            f"Input {tensor.name} has {len(tensor.dims)} dimensions, and a request carries at most "
            f"{MAX_DIMENSIONS}.",
            "Export the model with inputs of fewer dimensions, and reshape inside.",
        )
    elements = prod(dim for dim in tensor.sized if isinstance(dim, int))
    if elements > MAX_ELEMENTS:
        raise ShapeError(
            f"Input {tensor.name} would have {elements:.3g} elements, and a request carries at most 2^31.",
            "Give smaller sizes with --shape, or export the model with smaller ones.",
        )


def require_shapes(model: Model) -> None:
    """Check that every input axis except the batch has a size. Raises ShapeError with the flags to add."""
    if not model.open_axes:
        return
    axes = ", ".join(f"{name} axis {axis} ({dim})" for name, axis, dim in model.open_axes)
    several = len(model.open_axes) > 1
    raise ShapeError(
        f"The size of {axes} varies, and load needs {'sizes' if several else 'a size'}.",
        f"Add {shape_flags(model)} (or the sizes that your requests have).",
    )


def shape_flags(model: Model, *, rows: int | None = None) -> str:
    """Return a `--shape` for each input that is still open once the ones before it are given; "" for none.

    `rows`: an open leading size that is no batch; None: that of an output, if it is fixed, as by a Reshape.
    """
    first = 0 if model.batch == "none" else 1
    fixed = [dim for one in model.all_outputs for dim in one.dims[:1] if isinstance(dim, int) and dim > 1]
    known: set[str] = set()
    flags = []
    for tensor in model.all_inputs:
        dims = tensor.sized
        if any(isinstance(dim, str) and dim not in known for dim in dims[first:]):
            proposed = [_proposal(tensor, axis) for axis in range(first, len(dims))]
            if first == 0 and isinstance(dims[0], str):
                proposed[0] = rows or max(fixed, default=proposed[0])
            flags.append(f"--shape {tensor.name}:{','.join(map(str, proposed))}")
            known |= {dim for dim in dims if isinstance(dim, str)}
    return " ".join(flags)


def _proposal(tensor: ModelTensor, axis: int) -> int:
    """Return a typical size: images have sides of 224 and three colours, anything else is a sequence of 128."""
    dims = tensor.sized
    if isinstance(size := dims[axis], int):
        return size
    if len(dims) != 4 or tensor.datatype in {"INT32", "INT64"}:
        return SEQUENCE_LENGTH
    channels_last = dims[3] in {1, 3, 4}
    return COLOURS if axis == (3 if channels_last else 1) else IMAGE_SIDE


def _assign(sizes: dict[str, int], tensor: ModelTensor, shape: tuple[int, ...], *, batched: bool) -> None:
    """Add the size of each named axis of `tensor` to `sizes`.

    Raises ShapeError if the rank, a fixed size or an earlier size contradicts it.
    """
    dims, given = tensor.dims, ",".join(map(str, shape))
    without_batch = batched and len(shape) == len(dims) - 1
    if len(shape) != len(dims) and not without_batch:
        wanted = dims[1:] if batched else dims
        raise ShapeError(
            f"--shape {tensor.name}:{given} has {len(shape)} sizes, and {tensor.name} has the dimensions "
            f"({', '.join(map(str, dims))}).",
            f"Give {len(wanted)} ({', '.join(map(str, wanted))})"
            + (", leaving the batch out." if batched else "."),
        )
    for axis, size in enumerate(shape, start=1 if without_batch else 0):
        dim = dims[axis]
        if batched and axis == 0:
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
            continue
        expected = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
        if size != expected or size < 1:
            why = f"{dim} is {expected} already" if isinstance(dim, str) else f"the model fixes it at {dim}"
            raise ShapeError(
                f"--shape {tensor.name}:{given}: axis {axis} cannot be {size}; {why}.",
                f"Give {tensor.name} a size of {expected} there, or leave it out.",
            )


def _sized(tensor: ModelTensor, sizes: Mapping[str, int]) -> ModelTensor:
    dims = tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in tensor.dims)
    return replace(tensor, sample_dims=dims)


def _outputs_for(model: Model, inputs: tuple[ModelTensor, ...]) -> tuple[ModelTensor, ...]:
    """Return the outputs as ONNX infers them from these inputs; a batch dimension keeps its own size."""
    proto = deepcopy(model.graph.outline)
    dims_of = {tensor.name: tensor.sized for tensor in inputs}
    for value in proto.graph.input:
        for axis, dim in enumerate(dims_of.get(value.name, ())):
            if isinstance(dim, int) and (axis or model.batch == "none"):
                value.type.tensor_type.shape.dim[axis].dim_value = dim
    for value in proto.graph.output:
        for named in value.type.tensor_type.shape.dim:
            if named.HasField("dim_param"):  # inference fills in missing dimensions, but does not replace names
                named.Clear()
    inferred = {value.name: tensor_dims(value) for value in inferred_outputs(proto)}
    return tuple(replace(tensor, sample_dims=inferred.get(tensor.name)) for tensor in model.all_outputs)
