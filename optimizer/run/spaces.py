"""Make the search space of a run: for its engines on this machine, with the values that the user wants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from loadgen.errors import BadInput
from model_repo.spec import Engine
from optimizer.config import OptimizeConfig
from optimizer.engines.builder import installed_tensorrt
from optimizer.machine.hardware import Hardware
from optimizer.run.own_model import largest_batch
from optimizer.run.start_from import START_FILE, read_start
from search.knobs import KNOBS, MEMBER_KNOBS
from search.restriction import Restriction, restricted
from search.space import MachineLimits, SearchSpace, knobs_of, search_space
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
    return space_of(
        config,
        machine,
        engines,
        largest_batch(engines[0], config),
        members=members,
        as_it_is=engines[0].is_ensemble,
        restriction=_without_knobs_of_members(wanted) if engines[0].is_ensemble else wanted,
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
    space = search_space(
        engines,
        MachineLimits(cores=machine.logical_cores, memory_bytes=_serving_memory(machine, engines)),
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


def _without_knobs_of_members(wanted: Restriction) -> Restriction:
    """Return what is excluded of an ensemble alone: of its own, nothing is varied."""
    own = {"engine", *KNOBS} - {*MEMBER_KNOBS}
    return Restriction(excluded=tuple(one for one in wanted.excluded if one[0] in own))


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


def _serving_memory(machine: Hardware, engines: tuple[Engine, ...]) -> int:
    """Return the bytes that all instances share: the machine's memory, or the GPU's if less and engines use it."""
    on_gpu = any(engine.device == "gpu" for engine in engines)
    gpu_bytes = [gpu.memory_bytes for gpu in machine.gpus[:1] if on_gpu and gpu.memory_bytes is not None]
    return min([machine.memory_bytes, *gpu_bytes])
