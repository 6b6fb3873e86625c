"""Read the configuration that a run starts from, `--start-from config.pbtxt`, for a model of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadgen.errors import BadInput
from model_repo.repository.config_pbtxt import NATIVE_BACKENDS, parse_config_pbtxt
from model_repo.spec import Engine, ServingConfig
from optimizer.space_options import LONGEST_DELAY_MS
from search.choices import LARGEST_BATCH
from search.space import default_config, engine_label

THREADS_KEY = "intra_op_thread_count"
"""The parameter with which Triton's ONNX Runtime backend takes the knob `intra_op_threads`."""

START_FILE = "start-from.pbtxt"
"""The file in the run's directory: a copy, so that the run can be resumed and repeated."""

OUR_BACKENDS = ("python", "tritune")
"""Those of the repositories that tritune writes: they are for every engine, and the file does not say which."""

MOST_INSTANCES = 1024

_OF_THE_MODEL = ("name", "platform", "backend", "input", "output", "default_model_filename")
_READ = ("max_batch_size", "instance_group", "dynamic_batching", "parameters")
_OF_THE_BATCHER = ("preferred_batch_size", "max_queue_delay_microseconds")


def read_start(
    path: Path, engines: tuple[Engine, ...], *, rows_per_request: int = 1
) -> tuple[ServingConfig, tuple[str, ...]]:
    """Return the configuration in a `config.pbtxt`, and what in it is ignored or changed.

    The engine is the first one for its backend; a missing backend is that of the first engine. Without dynamic
    batching a request is executed by itself. Triton completes the batching of a file that lacks inputs or outputs,
    and leaves that of a complete one as it is. Raises BadInput.
    """
    message = _message(path)
    engine, ignored = _engine(path, message, engines), _ignored(message)
    default, batcher = default_config(engine), message.dynamic_batching
    completed = engine.batched and not (message.input and message.output)
    scheduler = message.WhichOneof("scheduling_choice") or ("dynamic_batching" if completed else "")
    given = message.max_batch_size or (default.max_batch_size if completed else 0)
    _check_numbers(path, message, given)
    if engine.batched and 0 < given < rows_per_request:
        raise BadInput(
            f"--start-from {path}: max_batch_size {given} takes no requests of {rows_per_request} rows.",
            "Correct it, or give a smaller --client-batch.",
        )
    size = min(given, LARGEST_BATCH) if engine.batched else 0
    if message.max_batch_size > size:
        ignored.append(f"max_batch_size {given} ({size} is the most here)")
    batching = scheduler == "dynamic_batching" and size > rows_per_request
    preferred = tuple(sorted(set(batcher.preferred_batch_size))) if batching else ()
    ignored += [f"preferred_batch_size {one}" for one in preferred if one > size]
    config = ServingConfig(
        engine=engine,
        max_batch_size=size if batching else rows_per_request if engine.batched else 0,
        # Triton's own number is also that of each group without a count.
        instance_count=sum(group.count or default.instance_count for group in message.instance_group)
        or default.instance_count,
        dynamic_batching=batching,
        max_queue_delay_us=batcher.max_queue_delay_microseconds if batching else 0,
        preferred_batch_sizes=tuple(one for one in preferred if one <= size),
        intra_op_threads=_threads(path, message) if engine.device == "cpu" else 0,
    )
    return config, tuple(ignored)


def _engine(path: Path, message: Any, engines: tuple[Engine, ...]) -> Engine:
    """Return the first engine for the file's backend or platform. Raises BadInput if there is none."""
    named = message.backend or message.platform
    if not named or named in OUR_BACKENDS:
        return engines[0]
    found = next((one for one in engines if named in NATIVE_BACKENDS.get(one.backend, ())), None)
    if found is None:
        labels = ", ".join(map(engine_label, engines))
        raise BadInput(
            f"--start-from {path}: no engine of this run is for {named}.",
            f"Give a config.pbtxt for one of {labels}, or leave --start-from out.",
        )
    return found


def _check_numbers(path: Path, message: Any, max_batch_size: int) -> None:
    """Raise BadInput for a number that Triton would refuse, or that no machine serves."""
    batcher, counts = message.dynamic_batching, [group.count for group in message.instance_group]
    numbers = [
        ("max_batch_size", message.max_batch_size, 0, 2**31 - 1),
        *(("instance_group.count", count, 0, MOST_INSTANCES) for count in (*counts, sum(counts))),
        *(("preferred_batch_size", one, 1, max(1, max_batch_size)) for one in batcher.preferred_batch_size),
        ("max_queue_delay_microseconds", batcher.max_queue_delay_microseconds, 0, int(1000 * LONGEST_DELAY_MS)),
    ]
    for name, number, least, most in numbers:
        if not least <= number <= most:
            raise BadInput(
                f"--start-from {path}: {name} {number} is out of range.", f"Give a number from {least} to {most}."
            )


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
    names += [f"backend {message.backend}"] if message.backend in OUR_BACKENDS else []
    names += [f"parameters.{key}" for key in sorted(message.parameters) if key != THREADS_KEY]
    batcher = [one.name for one, _ in message.dynamic_batching.ListFields() if one.name not in _OF_THE_BATCHER]
    return [*names, *(f"dynamic_batching.{name}" for name in batcher)]
