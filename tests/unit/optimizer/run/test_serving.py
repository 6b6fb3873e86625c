"""The load that a run sends to its server."""

import pytest
from engines import plain_engine

from model_repo.spec import TensorSpec
from optimizer.run.serving import load_processes

ALONE = ((1, 0.5), (64, 3.2))
"""20,000 rows a second in batches of 64, 2,000 one by one."""


def processes_for(
    shape: tuple[int, ...] | None, *, cores: int, limit_ms: float = 50.0, rows: int = 1, shared: bool = False
) -> int:
    engine = plain_engine()
    if shape is not None:
        engine = plain_engine(alone_ms=ALONE, inputs=(TensorSpec(name="x", datatype="FP32", shape=shape),))
    return load_processes([engine], cores=cores, limit_ms=limit_ms, rows_per_request=rows, shared_memory=shared)


@pytest.mark.parametrize(
    ("shape", "cores", "rows", "shared", "processes"),
    [
        ((8,), 1, 1, False, 1),
        ((8,), 2, 1, False, 1),
        ((8,), 8, 1, False, 3),
        ((8,), 8, 2, False, 2),  # 10,000 requests a second
        ((8,), 16, 1, False, 4),
        ((3, 224, 224), 2, 1, False, 1),
        ((3, 224, 224), 16, 1, False, 8),  # 12 GB/s would take 43
        ((3, 64, 64), 32, 1, False, 6),  # 1 GB/s
        ((3, 96, 96), 64, 1, False, 10),  # 2.2 GB/s
        ((3, 96, 96), 64, 64, False, 8),  # 2.2 GB/s, in 313 requests
        ((3, 224, 224), 16, 1, True, 4),
    ],
)
def test_load_processes_follow_from_what_the_engine_can_take(
    shape: tuple[int, ...], cores: int, rows: int, shared: bool, processes: int
) -> None:
    assert processes_for(shape, cores=cores, rows=rows, shared=shared) == processes


def test_what_an_engine_can_take_is_within_the_limit_and_may_be_unknown() -> None:
    assert processes_for((3, 224, 224), cores=32, limit_ms=0.5) == 5  # 2,000 rows a second
    assert processes_for(None, cores=32, limit_ms=0.5) == 4
