"""Choose the GPUs of this machine that a command uses, and those that get worker processes of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence

from loadgen.errors import BadInput
from optimizer.machine.hardware import Gpu, Hardware, hardware

VISIBLE = "CUDA_VISIBLE_DEVICES"
ALL_IN_ONE = "1"


def use_gpus(name: str | None, workers: str) -> tuple[str, ...]:
    """Restrict this process to its GPUs; return the ids of the GPUs that get workers of their own.

    `name` is a part of the GPUs' name; None means all GPUs of the first one's kind. `workers` is `auto`, one
    worker per GPU, or the number of workers. This process is one of them, and each has one GPU. With `1`, this
    process keeps all GPUs with this name, or all of the machine's if `name` is None. Raises BadInput.
    """
    found = hardware().gpus
    chosen = matching(found, name)
    count = wanted(workers, len(chosen))
    alone = workers == ALL_IN_ONE
    if found and not (alone and name is None):
        os.environ[VISIBLE] = ",".join(ids_of(chosen if alone else chosen[:1], found))
    return ids_of(chosen[1:count], found)


def matching(gpus: Sequence[Gpu], name: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs whose name contains `name`; if None, those named like the first one. Raises BadInput."""
    if name is None:
        return tuple(gpu for gpu in gpus if gpu.name == gpus[0].name)
    chosen = tuple(gpu for gpu in gpus if name.casefold() in gpu.name.casefold())
    if not chosen:
        here = ", ".join(gpu.name for gpu in gpus) or "none"
        raise BadInput(f"--gpu {name}: no GPU of this machine is named so.", f"Its GPUs are: {here}.")
    if len({gpu.name for gpu in chosen}) > 1:
        names = ", ".join(sorted({gpu.name for gpu in chosen}))
        raise BadInput(f"--gpu {name} fits several kinds of GPU: {names}.", "Give more of the name of one.")
    return chosen


def wanted(workers: str, gpus: int) -> int:
    """Return the number of processes that will measure on this machine. Raises BadInput."""
    if workers == "auto":
        return max(1, gpus)
    if not workers.isdigit() or int(workers) < 1:
        raise BadInput(f"--workers {workers} is no number of workers.", "Give auto, or a number from 1.")
    if int(workers) > max(1, gpus):
        raise BadInput(
            f"--workers {workers} is more than this machine has GPUs for ({gpus}).",
            "Workers that share a GPU or the processors would measure each other; give --workers auto.",
        )
    return int(workers)


def ids_of(gpus: Sequence[Gpu], among: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the GPUs' ids for CUDA_VISIBLE_DEVICES: their UUIDs, or if not known, their indices in `among`."""
    return tuple(gpu.uuid or str(list(among).index(gpu)) for gpu in gpus)


def hardware_label(found: Hardware) -> str:
    """Return the label of comparable hardware: the GPUs' kind and number, else the processor and its cores."""
    if not found.gpus:
        return f"{found.cpu}, {found.logical_cores} core{'' if found.logical_cores == 1 else 's'}"
    several = f"{len(found.gpus)} x " if len(found.gpus) > 1 else ""
    return several + found.gpus[0].name
