"""The command that starts each kind of server: embedded, local, docker."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from model_repo.errors import LauncherMissing, install_command
from model_repo.repository.write import RUNTIME, place
from model_repo.runtime.tritune_gpu.timeline import FOLDER
from model_repo.server.options import GRPC_SOCKET, HTTP_SOCKET, TRACE_FILE, ServerOptions, access_arguments
from model_repo.server.process import Launch
from model_repo.server.python_home import write_python_home
from model_repo.spec import Endpoint, ServerKind

Launcher = Callable[[ServerOptions, Endpoint, Path, str], Launch]
"""Returns how to start a server that answers at an endpoint with the models in `folder / "repository"`.

The token is unique to this start: the server gives it as its name, and its shared memory carries it. Other files
are made in the folder, whose path is safe in a shell. Raises LauncherMissing if this kind of server is not
installed."""


def embedded_launch(options: ServerOptions, endpoint: Endpoint, folder: Path, token: str) -> Launch:
    """Return the launch of tritonserver from the nvidia-pytriton wheel, with the stub for our Python version."""
    arguments = _arguments(options, endpoint, folder / "repository", token)
    return _launch(_embedded(folder), arguments, folder, options.gpu, options.timeline)


def local_launch(options: ServerOptions, endpoint: Endpoint, folder: Path, token: str) -> Launch:
    """Return the launch of a tritonserver on PATH, as in NVIDIA's container."""
    program = (str(Path(_program("local")).absolute()),)
    return _launch(program, _arguments(options, endpoint, folder / "repository", token), folder, options.gpu)


def container_launch(arguments: Sequence[str], folder: Path) -> Launch:
    """Return the launch of the embedded server with a container's arguments; its ports are open."""
    gpu = "--allow-gpu-metrics=true" in arguments
    return _launch(_embedded(folder), (*(_large_steps() if gpu else ()), *arguments), folder, gpu)


def _launch(
    program: tuple[str, ...], arguments: tuple[str, ...], folder: Path, gpu: bool, timeline: Path | None = None
) -> Launch:
    asked = {} if timeline is None else {FOLDER: str(timeline)}
    environment = {**_environment(folder, gpu=gpu), **asked}
    return Launch(command=(*program, *arguments), environment=environment, folder=folder)


def docker_launch(options: ServerOptions, endpoint: Endpoint, folder: Path, token: str) -> Launch:
    """Return the launch of NVIDIA's image, on the host's network: it binds to the loopback interface too."""
    program = _program("docker")
    models, control = Path("/models"), Path("/control")
    sockets = endpoint.control_folder
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # which the container ignores
    gpus = f'"device={visible}"' if visible else "all"  # quoted as Docker's CSV
    command = (
        program, "run", "--rm", "--init", "--name", token, "--network", "host", "--shm-size", "1g",
        "--env", "ORT_DISABLE_TELEMETRY=1",
        *(("--gpus", gpus) if options.gpu else ()),
        "--volume", f"{folder / 'repository'}:{models}:ro",
        *_volumes_of_links(folder / "repository"),
        *(() if sockets is None else ("--volume", f"{sockets}:{control}")),
        # The container's root makes the sockets, and we have to write to them; their folder keeps other users out.
        options.image, "sh", "-c", 'umask 0; exec tritonserver "$@"', "sh",
        *_arguments(options, endpoint, models, token, control=control),
    )  # fmt: skip
    return Launch(
        command=command,
        environment=dict(os.environ),
        folder=folder,
        cleanup_command=(program, "rm", "--force", token),
    )


_PROGRAMS = {
    "local": ("tritonserver", "Run inside NVIDIA's Triton container"),
    "docker": ("docker", "Install Docker (and NVIDIA's container toolkit)"),
}


def _program(kind: ServerKind) -> str:
    name, advice = _PROGRAMS[kind]
    program = shutil.which(name)
    if program is None:
        raise LauncherMissing(
            f"There is no {name} on PATH.\n{advice}, or use the embedded server: {install_command('embedded')}."
        )
    return program


def check_launcher(kind: ServerKind) -> None:
    """Raise LauncherMissing if this kind of server is not installed; others start a remote one."""
    if kind == "embedded":
        _embedded_folder()
    elif kind in _PROGRAMS:
        _program(kind)


def _volumes_of_links(repository: Path) -> Iterator[str]:
    """Yield the volumes that mount the targets of links in the repository, at the same path in the container."""
    for entry in repository.glob("*"):
        if entry.is_symlink():
            yield from ("--volume", f"{entry.readlink()}:{entry.readlink()}:ro")


LAUNCHERS: dict[ServerKind, Launcher] = {
    "embedded": embedded_launch,
    "local": local_launch,
    "docker": docker_launch,
}
"""The kinds that we start ourselves. `remote` is not among them: others start it."""

SHARED_MEMORY_STEP_BYTES = 64 * 2**20
"""Growth step of the memory through which an instance gets its requests. Each growth is a new mapping, which our
runtime has to page-lock anew, so on a GPU the steps are large if the machine has room for many."""


