"""The search space of one plain engine on two cores."""

from pathlib import Path

from engines import plain_engine

from search.space import MachineLimits, SearchSpace, search_space


def two_core_space(folder: Path, *, limit_ms: float = 50.0, rows_per_request: int = 1) -> SearchSpace:
    """Return the space; writes its model file, a single byte, to `folder`."""
    file = folder / "model.onnx"
    file.write_bytes(b"x")
    engine = plain_engine(files=(("model.onnx", file),))
    limits = MachineLimits(cores=2, memory_bytes=2**34)
    return search_space((engine,), limits, limit_ms=limit_ms, rows_per_request=rows_per_request)
