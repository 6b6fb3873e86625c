"""The command that starts each kind of server: embedded, local, docker."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from model_repo.access import GRPC_SOCKET, HTTP_SOCKET, access_arguments
from model_repo.errors import LauncherMissing
from model_repo.process import Launch
from model_repo.python_home import write_python_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from model_repo.options import ServerKind, ServerOptions
    from model_repo.spec import Endpoint


class Launcher(Protocol):
    """Says how to start a server that answers at `endpoint` with the models in `folder / "repository"`.

    `token` is unique to this start: the server gives it as its name, and its shared memory carries it.
    Raises LauncherMissing where this kind of server is not installed.
    """

    def __call__(self, options: ServerOptions, endpoint: Endpoint, folder: Path, token: str) -> Launch:
        """The launch; other files it needs are made in `folder`, whose path no shell can misread."""
        ...


def embedded_launch(options: ServerOptions, endpoint: Endpoint, folder: Path, token: str) -> Launch:
    """The real tritonserver out of the nvidia-pytriton wheel, with the stub for the Python we run in."""
    server = _embedded_folder()
    backends = _link_backends(server, folder / "backends")
    command = (
        str(server / "bin" / "tritonserver"),
        f"--backend-directory={backends}",
        *_arguments(options, endpoint, folder / "repository", token),
    )
    return Launch(
        command=command,
        environment=_environment(options, folder),
        folder=folder,
        private_files=True,
    )


def local_launch(options: ServerOptions, endpoint: Endpoint, folder: Path, token: str) -> Launch:
    """A tritonserver on PATH, as in NVIDIA's container."""
    program = shutil.which("tritonserver")
    if program is None:
        raise LauncherMissing(
            "There is no tritonserver on PATH.\n"
            "Run inside NVIDIA's Triton container, or use the embedded server: pip install 'tritune[embedded]'."
        )
    command = (str(Path(program).absolute()), *_arguments(options, endpoint, folder / "repository", token))
    return Launch(
        command=command,
        environment=_environment(options, folder),
        folder=folder,
        private_files=True,
    )


def docker_launch(options: ServerOptions, endpoint: Endpoint, folder: Path, token: str) -> Launch:
    """NVIDIA's image on the host's network, so that it binds to the loopback interface like the others."""
    program = shutil.which("docker")
    if program is None:
        raise LauncherMissing(
            "There is no docker on PATH.\n"
            "Install Docker (and NVIDIA's container toolkit), or use the embedded server: "
            "pip install 'tritune[embedded]'."
        )
    models, control = Path("/models"), Path("/control")
    sockets = endpoint.control_folder
    command = (
        program, "run", "--rm", "--init", "--name", token, "--network", "host", "--shm-size", "1g",
        *(("--gpus", _gpus_for_docker(os.environ.get("CUDA_VISIBLE_DEVICES"))) if options.gpu else ()),
        "--volume", f"{folder / 'repository'}:{models}:ro",
        *_volumes_of_links(folder / "repository"),
        *(() if sockets is None else ("--volume", f"{sockets}:{control}")),
        # Sockets are made by the container's root, and we have to write to them; their folder keeps others out.
        options.image, "sh", "-c", 'umask 0; exec tritonserver "$@"', "sh",
        *_arguments(options, endpoint, models, token, control=control),
    )  # fmt: skip
    return Launch(
        command=command,
        environment=dict(os.environ),
        folder=folder,
        cleanup_command=(program, "rm", "--force", token),
    )


def _volumes_of_links(repository: Path) -> Iterator[str]:
    """What links in the repository point to, at the same place in the container."""
    for entry in repository.glob("*"):
        if entry.is_symlink():
            yield from ("--volume", f"{entry.readlink()}:{entry.readlink()}:ro")


def _gpus_for_docker(visible: str | None) -> str:
    """The GPUs of this process for the container, which does not heed its environment; quoted as Docker's CSV."""
    return f'"device={visible}"' if visible else "all"


LAUNCHERS: dict[ServerKind, Launcher] = {
    "embedded": embedded_launch,
    "local": local_launch,
    "docker": docker_launch,
}
"""The kinds that we start ourselves. `remote` is not among them: somebody else started it."""


SHARED_MEMORY_STEP_BYTES = 64 * 2**20
"""Of the memory through which an instance gets its requests. Each growth is a new mapping, which our runtime has
to page-lock anew, so on a GPU it grows in large steps where the machine has room for many."""


