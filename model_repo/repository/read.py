"""Read an engine from a model repository that we wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_repo.native_library import LIBRARY
from model_repo.repository.config_pbtxt import datatype_of, parse_config_pbtxt
from model_repo.repository.own_model import CONFIG_FILE
from model_repo.spec import VERSION, Backend, Engine, TensorSpec

_CODE = ("model.py", "slots_model.py", LIBRARY, "tritune_gpu")
"""Our own entries in a version folder; the others are the engine's."""


class NotOurRepository(Exception):
    """The folder does not hold a model as we write it; the text begins with the missing or unreadable part."""


def engine_from_repository(model_dir: Path, *, backend: Backend, precision: str) -> Engine:
    """Return the engine of a model that `write_repository` wrote for our runtime; its files are in `model_dir`.

    The `config.pbtxt` of the Python backend does not hold backend and precision. A batch axis that Triton does not
    add itself comes back as the first dimension of each tensor, which renders to the same text. Raises
    NotOurRepository.
    """
    path = model_dir / CONFIG_FILE
    try:
        message = parse_config_pbtxt(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotOurRepository(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise NotOurRepository(f"{path} is not a config.pbtxt") from error
    version_dir = model_dir / VERSION
    files = tuple(sorted(_engine_files(version_dir)))
    if not message.instance_group or not files:
        raise NotOurRepository(f"{version_dir if message.instance_group else model_dir} is not complete")
    warmup = message.model_warmup[0].inputs if message.model_warmup else {}
    group = message.instance_group[0]
    try:
        return Engine(
            model_name=message.name,
            backend=backend,
            precision=precision,
            model_file=message.parameters["model_file"].string_value,
            files=files,
            inputs=tuple(_spec(tensor, warmup) for tensor in message.input),
            outputs=tuple(_spec(tensor, {}) for tensor in message.output),
            batched=message.max_batch_size > 0,
            device="gpu" if group.Kind.Name(group.kind) == "KIND_GPU" else "cpu",
        )
    except ValueError as error:
        raise NotOurRepository(f"{model_dir} is not what we write: {error}") from error


def _engine_files(version_dir: Path) -> list[tuple[str, Path]]:
    """Return all files of the version folder except our code: the model, and its external data if it has some."""
    paths = [path for path in version_dir.rglob("*") if "__pycache__" not in path.parts]
    found = ((path.relative_to(version_dir).as_posix(), path) for path in paths if path.is_file())
    return [(name, path) for name, path in found if name.split("/")[0] not in _CODE]


def _spec(tensor: Any, warmup: Any) -> TensorSpec:
    shape = () if tensor.HasField("reshape") else tuple(tensor.dims)
    sample = tuple(warmup[tensor.name].dims) if -1 in shape and tensor.name in warmup else None
    return TensorSpec(name=tensor.name, datatype=datatype_of(tensor), shape=shape, sample_shape=sample)
