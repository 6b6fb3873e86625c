"""Model files from strangers: nothing is unpickled, and no file outside the model's folder is opened."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from loadgen.scratch import scratch_folder
from model_repo.spec import weights_name
from optimizer.errors import ModelError, UnsafeModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from onnx import ModelProto, TensorProto

PROTOBUF_LIMIT_BYTES = 2**31 - 1
_EXPORT_AGAIN = "Export the model again, or copy the whole file."


def load_proto(path: Path) -> ModelProto:
    """The model's graph, without the weights that lie in other files. Raises ModelError.

    Nothing but the file itself is opened.
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


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if there is none that can be read: reading it says why."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return 0


def _check_file(path: Path) -> None:
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise ModelError(f"The model {path} does not exist.", "Check the path.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"The model {path} cannot be read: {why}.", "Check the path.") from error
    if stat.S_ISDIR(status.st_mode):
        raise ModelError(f"The model {path} is a directory.", "Name the .onnx file in it.")
    if any("\udc80" <= letter <= "\udcff" for letter in str(path)):  # how Python holds other bytes
        raise ModelError(f"The path {path} is not UTF-8, as ONNX's libraries want it.", "Rename the file.")
    if not stat.S_ISREG(status.st_mode) or not os.access(path, os.R_OK):
        raise ModelError(f"The model {path} cannot be read.", "Give a regular file that you may read.")
    size_bytes = status.st_size
    if size_bytes == 0:
        raise ModelError(f"The model {path} is empty.", _EXPORT_AGAIN)
    if size_bytes > PROTOBUF_LIMIT_BYTES:
        raise ModelError(
            f"The model {path} has {size_bytes} bytes, and a single ONNX file cannot hold more than 2 GiB.",
            "Keep its weights beside it: onnx.save(model, path, save_as_external_data=True)",
        )


def _why_not_onnx(path: Path) -> tuple[str, str]:
    """What a file that does not parse seems to be, and what to do."""
    with path.open("rb") as file:
        start = file.read(256)
    if start.startswith(b"version https://git-lfs.github.com/"):
        return f"The model {path} is a Git LFS pointer, not the model.", "Run: git lfs pull"
    if all(byte in b"\t\n\r\f" or 32 <= byte < 127 for byte in start):
        return f"The model {path} is a text file, not ONNX: {start[:40]!r}.", "Give a model exported to ONNX."
    size_bytes = path.stat().st_size
    return f"The model {path} is damaged, cut short or not ONNX ({size_bytes} bytes).", _EXPORT_AGAIN


def all_tensors(message: Any) -> Iterator[TensorProto]:
    """Every stored tensor below a protobuf message, wherever ONNX's format has room for one.

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
    """The names of a message type's fields below which a TensorProto can lie."""

    def reaches(kind: Any, seen: frozenset[str]) -> bool:
        if kind is None or kind.full_name in seen:
            return False
        return kind.full_name == "onnx.TensorProto" or any(
            reaches(field.message_type, seen | {kind.full_name}) for field in kind.fields
        )

    return frozenset(field.name for field in descriptor.fields if reaches(field.message_type, frozenset()))


def external_files(proto: ModelProto, folder: Path) -> dict[str, Path]:
    """The files that hold weights outside the model file, by their location as the model names it.

    Every one is checked by name before anything opens it. Raises UnsafeModel for a location that leaves
    `folder` (absolute, `..`, or through a link), ModelError for a file that is missing or too short.
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
    """Where a tensor's values lie, by key. Raises UnsafeModel if it says so twice: readers then disagree."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) != len(tensor.external_data):
        raise UnsafeModel(
            f"The model says twice where tensor {tensor.name!r} lies.",
            "Do not use this file unless you trust it; export it again.",
        )
    return entries


def load_weights(
    proto: ModelProto, folder: Path, *, wanted: Callable[[TensorProto], bool] = lambda _: True
) -> None:
    """Read the values of every wanted tensor that lies in another file into `proto`.

    Hard links are as good as any file: package managers and tools that version data make some, and ONNX's own
    function takes them for an attack. Raises as `external_files` does.
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
    """The tensors whose values lie in other files."""
    from onnx import TensorProto

    return (tensor for tensor in all_tensors(proto) if tensor.data_location == TensorProto.EXTERNAL)


def _inside(folder: Path, location: str, tensor: str) -> Path:
    """The path of an external file, when it is a regular file below `folder` without any link on the way."""
    relative = PurePosixPath(location)
    if not location or "\0" in location or "\\" in location or relative.is_absolute() or ".." in relative.parts:
        raise UnsafeModel(
            f"The model keeps tensor {tensor!r} in {location!r}, which is outside its folder {folder}.",
            "Do not use this file unless you trust it; move the weights beside the model and export it again.",
        )
    try:
        return _below(folder, relative, tensor)
    except OSError as error:
        raise ModelError(
            f"The model keeps tensor {tensor!r} in {location[:300]!r}, which cannot be read: {error.strerror}.",
            "Export it again with its weights in one file beside it.",
        ) from error


def _below(folder: Path, relative: PurePosixPath, tensor: str) -> Path:
    path, location = folder, str(relative)
    for part in relative.parts:
        path = path / part
        if path.is_symlink():
            raise UnsafeModel(
                f"The model keeps tensor {tensor!r} in {location!r}, and {path} is a symbolic link.",
                "Copy the files themselves into one folder: cp -rL OLD_FOLDER NEW_FOLDER",
            )
    if not path.is_file():
        raise ModelError(
            f"The model keeps tensor {tensor!r} in {location!r}, and {path} is not there.",
            "Copy that file beside the model.",
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


def sha256_of(path: Path, external: Mapping[str, Path]) -> str:
    """Hexadecimal SHA-256 of the model file followed by each external file's name and contents."""
    digest = hashlib.sha256()
    for name, part in (("", path), *sorted(external.items())):
        digest.update(name.encode())
        with part.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def write_model(
    proto: ModelProto,
    target: Path,
    external: Mapping[str, Path],
    *,
    put: Callable[[Path, Path], None] | None = None,
) -> dict[str, Path]:
    """Write the model to `target`, whole or not at all, with its external files beside it under names of ours.

    A model may call its weights `model.py`; here they are `weights-0.bin` and so on, in the order of `external`,
    and so are the locations in `proto`. `put(source, target)` brings a file there; None copies it, because a link
    to a user's weights would make ONNX refuse them. Returns the files by their new location.
    """
    put = put or _copy
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
    with _whole_file(target) as written:
        written.write(proto.SerializeToString())
    return {name: target.parent / name for name in names.values()}


def hollow(source: Path, target: Path) -> None:
    """`target` with the size of `source` and nothing in it; takes no room on the disk."""
    with target.open("wb") as file:
        file.truncate(source.stat().st_size)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as file, _whole_file(target) as copy:
        shutil.copyfileobj(file, copy, 1 << 20)


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when the block ends, and leaves nothing behind when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder("copy", path.parent) as folder:
        draft = folder / "whole"
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
