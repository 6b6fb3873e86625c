"""Calibration data: an .npz file, or a folder with one .npy file for each input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.model_info import NUMPY_TYPES
from optimizer.errors import BadInput
from optimizer.samples import Samples

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from optimizer.onnx_model import Model, ModelTensor


def samples_from_data(path: Path, model: Model, *, option: str = "--calibration-data") -> Samples:
    """The samples in `path`: an array for each input, whose first axis counts them. Nothing is unpickled.

    Raises BadInput for missing or unknown names, numbers of samples that differ, shapes and types that do not fit,
    and values that are not finite.
    """
    where = f"{option} {path}"
    arrays = _arrays(path, where)
    names = [tensor.name for tensor in model.all_inputs]
    wrong = [name for name in names if name not in arrays] or [name for name in arrays if name not in names]
    if wrong:
        does = "has no array" if wrong[0] in names else "has an array the model takes no input for,"
        raise BadInput(
            f"{where} {does} {wrong[0]!r}; it holds {', '.join(arrays) or 'nothing'}.",
            f"Name the arrays like the model's inputs: {', '.join(names)}.",
        )
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) != 1 or 0 in counts.values():
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise BadInput(
            f"{where} holds different numbers of samples, or none ({listed}).",
            "The first axis of every array counts the samples, so give all arrays the same first size.",
        )
    batched = model.batch != "none"
    checked = {
        tensor.name: _fitting(where, tensor, arrays[tensor.name], batched=batched) for tensor in model.all_inputs
    }
    return Samples(arrays=checked, source="given", batched=batched)


def _arrays(path: Path, where: str) -> dict[str, NDArray[Any]]:
    try:
        if not path.exists():
            raise BadInput(f"{where} does not exist.", "Check the path.")
        if path.is_dir():
            files = (file for file in sorted(path.glob("*.npy")) if file.is_file())
            return {file.stem: np.load(file, allow_pickle=False) for file in files}
        if not path.is_file():
            raise OSError("it is no file")
        with path.open("rb") as file:  # numpy would leave it open where it is damaged
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise OSError("it is a single array without a name")
            return {name: loaded[name] for name in loaded.files}
    except BadInput:
        raise
    except Exception as error:  # a damaged file leads numpy and zipfile to errors of a dozen kinds
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(
            f"{where} cannot be read: {why}",
            "Write it with numpy.savez(PATH, INPUT=array, ...), or a folder of INPUT.npy files, without objects.",
        ) from error


def _fitting(where: str, tensor: ModelTensor, array: NDArray[Any], *, batched: bool) -> NDArray[Any]:
    dims = tensor.dims[1:] if batched else tensor.dims
    sizes = array.shape[1:]
    fits = len(sizes) == len(dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(dims, sizes, strict=True)
    )
    if not fits:
        raise BadInput(
            f"{where}: a sample of {tensor.name} has shape {_shape(sizes)}, the model takes {_shape(dims)}.",
            "Save the samples as the model takes them, one after the other along a new first axis.",
        )
    wanted = np.dtype(NUMPY_TYPES[tensor.datatype])
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(np.argwhere(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0, 0])
        raise BadInput(
            f"{where}: sample {bad} of {tensor.name} holds NaN or infinite values.",
            "Leave such samples out: one of them would spoil every range that is derived.",
        )
    if array.dtype != wanted and not (array.dtype.kind in "fiu" and wanted.kind == "f"):
        same_kind = array.dtype.kind in "iu" and wanted.kind in "iu"
        if not same_kind or not np.array_equal(array, array.astype(wanted)):
            raise BadInput(
                f"{where}: {tensor.name} is {array.dtype}, the model takes {tensor.datatype}.",
                f"Save it as numpy.{wanted.name}.",
            )
    return np.ascontiguousarray(array, dtype=wanted)


def _shape(sizes: tuple[object, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"
