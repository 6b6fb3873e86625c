"""Read the engine and its serving configuration from a model repository that we wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_repo.native_library import LIBRARY
from model_repo.repository.config_pbtxt import datatype_of, parse_config_pbtxt
from model_repo.repository.own_model import CONFIG_FILE
from model_repo.spec import VERSION, Backend, Engine, ServingConfig, TensorSpec

_CODE = ("model.py", "slots_model.py", LIBRARY, "tritune_gpu")
"""Our own entries in a version folder; the others are the engine's."""

_NO_OPTIONS = (
    *("model_file", "engine_backend", "batch_sizes", "cuda_graphs", "tf32"),
    *("intra_op_threads", "allow_spinning"),
)
"""Parameters that we write for other fields than the backend options."""

_KIND_GPU = "KIND_GPU"


class NotOurRepository(Exception):
    """The folder does not hold a model as we write it. `path` is the missing or unreadable part."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path
        self.reason = reason


def serving_config_from_repository(model_dir: Path, *, backend: Backend, precision: str) -> ServingConfig:
    """Return the configuration that `write_repository` wrote for our runtime; its engine files are in `model_dir`.

    The `config.pbtxt` of the Python backend does not hold backend and precision. A batch axis that Triton does not
    add itself comes back as the first dimension of each tensor, which renders to the same text. Raises
    NotOurRepository.
    """
    message = _message(model_dir)
    version_dir = model_dir / VERSION
    files = tuple(sorted(_engine_files(version_dir)))
    if not message.instance_group or not files:
        raise NotOurRepository(version_dir if message.instance_group else model_dir, "is not complete")
    try:
        return _config(message, files, backend=backend, precision=precision)
    except ValueError as error:
        raise NotOurRepository(model_dir, f"is not what we write: {error}") from error


def _config(
    message: Any, files: tuple[tuple[str, Path], ...], *, backend: Backend, precision: str
) -> ServingConfig:
    """Return the configuration of a ModelConfig message. Raises ValueError for one that we never write."""
    warmup = message.model_warmup[0].inputs if message.model_warmup else {}
    group = message.instance_group[0]
    parameters = {key: value.string_value for key, value in sorted(message.parameters.items())}
    engine = Engine(
        model_name=message.name,
        backend=backend,
        precision=precision,
        model_file=parameters.get("model_file", ""),
        files=files,
        inputs=tuple(_spec(tensor, warmup) for tensor in message.input),
        outputs=tuple(_spec(tensor, {}) for tensor in message.output),
        batched=message.max_batch_size > 0,
        device="gpu" if group.Kind.Name(group.kind) == _KIND_GPU else "cpu",
    )
    sizes = parameters.get("batch_sizes", "").split(",") if parameters.get("cuda_graphs") == "1" else ()
    return ServingConfig(
        engine=engine,
        max_batch_size=message.max_batch_size,
        instance_count=group.count,
        dynamic_batching=message.HasField("dynamic_batching"),
        max_queue_delay_us=message.dynamic_batching.max_queue_delay_microseconds,
        preferred_batch_sizes=tuple(message.dynamic_batching.preferred_batch_size),
        intra_op_threads=int(parameters.get("intra_op_threads", "0")),
        cuda_graph_batch_sizes=tuple(map(int, sizes)),
        backend_options=tuple((key, value) for key, value in parameters.items() if key not in _NO_OPTIONS),
    )


def _message(model_dir: Path) -> Any:
    path = model_dir / CONFIG_FILE
    try:
        return parse_config_pbtxt(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotOurRepository(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise NotOurRepository(path, "is not a config.pbtxt") from error


def _engine_files(version_dir: Path) -> list[tuple[str, Path]]:
    """Return all files of the version folder except our code: the model, and its external data if it has some."""
    paths = [path for path in version_dir.rglob("*") if "__pycache__" not in path.parts]
    found = ((path.relative_to(version_dir).as_posix(), path) for path in paths if path.is_file())
    return [(name, path) for name, path in found if name.split("/")[0] not in _CODE]


def _spec(tensor: Any, warmup: Any) -> TensorSpec:
    shape = () if tensor.HasField("reshape") else tuple(tensor.dims)
    sample = tuple(warmup[tensor.name].dims) if -1 in shape and tensor.name in warmup else None
    return TensorSpec(
        name=tensor.name,
        datatype=datatype_of(tensor),
        shape=shape,
        sample_shape=sample,
    )