def _arguments(
    options: ServerOptions, endpoint: Endpoint, repository: Path, token: str, *, control: Path | None = None
) -> tuple[str, ...]:
    """`control` is the control folder as the server sees it; None: as we do."""
    return (
        f"--id={token}",
        f"--model-repository={repository}",
        *access_arguments(options, endpoint, token),
        # The config is complete; guessing costs one more process and a second for each load.
        "--disable-auto-complete-config",
        *_addresses(endpoint, control or endpoint.control_folder),
        f"--metrics-address={endpoint.host}",
        f"--metrics-port={endpoint.metrics_port}",
        f"--allow-gpu-metrics={str(options.gpu).lower()}",
        "--log-verbose=0",
        f"--exit-timeout-secs={max(1, round(options.exit_grace_s))}",
        f"--backend-config=python,shm-region-prefix-name={token}-",
        *(_large_steps() if options.gpu and options.kind != "docker" else ()),
        *options.extra_arguments,
    )


def _addresses(endpoint: Endpoint, control: Path | None) -> Iterator[str]:
    ports = {"http": endpoint.http_port, "grpc": endpoint.grpc_port}
    sockets = {"http": HTTP_SOCKET, "grpc": GRPC_SOCKET.removesuffix(":1")}
    for protocol, port in ports.items():
        address = endpoint.host if port is not None else f"unix:{control}/{sockets[protocol]}"
        yield f"--{protocol}-address={address}"
        yield f"--{protocol}-port={port or 1}"


def _large_steps() -> Iterator[str]:
    room = os.statvfs("/dev/shm")  # noqa: S108 - where Triton puts it
    if room.f_bavail * room.f_frsize >= 32 * SHARED_MEMORY_STEP_BYTES:
        for name in ("shm-default-byte-size", "shm-growth-byte-size"):
            yield f"--backend-config=python,{name}={SHARED_MEMORY_STEP_BYTES}"


KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),  # the largest that glibc accepts
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
"""For glibc: the Python backend copies each input into fresh memory, and what goes back to the kernel with a batch
has to be cleared by it for the next. Where it was kept, a 301 kB input cost a model 85 us instead of 104 us."""


VERTEX_AI = "AIP_MODE"
"""Of Vertex AI's containers: it makes Triton answer on all interfaces too, also to control requests."""


def _environment(options: ServerOptions, folder: Path) -> dict[str, str]:
    """Ours, changed so that the processes of the Python backend find the Python and the packages we run with."""
    home = write_python_home(folder / "python")
    library_path = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]
    return {
        **(KEEP_MEMORY if options.gpu else {}),
        **{name: value for name, value in os.environ.items() if name != VERTEX_AI},
        "VIRTUAL_ENV": str(home),
        "PATH": os.pathsep.join(
            [str(home / "bin"), str(Path(sys.prefix, "bin")), os.environ.get("PATH", os.defpath)]
        ),
        "LD_LIBRARY_PATH": os.pathsep.join(path for path in library_path if path),
        # numpy only copies there; its own threads would be idle weight in every instance.
        "OPENBLAS_NUM_THREADS": "1",
    }


def _embedded_folder() -> Path:
    """The folder `tritonserver` of the wheel. The package is located, never imported: importing it has effects."""
    package = importlib.util.find_spec("pytriton")
    if package is None or package.origin is None:
        raise LauncherMissing("The embedded Triton server is not installed.\nRun: pip install 'tritune[embedded]'")
    return Path(package.origin).parent / "tritonserver"


def _link_backends(server: Path, target: Path) -> Path:
    """A backend folder of links into the wheel, with the stub of our Python version beside the Python backend.

    Links, not copies: the stub looks for its libraries relative to where it really lies.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        offered = ", ".join(sorted(folder.name for folder in stub.parent.parent.iterdir()))
        raise LauncherMissing(
            f"The embedded Triton server runs models in Python {offered}, not in {version}.\n"
            "Install tritune in an environment of one of these versions."
        )
    _require_libpython(version)
    folder = target / "python"
    folder.mkdir(parents=True, exist_ok=True)
    for source in (*sorted((server / "backends" / "python").iterdir()), stub):
        if source.name == "__pycache__":
            continue
        link = folder / source.name
        link.unlink(missing_ok=True)
        link.symlink_to(source)
    return target


def _require_libpython(version: str) -> None:
    """The stub needs Python as a shared library, which some builds of Python lack."""
    name = f"libpython{version}.so.1.0"
    if Path(sysconfig.get_config_var("LIBDIR") or "/", name).exists():
        return
    try:
        ctypes.CDLL(name)
    except OSError:
        raise LauncherMissing(
            f"The embedded Triton server needs {name}, and this Python was built without it.\n"
            f"Run: apt-get install libpython{version} (or use a Python built with --enable-shared)"
        ) from None
