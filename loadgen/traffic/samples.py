"""Read input samples from a file or a folder: tensors, or the length of each request."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PayloadError
from loadgen.spec.plan import Payload
from loadgen.traffic.model_info import NUMPY_TYPES, ModelInfo, Parameter, Tensor, numbers_in, texts_in
from loadgen.traffic.random_inputs import check_request_size, random_tensor

SUFFIX = ".txt"
_MAX_DIGITS = 12
MAX_LENGTHS = 10_000
"""A file with more lengths is refused: a request is built for each before the load begins."""


def lengths_from_file(path: Path) -> list[int]:
    """Return the lengths in the file's order; text after a # is a comment. Raises PayloadError with the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PayloadError(f"{path} cannot be read ({error}).\nCheck the path.") from error
    lengths: list[int] = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text and not (text.isdecimal() and len(text) <= _MAX_DIGITS and int(text) > 0):
            raise PayloadError(
                f"{path}, line {number}: {line.strip()[:60]!r} is not a length.\n"
                "Write one whole number above 0 per line."
            )
        lengths += [int(text)] if text else []
    if len(lengths) > MAX_LENGTHS:
        raise PayloadError(
            f"{path} holds {len(lengths):,} lengths, over {MAX_LENGTHS:,}.\n"
            f"Give a part of them, in the order in which they came: head -n {MAX_LENGTHS}."
        )
    return lengths


def samples_of_lengths(lengths: Sequence[int], info: ModelInfo, seed: int) -> list[dict[str, NDArray[Any]]]:
    """Return a random sample per length, which is the size of all free dimensions. Raises PayloadError."""
    free = {tensor.name: tensor.shape[1:] if info.batched else tensor.shape for tensor in info.inputs}
    if not any(-1 in shape for shape in free.values()):
        raise PayloadError(
            f"no input of {info.name} has a free dimension that a length could be given to: {free}.\n"
            "Give samples as .npz or .json, or a model with a dynamic axis."
        )

    def shapes(length: int) -> dict[str, tuple[int, ...]]:
        return {name: tuple(length if size == -1 else size for size in shape) for name, shape in free.items()}

    largest = shapes(max(lengths, default=1))
    check_request_size(info, largest, largest)
    random, made = np.random.default_rng(seed), {}
    for length in sorted(set(lengths)):
        own = shapes(length)
        made[length] = {one.name: random_tensor(random, one.datatype, own[one.name]) for one in info.inputs}
    return [made[length] for length in lengths]


