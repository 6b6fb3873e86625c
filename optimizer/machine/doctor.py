"""`optimize doctor`: say whether `optimize` can run on this machine, and how to add what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loadgen.measurement.other_runs import and_others, other_runs
from loadgen.processes import scratch_folder
from model_repo.errors import LauncherMissing, ServerError, install_command, installed_version
from model_repo.server.options import ServerOptions
from model_repo.server.python_home import misread_numpy
from model_repo.server.triton import PackagesMissing, check_runs_models
from optimizer.machine.hardware import BYTES_AN_ANSWER, ROOM_SETTING, Hardware, answers_kept, hardware
from optimizer.machine.stalls import COUNTS_MS, measure_stalls

if TYPE_CHECKING:
    from rich.console import RenderableType


State = Literal["ok", "missing", "poor", "unknown"]
COLOURS: dict[State, str] = {"ok": "green", "missing": "yellow", "poor": "yellow", "unknown": "magenta"}
SERVERS = {"embedded": "Triton, embedded", "local": "Triton, local", "docker": "Triton, docker"}
"""The check of each kind of server."""

ONNX_RUNTIME, GPU = "ONNX Runtime", "GPU"
TENSORRT = {
    "TensorRT": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "TensorRT-RTX": ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings", "tensorrt-rtx"),
}
"""The distributions of each library that builds engines for a GPU; their extras are called the same."""

ASK_TIMEOUT_S = 10.0
START_TIMEOUT_S = 60.0
WATCHED_S = 1.0
ENOUGH_ROOM_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The state of one thing that `optimize` can use. `add` is the command that adds it, "" if none is needed.

    `poor`: it works, and not well. `optional`: `optimize` runs without it.
    """

    name: str
    state: State
    found: str
    add: str = ""
    optional: bool = False


def diagnose(embedded: Callable[[], Check] | None = None) -> tuple[Check, ...]:
    """Make and return all checks. Nothing is installed or sent; each program that is called has 10 s to answer.

    `embedded` is the check of the embedded Triton; None starts it for some seconds, to load an empty model.
    """
    machine = hardware()
    gpu = [] if not machine.gpus and shutil.which("nvidia-smi") is None else [_gpu(machine)]
    libraries = TENSORRT.items() if machine.gpus else ()
    tensorrt = [_package(name, names, add=install_command(name.lower())) for name, names in libraries]
    needed = _machine(machine), _quiet(), *gpu, (embedded or embedded_triton)(), _onnxruntime(machine)
    others = *tensorrt, _local_triton(), _docker(), _http_answers(), _kubectl()
    return (*needed, *(replace(check, optional=True) for check in others))


def verdict(checks: Sequence[Check]) -> tuple[str, str]:
    """Return whether `optimize` can run here, and on what, in a sentence, and the command that mends it."""
    found = {check.name: check for check in checks}
    kinds = [kind for kind, name in SERVERS.items() if found[name].state == "ok"]
    onnxruntime, embedded = found[ONNX_RUNTIME], found[SERVERS["embedded"]]
    lacking = embedded if onnxruntime.state == "ok" else onnxruntime
    if onnxruntime.state != "ok" or not kinds:
        return f"Not ready: {lacking.name}: {lacking.found}.", lacking.add
    place = "CPU"
    if GPU in found and found[GPU].state == "ok":
        libraries = [name for name in (ONNX_RUNTIME, *TENSORRT) if found[name].state == "ok"]
        place = f"GPU, with {', '.join(libraries)}" if not onnxruntime.add else "CPU alone, not on the GPU"
    option = "" if "embedded" in kinds else f", with --server {kinds[0]},"
    return f"Ready: optimize can run here{option} on the {place}.", onnxruntime.add


def diagnosis_view(checks: Sequence[Check]) -> RenderableType:
    """Return the verdict and the checks for the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    ready, mend = verdict(checks)
    parts: list[RenderableType] = [Text(ready, style="bold green" if ready.startswith("Ready") else "bold red")]
    parts += [Text(f"  {mend}", style="bold")] if mend else []
    width = max(len(check.name) for check in checks)
    for title, optional in (("", False), ("\nOptional:", True)):
        table = Table.grid(padding=(0, 2, 0, 0))
        for check in checks:
            if check.optional is optional:
                found = Text.assemble(check.found, (f"\n{check.add}" if check.add else "", "bold"))
                state = Text(check.state.ljust(7), style=COLOURS[check.state])
                table.add_row(state, Text(check.name.ljust(width)), found)
        parts += [Text(title), table]
    return Group(*parts)


def show_diagnosis() -> None:
    """Print the diagnosis on stdout: it is the command's result."""
    from loadgen.console import SafeConsole

    SafeConsole().print(diagnosis_view(diagnose()))


def _machine(machine: Hardware) -> Check:
    found = f"{machine.cpu}, {machine.logical_cores} CPUs ({machine.physical_cores} cores), "
    found += f"{machine.memory_bytes / 2**30:.1f} GiB"
    if machine.cloud is not None:
        found += f", {machine.cloud.provider} {machine.cloud.instance_type or ''}".rstrip()
    found += "" if machine.gpus else ", no GPU"
    return Check(name="machine", state="ok", found=found)


def _quiet() -> Check:
    """Check that no stalls, and no other run's load, would distort latencies that are measured here."""
    stalls, beside = measure_stalls(WATCHED_S), other_runs(os.getpid())
    found = (
        f"in {WATCHED_S:g} s, a waiting thread ran {stalls.worst_ms:.1f} ms late at the worst{and_others(beside)}"
    )
    if stalls.worst_ms < COUNTS_MS and not beside:
        return Check(name="quiet", state="ok", found=found)
    hint = "stop other programs here, or measure on a dedicated machine"
    return Check(name="quiet", state="poor", found=f"{found}; requests are late by as much", add=hint)


