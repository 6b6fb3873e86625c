"""The images of a bundle: NVIDIA's release for an engine; packages and our wheel for those that it builds."""

from __future__ import annotations

import ast
import base64
import functools
import hashlib
import importlib.util
import io
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution, distributions, packages_distributions
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from loadgen.errors import BadInput
from model_repo.repository.own_model import backend_of, own_files
from model_repo.server.options import DEFAULT_IMAGE
from model_repo.spec import Backend, Engine
from search.records.recommendation import RecommendationRecord

IMAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/:@-]{0,253}[A-Za-z0-9])?")

REPOSITORY = "nvcr.io/nvidia/tritonserver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One monthly release: the TensorRT and ONNX Runtime inside, and the highest opset that the latter reads."""

    tag: str
    tensorrt: str
    onnxruntime: str
    opset: int


RELEASES = (
    Release(tag="24.10", tensorrt="10.5.0", onnxruntime="1.19.2", opset=21),
    Release(tag="24.11", tensorrt="10.6.0", onnxruntime="1.19.2", opset=21),
    Release(tag="24.12", tensorrt="10.7.0", onnxruntime="1.20.1", opset=21),
    Release(tag="25.01", tensorrt="10.8.0", onnxruntime="1.20.1", opset=21),
    Release(tag="25.02", tensorrt="10.8.0", onnxruntime="1.20.1", opset=21),
    Release(tag="25.03", tensorrt="10.9.0", onnxruntime="1.21.0", opset=22),
    Release(tag="25.04", tensorrt="10.9.0", onnxruntime="1.21.0", opset=22),
    Release(tag="25.05", tensorrt="10.10.0", onnxruntime="1.22.0", opset=23),
    Release(tag="25.06", tensorrt="10.11.0", onnxruntime="1.22.0", opset=23),
    Release(tag="25.08", tensorrt="10.13.2", onnxruntime="1.23.0", opset=23),
    Release(tag="25.09", tensorrt="10.13.3", onnxruntime="1.23.0", opset=23),
    Release(tag="25.10", tensorrt="10.13.3", onnxruntime="1.23.1", opset=23),
)
"""Oldest first. TensorRT as in NVIDIA's Frameworks Support Matrix, ONNX Runtime as in the compatibility page of
Triton's documentation (docs.nvidia.com/deeplearning/triton-inference-server, "Release Compatibility Matrix"),
opsets as in ONNX Runtime's compatibility page (onnxruntime.ai/docs/reference/compatibility.html)."""


def image_for(*, backend: str, tensorrt_version: str | None, opset: int) -> str:
    """Return the image that serves the engine. Raises BadInput if no known release does.

    A TensorRT engine loads only in the version that built it, so the release is the one with that version. For
    ONNX Runtime it is the release of the server that was measured, or the oldest one that reads the opset.
    """
    if backend == "tensorrt":
        wanted = None if tensorrt_version is None else ".".join(tensorrt_version.split(".")[:3])
        for release in reversed(RELEASES):
            if release.tensorrt == wanted:  # the newest with the same major, minor and patch number
                return f"{REPOSITORY}:{release.tag}-py3"
        known, version = f"{RELEASES[0].tensorrt} to {RELEASES[-1].tensorrt}", tensorrt_version or "of this engine"
        raise BadInput(
            f"No release of NVIDIA's container with TensorRT {version} is known (known: {known}).",
            "Name the one with the version that built the engine: --image nvcr.io/nvidia/tritonserver:YY.MM-py3",
        )
    for release in RELEASES:
        if release.opset >= opset:
            return DEFAULT_IMAGE if release is RELEASES[0] else f"{REPOSITORY}:{release.tag}-py3"
    raise BadInput(
        f"No release of NVIDIA's container up to {RELEASES[-1].tag} is known to read opset {opset}.",
        "Name one that does: --image nvcr.io/nvidia/tritonserver:YY.MM-py3",
    )


def checked_image(image: str, option: str) -> str:
    """Return the image. Raises BadInput, which names the option, if it cannot be the name of an image."""
    if not IMAGE.fullmatch(image):
        raise BadInput(
            f"{option} {image!r} is not the name of a container image.", f"Write {option} REGISTRY/NAME:TAG"
        )
    return image


SERVER = "nvidia-pytriton"
"""The wheel with tritonserver and its stubs. Its Python packages are never imported, so theirs are left out."""