Sample = Mapping[str, Any]

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Inputs and their shapes in one sample, by name."""


def samples_from_file(path: Path, info: ModelInfo, payload: Payload) -> list[dict[str, NDArray[Any]]]:
    """Return one request per `batch_size` picked samples of a file or folder, in order. Raises PayloadError.

    A folder has one sample, and a file for each input: all bytes of numbers, or a text per line. `.npz`, or a
    folder of `INPUT.npy`: an array for each input; its first dimension counts the samples.
    `.json`: {"data": [sample, ...]}; a sample is
    {"input": nested lists} or {"input": {"content": flat list, "shape": [...]}}. In place of lists there may be
    {"b64": all bytes}, and {"b64": ...} for a text in a list. `.txt`: one length per line, the size of all free
    dimensions; the values are random. Values are sent as they are: one that does not fit the datatype is an
    error. If samples do not fill the last batch, it continues with the first ones. `parameters_in_file` returns
    the parameters of the requests.
    """
    if path.suffix == SUFFIX:
        found: Sequence[Sample] = samples_of_lengths(lengths_from_file(path), info, payload.seed)
    else:
        found = _samples(path)
    if path.is_dir():  # the files of outputs are for a comparison
        outputs = {tensor.name for tensor in info.outputs}
        found = [{name: file for name, file in sample.items() if name not in outputs} for sample in found]
    picked = range(len(found)) if payload.picked is None else payload.picked
    samples = [(number, found[number]) for number in picked]
    if not samples:
        raise PayloadError(f"{path} is empty.\nGive at least one sample.")
    tensors = [_tensors_of(f"sample {number} of {path}", sample, info, payload) for number, sample in samples]
    if not info.batched:
        return tensors
    size = payload.batch_size
    count = -(-len(tensors) // size)
    batches = [[tensors[(size * turn + i) % len(tensors)] for i in range(size)] for turn in range(count)]
    try:
        return [_stacked(batch) for batch in batches]
    except ValueError as error:
        raise PayloadError(
            f"the samples of {path} differ in shape or inputs, so {size} of them make no batch.\n"
            "Use batch size 1, or pad them."
        ) from error


def shapes_in_file(path: Path) -> list[Shapes]:
    """Return the shape of each sample of a file: pairs of input and shape, by name. Raises PayloadError."""
    if path.suffix == SUFFIX:
        found: list[Shapes] = [(("length", (length,)),) for length in lengths_from_file(path)]
    else:
        found = [_shapes(path, number, sample) for number, sample in enumerate(_samples(path))]
    if not found:
        raise PayloadError(f"{path} is empty.\nGive at least one sample.")
    return found


def parameters_in_file(path: Path) -> tuple[tuple[str, Parameter], ...]:
    """Return the parameters of all requests: {"data": [...], "parameters": {...}}. Raises PayloadError.

    None of a file that is no JSON, and of one that cannot be read, which is said when its samples are.
    """
    document = None
    if path.suffix not in (".npz", SUFFIX):
        with suppress(OSError, ValueError, RecursionError):
            document = json.loads(path.read_text(encoding="utf-8"))
    found = (document.get("parameters") or {}) if isinstance(document, dict) else {}
    if not isinstance(found, dict) or not all(map(_may_be_sent, found.values())):
        raise PayloadError(
            f"the parameters in {path} are not names with whole numbers, truths or texts.\n"
            'Write them as {"data": [...], "parameters": {"max_tokens": 256, "greedy": true}}.'
        )
    return tuple(found.items())


def _may_be_sent(value: Any) -> bool:
    return isinstance(value, bool | str) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def inputs_in_file(path: Path) -> tuple[Tensor, ...]:
    """Return inputs as the first sample has them, with free sizes. Raises PayloadError."""
    first = next(iter([] if path.suffix == SUFFIX or path.is_dir() else _samples(path)), {})
    known = {np.dtype(kind).name: name for name, kind in NUMPY_TYPES.items() if name != "BF16"}
    shapes = dict(_shapes(path, 0, first))
    kinds = {name: known.get(np.asarray(values).dtype.name, "BYTES") for name, values in first.items()}
    return tuple(
        Tensor(name=name, datatype=kind, shape=(-1,) * (1 + len(shapes[name]))) for name, kind in kinds.items()
    )


def _shapes(path: Path, number: int, sample: Sample) -> Shapes:
    try:
        return tuple(sorted((name, _shape(values)) for name, values in sample.items()))
    except (LookupError, TypeError, ValueError) as error:
        raise PayloadError(
            f"sample {number} of {path} has lists of different lengths within a tensor.\nGive it one shape."
        ) from error


def _shape(values: Any) -> tuple[int, ...]:
    if isinstance(values, Path):  # of the one sample of a folder
        return ()
    return tuple(values.get("shape", [len(values["b64"])])) if isinstance(values, dict) else np.shape(values)


def _samples(path: Path) -> list[Sample]:
    try:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file())
            if files and all(file.suffix == ".npy" for file in files):
                return _from_arrays(path, {file.stem: np.load(file, allow_pickle=False) for file in files})
            return [{file.name: file for file in files}]
        if not path.is_file():
            raise OSError("it is not a file")
        return _from_npz(path) if path.suffix == ".npz" else _from_json(path)
    except PayloadError:
        raise
    except Exception as error:  # numpy, zipfile and json raise a dozen kinds of errors for a damaged file
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise PayloadError(
            f"{path} holds no samples ({why}).\nGive .npz, JSON, a folder of inputs, or a .txt of lengths."
        ) from error


def _from_npz(path: Path) -> list[Sample]:
    with path.open("rb") as file:  # numpy would leave a damaged file open
        arrays = np.load(file, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise TypeError("it is a single array without a name")
        return _from_arrays(path, {name: arrays[name] for name in arrays.files})


def _from_arrays(path: Path, columns: Mapping[str, NDArray[Any]]) -> list[Sample]:
    for name, values in columns.items():
        size = values.dtype.itemsize
        if values.dtype.kind == "S" and size > 1 and (most := int(np.char.str_len(values).max(initial=1))) < size:
            raise PayloadError(
                f"{path}: all texts of {name} (S{size}) end in zero bytes, which NumPy would drop.\n"
                f"If they belong to the texts, save {name}.view('V{size}'); else {name}.astype('S{most}')."
            )
    lengths = {name: len(values) if values.ndim else 0 for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"the arrays hold different numbers of samples: {lengths}")
    rows = range(next(iter(lengths.values())))
    return [{name: values[row, ...] for name, values in columns.items()} for row in rows]


def _from_json(path: Path) -> list[Sample]:
    document = json.loads(path.read_text(encoding="utf-8"))
    data = document["data"] if isinstance(document, dict) else document
    if any(isinstance(sample, list) and sample and isinstance(sample[0], dict) for sample in data):
        raise PayloadError(
            f"{path} holds sequences (lists of samples within the list), and loadtest's requests do not belong "
            "together.\nIf the model keeps no state between requests, give all samples in one list."
        )
    return [{name: _json_values(values) for name, values in sample.items()} for sample in data]


def _json_values(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    content = values.get("content", values)
    if isinstance(content, dict):
        return {**values, **content}  # bytes, which only the input's datatype says how to read
    return np.asarray(content, dtype=object).reshape(values["shape"]).tolist() if "shape" in values else content


def _decoded(values: dict[str, Any] | Path, datatype: str) -> NDArray[Any]:
    """Return the values in Base64 or of a file, flat without a shape.

    Raises ValueError or TypeError if they are none, OSError.
    """
    if isinstance(values, Path):
        data, values = values.read_bytes(), {}
        texts = data.removesuffix(b"\n").split(b"\n")
    else:
        data = base64.b64decode(values.get("b64", 0), validate=True)
        texts = texts_in(data) or [data]  # a text alone may come without its length
    found = np.array(texts, dtype=object) if datatype == "BYTES" else numbers_in(data, datatype)
    return found.reshape(values.get("shape", -1))


def _stacked(batch: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Return the samples as one batch. Raises ValueError if they differ in shape, or in their inputs."""
    if any(sample.keys() != batch[0].keys() for sample in batch):
        raise ValueError("samples have different inputs")
    return {name: np.stack([sample[name] for sample in batch]) for name in batch[0]}


