"""The packages of the images, pinned to the versions that are installed here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution, distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from model_repo.spec import Backend

SERVER = "nvidia-pytriton"
"""The wheel with tritonserver and its stubs. Its Python packages are never imported, so theirs are left out."""

LIBRARIES: Mapping[Backend, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
    "tensorrt": ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
    "tensorrt_rtx": ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs", "tensorrt-rtx"),
}
"""Engine backend -> distributions of its library; those that are installed count."""

CLIENT = (
    "gevent",
    "hpack",
    "httptools",
    "jinja2",
    "locust",
    "numpy",
    "psutil",
    "pydantic",
    "pyzmq",
    "PyYAML",
    "rich",
    "tritonclient[grpc]",
    "typer",
)
"""The packages that `loadgen` imports."""

CUDA = "nvidia-"
"""Prefix of CUDA's libraries in the package index."""

Pins = dict[str, str]
"""Name of a distribution, normalized -> its version."""


def python_version() -> str:
    """Return our Python as `3.11`: Triton's stub of this version ran the models."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def server_pins(backend: Backend, *, gpu: bool) -> Pins:
    """Return what the server and the processes of its models load: Triton, NumPy, and the engine's library."""
    pins = installed_pins([*LIBRARIES[backend], "numpy", *(["cuda-bindings"] if gpu else [])])
    if gpu:
        names = (canonicalize_name(found.name) for found in distributions())
        pins |= installed_pins(name for name in names if name.startswith(CUDA) and name != SERVER)
    pins |= {name: version for name, version in installed_pins([SERVER]).items() if name == SERVER}
    return dict(sorted(pins.items()))


@functools.cache
def client_pins() -> Pins:
    """Return what the load generator alone needs."""
    return installed_pins(CLIENT)


@functools.cache
def search_pins() -> Pins:
    """Return what a whole installation with the embedded server needs."""
    return {name: version for name, version in installed_pins(["tritune[embedded]"]).items() if name != "tritune"}


def installed_pins(roots: Iterable[str]) -> Pins:
    """Return the installed distributions among `roots`, `NAME` or `NAME[EXTRA]`, and all that they require."""
    pins: Pins = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(one.name, extra) for one in map(Requirement, roots) for extra in ("", *sorted(one.extras))]
    while waiting:
        name, extra = waiting.pop()
        name = canonicalize_name(name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        pins[name] = found.version
        waiting += _required(found.requires or (), extra)
    return dict(sorted(pins.items()))


def _required(lines: Iterable[str], extra: str) -> Iterator[tuple[str, str]]:
    """Yield (name, extra) for each requirement that applies here with this extra of its distribution."""
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for wanted in ("", *sorted(requirement.extras)):
                yield requirement.name, wanted
