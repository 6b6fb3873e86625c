"""The files from which images are built: pinned packages, and our wheel."""

from __future__ import annotations

from dataclasses import dataclass, field

from deploy.images.packages import Pins, client_pins, python_version, search_pins, server_pins
from deploy.images.wheel import own_wheel, wheel_name
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
