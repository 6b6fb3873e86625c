"""The search space of a run: its engines, the values that the user wants, and `--start-from config.pbtxt`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.errors import BadInput
from model_repo.repository.config_pbtxt import NATIVE_BACKENDS, parse_config_pbtxt
from model_repo.spec import Engine, ServingConfig
from optimizer.config import OptimizeConfig
from optimizer.engines.builder import installed_tensorrt
from optimizer.machine.hardware import Hardware
from optimizer.space_options import LONGEST_DELAY_MS
from search.choices import LARGEST_BATCH
from search.knobs import KNOBS, MEMBER_KNOBS
from search.restriction import Restriction, restricted
from search.space import MachineLimits, SearchSpace, default_config, engine_label, knobs_of, search_space
from search.trials import events
from search.trials.events import OnEvent


def own_space(
    config: OptimizeConfig, machine: Hardware, engines: tuple[Engine, ...], on_event: OnEvent
) -> SearchSpace:
    """Return the space of a user's own model: what is varied of it, and of its members."""
    called, others = engines[0].members, [one.name for one in config.with_models]
    tuned = config.tune or [one.model_name for one in called if one.model_name not in others]
    names = ["", *(member.model_name for member in called)]
    unknown = [knob for knob, _ in config.excluded if knob.rpartition(".")[0] not in names]
    if unknown:
        known = f"It calls {', '.join(names[1:])}." if called else "It calls no other model."
        raise BadInput(f"--exclude {unknown[0]}: {engines[0].model_name} calls no such model.", known)
    share = replace(machine, memory_bytes=machine.memory_bytes // max(1, len(called)))
    wanted = _restriction_of(config)
    one_has_batches = any(member.batched for member in called if member.model_name in tuned)

    def varied(member: Engine) -> tuple[str, ...]:
        if member.model_name not in tuned:
            return ()
        return MEMBER_KNOBS if member.batched or not one_has_batches else ("instance_count",)

    members = tuple(
        space_of(
            replace(config, client_batch=1) if member.model_name in others else config,
            share,
            (member,),
            largest_batch(member, config),
            as_it_is=member.model_name not in tuned,
            restriction=wanted.of_member(member.model_name, varied(member)),
            on_event=on_event,
        )
        for member in called
    )
    if engines[0].is_ensemble:  # of its own, nothing is varied
        own = {"engine", *KNOBS} - {*MEMBER_KNOBS}
        wanted = Restriction(excluded=tuple(one for one in wanted.excluded if one[0] in own))
    return space_of(
        config,
        machine,
        engines,
        largest_batch(engines[0], config),
        members=members,
        as_it_is=engines[0].is_ensemble,
        restriction=wanted,
        on_event=on_event,
    )


def space_of(
    config: OptimizeConfig,
    machine: Hardware,
    engines: tuple[Engine, ...],
    largest_batch: int,
    *,
    as_it_is: bool = False,
    restriction: Restriction | None = None,
    members: tuple[SearchSpace, ...] = (),
    on_event: OnEvent,
) -> SearchSpace:
    """Return the space of these engines, with the values that the user wants. Raises BadInput if none is left.

    `as_it_is`: nothing of them is varied, so that nothing can be excluded either.
    """
    on_gpu = any(engine.device == "gpu" for engine in engines)
    # All instances share the machine's memory, or the GPU's if that is less and engines use it.
    gpu_bytes = [gpu.memory_bytes for gpu in machine.gpus[:1] if on_gpu and gpu.memory_bytes is not None]
    space = search_space(
        engines,
        MachineLimits(cores=machine.logical_cores, memory_bytes=min([machine.memory_bytes, *gpu_bytes])),
        limit_ms=config.limits[0].limit_ms,
        rows_per_request=config.client_batch if all(engine.batched for engine in engines) else 1,
        largest_batch=largest_batch,
        members=members,
        as_it_is=as_it_is,
    )
    wanted = restriction or _restriction_of(config)
    if as_it_is:
        for knob, value in wanted.excluded:
            text = f"--exclude {knob}={value} excludes nothing of {space.name}, which is served as it is."
            on_event(events.Note(text=text, warning=True))
        return space
    if config.start_from is not None:
        space = _with_start(space, config, config.start_from, on_event)
    unknowns = wanted.of_none(space)
    # An excluded engine of TensorRT is not built, so the space has none of that name. Looking for it imports it.
    libraries = installed_tensorrt() if unknowns and machine.gpus else ()
    not_built = tuple(f"engine={library.backend}-" for library in libraries)
    for unknown in unknowns:
        if unknown.startswith(not_built):
            continue
        text = f"--exclude {unknown} excludes nothing of {space.name}, which is not tried with it in any case."
        on_event(events.Note(text=text, warning=True))
    return restricted(space, wanted)


def _with_start(space: SearchSpace, config: OptimizeConfig, path: Path, on_event: OnEvent) -> SearchSpace:
    """Return the space with the configuration in the user's file, or in its copy if kept. Raises BadInput."""
    kept = config.output / START_FILE
    start, ignored = read_start(
        kept if kept.exists() else path, space.engines, rows_per_request=space.rows_per_request
    )
    if ignored:
        text = f"--start-from {path.name} is compared without its {', '.join(ignored)}."
        on_event(events.Note(text=text, warning=True))
    if knobs_of(start) == knobs_of(space.baseline()):
        # A point is measured once: of two configurations that differ in preferred sizes alone only one can be.
        sizes = ", ".join(map(str, start.preferred_batch_sizes))
        but = f" but for its preferred_batch_size {sizes}, without which it is compared" if sizes else ""
        text = f"--start-from {path.name} is Triton's default, which is trial 0 in any case{but}."
        on_event(events.Note(text=text, warning=True))
        return space
    return replace(space, start=start)


def _restriction_of(config: OptimizeConfig) -> Restriction:
    """Return what the user wants to be tried; the largest batch of a repository's models is another matter."""
    given = {
        "max_batch_size": config.max_batch_sizes if config.repository is None else None,
        "instance_count": config.instance_counts,
        "intra_op_threads": config.intra_op_threads,
        "max_queue_delay_us": config.queue_delays_us,
    }
    values = {knob: numbers for knob, numbers in given.items() if numbers is not None}
    return Restriction(values=values, excluded=config.excluded)


def largest_batch(engine: Engine, config: OptimizeConfig) -> int:
    """Return the largest batch to try: that of the model's configuration, or the one that the user asked for."""
    assert engine.own is not None
    return max(asked_batch(config) or engine.own.max_batch_size, 1)


def asked_batch(config: OptimizeConfig) -> int | None:
    """Return the largest batch that the user asked for, if any."""
    return config.max_batch_sizes[-1] if config.max_batch_sizes else None


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
