"""Handle model files from unknown sources: unpickle nothing, and open no file outside the model's folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from loadgen.files import copy_whole, whole_file
from model_repo.spec import weights_name
from optimizer.errors import ModelError, UnsafeModel
from optimizer.model.graph_shapes import without_weights
from optimizer.model.other_formats import why_not_onnx

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


PROTOBUF_LIMIT_BYTES = 2**31 - 1
_EXPORT_AGAIN = "Export the model again, or copy the whole file."


def load_proto(path: Path) -> ModelProto:
    """Return the model's graph, without the weights that lie in other files. Raises ModelError.

    No other file is opened.
    """
    _check_file(path)
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        proto = onnx.load_model(path, format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise ModelError(*_why_not_onnx(path)) from error
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(*_why_not_onnx(path))
    return proto


class Graph:
    """The graph in a model file, parsed at most once per process.

    `proto` and `outline` are shared and must not be changed: `own` returns a proto that may be changed. The
    outline travels to other processes, which then read the file only for its weights.
    """

    def __init__(self, path: Path, proto: ModelProto | None = None) -> None:
        self.path = path
        self._proto = proto
        self._outline: ModelProto | None = None
        self._travelled: bytes | None = None

    @property
    def proto(self) -> ModelProto:
        """The model without the weights that lie in other files. Raises ModelError."""
        if self._proto is None:
            self._proto = load_proto(self.path)
        return self._proto

    @property
    def outline(self) -> ModelProto:
        """The model without the values of its large constants. Raises ModelError."""
        from onnx import ModelProto

        if self._outline is None and self._travelled is not None:
            self._outline = ModelProto.FromString(self._travelled)
        if self._outline is None:
            self._outline = without_weights(load_proto(self.path) if self._proto is None else self._proto)
        return self._outline

    def own(self) -> ModelProto:
        """Return a proto for the caller to change, which nothing else holds. Raises ModelError."""
        return load_proto(self.path) if self._proto is None else deepcopy(self._proto)

    def __getstate__(self) -> tuple[Path, bytes | None]:
        """Return the path and the outline to pickle.

        The outline is in bytes, so that a process that does not need it imports no onnx.
        """
        if self._travelled is None and (self._proto is not None or self._outline is not None):
            self._travelled = self.outline.SerializeToString()
        return self.path, self._travelled

    def __setstate__(self, state: tuple[Path, bytes | None]) -> None:
        self.path, self._travelled = state
        self._proto = self._outline = None


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it cannot be read: reading it reports the error."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return 0


def status_of(path: Path) -> os.stat_result:
    """Return the status of a model's file. Raises ModelError if it is not there."""
    try:
        return path.stat()
    except FileNotFoundError as error:
        raise ModelError(f"The model {path} does not exist.", "Check the path.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"The model {path} cannot be read: {why}.", "Check the path.") from error


def _check_file(path: Path) -> None:
    status = status_of(path)
    if stat.S_ISDIR(status.st_mode):
        unknown = f"The model {path} is a directory.", "Name the .onnx file in it."
        raise ModelError(*(why_not_onnx(path) or unknown))
    if any("\udc80" <= letter <= "\udcff" for letter in str(path)):  # Python's form of bytes that are not UTF-8
        raise ModelError(f"The path {path} is not UTF-8, as ONNX's libraries want it.", "Rename the file.")
    if not stat.S_ISREG(status.st_mode) or not os.access(path, os.R_OK):
        raise ModelError(f"The model {path} cannot be read.", "Give a regular file that you may read.")
    size_bytes = status.st_size
    if size_bytes == 0:
        raise ModelError(f"The model {path} is empty.", _EXPORT_AGAIN)
    if size_bytes > PROTOBUF_LIMIT_BYTES:
        unknown = (
            f"The model {path} has {size_bytes} bytes, and a single ONNX file cannot hold more than 2 GiB.",
            "Store its weights in a second file: onnx.save(model, path, save_as_external_data=True)",
        )
        raise ModelError(*(why_not_onnx(path) or unknown))


def _why_not_onnx(path: Path) -> tuple[str, str]:
    """Return the probable reason why a file does not parse, and the fix."""
    with path.open("rb") as file:
        start = file.read(256)
    if start.startswith(b"version https://git-lfs.github.com/"):
        return f"The model {path} is a Git LFS pointer, not the model.", "Run: git lfs pull"
    if known := why_not_onnx(path):
        return known
    if all(byte in b"\t\n\r\f" or 32 <= byte < 127 for byte in start):
        return f"The model {path} is a text file, not ONNX: {start[:40]!r}.", "Give a model exported to ONNX."
    size_bytes = path.stat().st_size
    return f"The model {path} is damaged, cut short or not ONNX ({size_bytes} bytes).", _EXPORT_AGAIN


def all_tensors(message: Any) -> Iterator[TensorProto]:
    """Yield every stored tensor below a protobuf message, in every place that ONNX's format has for one.

    In a model: initializers, sparse ones too, attributes, and those in subgraphs, functions, their attributes'
    defaults, and training graphs.
    """
    if message.DESCRIPTOR.full_name == "onnx.TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.name in _fields_with_tensors(message.DESCRIPTOR):
            for below in (value,) if hasattr(value, "DESCRIPTOR") else value:
                yield from all_tensors(below)


@cache
def _fields_with_tensors(descriptor: Any) -> frozenset[str]:
    """Return the names of a message type's fields below which a TensorProto can lie."""

    def reaches(kind: Any, seen: frozenset[str]) -> bool:
        if kind is None or kind.full_name in seen:
            return False
        return kind.full_name == "onnx.TensorProto" or any(
            reaches(field.message_type, seen | {kind.full_name}) for field in kind.fields
        )

    return frozenset(field.name for field in descriptor.fields if reaches(field.message_type, frozenset()))


def external_files(proto: ModelProto, folder: Path) -> dict[str, Path]:
    """Return the files that hold weights outside the model file, by their location as the model names it.

    Each file is checked by name before it is opened. Raises UnsafeModel for a location that leaves `folder`
    (absolute, `..`, or through a link), ModelError for a file that is missing or too short.
    """
    files: dict[str, Path] = {}
    for tensor in external_tensors(proto):
        entries = _external_entries(tensor)
        location = entries.get("location", "")
        path = files[location] if location in files else _inside(folder, location, tensor.name)
        files[location] = path
        _check_extent(path, entries, tensor.name)
    return dict(sorted(files.items()))


def _external_entries(tensor: TensorProto) -> dict[str, str]:
    """Return the entries that locate a tensor's values, by key.

    Raises UnsafeModel if a key occurs twice: readers then disagree.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) != len(tensor.external_data):
        raise UnsafeModel(
            f"The model gives the place of tensor {tensor.name!r} twice.",
            "Do not use this file unless you trust it; export it again.",
        )
    return entries


def load_weights(
    proto: ModelProto, folder: Path, *, wanted: Callable[[TensorProto], bool] = lambda _: True
) -> None:
    """Read the values of every wanted tensor that lies in another file into `proto`.

    Hard links are accepted: package managers and tools that version data make them, and ONNX's own function takes
    them for an attack. Raises as `external_files` does.
    """
    files = external_files(proto, folder)
    for tensor in filter(wanted, external_tensors(proto)):
        entries = _external_entries(tensor)
        with files[entries["location"]].open("rb") as source:
            source.seek(int(entries.get("offset") or 0))
            tensor.raw_data = source.read(int(entries["length"]) if entries.get("length") else -1)
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")


def external_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Return the tensors whose values lie in other files."""
    from onnx import TensorProto

    return (tensor for tensor in all_tensors(proto) if tensor.data_location == TensorProto.EXTERNAL)


def _inside(folder: Path, location: str, tensor: str) -> Path:
    """Return the path of an external file, a regular file below `folder` without any link on the way.

    Raises UnsafeModel or ModelError for any other.
    """
    relative = PurePosixPath(location)
    if not location or "\0" in location or "\\" in location or relative.is_absolute() or ".." in relative.parts:
        raise UnsafeModel(
            f"The model stores tensor {tensor!r} in {location!r}, which is outside its folder {folder}.",
            "Do not use this file unless you trust it; move the weights next to the model and export it again.",
        )
    try:
        return _below(folder, relative, tensor)
    except OSError as error:
        raise ModelError(
            f"The model stores tensor {tensor!r} in {location[:300]!r}, which cannot be read: {error.strerror}.",
            "Export it again with its weights in one file next to it.",
        ) from error


def _below(folder: Path, relative: PurePosixPath, tensor: str) -> Path:
    path, location = folder, str(relative)
    for part in relative.parts:
        path = path / part
        if path.is_symlink():
            raise UnsafeModel(
                f"The model stores tensor {tensor!r} in {location!r}, and {path} is a symbolic link.",
                "Copy the files themselves into one folder: cp -rL OLD_FOLDER NEW_FOLDER",
            )
    if not path.is_file():
        raise ModelError(
            f"The model stores tensor {tensor!r} in {location!r}, and {path} is not there.",
            "Copy that file next to the model.",
        )
    return path


def _check_extent(path: Path, entries: Mapping[str, str], tensor: str) -> None:
    size_bytes = path.stat().st_size
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or 0)
    except ValueError:
        offset, length = -1, 0
    if offset < 0 or length < 0 or offset + length > size_bytes:
        raise ModelError(
            f"Tensor {tensor!r} lies at {entries.get('offset', 0)} + {entries.get('length', 0)} bytes in {path}, "
            f"which has {size_bytes} bytes.",
            "Copy the whole file again.",
        )


def write_model(
    proto: ModelProto,
    target: Path,
    external: Mapping[str, Path],
    *,
    put: Callable[[Path, Path], None] | None = None,
) -> dict[str, Path]:
    """Write the model to `target`, whole or not at all, with its external files next to it under names of ours.

    A model may call its weights `model.py`; here they are `weights-0.bin` and so on, in the order of `external`,
    and the locations in `proto` change accordingly. `put(source, target)` brings a file there; None copies it,
    because a link to a user's weights would make ONNX refuse them. Returns the files by their new location.
    """
    put = put or copy_whole
    numbers = {source: number for number, source in enumerate(dict.fromkeys(external.values()))}
    names = {location: weights_name(numbers[source]) for location, source in external.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    for source, number in numbers.items():
        file = target.parent / weights_name(number)
        if file != source:
            put(source, file)
    for tensor in external_tensors(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]
    with whole_file(target) as written:
        written.write(proto.SerializeToString())
    return {name: target.parent / name for name in names.values()}


def hollow(source: Path, target: Path) -> None:
    """Create `target` with the size of `source` and no contents; it takes no space on the disk."""
    with target.open("wb") as file:
        file.truncate(source.stat().st_size)
