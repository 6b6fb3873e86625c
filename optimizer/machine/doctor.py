"""`optimize doctor`: check the software and hardware of this machine, and print how to add missing parts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loadgen.processes import scratch_folder
from model_repo.errors import LauncherMissing, ServerError, install_command
from model_repo.server.options import ServerOptions
from model_repo.server.python_home import misread_numpy
from model_repo.server.triton import PackagesMissing, check_runs_models
from optimizer.machine.hardware import Hardware, hardware
from optimizer.machine.stalls import COUNTS_MS, measure_stalls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


State = Literal["ok", "missing", "unknown"]
ASK_TIMEOUT_S = 10.0
START_TIMEOUT_S = 60.0
WATCHED_S = 1.0
ROOM_SETTING = "net.core.wmem_default"
BYTES_AN_ANSWER = 768  # Linux counts these for the smallest message on a socket between threads
ENOUGH_ROOM_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The state of one thing that `optimize` can use. `add` is the command that adds it, "" if none is needed."""

    name: str
    state: State
    found: str
    add: str = ""


def diagnose(embedded: Callable[[], Check] | None = None) -> tuple[Check, ...]:
    """Make and return all checks. Nothing is installed or sent; each program that is called has 10 s to answer.

    `embedded` is the check of the embedded Triton; None starts it for some seconds, to load an empty model.
    """
    machine = hardware()
    return (
        _machine(machine),
        _quiet(),
        _gpu(machine),
        _driver(machine),
        (embedded or embedded_triton)(),
        _local_triton(),
        _docker(),
        _http_answers(),
        _onnxruntime(),
        _providers(machine),
        _package("TensorRT", ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"), add=install_command("tensorrt")),
        _package(
            "TensorRT-RTX",
            ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings", "tensorrt-rtx"),
            add=install_command("tensorrt-rtx"),
        ),
        _kubectl(),
    )


def diagnosis_table(checks: Sequence[Check]) -> Table:
    """Return the checks as a table for the terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    marks = {"ok": ("ok", "green"), "missing": ("missing", "yellow"), "unknown": ("unknown", "magenta")}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found, and how to add it")
    for check in checks:
        mark, colour = marks[check.state]
        found = Text(check.found)
        if check.add:
            found.append(f"\n{check.add}", style="bold")
        table.add_row(Text(check.name), Text(mark, style=colour), found)
    return table


def show_diagnosis(console: Console | None = None) -> None:
    """Print the diagnosis, by default to stdout: it is the command's result."""
    from loadgen.console import SafeConsole

    (console or SafeConsole()).print(diagnosis_table(diagnose()))


def _machine(machine: Hardware) -> Check:
    found = f"{machine.cpu}, {machine.logical_cores} CPUs ({machine.physical_cores} cores), "
    found += f"{machine.memory_bytes / 2**30:.1f} GiB"
    if machine.cloud is not None:
        found += f", {machine.cloud.provider} {machine.cloud.instance_type or ''}".rstrip()
    return Check(name="machine", state="ok", found=found)


def _quiet() -> Check:
    """Check that no stalls would distort latencies that are measured here."""
    stalls = measure_stalls(WATCHED_S)
    found = f"in {WATCHED_S:g} s, a waiting thread ran {stalls.worst_ms:.1f} ms late at the worst"
    if stalls.worst_ms < COUNTS_MS:
        return Check(name="quiet", state="ok", found=found)
    hint = "stop other programs here, or measure on a dedicated machine"
    return Check(name="quiet", state="missing", found=f"{found}; requests are late by as much", add=hint)


def _gpu(machine: Hardware) -> Check:
    if not machine.gpus:
        return Check(name="GPU", state="missing", found="none; models are served on the CPU")
    found = [
        f"{gpu.name} ({gpu.memory_bytes / 2**30:.0f} GiB, compute capability {gpu.compute_capability or '?'})"
        if gpu.memory_bytes is not None
        else gpu.name
        for gpu in machine.gpus
    ]
    return Check(name="GPU", state="ok", found=", ".join(found))


def _driver(machine: Hardware) -> Check:
    if machine.gpus:
        return Check(name="NVIDIA driver", state="ok", found=machine.gpus[0].driver or "of unknown version")
    if shutil.which("nvidia-smi"):
        return Check(name="NVIDIA driver", state="unknown", found="nvidia-smi is there, and lists no GPU")
    return Check(name="NVIDIA driver", state="missing", found="no nvidia-smi; only needed with a GPU")


def _package(name: str, distributions: Sequence[str], *, add: str) -> Check:
    """Check for the first of `distributions` that is installed, by its metadata: nothing is imported."""
    for distribution in distributions:
        try:
            return Check(name=name, state="ok", found=f"{distribution} {version(distribution)}")
        except PackageNotFoundError:
            continue
    return Check(name=name, state="missing", found="not installed", add=add)


def embedded_triton() -> Check:
    """Check that the embedded Triton is installed, starts, and finds the packages of our runtime."""
    installed = _package("Triton, embedded", ("nvidia-pytriton",), add=install_command("embedded"))
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


def _onnxruntime() -> Check:
    """Check that one of the two packages is installed, not both: they write the same files."""
    checks = [_package("ONNX Runtime", (name,), add="") for name in ("onnxruntime-gpu", "onnxruntime")]
    installed = [check for check in checks if check.state == "ok"]
    if len(installed) > 1:
        found = " and ".join(check.found for check in installed) + " overwrite each other"
        repair = "pip uninstall onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
        return Check(name="ONNX Runtime", state="unknown", found=found, add=repair)
    if installed:
        return installed[0]
    return Check(name="ONNX Runtime", state="missing", found="not installed", add="pip install onnxruntime-gpu")


def _providers(machine: Hardware) -> Check:
    names = [name.removesuffix("ExecutionProvider") for name in machine.providers]
    if not names:
        return Check(
            name="ONNX Runtime providers", state="missing", found="none", add="pip install onnxruntime-gpu"
        )
    unusable = "" if machine.gpus else "; without a GPU only CPU can be used"
    return Check(name="ONNX Runtime providers", state="ok", found=f"{', '.join(names)}{unusable}")


def _local_triton() -> Check:
    path = shutil.which("tritonserver")
    add = "" if path else "it comes in NVIDIA's container; from outside it, use --server docker"
    found = path or "no tritonserver on PATH"
    return Check(name="Triton, local", state="ok" if path else "missing", found=found, add=add)


def _docker() -> Check:
    if shutil.which("docker") is None:
        add = "https://docs.docker.com/engine/install"
        return Check(name="Triton, docker", state="missing", found="no docker on PATH", add=add)
    engine = _answer("docker", "version", "--format", "{{.Server.Version}}")
    if engine is None:
        found = "docker is there, and its engine does not answer"
        return Check(name="Triton, docker", state="unknown", found=found, add="sudo systemctl start docker")
    return Check(name="Triton, docker", state="ok", found=f"docker engine {engine}")


def _http_answers(root: Path = Path("/")) -> Check:
    """Check how many responses Triton's HTTP front end keeps for one of its threads; see docs/adr/0009."""
    name = "Triton over HTTP"
    try:
        room_bytes = int((root / "proc/sys" / ROOM_SETTING.replace(".", "/")).read_text())
    except (OSError, ValueError):
        return Check(name=name, state="unknown", found=f"{ROOM_SETTING} cannot be read")
    found = f"some {room_bytes // BYTES_AN_ANSWER:,} answers may wait in one thread, more are lost"
    if room_bytes >= ENOUGH_ROOM_BYTES:
        return Check(name=name, state="ok", found=found)
    hint = (
        f"for hundreds of connections: sysctl -w {ROOM_SETTING}={ENOUGH_ROOM_BYTES}, before a server starts, "
        "or --protocol grpc"
    )
    return Check(name=name, state="missing", found=found, add=hint)


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
