"""The files from which images are built: pinned packages, and our wheel."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

from deploy.images.packages import Pins, client_pins, python_version, search_pins, server_pins
from model_repo.spec import Engine
from search.records.recommendation import RecommendationRecord, RuntimeRecord

CONSTRAINTS_FILE = "images/constraints.txt"

EMBEDDED_TRITON = {"0.7.0": "2.51.0"}
"""nvidia-pytriton -> the Triton inside, for runs that did not record it."""

CUDA_RELEASES = {"12": "12.9.1", "13": "13.0.1"}
"""Major version of CUDA -> the release of NVIDIA's base image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the images of one bundle install. `server` is what was measured, if the run recorded it."""

    python: str  # such as 3.11
    server: Pins
    client: Pins
    search: Pins
    wheel_name: str
    wheel: bytes = field(repr=False)

    @property
    def constraints(self) -> str:
        """Return the text of `constraints.txt`: one `NAME==VERSION` per line."""
        pins = {**self.search, **self.client, **self.server}
        return "".join(f"{name}=={version}\n" for name, version in sorted(pins.items()))


def base_image(sources: Sources, engine: Engine) -> str:
    """Return the image on which the server is installed; on a GPU one with CUDA, into which Python is copied."""
    if engine.device == "cpu":
        return f"python:{sources.python}-slim"
    major = sources.server.get("cuda-bindings", "13").partition(".")[0]
    has_cudnn = any(name.startswith("nvidia-cudnn") for name in sources.server)
    # TensorRT's packages bring their CUDA along; ONNX Runtime's do so only with its extras.
    flavour = "base" if has_cudnn or engine.backend != "onnxruntime" else "cudnn-runtime"
    return f"nvidia/cuda:{CUDA_RELEASES.get(major, CUDA_RELEASES['13'])}-{flavour}-ubuntu24.04"


def installed_sources(found: RecommendationRecord, engine: Engine) -> Sources:
    """Return the run's packages of the server, and for the rest those of this installation."""
    measured = found.runtime
    return Sources(
        python=(measured and measured.python) or python_version(),
        server=dict(measured.packages)
        if measured is not None and measured.packages
        else server_pins(engine.backend, gpu=engine.device == "gpu"),
        client=client_pins(),
        search=search_pins(),
        wheel_name=wheel_name(),
        wheel=own_wheel(),
    )


def measured_runtime(found: RecommendationRecord, sources: Sources) -> RuntimeRecord:
    """Return the runtime of the certificate; if the run did not record it, that of the embedded server."""
    if found.runtime is not None:
        return found.runtime
    embedded = found.machine.versions.get("nvidia-pytriton", "")
    return RuntimeRecord(
        server="embedded",
        runtime="python",
        triton_version=EMBEDDED_TRITON.get(embedded),
        python=sources.python,
        image=None,
        packages=sources.server,
    )


PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search")
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
