"""The hardware of this machine: processors, memory, cloud instance, and GPUs with those that a command uses."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.memory import control_groups, memory_bytes, text_of
from search.cost.cost import Machine

GPU_FIELDS = ("name", "memory.total", "driver_version", "compute_cap", "uuid")
AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The chassis tag of every Azure machine; the vendor does not identify Azure, as all Hyper-V guests have it."""

NVIDIA_SMI_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One NVIDIA GPU; a field is None if the driver does not report it."""

    name: str
    memory_bytes: int | None
    driver: str | None
    compute_capability: str | None  # "8.6"
    uuid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudInstance:
    """The cloud that the firmware names; `instance_type` is None if it does not report one (EC2 does)."""

    provider: str
    instance_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The part of the machine that this process may use, within its affinity and its control group."""

    cpu: str
    logical_cores: int  # whole CPUs: a quota of 1.5 counts as one
    physical_cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    providers: tuple[str, ...]  # in this build of ONNX Runtime, usable here or not
    cloud: CloudInstance | None


def hardware(
    *, root: Path = Path("/"), affinity: Collection[int] | None = None, nvidia_smi: str = "nvidia-smi"
) -> Hardware:
    """Return the hardware, from the files below `root`, `nvidia-smi` and ONNX Runtime; each may be missing.

    `affinity` are the CPUs to count, by default those on which this process may run.
    """
    cpus = set(os.sched_getaffinity(0) if affinity is None else affinity)
    name, physical = _processors(root, cpus)
    quota = _cpu_quota(root)
    logical = len(cpus) if quota is None else min(len(cpus), max(1, int(quota)))
    return Hardware(
        cpu=name,
        logical_cores=logical,
        physical_cores=min(physical or logical, logical),
        memory_bytes=memory_bytes(root),
        gpus=_visible(_gpus(nvidia_smi), os.environ.get("CUDA_VISIBLE_DEVICES")),
        providers=_providers(),
        cloud=_cloud(root),
    )


def machine_of(found: Hardware) -> Machine:
    """Return the machine to price; GPUs of several kinds count as the first kind."""
    first = found.gpus[0] if found.gpus else None
    return Machine(
        vcpus=found.logical_cores,
        memory_bytes=found.memory_bytes,
        gpu=first.name if first else None,
        gpu_count=len(found.gpus),
        gpu_memory_bytes=first.memory_bytes if first else None,
        instance_type=found.cloud.instance_type if found.cloud else None,
    )


ROOM_SETTING = "net.core.wmem_default"
BYTES_AN_ANSWER = 768  # Linux counts these for the smallest message on a socket between threads


def answers_kept(root: Path = Path("/")) -> int | None:
    """Return how many answers Triton's HTTP front end keeps for a thread, before it loses any: docs/adr/0009.

    None if the setting cannot be read.
    """
    room_bytes = text_of(root / "proc/sys" / ROOM_SETTING.replace(".", "/")).strip()
    return int(room_bytes) // BYTES_AN_ANSWER if room_bytes.isdigit() else None


def _processors(root: Path, cpus: set[int]) -> tuple[str, int | None]:
    """Return the processor's name and the number of cores of `cpus`; None if the kernel does not report it."""
    name, cores = "unknown processor", set()
    for block in text_of(root / "proc/cpuinfo").split("\n\n"):
        pairs = [line.partition(":") for line in block.splitlines()]
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        name = fields.get("model name", name)
        if fields.get("processor", "").isdigit() and int(fields["processor"]) in cpus and "core id" in fields:
            cores.add((fields.get("physical id"), fields["core id"]))
    return name, len(cores) or None


def _cpu_quota(root: Path) -> float | None:
    """Return the tightest limit on CPU time, in CPUs; None if there is none."""
    quotas = []
    for folder in control_groups(root, "cpu"):
        words = text_of(folder / "cpu.max").split()
        if not words:
            words = [text_of(folder / f"cpu.cfs_{kind}_us").strip() for kind in ("quota", "period")]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _gpus(nvidia_smi: str) -> tuple[Gpu, ...]:
    command = [nvidia_smi, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return gpus_from_csv(answer.stdout)


def gpus_from_csv(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs in nvidia-smi's output for GPU_FIELDS; other lines are skipped."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(GPU_FIELDS):
            continue
        name, memory_mib, driver, capability, uuid = (
            None if not field or field.startswith("[") or field == "N/A" else field for field in row
        )
        if name is None:
            continue
        memory = int(memory_mib) * 2**20 if memory_mib and memory_mib.isdigit() else None
        gpus.append(Gpu(name=name, memory_bytes=memory, driver=driver, compute_capability=capability, uuid=uuid))
    return tuple(gpus)


def _visible(gpus: tuple[Gpu, ...], chosen: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, up to its first unknown word; nvidia-smi ignores it."""
    if chosen is None:
        return gpus
    visible: list[Gpu] = []
    for word in chosen.split(","):
        by_number = gpus[int(word) :][:1] if word.strip().isdigit() else ()
        by_uuid = [gpu for gpu in gpus if gpu.uuid and word.strip() and gpu.uuid.startswith(word.strip())]
        found = [*by_number, *by_uuid]
        if len(found) != 1:
            break
        visible += found
    return tuple(visible)


def _providers() -> tuple[str, ...]:
    try:
        import onnxruntime
    except ImportError:
        return ()
    return tuple(onnxruntime.get_available_providers())


def _cloud(root: Path) -> CloudInstance | None:
    """Return the cloud that the firmware reports, without any network request; None if it reports none."""
    dmi = root / "sys/class/dmi/id"
    vendor, product = text_of(dmi / "sys_vendor").strip(), text_of(dmi / "product_name").strip()
    if vendor == "Amazon EC2":
        return CloudInstance(provider="AWS", instance_type=product or None)
    if product == "Google Compute Engine":
        return CloudInstance(provider="Google Cloud", instance_type=None)
    if text_of(dmi / "chassis_asset_tag").strip() == AZURE_ASSET_TAG:
        return CloudInstance(provider="Azure", instance_type=None)
    return None


VISIBLE = "CUDA_VISIBLE_DEVICES"
ALL_IN_ONE = "1"


def gpus_for(name: str | None, workers: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that restrict this process to its GPUs, and the ids of those for other workers.

    `name` is a part of the GPUs' name; None means all GPUs of the first one's kind. `workers` is `auto`, one
    worker per GPU, or the number of workers. This process is one of them, and each has one GPU. With `1`, this
    process keeps all GPUs with this name, or all of the machine's if `name` is None. Raises BadInput.
    """
    found = hardware().gpus
    chosen = matching(found, name)
    count = wanted(workers, len(chosen))
    alone = workers == ALL_IN_ONE
    everything = not found or (alone and name is None)
    mine = {} if everything else {VISIBLE: ",".join(ids_of(chosen if alone else chosen[:1], found))}
    return mine, ids_of(chosen[1:count], found)


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
        raise BadInput(f"--workers {workers} is not a number of workers.", "Give auto, or a number from 1.")
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
