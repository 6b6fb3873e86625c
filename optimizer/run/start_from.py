"""Read the configuration that a run starts from, `--start-from config.pbtxt`, for a model of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadgen.errors import BadInput
from model_repo.repository.config_pbtxt import NATIVE_BACKENDS, parse_config_pbtxt
from model_repo.spec import Engine, ServingConfig
from search.choices import LARGEST_BATCH
from search.space import default_config

THREADS_KEY = "intra_op_thread_count"
"""The parameter with which Triton's ONNX Runtime backend takes the knob `intra_op_threads`."""

_OF_THE_MODEL = ("name", "platform", "backend", "input", "output", "default_model_filename")
_READ = ("max_batch_size", "instance_group", "dynamic_batching", "parameters")
_OF_THE_BATCHER = ("preferred_batch_size", "max_queue_delay_microseconds")


def read_start(
    path: Path, engines: tuple[Engine, ...], *, rows_per_request: int = 1
) -> tuple[ServingConfig, tuple[str, ...]]:
    """Return the configuration in a `config.pbtxt`, and the names of its other fields, which are ignored.

    The engine is the first one for its backend, else the first. Without dynamic batching a request is executed by
    itself. Fields that are missing are as Triton completes them. Raises BadInput.
    """
    message = _message(path)
    engine = next((one for one in engines if message.backend in NATIVE_BACKENDS.get(one.backend, ())), engines[0])
    if message.platform:
        fits = (one for one in engines if message.platform in NATIVE_BACKENDS.get(one.backend, ()))
        engine = next(fits, engine)
    batcher, default = message.dynamic_batching, default_config(engine)
    batching = message.HasField("dynamic_batching") and engine.batched
    size = min(message.max_batch_size, LARGEST_BATCH) if batching else rows_per_request
    if size < rows_per_request:
        raise BadInput(
            f"--start-from {path}: max_batch_size {message.max_batch_size} takes no requests of "
            f"{rows_per_request} rows.",
            "Correct it, or give a smaller --client-batch.",
        )
    config = ServingConfig(
        engine=engine,
        max_batch_size=size if engine.batched else 0,
        instance_count=sum(max(1, group.count) for group in message.instance_group) or default.instance_count,
        dynamic_batching=batching and size > rows_per_request,
        max_queue_delay_us=batcher.max_queue_delay_microseconds if size > rows_per_request else 0,
        preferred_batch_sizes=tuple(one for one in sorted(set(batcher.preferred_batch_size)) if one <= size)
        if batching and size > rows_per_request
        else (),
        intra_op_threads=_threads(path, message) if engine.device == "cpu" else 0,
    )
    return config, tuple(_ignored(message))


def _message(path: Path) -> Any:
    try:
        return parse_config_pbtxt(path.read_text(), allow_unknown_fields=True)
    except OSError as error:
        raise BadInput(f"--start-from {path} cannot be read: {error.strerror}.", "Check the path.") from error
    except ValueError as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise BadInput(f"--start-from {path}: {reason}.", "Give the config.pbtxt of the model.") from error


def _threads(path: Path, message: Any) -> int:
    text = message.parameters[THREADS_KEY].string_value if THREADS_KEY in message.parameters else "0"
    if not text.isdecimal() or int(text) > 1024:
        raise BadInput(f"--start-from {path}: {THREADS_KEY} is {text!r}.", "Correct it to a number of threads.")
    return int(text)


def _ignored(message: Any) -> list[str]:
    """Return the fields that say how to serve and are no knob of ours."""
    names = [one.name for one, _ in message.ListFields() if one.name not in (*_OF_THE_MODEL, *_READ)]
    names += [f"parameters.{key}" for key in sorted(message.parameters) if key != THREADS_KEY]
    batcher = [one.name for one, _ in message.dynamic_batching.ListFields() if one.name not in _OF_THE_BATCHER]
    return [*names, *(f"dynamic_batching.{name}" for name in batcher)]