def _arguments(
    options: ServerOptions, endpoint: Endpoint, repository: Path, token: str, *, control: Path | None = None
) -> tuple[str, ...]:
    """Return tritonserver's arguments. `control`: the control folder as the server sees it; None: as we do."""
    return (
        f"--id={token}",
        f"--model-repository={repository}",
        *access_arguments(options, endpoint, token),
        # The config is complete; auto-completion costs one more process and a second per load.
        *(() if options.completes_config else ("--disable-auto-complete-config",)),
        *_addresses(endpoint, control or endpoint.control_folder),
        f"--metrics-address={endpoint.host}",
        f"--metrics-port={endpoint.metrics_port}",
        f"--allow-gpu-metrics={str(options.gpu).lower()}",
        "--log-verbose=0",
        f"--exit-timeout-secs={max(1, round(options.exit_grace_s))}",
        f"--backend-config=python,shm-region-prefix-name={token}-",
        *(_large_steps() if options.gpu and options.kind != "docker" else ()),
        *(() if options.timeline is None else _traces(options.timeline)),
        *options.extra_arguments,
    )


def _traces(folder: Path) -> Iterator[str]:
    for setting in (f"triton,file={folder / TRACE_FILE}", "rate=1", "count=-1", "level=TIMESTAMPS"):
        yield f"--trace-config={setting}"


def _addresses(endpoint: Endpoint, control: Path | None) -> Iterator[str]:
    ports = {"http": endpoint.http_port, "grpc": endpoint.grpc_port}
    sockets = {"http": HTTP_SOCKET, "grpc": GRPC_SOCKET.removesuffix(":1")}
    for protocol, port in ports.items():
        address = endpoint.host if port is not None else f"unix:{control}/{sockets[protocol]}"
        yield f"--{protocol}-address={address}"
        yield f"--{protocol}-port={port or 1}"


def _large_steps() -> Iterator[str]:
    room = os.statvfs("/dev/shm")  # noqa: S108 - Triton's own folder for it
    if room.f_bavail * room.f_frsize >= 32 * SHARED_MEMORY_STEP_BYTES:
        for name in ("shm-default-byte-size", "shm-growth-byte-size"):
            yield f"--backend-config=python,{name}={SHARED_MEMORY_STEP_BYTES}"


KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),  # the largest that glibc accepts
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000",
}
"""Settings of glibc that keep freed memory: the kernel would have to clear it for the next batch. The Python
backend copies each input into fresh memory. With these settings, a 301 kB input cost a model 85 us instead of 104
us. Each thread keeps 2,000 small blocks of a size instead of 7: the gRPC front end's threads, which else wait for
each other's memory, let 71,500 requests/s through instead of 57,700 on 16 cores. It takes 45 MiB on two cores."""

VERTEX_AI = "AIP_MODE"
"""Variable of Vertex AI's containers. It makes Triton answer on all interfaces, also to control requests."""


def _environment(folder: Path, *, gpu: bool) -> dict[str, str]:
    """Return our environment, changed so that the Python backend finds our Python and its packages."""
    home = write_python_home(folder / "python")
    library_path = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]
    return {
        **(KEEP_MEMORY if gpu else {}),
        **{name: value for name, value in os.environ.items() if name != VERTEX_AI},
        "VIRTUAL_ENV": str(home),
        "PATH": os.pathsep.join(
            [str(home / "bin"), str(Path(sys.prefix, "bin")), os.environ.get("PATH", os.defpath)]
        ),
        "LD_LIBRARY_PATH": os.pathsep.join(path for path in library_path if path),
        # numpy only copies there; its own threads would be idle overhead in every instance.
        "OPENBLAS_NUM_THREADS": "1",
    }


def _embedded(folder: Path) -> tuple[str, str]:
    """Return the embedded server's program and its backend folder, made in `folder`, as it is started."""
    server = _embedded_folder()
    backends = _link_backends(server, folder / "backends")
    return str(server / "bin" / "tritonserver"), f"--backend-directory={backends}"


def _embedded_folder() -> Path:
    """Return the wheel's folder `tritonserver`. The package is never imported: an import has side effects."""
    package = importlib.util.find_spec("pytriton")
    if package is None or package.origin is None:
        raise LauncherMissing(f"The embedded Triton server is not installed.\nRun: {install_command('embedded')}")
    return Path(package.origin).parent / "tritonserver"


def _link_backends(server: Path, target: Path) -> Path:
    """Make a backend folder of links into the wheel, with the stub of our Python version; return it.

    Links, not copies: the stub finds its libraries relative to its real path. The wheel has the Python backend
    alone; a second one, `onnxruntime`, is ours in Python, which takes no symbolic link for the Python backend.
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
        if source.name == "libtriton_python.so":
            place(source, link, copy=False)
        else:
            link.symlink_to(source)
    onnx = target / "onnxruntime"
    onnx.mkdir(exist_ok=True)
    shutil.copyfile(RUNTIME / "onnx_runtime.py", onnx / "model.py")
    return target


def _require_libpython(version: str) -> None:
    """Raise LauncherMissing if Python has no shared library, which the stub needs and some builds lack."""
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
