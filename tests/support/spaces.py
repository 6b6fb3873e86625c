"""Search spaces: one plain engine on two cores, and several engines on a GPU."""

from collections.abc import Callable
from pathlib import Path

from engines import plain_engine

from search.space import MachineLimits, SearchSpace, search_space


def gpu_space(folder: Path, standalone_ms: Callable[[str, int], float], *precisions: str) -> SearchSpace:
    """Return the space of engines with these standalone times of a batch, on a GPU with 16 cores."""
    file = folder / "model.onnx"
    file.write_bytes(b"x")
    engines = tuple(
        plain_engine(
            files=(("model.onnx", file),),
            precision=precision,
            device="gpu",
            alone_ms=tuple((batch, standalone_ms(precision, batch)) for batch in (1, 8, 64)),
        )
        for precision in precisions
    )
    return search_space(engines, MachineLimits(cores=16, memory_bytes=2**38), limit_ms=50.0)


def two_core_space(folder: Path, *, limit_ms: float = 50.0, rows_per_request: int = 1) -> SearchSpace:
    """Return the space; writes its model file, a single byte, to `folder`."""
    file = folder / "model.onnx"
    file.write_bytes(b"x")
    engine = plain_engine(files=(("model.onnx", file),))
    limits = MachineLimits(cores=2, memory_bytes=2**34)
    return search_space((engine,), limits, limit_ms=limit_ms, rows_per_request=rows_per_request)