def _tensors_of(where: str, sample: Sample, info: ModelInfo, payload: Payload) -> dict[str, NDArray[Any]]:
    """Return the tensors of a sample: all inputs that the model needs, and the optional ones that it has."""
    carried = (*info.inputs, *(tensor for tensor in info.optional if tensor.name in sample))
    tensors = {tensor.name: _fitting(where, sample, tensor, info, payload) for tensor in carried}
    unknown = [name for name in sample if name not in tensors]
    if unknown:
        known = ", ".join(tensor.name for tensor in (*info.inputs, *info.optional))
        raise PayloadError(
            f"{where} has the input {unknown[0]}, and {info.name} has none of that name.\nIts inputs: {known}."
        )
    return tensors


def exact(values: Any, datatype: str) -> NDArray[Any]:
    """Return values as an array of a datatype. Raises ValueError or TypeError, which name what would change.

    Also OSError for those of a file.
    """
    values = _decoded(values, datatype) if isinstance(values, dict | Path) else values
    if datatype == "BYTES":
        texts = values.astype(object) if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
        return np.array([_text(one) for one in texts.ravel()], dtype=object).reshape(texts.shape)
    given, wanted = np.asarray(values), np.dtype(NUMPY_TYPES[datatype])
    if given.dtype.kind not in "biuf":
        wrong = next((one for one in given.ravel().tolist() if not isinstance(one, int | float)), "a value")
        raise ValueError(f"{ascii(wrong)[:60]} is not a number")
    with np.errstate(over="ignore", invalid="ignore"):
        found = given.astype(wanted)
        if wanted.kind == "f":
            changed = np.isfinite(given) & ~np.isfinite(found)
        elif wanted.kind == "b":
            changed = (given != 0) & (given != 1)
        else:
            whole = (given == np.trunc(given)) if given.dtype.kind == "f" else True
            least, beyond = int(np.iinfo(wanted).min), int(np.iinfo(wanted).max) + 1
            changed = ~((given >= least) & (given < beyond) & whole)
    if changed.any():
        raise ValueError(f"{given[changed].ravel()[0]} cannot be sent as {datatype}")
    return found


def _text(value: Any) -> bytes | str:
    if isinstance(value, dict) and value.keys() == {"b64"}:
        return base64.b64decode(value["b64"], validate=True)
    if not isinstance(value, bytes | str):
        raise TypeError(f"{ascii(value)[:60]} is not text")
    if isinstance(value, str):
        value.encode()  # half a surrogate pair, which JSON can hold, cannot be sent
    return value


def _fitting(where: str, sample: Sample, tensor: Tensor, info: ModelInfo, payload: Payload) -> NDArray[Any]:
    """Return a sample's values for one input, in its type; flat ones get the shape of --shape, or the model's."""
    own = tensor.shape[1:] if info.batched else tensor.shape
    if tensor.name not in sample:
        raise PayloadError(f"{where} has no input {tensor.name}.\nIt has {', '.join(sample)}.")
    try:
        values = exact(sample[tensor.name], tensor.datatype)
    except (OSError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise PayloadError(
            f"{where}: {tensor.name} is not {tensor.datatype}: {error}.\nCheck the file."
        ) from error
    sizes = payload.shapes.get(tensor.name, own)
    if len(values.shape) != len(own) and -1 not in sizes and values.size == math.prod(sizes):
        values = values.reshape(sizes)
    if len(values.shape) == len(own) and all(
        size in (-1, got) for size, got in zip(own, values.shape, strict=True)
    ):
        return values
    raise PayloadError(
        f"{where}: {tensor.name} has shape {values.shape}, and the model takes {own}.\n"
        'A -1 is free; the batch is not part of a sample. A flat list needs its "shape", or a --shape.'
    )