LIBRARIES: Mapping[Backend, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
    "tensorrt": ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
    "tensorrt_rtx": ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs", "tensorrt-rtx"),
    "repository": (),
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


def server_pins(backend: Backend, *, gpu: bool, more: Iterable[str] = ()) -> Pins:
    """Return what server and models load: Triton, NumPy, the engine's library, and `more` distributions."""
    pins = installed_pins([*LIBRARIES[backend], "numpy", *(["cuda-bindings"] if gpu else []), *more])
    if gpu:
        names = (canonicalize_name(found.name) for found in distributions())
        pins |= installed_pins(name for name in names if name.startswith(CUDA) and name != SERVER)
    pins |= {name: version for name, version in installed_pins([SERVER]).items() if name == SERVER}
    return dict(sorted(pins.items()))


@functools.cache
def client_pins() -> Pins:
    """Return what the load generator alone needs."""
    return installed_pins(CLIENT)


def own_backends(engine: Engine) -> set[str]:
    """Return the backends of a user's own model and its members, as `backend_of` names them; else none."""
    own = (one.own for one in (engine, *engine.members))
    return {backend_of(one.folder, one.text) for one in own if one is not None}


def imported_distributions(engine: Engine) -> list[str]:
    """Return the installed distributions that a user's own models need in the Python backend; else none.

    They are those that Python files import by name, and ONNX Runtime if the embedded server has to execute ONNX.
    """
    found = set(LIBRARIES["onnxruntime"]) if "onnxruntime" in own_backends(engine) else set()
    folders = [one.own.folder for one in (engine, *engine.members) if one.own is not None]
    known = packages_distributions() if folders else {}
    for name, path in chain.from_iterable(map(own_files, folders)):
        with suppress(SyntaxError, ValueError):  # Triton does not run it either, or not with this Python
            for node in ast.walk(ast.parse(path.read_bytes())) if name.endswith(".py") else ():
                imports = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    imports = [node.module or ""]
                found |= {owner for one in imports for owner in known.get(one.partition(".")[0], ())}
    return sorted(found)


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
        for needed in map(Requirement, found.requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(needed.name, wanted) for wanted in ("", *sorted(needed.extras))]
    return dict(sorted(pins.items()))


CONSTRAINTS_FILE = "images/constraints.txt"

DEFAULT_TRITON = "2.51.0"
"""The Triton of `DEFAULT_IMAGE`."""

CUDA_RELEASES = {"12": "12.9.1", "13": "13.0.1"}
"""Major version of CUDA -> the release of NVIDIA's base image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the images of one bundle install. `server` is what was measured, if the run recorded it."""

    python: str  # such as 3.11
    server: Pins
    client: Pins
    wheel_name: str
    wheel: bytes = field(repr=False)

    @property
    def constraints(self) -> str:
        """Return the text of `constraints.txt`: one `NAME==VERSION` per line."""
        pins = {**self.client, **self.server}
        return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))


def base_image(sources: Sources, engine: Engine) -> str:
    """Return the image on which the server is installed; on a GPU one with CUDA, into which Python is copied."""
    if engine.device == "cpu":
        return f"python:{sources.python}-slim"
    major = sources.server.get("cuda-bindings", "13").partition(".")[0]
    has_cudnn = any(name.startswith("nvidia-cudnn") for name in sources.server)
    # TensorRT's packages bring their CUDA along; ONNX Runtime's do so only with its extras.
    flavour = (
        "cudnn-runtime" if not has_cudnn and "onnxruntime" in {engine.backend, *own_backends(engine)} else "base"
    )
    return f"nvidia/cuda:{CUDA_RELEASES.get(major, CUDA_RELEASES['13'])}-{flavour}-ubuntu24.04"


def installed_sources(found: RecommendationRecord, engine: Engine) -> Sources:
    """Return the run's packages of the server, and for the rest those of this installation."""
    measured = found.runtime
    return Sources(
        python=measured.python or python_version(),
        server=dict(measured.packages)
        or server_pins(engine.backend, gpu=engine.device == "gpu", more=imported_distributions(engine)),
        client=client_pins(),
        wheel_name=wheel_name(),
        wheel=own_wheel(),
    )


PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search", "tritune")
LEFT_OUT = {"__pycache__"}
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest time that a zip file can hold. Every file has it, so that equal files give equal wheels."""

WHEEL = "Wheel-Version: 1.0\nGenerator: tritune\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_name() -> str:
    """Return the file's name."""
    return f"tritune-{distribution('tritune').version}-py3-none-any.whl"


@functools.cache
def own_wheel() -> bytes:
    """Return the wheel: the same bytes for the same installation."""
    own = distribution("tritune")
    info = f"tritune-{own.version}.dist-info"
    files = dict(_files())
    files[f"{info}/WHEEL"] = WHEEL.encode()
    # An installation as editable may be found by its egg-info, whose metadata has the other name.
    files[f"{info}/METADATA"] = (own.read_text("METADATA") or own.read_text("PKG-INFO") or "").encode()
    files[f"{info}/entry_points.txt"] = (own.read_text("entry_points.txt") or "").encode()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return archive.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield (path in the wheel, content) of our packages."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not LEFT_OUT & set(path.relative_to(folder).parts):
                yield f"{package}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
