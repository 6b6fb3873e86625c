"""TensorRT and TensorRT-RTX, whichever is installed: one API, found at run time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from model_repo.runtime.tritune_gpu.tensorrt_engine import import_tensorrt

TensorRtBackend = Literal["tensorrt", "tensorrt_rtx"]
BACKENDS: tuple[TensorRtBackend, ...] = get_args(TensorRtBackend)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRt:
    """An installed library. `module` is its Python API."""

    backend: TensorRtBackend
    module: Any
    version: str

    def set_target(self, config: Any, compute_capability: str) -> None:
        """Let the builder aim at this kind of GPU; TensorRT itself always builds for the one that is here."""
        if self.backend == "tensorrt":
            return
        config.num_compute_capabilities = 1
        target = self._target(compute_capability)
        config.set_compute_capability(self.module.ComputeCapability.CURRENT if target is None else target, 0)

    def _target(self, compute_capability: str) -> Any:
        targets = getattr(self.module, "ComputeCapability", None)
        return getattr(targets, f"SM{compute_capability.replace('.', '')}", None)


def find_tensorrt(backend: TensorRtBackend) -> TensorRt | None:
    """The library, None where it is not installed or does not load."""
    try:
        module = import_tensorrt(backend)
    except (ImportError, OSError, RuntimeError):  # OSError: a library of its own that is missing
        return None
    return TensorRt(backend=backend, module=module, version=str(module.__version__))


def installed_tensorrt() -> tuple[TensorRt, ...]:
    """All that are installed."""
    found = (find_tensorrt(backend) for backend in BACKENDS)
    return tuple(library for library in found if library is not None)
