"""Which GPUs of this machine a command uses, and which of them get worker processes of their own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from optimizer.errors import BadInput
from optimizer.hardware import hardware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optimizer.hardware import Gpu, Hardware

VISIBLE = "CUDA_VISIBLE_DEVICES"
ALL_IN_ONE = "1"


def use_gpus(name: str | None, workers: str) -> tuple[str, ...]:
    """Leave this process the GPUs that it is to use; returns those that each get a worker besides, by their ids.

    `name` is a part of the GPUs' name, None for any. `workers` is `auto`, a worker for every GPU of the first
    one's kind, or how many there are to be; each of them, this process among them, then has one GPU. With `1`
    this process keeps all. Raises BadInput.
    """
    found = hardware().gpus
    chosen = matching(found, name)
    count = wanted(workers, len(chosen))
    alone = workers == ALL_IN_ONE
    if found and not (alone and name is None):
        os.environ[VISIBLE] = ",".join(ids_of(chosen if alone else chosen[:1], found))
    return ids_of(chosen[1:count], found)


def matching(gpus: Sequence[Gpu], name: str | None) -> tuple[Gpu, ...]:
    """The GPUs whose name holds `name`, or those that are the same as the first. Raises BadInput."""
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
    """How many processes are to measure on this machine. Raises BadInput."""
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
    """What CUDA_VISIBLE_DEVICES calls them: their UUIDs, or their places among the machine's."""
    return tuple(gpu.uuid or str(list(among).index(gpu)) for gpu in gpus)


def hardware_label(found: Hardware) -> str:
    """What results are comparable on: the GPUs' kind and number, else the processor and its cores."""
    if not found.gpus:
        return f"{found.cpu}, {found.logical_cores} core{'' if found.logical_cores == 1 else 's'}"
    several = f"{len(found.gpus)} x " if len(found.gpus) > 1 else ""
    return several + found.gpus[0].name
