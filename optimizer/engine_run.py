"""An engine's outputs for given inputs, computed on the GPU in a child process: for the accuracy gate."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizer.onnx_run import answer, run_in_child
from optimizer.samples import feeds_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from model_repo.spec import Engine
    from optimizer.onnx_model import Model
    from optimizer.onnx_run import Tensors

CHILD = (sys.executable, "-P", "-m", "optimizer.engine_run")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRunner:
    """An engine as `optimizer.accuracy` sees it. `variant` is the model it was built from."""

    engine: Engine
    variant: Model
    library_version: str

    @property
    def name(self) -> str:
        """Such as `tensorrt_rtx-1.4.0.76`."""
        return f"{self.engine.backend}-{self.library_version}"

    def run(self, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Tensors]:
        """All outputs for each of `feeds`, in order. Raises RunFailed."""
        file = dict(self.engine.files)[self.engine.model_file]
        request = {
            "folder": str(file.parent.absolute()),
            "file": file.name,
            "backend": self.engine.backend,
            "batched": self.engine.batched,
        }
        return run_in_child(CHILD, request, feeds_for(self.variant, feeds))


def _engine(request: Any) -> Callable[[Tensors], Tensors]:
    from model_repo.runtime.tritune_gpu.driver import DriverCuda
    from model_repo.runtime.tritune_gpu.runner import Runner
    from optimizer.engine_time import load_engine

    cuda = DriverCuda(0)
    stream = cuda.stream()
    engine = load_engine(Path(request["folder"]), request["file"], request["backend"], cuda, stream, graphs=False)
    runner = Runner(engine, cuda, stream, max_batch_size=int(request["batched"]), input_path="pinned")
    # The runner overwrites its arrays with each run.
    return lambda feed: {name: array.copy() for name, array in runner.run([feed]).items()}


if __name__ == "__main__":
    answer(Path(sys.argv[1]), _engine)