def _gpu(machine: Hardware) -> Check:
    if not machine.gpus:
        return Check(name=GPU, state="unknown", found="nvidia-smi is there, and lists no GPU that may be used")
    found = [
        gpu.name
        if gpu.memory_bytes is None
        else f"{gpu.name} ({gpu.memory_bytes / 2**30:.0f} GiB, compute capability {gpu.compute_capability or '?'})"
        for gpu in machine.gpus
    ]
    driver = machine.gpus[0].driver or "of unknown version"
    return Check(name=GPU, state="ok", found=f"{', '.join(found)}, driver {driver}")


def _package(name: str, distributions: Sequence[str], *, add: str) -> Check:
    """Check for the first of `distributions` that is installed, by its metadata: nothing is imported."""
    for distribution in distributions:
        if found := installed_version(distribution):
            return Check(name=name, state="ok", found=f"{distribution} {found}")
    return Check(name=name, state="missing", found="not installed", add=add)


def embedded_triton() -> Check:
    """Check that the embedded Triton is installed, starts, and finds the packages of our runtime."""
    installed = _package(SERVERS["embedded"], ("nvidia-pytriton",), add=install_command("embedded"))
    if installed.state != "ok":
        return installed
    with scratch_folder("doctor") as folder:
        try:
            check_runs_models(ServerOptions(run_dir=folder, start_timeout_s=START_TIMEOUT_S))
        except (PackagesMissing, LauncherMissing) as error:
            what, _, fix = str(error).partition("\n")
            return Check(name=installed.name, state="missing", found=f"{installed.found}; {what}", add=fix)
        except ServerError as error:
            lines = (str(error).splitlines()[0], *error.log_tail.splitlines()[-1:])
            return Check(name=installed.name, state="unknown", found=f"{installed.found}; {' '.join(lines)}")
    found, numpy = f"{installed.found}; it starts and runs models", misread_numpy()
    if numpy is not None:
        found += f", but not Python models of your own: it misreads the arrays of NumPy {numpy}"
    return Check(name=installed.name, state="ok", found=found, add="pip install 'numpy<2'" if numpy else "")


def _onnxruntime(machine: Hardware) -> Check:
    """Check that one of the two packages is installed, not both: they write the same files."""
    add = "pip install onnxruntime-gpu"
    checks = [_package(ONNX_RUNTIME, (name,), add=add) for name in ("onnxruntime-gpu", "onnxruntime")]
    installed = [check.found for check in checks if check.state == "ok"]
    if not installed:
        return checks[0]
    if len(installed) > 1:
        found, remove = " and ".join(installed), "pip uninstall onnxruntime onnxruntime-gpu"
        found += " overwrite each other"
        return Check(name=ONNX_RUNTIME, state="unknown", found=found, add=f"{remove} && {add}")
    names = [name.removesuffix("ExecutionProvider") for name in machine.providers]
    if not names:
        return Check(name=ONNX_RUNTIME, state="unknown", found=f"{installed[0]} cannot be imported", add=add)
    usable = ", ".join(names) if machine.gpus else "CPU"
    add = add if machine.gpus and "CUDA" not in names else ""
    return Check(name=ONNX_RUNTIME, state="ok", found=f"{installed[0]}, for {usable}", add=add)


def _local_triton() -> Check:
    path = shutil.which("tritonserver")
    add = "" if path else "it comes in NVIDIA's container; from outside it, use --server docker"
    found = path or "no tritonserver on PATH"
    return Check(name=SERVERS["local"], state="ok" if path else "missing", found=found, add=add)


def _docker() -> Check:
    name = SERVERS["docker"]
    if shutil.which("docker") is None:
        add = "https://docs.docker.com/engine/install"
        return Check(name=name, state="missing", found="no docker on PATH", add=add)
    engine = _answer("docker", "version", "--format", "{{.Server.Version}}")
    if engine is None:
        found = "docker is there, and its engine does not answer"
        return Check(name=name, state="unknown", found=found, add="sudo systemctl start docker")
    return Check(name=name, state="ok", found=f"docker engine {engine}")


def _http_answers(root: Path = Path("/")) -> Check:
    """Check how many responses Triton's HTTP front end keeps for one of its threads; see docs/adr/0009."""
    name = "Triton over HTTP"
    kept = answers_kept(root)
    if kept is None:
        return Check(name=name, state="unknown", found=f"{ROOM_SETTING} cannot be read")
    found = f"each of its threads buffers {kept:,} responses, and loses any more"
    if kept >= ENOUGH_ROOM_BYTES // BYTES_AN_ANSWER:
        return Check(name=name, state="ok", found=found)
    hint = (
        f"for hundreds of connections: sysctl -w {ROOM_SETTING}={ENOUGH_ROOM_BYTES}, before a server starts, "
        "or --protocol grpc"
    )
    return Check(name=name, state="poor", found=found, add=hint)


def _kubectl() -> Check:
    if shutil.which("kubectl") is None:
        add = "https://kubernetes.io/docs/tasks/tools (to deploy, not to optimize)"
        return Check(name="kubectl", state="missing", found="no kubectl on PATH", add=add)
    client = _answer("kubectl", "version", "--client=true", "--output=yaml")
    lines = [line.strip() for line in (client or "").splitlines()]
    found = next((line.split()[-1] for line in lines if line.startswith("gitVersion:")), None)
    return Check(name="kubectl", state="ok" if found else "unknown", found=found or "kubectl does not answer")


def _answer(*command: str) -> str | None:
    """Return the output of the command; None if it is empty, or if the command fails or takes too long."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
